//! The holder's side of conditions: giving a lock up for a wait, getting it back, and waking
//! others.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::RedisLock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::interrupt::{Interrupt, Interruption};
use crate::lease::acquire::HeldFor;
use crate::lease::acquisition::Acquisition;
use crate::lease::condition::{Failed, Woken, interrupted_with_the_lock};
use crate::lease::granted::Lease;
use crate::lease::leaving::Leaving;
use crate::lease::lost::{Ended, LostReason};
use crate::lease::store::Notify;
use crate::lease::wait::{Caller, Wait};
use crate::lease::wait_limits::{Attempts, WaitLimits};
use crate::local::holds::{self, Hold};
use crate::local::owned::Owned;
use crate::lock::condition::ConditionLock;

impl ConditionLock for RedisLock {
    fn wait_in(
        &self,
        condition: &str,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<bool> {
        let deadline = timeout.and_then(|timeout| self.deadline(timeout));
        let interrupt = interrupt.map(Interruption::of);
        let limits = WaitLimits { once: false, deadline, trying: true, interrupt };
        self.wait_under(condition, &limits)
    }

    fn notify(&self, condition: &str, most: u32) -> Result<()> {
        let context = self.context();
        context.check_open().map_err(|error| self.named(error))?;
        let held = self.held()?;
        let what = Notify { key: &held.key, token: &held.token, condition, most };
        match held.store.notify(&what, context.command_deadline()) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => {
                context.finish(&held, Ended::Lost(LostReason::Taken));
                Err(self.lost())
            }
            Err(error) if error.may_have_run => {
                Err(self
                    .unknown("the notification had no answer: it may have been carried out", error))
            }
            Err(error) => Err(self.failed(error)),
        }
    }
}

impl RedisLock {
    /// Waits in a condition, and restores as many holds before it returns. `Ok(false)`: the time
    /// was over first.
    fn wait_under(&self, condition: &str, limits: &WaitLimits<'_>) -> Result<bool> {
        let context = self.context();
        context.check_process().map_err(|error| self.named(error))?;
        self.held()?;
        self.check_not_reading().map_err(|error| self.named(error))?;
        limits.check(context).map_err(|error| {
            self.named(if error.is_interrupted() { interrupted_with_the_lock() } else { error })
        })?;
        let mut acquisition = self.acquisition().map_err(|error| self.named(error))?;
        let hold = holds::take(&self.shared).ok_or_else(|| self.not_held())?;
        let leaving = Leaving::of_a_wait(context, &hold.owned.lease);
        // Whether it has let go: a wait that was entered may still fail, and comes here again.
        let has_let_go = Cell::new(false);
        let released = |how| {
            if !has_let_go.replace(true) {
                hold.owned.ends(context, &self.shared.subject);
            }
            leaving.end(how);
            self.shared.queue().leave(hold.owned.turn);
        };
        let woken = acquisition.wait_in(condition, &leaving, limits, &|| {
            released(Ended::Released { copy_in_flight: false })
        });
        let woken = match woken {
            Ok(woken) => woken,
            Err(Failed::Lost) => {
                leaving.end(Ended::Lost(LostReason::Taken));
                drop(leaving);
                return self.keep(hold, self.lost());
            }
            Err(Failed::NotEntered(error)) => {
                leaving.let_go();
                drop(leaving);
                let error =
                    if hold.owned.lease.is_valid() { self.named(error) } else { self.lost() };
                return self.keep(hold, error);
            }
            Err(Failed::Unknown(error)) => {
                released(Ended::GivenUp { release_sent: true });
                // It has no lock, and wanted it back.
                drop(context.counters.waits(&self.shared.subject, &context.clock));
                return Err(self.named(error));
            }
        };
        let waiting = context.counters.waits(&self.shared.subject, &context.clock);
        let (outcome, lease) =
            self.lock_after(woken, &mut acquisition).map_err(|error| self.named(error))?;
        if !context.renewers.of(&lease).add(&lease) {
            context.finish(&lease, Ended::GivenUp { release_sent: false });
            let closed = Error::new(ErrorKind::Closed, "the client is closed").leaving(true);
            return Err(self.named(closed));
        }
        let turn = self.shared.queue().adopt(&lease);
        if lease.has_ended() {
            // Lost since it was granted, as in `own`.
            self.shared.queue().leave_after_loss(&lease);
        }
        let (fence, since) = (lease.held_fence(), context.clock.now());
        waiting.granted(lease.how, since);
        let owned = Owned { lease, turn, fence, since, ..hold.owned };
        let held = holds::enter(Hold { owned, ..hold });
        debug_assert!(held.is_ok(), "its old hold was there a moment ago");
        outcome.map_err(|error| self.named(error))
    }

    /// The result of the wait, and the lock again: the thread which waited goes on under the lock.
    fn lock_after(
        &self,
        woken: Woken,
        acquisition: &mut Acquisition,
    ) -> Result<(Result<bool>, Arc<Lease>)> {
        match woken {
            Woken::Granted(lease) => Ok((Ok(true), lease)),
            Woken::Notified(refused) => {
                Ok((Ok(true), self.lock_again_after(acquisition, Some(refused))?))
            }
            Woken::Nowhere => Ok((Ok(true), self.lock_again_after(acquisition, None)?)),
            Woken::TimedOut => Ok((Ok(false), self.lock_again_after(acquisition, None)?)),
            Woken::Interrupted => {
                Ok((Err(interrupted_with_the_lock()), self.lock_again_after(acquisition, None)?))
            }
        }
    }

    fn lock_again_after(
        &self,
        acquisition: &mut Acquisition,
        refused: Option<HeldFor>,
    ) -> Result<Arc<Lease>> {
        let limits = WaitLimits::endless(None);
        let (attempts, slow) = (Attempts::unlimited(), self.shared.slow_wait());
        let mut wait = Wait {
            caller: Caller { limits: &limits, attempts, slow },
            contention: &self.shared.contention,
            report: &|_| (),
            silent_since: None,
            why: None,
        };
        let granted = acquisition.run(&mut wait, refused);
        let granted = granted.map_err(|error| error.leaving(acquisition.leaves_something()))?;
        granted.ok_or_else(|| self.ended_without_lease())
    }

    /// Puts back a hold that a wait in a condition had removed.
    fn keep<T>(&self, hold: Hold, error: Error) -> Result<T> {
        match holds::enter(hold) {
            Ok(()) => Err(error),
            Err(hold) => self.give_up(&hold.owned).and(Err(error)),
        }
    }

    /// This thread's lease, if it is valid and was acquired with the options of this handle.
    fn held(&self) -> Result<Arc<Lease>> {
        let held = holds::with(&self.shared, |hold| {
            (Arc::clone(&hold.owned.lease), self.same_options(hold))
        });
        let (lease, same_options) = held.ok_or_else(|| self.not_held())?;
        if !same_options {
            return Err(self.conflict());
        }
        if lease.is_valid() { Ok(lease) } else { Err(self.lost()) }
    }
}
