//! The holder's side of conditions: giving a lock back for a wait, having it again, and waking others.

use std::sync::Arc;

use super::RedisLock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::lease::Lease;
use crate::lease::acquire::Acquisition;
use crate::lease::condition::{Ended, Failed};
use crate::lease::notify::LostReason;
use crate::lease::patience::{Attempts, Patience};
use crate::lease::store::Notify;
use crate::local::holds::{self, Hold};

impl RedisLock {
    /// Waits in a condition, and has as many holds again when it returns. `Ok(false)`: the time was over first.
    pub(crate) fn wait_in(&self, condition: &Arc<str>, patience: &Patience<'_>) -> Result<bool> {
        let background = self.background();
        patience.check(background).map_err(|error| self.named(error))?;
        let mut acquisition = self.acquisition().map_err(|error| self.named(error))?;
        let hold = holds::take(&self.shared).ok_or_else(|| self.not_held())?;
        if !hold.lease.is_valid() {
            return self.keep(hold, self.lost());
        }
        // Before its release is sent, so that no extend of ours follows it (R8).
        background.renewal.remove(&hold.lease);
        let released = || {
            hold.lease.settle_as_released();
            self.shared.turn.leave(hold.ticket);
        };
        let ended = match acquisition.wait_in(condition, &hold.lease.token, patience, &released) {
            Ok(ended) => ended,
            Err(Failed::Lost) => {
                hold.lease.lose(LostReason::Taken);
                return self.keep(hold, self.lost());
            }
            Err(Failed::NotEntered(error)) => {
                background.renewal.add(&hold.lease);
                return self.keep(hold, self.named(error));
            }
            Err(Failed::Unknown(error)) => {
                released();
                background.cleaner.withdraw(hold.lease.withdrawal());
                return Err(self.named(error));
            }
        };
        let (outcome, lease) = match ended {
            Ended::Woken(lease) => (Ok(true), lease),
            Ended::TimedOut => (Ok(false), None),
            Ended::Interrupted => (Err(Error::new(ErrorKind::Interrupted, "the wait was interrupted; the lock is held")), None),
        };
        let lease = match lease {
            Some(lease) => lease,
            None => self.acquire_again(&mut acquisition).map_err(|error| self.named(error))?,
        };
        if !background.renewal.add(&lease) {
            background.cleaner.withdraw_now(lease.withdrawal(), background.command_deadline());
            return Err(self.named(Error::new(ErrorKind::Unavailable, "the client is closed")));
        }
        let ticket = self.shared.turn.adopt(&lease);
        let fence = lease.held_fence();
        let held = holds::enter(Hold { lease, ticket, fence, ..hold });
        debug_assert!(held.is_ok(), "its old hold was there a moment ago");
        outcome.map_err(|error| self.named(error))
    }

    /// Locks again after a wait, without an end: whoever waited under a lock goes on under it.
    fn acquire_again(&self, acquisition: &mut Acquisition) -> Result<Arc<Lease>> {
        let patience = Patience { once: false, deadline: None, trying: false, interrupt: None };
        let granted = acquisition.run(&patience, &mut Attempts::unlimited(), &self.shared.contention, &|_| ())?;
        granted.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the wait for the lock ended without it"))
    }

    /// Puts a hold back that a wait in a condition had taken out.
    fn keep<T>(&self, hold: Hold, error: Error) -> Result<T> {
        match holds::enter(hold) {
            Ok(()) => Err(error),
            Err(hold) => self.release(&hold).and(Err(error)),
        }
    }

    /// Wakes at most `most` waiters of a condition.
    pub(crate) fn notify(&self, condition: &str, most: u32) -> Result<()> {
        let held = holds::with(&self.shared, |hold| Arc::clone(&hold.lease)).ok_or_else(|| self.not_held())?;
        if !held.is_valid() {
            return Err(self.lost());
        }
        let background = self.background();
        let what = Notify { key: &held.key, token: &held.token, condition, most, number: held.next_notification() };
        match self.store.notify(&what, background.command_deadline()) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => {
                background.renewal.remove(&held);
                held.lose(LostReason::Taken);
                Err(self.lost())
            }
            Err(error) if error.may_have_run => Err(self.unknown("nobody knows whether anybody was notified", error)),
            Err(error) => Err(self.failed(error)),
        }
    }
}
