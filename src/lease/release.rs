//! Releasing a lease, and what came of it (R12).

use std::sync::Arc;
use std::thread;

use super::notify::LostReason;
use super::store::{Gone, Release, StoreError};
use super::{Background, Ended, Lease, backoff};
use crate::base::error::ErrorKind;

/// What a release came to.
pub(crate) enum Released {
    Yes,
    /// The lease had been lost before.
    Lost,
    /// No answer: it may still be held on the server, until the background has removed it.
    Unknown(StoreError),
}

impl Background {
    /// Releases a lease that nobody holds any more.
    pub(crate) fn release(&self, lease: &Arc<Lease>) -> Released {
        if lease.has_ended() {
            return Released::Lost;
        }
        // Nothing else knows of it from here on, until the answer has come: closing waits for that.
        let _counted = self.acquiring.add();
        let mut unanswered = false;
        match self.ask_to_release(lease, &mut unanswered) {
            Ok(Gone::Released) if self.finish(lease, Ended::Released { copy_in_flight: unanswered }) => Released::Yes,
            Ok(Gone::Released) => Released::Lost,
            Ok(Gone::NotOurs) => {
                self.finish(lease, Ended::Lost(LostReason::Taken));
                Released::Lost
            }
            Err(error) => {
                self.finish(lease, Ended::GivenUp { release_sent: unanswered });
                Released::Unknown(error)
            }
        }
    }

    /// Asks until there is an answer, or the time is over. `unanswered`: whether one of the questions may have arrived, or do so yet, without an answer.
    fn ask_to_release(&self, lease: &Lease, unanswered: &mut bool) -> Result<Gone, StoreError> {
        // No extend of ours follows it (R8). Not earlier: a lease shall not run out while its release waits for a connection.
        let before_sent = || self.renewal.remove(lease);
        let mut deadline = self.command_deadline();
        let mut repeated = false;
        let release = || Release { key: &lease.key, token: &lease.token, settles: lease.settles(), before_sent: &before_sent };
        loop {
            let error = match lease.store.release(&release(), deadline) {
                // A release without an answer has run after all: nobody else can have taken it while it was valid.
                Ok(Gone::NotOurs) if *unanswered && lease.is_valid() => return Ok(Gone::Released),
                // It may have been that, or the end of the lease, or somebody else: nobody knows any more.
                Ok(Gone::NotOurs) if *unanswered => {
                    let late = "the lease ran out before it was known whether it had been released";
                    return Err(StoreError::not_sent(ErrorKind::Unavailable, late).maybe_run());
                }
                Ok(gone) => return Ok(gone),
                // It goes on by itself. A second question would be answered "not ours" by the nodes that the first has reached.
                Err(error) if lease.store.undoes_attempts() => {
                    *unanswered |= error.may_have_run;
                    return Err(error);
                }
                Err(error) => error,
            };
            *unanswered |= error.may_have_run;
            let timed_out = self.clock.now() >= deadline;
            if timed_out && *unanswered && !repeated && lease.is_valid() {
                // An idle connection may have died without a word, or one reply got lost: the next connection tells.
                repeated = true;
                deadline = self.command_deadline();
                continue;
            }
            if error.permanent || timed_out {
                return Err(StoreError { may_have_run: *unanswered, ..error });
            }
            if !error.stale {
                thread::sleep(backoff::outage_pause());
            }
        }
    }
}
