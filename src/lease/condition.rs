//! Waiting in a condition: the loop around `LeaseStore::wait_in`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::acquire::HeldFor;
use super::acquisition::{Acquisition, Remains};
use super::events::How;
use super::granted::Lease;
use super::leaving::Leaving;
use super::store::InCondition;
use super::wait_limits::WaitLimits;
use crate::base::backoff;
use crate::base::bell::{Fences, Rung};
use crate::base::error::{Error, ErrorKind};
use crate::base::store_error::StoreError;

/// How a wait in a condition ended.
pub(crate) enum Woken {
    /// Notified, and the lock is held.
    Granted(Arc<Lease>),
    /// Notified, and refused the lock; its present lease lasts this long.
    Notified(HeldFor),
    /// Its place is gone, and with it perhaps a notification: so it wakes.
    Nowhere,
    TimedOut,
    Interrupted,
}

/// Why a wait ended without the lock.
pub(crate) enum Failed {
    /// The lease was not ours any more: nothing was released, and no condition entered.
    Lost,
    /// Certainly not carried out: the lease is held as before.
    NotEntered(Error),
    /// The server may have released the lease or not; the holder gives it up.
    Unknown(Error),
}

/// The state of a wait so far.
#[derive(Default)]
struct WaitState {
    /// The server has said that we are in the condition, and that the lease is released.
    entered: bool,
    /// Since when the server has not answered.
    silent_since: Option<Instant>,
    /// Why nothing could be sent.
    not_sent: Option<StoreError>,
}

/// Why a wait is to end.
#[derive(Clone, Copy)]
enum End {
    Interrupted,
    TimedOut,
}

impl From<End> for Woken {
    fn from(end: End) -> Self {
        match end {
            End::Interrupted => Self::Interrupted,
            End::TimedOut => Self::TimedOut,
        }
    }
}

enum Next {
    Woken(Woken),
    Pause(Duration),
}

impl Acquisition {
    /// Enters `condition`, which releases the lease of `leaving`, and waits there. `released` is
    /// called as soon as the lease is known to be gone.
    ///
    /// Each question is the same: "let me in if I still hold the lock; else tell me my state". So
    /// asking again recovers a lost answer:
    ///
    /// 1. we enter, and release; the answer is lost;
    /// 2. somebody notifies us, and releases: the lock is ours;
    /// 3. we ask again, and the server answers so.
    pub(crate) fn wait_in(
        &mut self,
        condition: &str,
        leaving: &Leaving<'_>,
        limits: &WaitLimits<'_>,
        released: &dyn Fn(),
    ) -> Result<Woken, Failed> {
        let context = Arc::clone(&self.context);
        let bell = Arc::clone(self.bell());
        let _rings = limits.rings(&context, &bell);
        let take = || leaving.take();
        let mut state = WaitState::default();
        loop {
            let timed_out = limits.is_over(context.clock.now());
            let end = self.ended(limits, timed_out, &mut state)?;
            self.begin_attempt();
            let listen = || self.listen();
            let place = self.place(&listen, backoff::condition_life());
            let release = leaving.release(&take);
            let old = (!state.entered).then_some(&release);
            let leaves = state.entered && end.is_some();
            let ask = self.ask(Some(place), true, context.command_deadline());
            let answer = self.store.wait_in(&ask, condition, old, leaves);
            if answer.is_ok() && !state.entered && !matches!(answer, Ok(InCondition::NotOurs)) {
                state.entered = true;
                released();
            }
            let next = match answer {
                Ok(InCondition::Waiting { asked_at }) => {
                    state.silent_since = None;
                    self.refused_at(asked_at, true);
                    match end {
                        // Not a valid answer to a question that leaves.
                        Some(_) if leaves => Next::Pause(backoff::outage_pause()),
                        // Entered only now: the next question leaves.
                        Some(_) => continue,
                        None => Next::Pause(backoff::condition_pause()),
                    }
                }
                Ok(InCondition::Granted { asked_at, fences }) => self.grant_at(asked_at, fences),
                Ok(InCondition::Notified { asked_at, remaining, heard }) => {
                    self.refused_at(asked_at, heard);
                    Next::Woken(Woken::Notified(HeldFor(remaining)))
                }
                Ok(InCondition::Nowhere) => Next::Woken(Woken::Nowhere),
                // Only a question that leaves is answered like this.
                Ok(InCondition::Left) => Next::Woken(end.map_or(Woken::Nowhere, Woken::from)),
                Ok(InCondition::NotOurs) => Next::Woken(self.not_ours(released)?),
                Err(error) => Next::Pause(self.unanswered_in(error, &mut state, leaving)?),
            };
            let pause = match next {
                Next::Pause(pause) => pause,
                Next::Woken(woken) => return Ok(woken),
            };
            let until = context.clock.now() + pause;
            let deadline = limits.deadline.filter(|_| !timed_out);
            let until = deadline.map_or(until, |deadline| deadline.min(until));
            if let Rung::Grant(grant) = bell.wait(&context.clock, Some(until))
                && state.entered
                && let Ok(Some(lease)) = self.enter(grant)
            {
                return Ok(Woken::Granted(self.hand_out(lease)));
            }
        }
    }

