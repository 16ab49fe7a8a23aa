//! What a client counts of its servers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::base::active::{Active, ActiveCount};
use crate::base::count::Count;
use crate::base::locked;

/// The counters of all servers of one client.
#[derive(Default)]
pub(crate) struct ServerCounters {
    /// Connections that were opened.
    pub(crate) connections: Count,
    /// How often a server went down.
    pub(crate) outages: Count,
    /// How many are down now.
    pub(crate) down: ActiveCount,
    /// Called with the server's address when it goes down (`true`), and when it is up again.
    tell: OnceLock<Box<Tell>>,
}

type Tell = dyn Fn(&Arc<str>, bool) + Send + Sync;

impl ServerCounters {
    /// From now on calls `tell` with the address of each server that goes down (`true`), and of
    /// each that is up again. It must not block.
    pub(crate) fn when_down(&self, tell: Box<Tell>) {
        let _ = self.tell.set(tell);
    }

    fn tell(&self, address: &Arc<str>, is_down: bool) {
        if let Some(tell) = self.tell.get() {
            tell(address, is_down);
        }
    }
}

/// For how long connecting must have been in vain, and nothing else answered, before a server
/// counts as down: not for a connection that breaks and is replaced.
const SILENT: Duration = Duration::from_secs(1);

/// Whether this client reaches a server. It is up again at the latest when this is dropped.
pub(super) struct Reach {
    counters: Arc<ServerCounters>,
    address: Arc<str>,
    state: Mutex<State>,
    /// Whether the state is `Up`: each answer looks here.
    is_up: AtomicBool,
}

enum State {
    Up,
    /// Since then no attempt to connect has succeeded.
    Silent(Instant),
    Down(#[expect(dead_code, reason = "counts until dropped")] Active),
}

impl Reach {
    pub(super) fn new(counters: &Arc<ServerCounters>, address: &str) -> Self {
        Self {
            counters: Arc::clone(counters),
            address: address.into(),
            state: Mutex::new(State::Up),
            is_up: AtomicBool::new(true),
        }
    }

    /// The server has answered.
    pub(super) fn answered(&self) {
        if self.is_up.load(Ordering::Relaxed) {
            return;
        }
        let mut state = locked(&self.state);
        self.is_up.store(true, Ordering::Relaxed);
        if let State::Down(_) = std::mem::replace(&mut *state, State::Up) {
            self.counters.tell(&self.address, false);
        }
    }

    /// It could not be connected to.
    pub(super) fn unconnected(&self) {
        self.unconnected_at(Instant::now());
    }

    fn unconnected_at(&self, now: Instant) {
        let mut state = locked(&self.state);
        match *state {
            State::Up => {
                *state = State::Silent(now);
                self.is_up.store(false, Ordering::Relaxed);
            }
            State::Silent(since) if now.saturating_duration_since(since) >= SILENT => {
                *state = State::Down(self.counters.down.add());
                self.counters.outages.add_one();
                self.counters.tell(&self.address, true);
            }
            State::Silent(_) | State::Down(_) => {}
        }
    }
}

impl Drop for Reach {
    fn drop(&mut self) {
        self.answered();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_down_once_connecting_was_in_vain_for_a_second() {
        let counters = Arc::<ServerCounters>::default();
        let told = Arc::<Mutex<Vec<(String, bool)>>>::default();
        let telling = Arc::clone(&told);
        counters.when_down(Box::new(move |address, is_down| {
            locked(&telling).push((address.to_string(), is_down));
        }));
        let counted = || (counters.outages.get(), counters.down.count());
        let [one, other] = ["one", "other"].map(|address| Reach::new(&counters, address));
        let now = Instant::now();
        let after = |reach: &Reach, ms| reach.unconnected_at(now + Duration::from_millis(ms));
        after(&one, 0);
        after(&one, 999);
        // An answer in between: it counts from the next failure on.
        one.answered();
        after(&one, 1_000);
        after(&one, 1_999);
        assert_eq!(counted(), (0, 0));
        after(&one, 2_000);
        after(&one, 9_000);
        assert_eq!(counted(), (1, 1));
        after(&other, 2_000);
        after(&other, 3_000);
        assert_eq!(counted(), (2, 2));
        one.answered();
        one.answered();
        assert_eq!(counted(), (2, 1));
        drop(other);
        drop(one);
        assert_eq!(counted(), (2, 0));
        let told: Vec<_> = locked(&told).iter().map(|(at, down)| format!("{at} {down}")).collect();
        assert_eq!(told, ["one true", "other true", "one false", "other false"]);
    }
}
