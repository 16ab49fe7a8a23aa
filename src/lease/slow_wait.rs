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
/// As long as calls wait, one of them speaks again after so many times the time that the first has
/// waited: whoever looks at the log sees that the wait goes on, and a long one does not fill it.
const AGAIN: u32 = 6;
/// The shortest pause between two lines, and before a call looks again whether it may speak.
const PAUSE: Duration = Duration::from_secs(1);

/// The wait of one call.
pub(crate) struct SlowWait<'a> {
    subject: &'a Subject,
    /// When a call has last said that it waits for the same lock.
    others: &'a Rarely,
    after: Duration,
    since: Option<Instant>,
}

impl<'a> SlowWait<'a> {
    /// That of a call which has not waited yet. It may speak `after` this time.
    pub(crate) fn new(subject: &'a Subject, others: &'a Rarely, after: Duration) -> Self {
        Self { subject, others, after, since: None }
    }

    /// The call waits. Returns when it has to look whether it may speak. `None`: never.
    pub(crate) fn waits(&mut self, now: Instant) -> Option<Instant> {
        let first = self.since.get_or_insert(now).checked_add(self.after)?;
        if now < first { Some(first) } else { now.checked_add(self.after.max(PAUSE)) }
    }

    /// Speaks if it is time to: says what is in the way, in the words that `why` finds. Nobody is
    /// asked for these if the program does not log at this level.
    pub(crate) fn say(&mut self, now: Instant, why: impl FnOnce() -> String) {
        if let Some(waited) = self.speaks(now) {
            let waited = waited.as_secs_f64();
            log::warn!("{}: a call has waited for {waited:.1} s: {}", self.subject, why());
        }
    }

    /// How long the call has waited, if it may say so now.
    fn speaks(&mut self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(*self.since.get_or_insert(now));
        let pause = self.after.saturating_mul(AGAIN).max(PAUSE);
        (waited >= self.after && self.others.may_say(now, pause)).then_some(waited)
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
    fn calls_that_wait_for_long_speak_one_at_a_time_and_again_as_long_as_they_wait() {
        let (subject, others, now) = (Subject::lock("a".into()), Rarely::default(), Instant::now());
        let call = |after| SlowWait::new(&subject, &others, Duration::from_secs(after));
        let at = |seconds| now + Duration::from_secs(seconds);
        let speaks = |call: &mut SlowWait<'_>, seconds| call.speaks(at(seconds)).is_some();
        let (mut first, mut second) = (call(10), call(10));
        assert_eq!(first.waits(at(0)), Some(at(10)));
        assert_eq!(first.waits(at(5)), Some(at(10)));
        assert!(!speaks(&mut second, 1) && !speaks(&mut first, 9));
        assert_eq!(first.speaks(at(12)), Some(Duration::from_secs(12)));
        assert_eq!(first.waits(at(12)), Some(at(22)));
        // The first has spoken less than a minute ago.
        assert!(!speaks(&mut first, 22) && !speaks(&mut second, 71));
        assert_eq!(second.speaks(at(72)), Some(Duration::from_secs(71)));
        assert!(!speaks(&mut first, 131) && speaks(&mut first, 132));
        let mut never = SlowWait::new(&subject, &others, Duration::MAX);
        assert!(never.waits(now).is_none() && !speaks(&mut never, 1_000_000));
    }

    #[test]
    fn without_a_time_before_it_a_call_speaks_once_in_a_second() {
        let (subject, others, now) = (Subject::lock("a".into()), Rarely::default(), Instant::now());
        let mut at_once = SlowWait::new(&subject, &others, Duration::ZERO);
        assert_eq!(at_once.waits(now), Some(now + PAUSE));
        assert!(at_once.speaks(now).is_some() && at_once.speaks(now + PAUSE / 2).is_none());
        assert!(at_once.speaks(now + PAUSE).is_some());
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
