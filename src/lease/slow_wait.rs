//! Says in the log that a call waits for long, and what for.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::store::State;
use super::token::Token;
use crate::base::log;
use crate::base::rarely::Rarely;
use crate::base::subject::Subject;

/// How many holders are named.
const NAMED: usize = 3;
/// Twice no time is no time: a call would speak without end.
const SHORTEST: Duration = Duration::from_millis(1);

/// The wait of one call.
pub(crate) struct SlowWait<'a> {
    subject: &'a Subject,
    /// When another call has last said that it waits for the same lock.
    others: &'a Rarely,
    after: Duration,
    since: Option<Instant>,
    /// How long it has waited when it is due to speak.
    due: Duration,
}

impl<'a> SlowWait<'a> {
    /// That of a call which has not waited yet. It speaks `after` this time, and again each time it
    /// has waited twice as long: whoever looks at the log sees that the wait goes on, and a wait of
    /// hours writes few lines.
    pub(crate) fn new(subject: &'a Subject, others: &'a Rarely, after: Duration) -> Self {
        Self { subject, others, after, since: None, due: after }
    }

    /// The call waits. Returns when it has to speak. `None`: never.
    pub(crate) fn waits(&mut self, now: Instant) -> Option<Instant> {
        let since = *self.since.get_or_insert(now);
        since.checked_add(self.due)
    }

    /// Speaks if it is time to: says what is in the way, in the words that `why` finds. Nobody is
    /// asked for these if the program does not log at this level.
    pub(crate) fn say(&mut self, now: Instant, why: impl FnOnce() -> String) {
        if let Some(waited) = self.speaks(now) {
            let waited = waited.as_secs_f64();
            log::warn!("{}: a call has waited for {waited:.1} s: {}", self.subject, why());
        }
    }

    /// Leaves it to another call, which knows what is in the way, to speak of it.
    pub(crate) fn leave_to_another(&mut self, now: Instant) {
        self.is_due(now);
    }

    /// How long the call has waited, if it has to say so now, and no other has just done so.
    fn speaks(&mut self, now: Instant) -> Option<Duration> {
        let waited = self.is_due(now)?;
        self.others.may_say(now, self.after).then_some(waited)
    }

    /// How long the call has waited, if it is time to speak. This time is over then.
    fn is_due(&mut self, now: Instant) -> Option<Duration> {
        self.waits(now).filter(|due| now >= *due)?;
        let waited = now.saturating_duration_since(self.since?);
        self.due = waited.saturating_mul(2).max(SHORTEST);
        Some(waited)
    }
}

/// Who holds the lock, and how many wait before the acquisition with this token.
pub(super) fn in_the_way(state: &State, token: &Token) -> String {
    // A lock that is kept after its unlock has no other holder beside.
    let is_kept = state.held.first().is_some_and(|held| held.token.is_kept());
    let mut text = String::from(if is_kept { "kept after its unlock by " } else { "held by " });
    for (at, held) in state.held.iter().take(NAMED).enumerate() {
        let separator = if at == 0 { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = match held.token.origin() {
            Some((client, drawn_at)) => {
                let since = drawn_at.elapsed().unwrap_or_default().as_secs_f64();
                write!(text, "{separator}{client} for at most {since:.1} s")
            }
            None => write!(text, "{separator}somebody whose token tells no name"),
        };
    }
    match state.held.len() {
        0 => text.push_str("nobody"),
        all if all > NAMED => _ = write!(text, " and {} more", all - NAMED),
        _ => {}
    }
    let before = state.waiting.iter().position(|waiting| waiting == token);
    let _ = match before {
        Some(before) => write!(text, "; waiters before it: {before}"),
        None => {
            write!(text, "; waiters in the queue: {}, and it has no place", state.waiting.len())
        }
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::store::Held;

    #[test]
    fn a_call_speaks_each_time_it_has_waited_twice_as_long_and_all_calls_once_in_that_time() {
        let (subject, others, now) = (Subject::lock("a".into()), Rarely::default(), Instant::now());
        let after = Duration::from_secs(10);
        let call = || SlowWait::new(&subject, &others, after);
        let (mut first, mut second) = (call(), call());
        let at = |seconds| now + Duration::from_secs(seconds);
        let speaks = |call: &mut SlowWait<'_>, seconds| call.speaks(at(seconds)).is_some();
        assert_eq!(first.waits(at(0)), Some(at(10)));
        assert_eq!(first.waits(at(5)), Some(at(10)));
        assert!(!speaks(&mut first, 9) && !speaks(&mut second, 1));
        assert_eq!(first.speaks(at(12)), Some(Duration::from_secs(12)));
        assert_eq!(first.waits(at(13)), Some(at(24)));
        // It is its turn, and the other call has spoken a moment ago.
        assert!(!speaks(&mut second, 13));
        assert_eq!(second.waits(at(14)), Some(at(1 + 24)));
        assert!(!speaks(&mut first, 23) && speaks(&mut first, 24));
        assert_eq!(first.waits(at(24)), Some(at(48)));
        assert!(!speaks(&mut second, 25) && speaks(&mut second, 49));
        let mut third = call();
        assert!(!speaks(&mut third, 60));
        third.leave_to_another(at(69));
        assert_eq!(third.waits(at(69)), Some(at(70)));
        third.leave_to_another(at(70));
        assert_eq!(third.waits(at(70)), Some(at(80)));
        assert!(speaks(&mut third, 80));
        let mut never = SlowWait::new(&subject, &others, Duration::MAX);
        assert!(never.waits(now).is_none() && !speaks(&mut never, 1_000_000));
        let mut at_once = SlowWait::new(&subject, &others, Duration::ZERO);
        assert!(speaks(&mut at_once, 0) && at_once.waits(at(0)) == Some(at(0) + SHORTEST));
    }

    #[test]
    fn it_names_those_in_the_way() {
        let [ours, second, third] = ["b", "c", "d"].map(Token::new);
        let held = |token: &str| Held { token: Token::new(token), remaining: None };
        let state = |held: Vec<Held>, waiting: &[&Token]| State {
            held,
            fence: None,
            waiting: waiting.iter().map(|token| (*token).clone()).collect(),
        };
        let nobody = state(vec![], &[&second, &ours]);
        assert_eq!(in_the_way(&nobody, &ours), "held by nobody; waiters before it: 1");
        let one = state(vec![held("alice")], &[&second, &third]);
        let unnamed = "held by somebody whose token tells no name";
        let no_place = "; waiters in the queue: 2, and it has no place";
        assert_eq!(in_the_way(&one, &ours), format!("{unnamed}{no_place}"));
        let named = "r:01980ca4-7a00-7000-8000-000000000000@billing-3";
        let many = in_the_way(&state((0..5).map(|_| held(named)).collect(), &[&ours]), &ours);
        assert_eq!(many.matches("billing-3 for at most ").count(), 3, "{many}");
        assert!(many.ends_with(" s and 2 more; waiters before it: 0"), "{many}");
        assert!(!many.contains("01980ca4"), "{many}");
        let kept = format!("kept:{}", &named[2..]);
        let kept = in_the_way(&state(vec![held(&kept)], &[&ours]), &ours);
        assert!(kept.starts_with("kept after its unlock by billing-3 for at most "), "{kept}");
    }
}
