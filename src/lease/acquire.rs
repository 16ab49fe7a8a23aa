//! The spin-retry loop: attempt, pause, attempt, until granted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::acquisition::{Acquisition, Step};
use super::patience::{Attempts, Contention, Patience, Report};
use super::store::StoreError;
use super::{Background, Lease};
use crate::base::backoff;
use crate::base::bell::Rung;
use crate::base::error::{Error, ErrorKind, Result};

/// One thread's wait for a lock. None of it travels with a place that the thread passes on.
pub(crate) struct Wait<'a> {
    pub(crate) patience: &'a Patience<'a>,
    pub(crate) attempts: &'a mut Attempts,
    pub(crate) contention: &'a Contention,
    /// Told what each attempt came to.
    pub(crate) report: &'a dyn Fn(Report),
    /// Since when this thread has been waiting without an answer of the server.
    pub(crate) silent_since: Option<Instant>,
}

impl Wait<'_> {
    /// An attempt had no answer. The error, once that is for the caller.
    fn unanswered(
        &mut self,
        error: StoreError,
        now: Instant,
        background: &Background,
        out_of_time: bool,
    ) -> Result<Duration> {
        let outage = now.saturating_duration_since(*self.silent_since.get_or_insert(now));
        if out_of_time
            || (self.patience.deadline.is_none() && outage >= background.limits.max_outage)
        {
            return Err(error.into_error());
        }
        Ok(backoff::outage_pause())
    }

    /// What a wait that ended by its deadline or its attempts came to, after a refusal.
    fn refused(&self) -> Result<Option<Arc<Lease>>> {
        if self.patience.trying {
            return Ok(None);
        }
        Err(Error::new(
            ErrorKind::Exhausted,
            "every attempt was refused: the lock is held by another",
        ))
    }

    /// What a wait that reached its deadline came to. The last answer decides, and it is known: no
    /// further attempt.
    fn reached_its_deadline(&self) -> Result<Option<Arc<Lease>>> {
        if self.silent_since.is_none() {
            return Ok(None);
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "the server did not answer until the end of the wait",
        ))
    }
}

impl Acquisition {
    /// Asks until granted, or until patience or attempts end: `Ok(None)` where that is an answer,
    /// and the last answer was a refusal.
    ///
    /// `refused`: what to go on from, where that is not an attempt but a refusal that was received
    /// before, with the rest of the lease in the way.
    pub(crate) fn run(
        &mut self,
        wait: &mut Wait<'_>,
        mut refused: Option<Option<Duration>>,
    ) -> Result<Option<Arc<Lease>>> {
        let background = Arc::clone(&self.background);
        let bell = Arc::clone(&self.bell);
        let patience = wait.patience;
        let mut rings = None;
        let mut was_stale = false;
        patience.check(&background)?;
        loop {
            let step = match refused.take() {
                Some(remaining) => Step::Refused(remaining),
                None => {
                    self.change_token()?;
                    self.attempt(patience, wait.contention)
                }
            };
            let (pause, failure) = match step {
                Step::Granted(lease) => return Ok(Some(self.hand_out(lease))),
                Step::Refused(remaining) => {
                    wait.silent_since = None;
                    was_stale = false;
                    (wait.report)(Report::Refused);
                    (self.pause_after_refusal(remaining), None)
                }
                Step::Failed(error) if error.permanent => return Err(error.into_error()),
                // An idle connection that the server had closed: not an outage yet. The same token
                // asks again over a fresh one.
                Step::Failed(error) if error.stale && !std::mem::replace(&mut was_stale, true) => {
                    continue;
                }
                Step::Failed(error) => {
                    (wait.report)(Report::Unanswered);
                    (Duration::ZERO, Some(error))
                }
            };
            let now = background.clock.now();
            let attempts_left = wait.attempts.use_one_at(now);
            let out_of_time = patience.is_over(now) || !attempts_left;
            let pause = match failure {
                Some(error) => wait.unanswered(error, now, &background, out_of_time)?,
                None if out_of_time => return wait.refused(),
                None => pause,
            };
            let until = wait.attempts.pause(now, now.checked_add(pause));
            let until = until.into_iter().chain(patience.deadline).min();
            // Only whoever sleeps has to be woken. Looked at after they can ring, so that nothing
            // is missed.
            rings.get_or_insert_with(|| {
                let interrupt = patience.interrupt.map(|interrupt| interrupt.rings(&bell));
                (background.closing.rings(&bell), interrupt)
            });
            patience.check(&background)?;
            if let Rung::Grant(grant) = bell.wait(&background.clock, until) {
                match self.enter(grant) {
                    Ok(Some(lease)) => return Ok(Some(self.hand_out(lease))),
                    Ok(None) => {}
                    // It was handed to us, and may be ours: at the deadline that is not "held by
                    // another".
                    Err(_) => _ = wait.silent_since.get_or_insert_with(|| background.clock.now()),
                }
            }
            patience.check(&background)?;
            if patience.is_over(background.clock.now()) {
                return wait.reached_its_deadline();
            }
        }
    }
}
