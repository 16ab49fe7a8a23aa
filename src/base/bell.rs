//! The bell: the one thing a waiting thread sleeps on.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::clock::Clock;
use super::locked;

/// The fences that were reserved for a lease: a block of consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fences {
    /// The last of them.
    pub last: u64,
    /// How many there are: at least one, perhaps fewer than requested (R16).
    pub count: u32,
}

/// A hand-off from a release to a waiter: which of the waiter's attempts was served, and with which
/// fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number of the attempt whose entry in the queue was served (R15).
    pub attempt: u64,
    /// The fences that came with the hand-off.
    pub fences: Option<Fences>,
}

/// Why a wait on a bell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Nobody rang until the deadline.
    Silent,
    /// Something changed: the waiter's turn, an interrupt, a hint. The waiter checks again.
    Hint,
    /// The server's queue handed the lock over.
    Grant(Grant),
}

/// Wakes one waiting thread. A grant, a hint, the thread's turn or an interrupt rings it. A ring
/// before the wait is not lost: the next wait returns at once.
#[derive(Debug, Default)]
pub struct Bell {
    state: Mutex<Rings>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Rings {
    rung: bool,
    grant: Option<Grant>,
}

impl Bell {
    /// A bell that nobody has rung.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Wakes the waiter, which then checks again.
    pub fn ring(&self) {
        locked(&self.state).rung = true;
        self.changed.notify_all();
    }

    /// Wakes the waiter with a grant.
    pub fn grant(&self, grant: Grant) {
        locked(&self.state).grant = Some(grant);
        self.changed.notify_all();
    }

    /// Sleeps until the bell rings, or until `until` (`None`: no limit).
    pub fn wait(&self, clock: &Clock, until: Option<Instant>) -> Rung {
        let mut state = locked(&self.state);
        loop {
            if let Some(grant) = state.grant.take() {
                state.rung = false;
                return Rung::Grant(grant);
            }
            if std::mem::take(&mut state.rung) {
                return Rung::Hint;
            }
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    if clock.now() >= until {
                        return Rung::Silent;
                    }
                    let (state, _) = self
                        .changed
                        .wait_timeout(state, clock.sleep_for(until))
                        .unwrap_or_else(PoisonError::into_inner);
                    state
                }
            };
        }
    }
}
