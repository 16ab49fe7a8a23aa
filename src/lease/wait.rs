//! The state of one thread's wait for a lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::context::Context;
use super::granted::Lease;
use super::slow_wait::SlowWait;
use super::wait_limits::{Attempts, Contention, Report, WaitLimits};
use crate::base::backoff;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::store_error::StoreError;

/// What a call brings along to each part of its wait.
pub(crate) struct Caller<'a> {
    pub(crate) limits: &'a WaitLimits<'a>,
    pub(crate) attempts: Attempts,
    pub(crate) slow: SlowWait<'a>,
}

/// One thread's wait for a lock. It stays with the thread when the thread passes its place on.
pub(crate) struct Wait<'a> {
    pub(crate) caller: Caller<'a>,
    pub(crate) contention: &'a Contention,
    /// Called with the result of each attempt.
    pub(crate) report: &'a dyn Fn(Report),
    /// Since when this thread has been waiting without an answer from the server.
    pub(crate) silent_since: Option<Instant>,
    /// Why the last attempt that had no answer had none.
    pub(crate) why: Option<StoreError>,
}

impl Wait<'_> {
    /// An attempt had no answer. Returns the next pause, or the error if the wait is over.
    pub(super) fn unanswered(
        &mut self,
        error: StoreError,
        now: Instant,
        context: &Context,
        out_of_time: bool,
    ) -> Result<Duration> {
        let outage = now.saturating_duration_since(*self.silent_since.get_or_insert(now));
        if out_of_time
            || (self.caller.limits.deadline.is_none() && outage >= context.timeouts.max_outage)
        {
            return Err(error.into_error());
        }
        context.outages.say(outage, now, &error);
        self.why = Some(error);
        Ok(backoff::outage_pause())
    }

    /// The result of a wait that used up its time or its attempts, after a refusal.
    pub(super) fn refused(&self) -> Result<Option<Arc<Lease>>> {
        if self.caller.limits.trying {
            return Ok(None);
        }
        Err(Error::new(ErrorKind::Exhausted, "the attempts are used up: the last one was refused"))
    }

    /// The result of a wait that reached its deadline. The last answer is known and decides: no
    /// further attempt.
    pub(super) fn reached_its_deadline(&self) -> Result<Option<Arc<Lease>>> {
        if self.silent_since.is_none() {
            return Ok(None);
        }
        let silent = Error::new(
            ErrorKind::Unavailable,
            "the server did not answer until the end of the wait",
        );
        Err(match &self.why {
            Some(why) => silent.because(why.to_string()),
            None => silent,
        })
    }
}
