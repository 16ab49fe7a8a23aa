//! The limits of a wait: its deadline, its attempts, its interrupt. And whether the lock was just
//! seen contended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::context::Context;
use crate::base::bell::Bell;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::interrupt::{Interrupt, Interruption, Ringing};
use crate::base::options::LockOptions;

/// How many uncontended grants it takes until a lock that was seen contended no longer counts as
/// contended.
const REMEMBERED: u32 = 16;

/// How long a caller is willing to wait.
#[derive(Clone, Copy)]
pub(crate) struct WaitLimits<'a> {
    /// One attempt only: `try_lock(ZERO)`.
    pub(crate) once: bool,
    /// When the wait ends; `None`: never. `trying` says whether that is an answer or an error.
    pub(crate) deadline: Option<Instant>,
    /// Whether running out of time or attempts is an answer: `try_lock`.
    pub(crate) trying: bool,
    pub(crate) interrupt: Option<Interruption<'a>>,
}

impl<'a> WaitLimits<'a> {
    /// Those of a wait that only the interrupt ends, if there is one.
    pub(crate) fn endless(interrupt: Option<&'a Interrupt>) -> Self {
        let interrupt = interrupt.map(Interruption::of);
        Self { once: false, deadline: None, trying: false, interrupt }
    }

    /// An error if the caller was interrupted or the client was closed. A forked child is found out
    /// by each call once, at its start, because that costs a system call.
    pub(crate) fn check(&self, context: &Context) -> Result<()> {
        context.check_closing()?;
        if self.interrupt.is_some_and(Interruption::has_happened) {
            return Err(Error::new(ErrorKind::Interrupted, "the wait was interrupted"));
        }
        Ok(())
    }

    /// Has `bell` ring when the client is closed or the caller is interrupted, until the returned
    /// value is dropped.
    pub(crate) fn rings(
        &self,
        context: &'a Context,
        bell: &Arc<Bell>,
    ) -> (Ringing<'a>, Option<Ringing<'a>>) {
        let interrupt = self.interrupt.map(|interrupt| interrupt.rings(bell));
        (context.closing.rings(bell), interrupt)
    }

    /// Until when an attempt may wait for its answer: one command timeout, but at most until one
    /// command timeout after the caller's own deadline (R13). A thread whose local turn comes late
    /// has less time.
    pub(super) fn attempt_deadline(&self, context: &Context) -> Instant {
        let whole = context.command_deadline();
        let latest = self
            .deadline
            .and_then(|deadline| deadline.checked_add(context.timeouts.command_timeout));
        latest.map_or(whole, |latest| whole.min(latest))
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.once || self.deadline.is_some_and(|deadline| now >= deadline)
    }
}

/// The attempts that a caller still has.
pub(crate) struct Attempts {
    left: Option<u32>,
    /// When the next attempt is due: the end of the pause after the last attempt that counted.
    due: Option<Instant>,
}

impl Attempts {
    pub(crate) fn new(options: &LockOptions) -> Self {
        Self { left: options.retry.and_then(|retry| retry.attempts), due: None }
    }

    /// Without a limit.
    pub(crate) fn unlimited() -> Self {
        Self { left: None, due: None }
    }

    /// Uses one attempt up. `false`: it was the last.
    pub(crate) fn use_one(&mut self) -> bool {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
        }
        self.left != Some(0)
    }

    /// Uses one attempt up, unless the last pause is not over yet. An attempt that a wake-up made
    /// early does not count: otherwise hints could use all attempts up within one pause. `false`:
    /// it was the last.
    pub(super) fn use_one_at(&mut self, now: Instant) -> bool {
        self.due.is_some_and(|due| now < due) || self.use_one()
    }

    /// The end of the pause that begins `now`, or of an earlier pause that goes on.
    pub(super) fn pause(&mut self, now: Instant, until: Option<Instant>) -> Option<Instant> {
        if self.are_limited() && self.due.is_some_and(|due| now < due) {
            return until.into_iter().chain(self.due).min();
        }
        self.due = until;
        until
    }

    pub(crate) fn are_limited(&self) -> bool {
        self.left.is_some()
    }
}

/// Whether a lock was just seen contended. Then the simple first attempt, which cannot queue, would
/// waste a round trip.
#[derive(Default)]
pub(crate) struct Contention(AtomicU32);

impl Contention {
    pub(super) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    pub(super) fn seen(&self) {
        self.0.store(REMEMBERED, Ordering::Relaxed);
    }

    /// Granted at the first attempt: counts down.
    pub(super) fn not_seen(&self) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

/// The result of an attempt, for the threads that wait for their local turn meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Refused,
    Unanswered,
}
