//! Waiting in a condition: the loop around `LeaseStore::wait_in`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::acquisition::{Acquisition, Waiting};
use super::leaving::Leaving;
use super::patience::Patience;
use super::store::{InCondition, Place, StoreError};
use super::{Lease, backoff};
use crate::base::bell::{Fences, Rung};
use crate::base::error::{Error, ErrorKind};

/// How a wait in a condition ended.
pub(crate) enum Woken {
    /// Notified, and the lock is held.
    Granted(Arc<Lease>),
    /// Notified, and refused the lock, whose present lease lasts for so long.
    Notified(Option<Duration>),
    /// Woken for no reason: the place in the condition was lost with the server's data.
    Gone,
    TimedOut,
    Interrupted,
}

/// Why a wait ended without the lock.
pub(crate) enum Failed {
    /// The lease was not ours any more: nothing was released, and no condition entered.
    Lost,
    /// Certainly not carried out: the lease is held as before.
    NotEntered(Error),
    /// Nobody knows; the lease is given up.
    Unknown(Error),
}

impl Acquisition {
    /// Enters `condition`, which releases the lease of `release`, and waits there. `released` is
    /// called as soon as the lease is known to be gone.
    ///
    /// Each question is the same one: "let me in if I still hold; else tell me how I stand". So an
    /// answer that was lost is found out by asking again:
    ///
    /// 1. we enter, and release; the answer is lost;
    /// 2. somebody notifies us, and releases: the lock is ours;
    /// 3. we ask again, and hear that it is.
    pub(crate) fn wait_in(
        &mut self,
        condition: &Arc<str>,
        leaving: &Leaving<'_>,
        patience: &Patience<'_>,
        released: &dyn Fn(),
    ) -> Result<Woken, Failed> {
        let background = Arc::clone(&self.background);
        let bell = Arc::clone(&self.bell);
        let _closing = background.closing.rings(&bell);
        let _interrupt = patience.interrupt.map(|interrupt| interrupt.rings(&bell));
        self.condition = Some(Arc::clone(condition));
        self.was_in_condition = true;
        let take = || leaving.take();
        let mut entered = false;
        let mut silent_since = None;
        let mut not_sent: Option<StoreError> = None;
        loop {
            let interrupted = match patience.check(&background) {
                Err(error) if error.is_interrupted() => true,
                Err(error) => return Err(self.failed(entered, error)),
                Ok(()) => false,
            };
            let timed_out = patience.is_over(background.clock.now());
            // Nothing has reached the server, and it is not asked again after the end.
            match not_sent.take() {
                Some(_) if interrupted => {
                    let interrupted = "the wait was interrupted; the lock is held";
                    return Err(
                        self.failed(entered, Error::new(ErrorKind::Interrupted, interrupted))
                    );
                }
                Some(error) if timed_out => return Err(self.failed(entered, error.into_error())),
                _ => {}
            }
            self.attempts += 1;
            let place = InIt(self.waiting());
            let release = leaving.release(&take);
            let old = (!entered).then_some(&release);
            let leaves = entered && (interrupted || timed_out);
            let answer = self.store.wait_in(&self.ask(Some(&place), true), condition, old, leaves);
            if answer.is_ok() && !entered && !matches!(answer, Ok(InCondition::NotOurs)) {
                entered = true;
                released();
            }
            let pause = match answer {
                Ok(InCondition::Waiting { asked_at }) => {
                    silent_since = None;
                    self.refused_at(asked_at, true);
                    match interrupted || timed_out {
                        // No answer to a question that leaves.
                        true if leaves => backoff::outage_pause(),
                        // Entered only now: the next question leaves.
                        true => continue,
                        false => backoff::condition_pause(),
                    }
                }
                Ok(InCondition::Granted { asked_at, fences }) => {
                    match self.grant_at(asked_at, fences) {
                        Some(lease) => return Ok(Woken::Granted(lease)),
                        None => backoff::outage_pause(),
                    }
                }
                Ok(InCondition::Notified { asked_at, remaining, heard }) => {
                    self.refused_at(asked_at, heard);
                    self.condition = None;
                    return Ok(Woken::Notified(remaining));
                }
                Ok(InCondition::Gone) => {
                    self.condition = None;
                    return Ok(if interrupted {
                        Woken::Interrupted
                    } else if timed_out {
                        Woken::TimedOut
                    } else {
                        Woken::Gone
                    });
                }
                Ok(InCondition::NotOurs) if !self.unanswered => {
                    self.condition = None;
                    return Err(Failed::Lost);
                }
                // An answer was lost, and since then the server has lost both the lease and our
                // place: woken for no reason.
                Ok(InCondition::NotOurs) => {
                    self.condition = None;
                    released();
                    return Ok(Woken::Gone);
                }
                Err(error) => {
                    let error = self.no_answer(error);
                    let since = *silent_since.get_or_insert(background.clock.now());
                    let outage = background.clock.now().saturating_duration_since(since);
                    if error.permanent || outage >= background.limits.max_outage {
                        return Err(self.failed(entered, error.into_error()));
                    }
                    let pause = if error.stale { Duration::ZERO } else { backoff::outage_pause() };
                    if !entered && !self.unanswered {
                        leaving.put_back();
                        not_sent = Some(error);
                    }
                    pause
                }
            };
            let until = background.clock.now() + pause;
            let until = patience
                .deadline
                .filter(|_| !timed_out)
                .map_or(until, |deadline| deadline.min(until));
            if let Rung::Grant(grant) = bell.wait(&background.clock, Some(until))
                && entered
                && let Ok(Some(lease)) = self.enter(grant)
            {
                self.condition = None;
                return Ok(Woken::Granted(self.hand_out(lease)));
            }
        }
    }

    fn grant_at(&mut self, asked_at: Instant, fences: Option<Fences>) -> Option<Arc<Lease>> {
        match self.granted(asked_at, self.options().lease, fences) {
            Some(lease) => {
                self.condition = None;
                Some(self.hand_out(lease))
            }
            None => {
                self.too_late();
                None
            }
        }
    }

    fn failed(&mut self, entered: bool, error: Error) -> Failed {
        if !entered && !self.unanswered {
            self.condition = None;
            return Failed::NotEntered(error);
        }
        self.left_behind = true;
        Failed::Unknown(if error.kind() == ErrorKind::Interrupted {
            error
        } else {
            Error::new(ErrorKind::Unavailable, "the wait in a condition ended without the lock")
                .because(error)
        })
    }
}

/// The place of a waiter in a condition.
struct InIt<'a>(Waiting<'a>);

impl Place for InIt<'_> {
    fn address(&self) -> Option<&str> {
        self.0.address()
    }

    fn alive_for(&self) -> Duration {
        backoff::condition_life()
    }

    fn first_lease(&self) -> Duration {
        self.0.first_lease()
    }
}
