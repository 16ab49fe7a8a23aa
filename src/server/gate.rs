//! The gate of a node (R14). While it is unknown whether the node is up, one thread finds out and
//! the others wait for it. While the node is down, one thread at a time tries to reach it and the
//! others fail fast.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::settings::Among;
use crate::base::locked;

/// The pause between two attempts to reach a node that is down: at most 14 attempts a second, and
/// its return is seen soon.
const PAUSE: Duration = Duration::from_millis(75);
/// How many connections are opened at the same time to a node that is up: when it goes down, at
/// most this many are opened in vain.
const AT_ONCE: u32 = 4;

/// Multiplied by the number of a quorum's nodes: they share the process's connection attempts,
/// because all of them may be down at the same time.
const MEMBERS_PAUSE: Duration = Duration::from_millis(50);

/// How long a node that is down is left alone.
pub(crate) fn pause(among: Among) -> Duration {
    let Among::Quorum(nodes) = among else { return PAUSE };
    PAUSE.max(MEMBERS_PAUSE.saturating_mul(nodes))
}

/// What decides whether a connection can be opened: clients with different targets learn nothing
/// from each other's failures.
///
/// A client that speaks TLS to a plain port, or has a timeout shorter than the round trip, always
/// fails, and would shut out clients with correct settings. Wrong credentials and certificates are
/// permanent errors, and count as an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) address: String,
    pub(crate) tls: bool,
    /// How long opening may take.
    pub(crate) within: Duration,
    /// The process: a fork inherits its parent's gates, and the thread that is probing at one may
    /// not exist in the fork.
    pub(crate) process: u32,
}

static GATES: Mutex<Vec<(Target, Weak<Gate>)>> = Mutex::new(Vec::new());

/// One per target, and so one per process, however many clients there are.
#[derive(Debug)]
pub(crate) struct Gate {
    /// The pause between two attempts while it is shut.
    pause: Duration,
    state: Mutex<Position>,
    changed: Condvar,
    /// Why the last attempt failed, for those that are turned away.
    cause: Mutex<Option<String>>,
}

#[derive(Debug)]
enum Position {
    /// The node answered last time: each thread that needs a connection opens one.
    Open { opening: u32 },
    /// Nobody has asked yet, or a connection has failed. Without this state every connection of
    /// every pool would be opened in vain when a node goes down, and that alone is more attempts
    /// than a node may get in a second.
    ///
    /// `next`: before then nobody tries, because an attempt with little time has just had no
    /// answer. The others wait: that says nothing about the node.
    Unknown { probing: bool, next: Option<Instant> },
    /// The last attempt failed.
    Shut { next: Instant, probing: bool },
}

impl Default for Position {
    fn default() -> Self {
        Self::Unknown { probing: false, next: None }
    }
}

impl Position {
    /// How long to wait for a change for which nobody notifies.
    fn pause(&self) -> Duration {
        match self {
            Self::Unknown { probing: false, next: Some(next) } => {
                next.saturating_duration_since(Instant::now())
            }
            _ => Duration::MAX,
        }
    }
}

/// Permission to open a connection. Its holder reports whether the node answered.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    /// Whether this attempt finds out for all.
    probe: bool,
}

impl Gate {
    fn new(pause: Duration) -> Self {
        Self { pause, state: Mutex::default(), changed: Condvar::new(), cause: Mutex::default() }
    }

    /// The gate of this target. The pause of the first caller counts.
    pub(crate) fn at(target: Target, pause: Duration) -> Arc<Self> {
        let mut gates = locked(&GATES);
        gates.retain(|(_, gate)| gate.strong_count() > 0);
        if let Some(gate) =
            gates.iter().find(|(at, _)| *at == target).and_then(|(_, gate)| gate.upgrade())
        {
            return gate;
        }
        let gate = Arc::new(Self::new(pause));
        gates.push((target, Arc::downgrade(&gate)));
        gate
    }

    /// Whether the last attempt to reach the node failed.
    pub(crate) fn is_shut(&self) -> bool {
        matches!(*locked(&self.state), Position::Shut { .. })
    }

