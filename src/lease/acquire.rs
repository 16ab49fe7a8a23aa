//! The spin-retry loop: attempt, pause, attempt, until granted.

use std::sync::Arc;
use std::time::Duration;

use super::acquisition::{Acquisition, Step};
use super::granted::Lease;
use super::wait::Wait;
use super::wait_limits::Report;
use crate::base::bell::Rung;
use crate::base::error::Result;

/// How long the lease in the way of a refused attempt lasts; `None`: no end is known.
pub(crate) struct HeldFor(pub(crate) Option<Duration>);

impl Acquisition {
    /// Asks until granted, or until the time or the attempts are used up. `Ok(None)`: a `try_lock`
    /// used them up, and the last answer was a refusal.
    ///
    /// `refused`: a refusal that was received before, where the wait goes on from that instead of
    /// an attempt.
    pub(crate) fn run(
        &mut self,
        wait: &mut Wait<'_>,
        mut refused: Option<HeldFor>,
    ) -> Result<Option<Arc<Lease>>> {
        let context = Arc::clone(&self.context);
        let limits = wait.caller.limits;
        let mut rings = None;
        let mut was_stale = false;
        limits.check(&context)?;
        loop {
            let step = match refused.take() {
                Some(HeldFor(remaining)) => Step::Refused(remaining),
                None => {
                    self.change_token()?;
                    self.attempt(limits, wait.contention)
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
                // The server had closed an idle connection: not an outage yet. Ask again over a
                // fresh connection.
                Step::Failed(error) if error.stale && !std::mem::replace(&mut was_stale, true) => {
                    continue;
                }
                Step::Failed(error) => {
                    (wait.report)(Report::Unanswered);
                    (Duration::ZERO, Some(error))
                }
            };
            let now = context.clock.now();
            let attempts_left = wait.caller.attempts.use_one_at(now);
            let out_of_time = limits.is_over(now) || !attempts_left;
            let pause = match failure {
                Some(error) => wait.unanswered(error, now, &context, out_of_time)?,
                None if out_of_time => return wait.refused(),
                None => {
                    wait.caller.slow.say(now, || self.in_the_way());
                    pause
                }
            };
            let until = wait.caller.attempts.pause(now, now.checked_add(pause));
            let until = until.into_iter().chain(limits.deadline).min();
            // Only a sleeping thread has to be woken. Checked after the bell can ring, so that no
            // interrupt is missed.
            let bell = Arc::clone(self.bell());
            rings.get_or_insert_with(|| limits.rings(&context, &bell));
            limits.check(&context)?;
            if let Rung::Grant(grant) = bell.wait(&context.clock, until) {
                match self.enter(grant) {
                    Ok(Some(lease)) => return Ok(Some(self.hand_out(lease))),
                    Ok(None) => {}
                    // The lock was handed to us, and may be ours: so at the deadline the answer is
                    // not "held by another".
                    Err(_) => _ = wait.silent_since.get_or_insert_with(|| context.clock.now()),
                }
            }
            limits.check(&context)?;
            if limits.is_over(context.clock.now()) {
                return wait.reached_its_deadline();
            }
        }
    }
}