    /// Whether the wait is to end, and why. An error, if nothing has reached the server yet: after
    /// the end the server is not asked again.
    fn ended(
        &mut self,
        limits: &WaitLimits<'_>,
        timed_out: bool,
        state: &mut WaitState,
    ) -> Result<Option<End>, Failed> {
        let end = match limits.check(&self.context) {
            Err(error) if error.is_interrupted() => Some(End::Interrupted),
            Err(error) => return Err(self.failed(state.entered, error)),
            Ok(()) => timed_out.then_some(End::TimedOut),
        };
        match (state.not_sent.take(), end) {
            (Some(_), Some(End::Interrupted)) => {
                Err(self.failed(state.entered, interrupted_with_the_lock()))
            }
            (Some(error), Some(End::TimedOut)) => {
                Err(self.failed(state.entered, error.into_error()))
            }
            _ => Ok(end),
        }
    }

    /// The lease to be released is not ours.
    fn not_ours(&mut self, released: &dyn Fn()) -> Result<Woken, Failed> {
        if !self.is_unanswered() {
            return Err(Failed::Lost);
        }
        // An answer was lost, and since then the server has lost both the lease and our place: the
        // wait ends for no reason.
        released();
        Ok(Woken::Nowhere)
    }

    fn unanswered_in(
        &mut self,
        error: StoreError,
        state: &mut WaitState,
        leaving: &Leaving<'_>,
    ) -> Result<Duration, Failed> {
        let error = self.no_answer(error);
        let now = self.context.clock.now();
        let since = *state.silent_since.get_or_insert(now);
        let outage = now.saturating_duration_since(since);
        if error.permanent || outage >= self.context.timeouts.max_outage {
            return Err(self.failed(state.entered, error.into_error()));
        }
        self.context.outages.say(outage, now, &error);
        let pause = if error.stale { Duration::ZERO } else { backoff::outage_pause() };
        if !state.entered && !self.is_unanswered() {
            leaving.put_back();
            state.not_sent = Some(error);
        }
        Ok(pause)
    }

    fn grant_at(&mut self, asked_at: Instant, fences: Option<Fences>) -> Next {
        match self.granted(How::Asked, asked_at, self.options().lease, fences) {
            Some(lease) => Next::Woken(Woken::Granted(self.hand_out(lease))),
            None => {
                self.too_late();
                Next::Pause(backoff::outage_pause())
            }
        }
    }

    fn failed(&mut self, entered: bool, error: Error) -> Failed {
        if !entered && !self.is_unanswered() {
            return Failed::NotEntered(error);
        }
        self.may_be_left(Remains::Known);
        let error = match error.kind() {
            ErrorKind::Interrupted | ErrorKind::Closed => error,
            _ => {
                let message = "the wait in a condition ended without the lock";
                Error::new(ErrorKind::Unavailable, message).because(error)
            }
        };
        Failed::Unknown(error.leaving(true))
    }
}

/// A wait in a condition ends with the lock.
pub(crate) fn interrupted_with_the_lock() -> Error {
    Error::new(ErrorKind::Interrupted, "the wait was interrupted; the lock is held")
}