    /// Permission to connect. `None`: the node is down, and another thread is trying or has just
    /// tried; or `wait` was over before this was known, or before one of `AT_ONCE` places came
    /// free.
    pub(crate) fn enter(&self, wait: Duration) -> Option<Pass<'_>> {
        let entered = Instant::now();
        let mut state = locked(&self.state);
        loop {
            match &mut *state {
                Position::Open { opening } if *opening < AT_ONCE => {
                    *opening += 1;
                    return Some(Pass { gate: self, probe: false });
                }
                Position::Unknown { probing: probing @ false, next }
                    if next.is_none_or(|next| Instant::now() >= next) =>
                {
                    *probing = true;
                    return Some(Pass { gate: self, probe: true });
                }
                Position::Shut { next, probing: probing @ false } if Instant::now() >= *next => {
                    *probing = true;
                    return Some(Pass { gate: self, probe: true });
                }
                Position::Shut { .. } => return None,
                Position::Open { .. } | Position::Unknown { .. } => {
                    let left = wait.saturating_sub(entered.elapsed());
                    if left.is_zero() {
                        return None;
                    }
                    let left = left.min(state.pause());
                    state = self
                        .changed
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
            }
        }
    }

    /// A connection that was in use failed: perhaps only that one. The next to connect finds out.
    pub(crate) fn doubt(&self) {
        let mut state = locked(&self.state);
        if matches!(*state, Position::Open { .. }) {
            *state = Position::default();
        }
    }

    /// Why the node is down.
    pub(crate) fn cause(&self) -> Option<String> {
        locked(&self.cause).clone()
    }

    /// A new connection failed at its first use.
    pub(crate) fn shut(&self, why: &impl ToString) {
        *locked(&self.cause) = Some(why.to_string());
        self.close();
    }

    fn close(&self) {
        let mut state = locked(&self.state);
        // A probe that is under way knows better.
        if matches!(*state, Position::Open { .. } | Position::Unknown { probing: false, .. }) {
            *state = Position::Shut { next: Instant::now() + self.pause, probing: false };
            self.changed.notify_all();
        }
    }
}

impl Pass<'_> {
    /// The node answered.
    pub(crate) fn opened(mut self) {
        if std::mem::take(&mut self.probe) {
            let mut state = locked(&self.gate.state);
            debug_assert!(!matches!(*state, Position::Open { .. }), "one probe at a time");
            *state = Position::Open { opening: 1 };
        }
    }

    /// An attempt that had little time had no answer. Whether the node is up is as unknown as
    /// before: a lease of 300 ms must not tell everybody that a node behind a slow link is down.
    pub(crate) fn had_no_time(mut self, why: &impl ToString) {
        *locked(&self.gate.cause) = Some(why.to_string());
        if std::mem::take(&mut self.probe) {
            let next = Some(Instant::now() + self.gate.pause);
            *locked(&self.gate.state) = Position::Unknown { probing: false, next };
        }
    }

    /// No answer. That shuts the gate even if this is not a probe: the gate may have been open
    /// since before the node went down.
    pub(crate) fn failed(self, why: &impl ToString) {
        *locked(&self.gate.cause) = Some(why.to_string());
        if !self.probe {
            self.gate.close();
        }
    }
}

impl Drop for Pass<'_> {
    /// Ends the attempt. A probe without an answer shuts the gate.
    fn drop(&mut self) {
        let mut state = locked(&self.gate.state);
        if self.probe {
            *state = Position::Shut { next: Instant::now() + self.gate.pause, probing: false };
        } else if let Position::Open { opening } = &mut *state {
            // A pass from before the node went down and came back is not counted any more.
            *opening = opening.saturating_sub(1);
        }
        drop(state);
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_WAIT: Duration = Duration::ZERO;
    const WHY: &str = "refused";

    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(1);

    fn open_with(pause: Duration) -> Gate {
        let gate = Gate::new(pause);
        gate.enter(NO_WAIT).expect("the first").opened();
        gate
    }

    fn open() -> Gate {
        open_with(LONG)
    }

    fn target(port: u16) -> Target {
        Target { address: format!("test:{port}"), tls: false, within: PAUSE, process: 0 }
    }

    #[test]
    fn a_quorums_nodes_share_the_attempts() {
        let millis = |among| pause(among).as_millis();
        let all = [Among::Itself, Among::Quorum(1), Among::Quorum(5), Among::Cluster];
        assert_eq!(all.map(millis), [75, 75, 250, 75]);
    }

    #[test]
    fn those_that_are_turned_away_are_told_why() {
        assert_eq!(Gate::new(LONG).cause(), None);
        let tells = |fail: fn(Pass<'_>, &'static str)| {
            let gate = Gate::new(LONG);
            fail(gate.enter(NO_WAIT).expect("the first"), "no route");
            gate.cause()
        };
        assert_eq!(tells(|pass, why| pass.failed(&why)).as_deref(), Some("no route"));
        assert_eq!(tells(|pass, why| pass.had_no_time(&why)).as_deref(), Some("no route"));
        let gate = open();
        gate.shut(&WHY);
        assert_eq!(gate.cause().as_deref(), Some(WHY));
    }

    #[test]
    fn after_a_failure_nobody_tries_for_a_pause() {
        let gate = open();
        assert!(!gate.is_shut());
        gate.shut(&WHY);
        assert!(gate.is_shut() && gate.enter(NO_WAIT).is_none());
        let gate = Gate::new(LONG);
        drop(gate.enter(NO_WAIT).expect("the first"));
        assert!(gate.enter(NO_WAIT).is_none(), "a failed probe has a pause after it");
    }

    #[test]
    fn one_thread_probes_while_the_others_fail_fast() {
        let gate = open_with(SHORT);
        gate.shut(&WHY);
        std::thread::sleep(SHORT);
        let probe = gate.enter(NO_WAIT).expect("its time has come");
        assert!(probe.probe && gate.enter(NO_WAIT).is_none());
        drop(probe);
        std::thread::sleep(SHORT);
        let probe = gate.enter(NO_WAIT).expect("the next probe");
        probe.opened();
        assert!(gate.enter(NO_WAIT).is_some());
    }

    #[test]
    fn an_attempt_that_had_little_time_neither_opens_nor_shuts_the_gate() {
        let gate = open();
        gate.doubt();
        gate.enter(NO_WAIT).expect("the first to ask").had_no_time(&WHY);
        assert!(gate.enter(NO_WAIT).is_none(), "with a pause");
        let gate = open_with(SHORT);
        gate.doubt();
        gate.enter(NO_WAIT).expect("the first to ask").had_no_time(&WHY);
        let probe = gate.enter(Duration::from_secs(60)).expect("the next waits, and finds out");
        assert!(probe.probe);
        probe.opened();
        gate.enter(NO_WAIT).expect("open").had_no_time(&WHY);
        assert!(gate.enter(NO_WAIT).is_some_and(|pass| !pass.probe), "one of many says nothing");
    }

    #[test]
    fn only_the_end_of_a_pause_comes_without_a_notification() {
        let next = Some(Instant::now() + LONG);
        assert!(Position::Unknown { probing: false, next }.pause() > LONG / 2);
        for notified in [
            Position::default(),
            Position::Unknown { probing: true, next },
            Position::Open { opening: AT_ONCE },
        ] {
            assert_eq!(notified.pause(), Duration::MAX);
        }
    }

    #[test]
    fn few_are_let_through_at_a_time() {
        let gate = open();
        let mut opening: Vec<_> =
            (0..AT_ONCE).map(|_| gate.enter(NO_WAIT).expect("open")).collect();
        assert!(gate.enter(NO_WAIT).is_none());
        opening.pop().expect("some").opened();
        assert!(gate.enter(NO_WAIT).is_some());
    }

    #[test]
    fn one_failure_through_an_open_gate_shuts_it() {
        let gate = open();
        let (one, other) = (gate.enter(NO_WAIT).expect("open"), gate.enter(NO_WAIT).expect("open"));
        one.failed(&WHY);
        assert!(gate.enter(NO_WAIT).is_none());
        other.opened();
        assert!(
            gate.enter(NO_WAIT).is_none(),
            "one that was let through before says nothing about now"
        );
    }

    #[test]
    fn in_doubt_the_others_wait_for_the_one_that_finds_out() {
        for answers in [true, false] {
            let gate = open();
            gate.doubt();
            let probe = gate.enter(NO_WAIT).expect("the first to ask");
            assert!(probe.probe && gate.enter(NO_WAIT).is_none());
            std::thread::scope(|scope| {
                let waiting = scope
                    .spawn(|| gate.enter(Duration::from_secs(60)).is_some_and(|pass| !pass.probe));
                if answers {
                    probe.opened();
                } else {
                    drop(probe);
                }
                assert_eq!(waiting.join().expect("no panic"), answers);
            });
        }
    }

    #[test]
    fn clients_share_a_gate_if_they_open_the_same_connections() {
        let gate = Gate::at(target(1), PAUSE);
        assert!(Arc::ptr_eq(&gate, &Gate::at(target(1), PAUSE)));
        for other in [
            target(2),
            Target { tls: true, ..target(1) },
            Target { within: PAUSE / 2, ..target(1) },
        ] {
            assert!(!Arc::ptr_eq(&gate, &Gate::at(other, PAUSE)));
        }
    }

    #[test]
    fn a_gate_that_nobody_uses_is_forgotten() {
        drop(Gate::at(target(3), PAUSE));
        let _other = Gate::at(target(4), PAUSE);
        assert!(locked(&GATES).iter().all(|(at, _)| *at != target(3)));
    }
}
