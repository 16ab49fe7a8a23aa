//! Extending a held lease by hand, and releasing it (R12).

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::context::Context;
use super::granted::Lease;
use super::leaving::Leaving;
use super::lost::{Ended, LostReason};
use super::store::{Extend, Gone, Release};
use crate::base::backoff;
use crate::base::error::ErrorKind;
use crate::base::store_error::StoreError;

/// The result of a release.
pub(crate) enum Released {
    Yes,
    /// The lease had been lost before.
    Lost,
    /// No answer: the lock may still be held on the server, until the background has removed it.
    Unknown(StoreError),
}

/// The result of an extend.
pub(crate) enum Extended {
    Yes,
    /// The lease is lost.
    Lost,
    /// The lease is as before.
    No(StoreError),
    /// No answer: the lease has its old end or the new one.
    Unknown(StoreError),
}

impl Context {
    /// Extends a lease that is held until `length` from now, unless it ends later anyway. Does not
    /// put renewal off: with Redlock, renewal is what gives the lease back to nodes that have lost
    /// it (R33).
    pub(crate) fn extend(&self, held: &Arc<Lease>, length: Duration) -> Extended {
        let asked_at = self.clock.now();
        let extend = Extend { key: &held.key, token: &held.token, lease: length };
        held.may_last(length);
        let answer = held.store.extend_one(&extend, asked_at + self.timeouts.command_timeout);
        match answer {
            Ok(true) if held.expiry.extended(asked_at, length) => Extended::Yes,
            Ok(true) => Extended::Lost,
            Ok(false) => {
                self.finish(held, Ended::Lost(LostReason::Taken));
                Extended::Lost
            }
            Err(error) if !error.may_have_run => Extended::No(error),
            Err(error) => Extended::Unknown(error),
        }
    }

    /// Releases a lease that nobody holds any more.
    pub(crate) fn release(&self, lease: &Arc<Lease>) -> Released {
        if lease.has_ended() {
            return Released::Lost;
        }
        let leaving = Leaving::new(self, lease);
        let mut unanswered = false;
        let answer = self.ask_to_release(&leaving, &mut unanswered);
        if !leaving.take() {
            // The thread that ended it reports the loss and withdraws what is left.
            leaving.let_go();
            return Released::Lost;
        }
        match answer {
            Ok(Gone::Released) => {
                leaving.end(Ended::Released { copy_in_flight: unanswered });
                Released::Yes
            }
            Ok(Gone::NotOurs) => {
                leaving.end(Ended::Lost(LostReason::Taken));
                Released::Lost
            }
            Err(error) => {
                leaving.end(Ended::GivenUp { release_sent: unanswered });
                Released::Unknown(error)
            }
        }
    }

    fn ask_to_release(
        &self,
        leaving: &Leaving<'_>,
        unanswered: &mut bool,
    ) -> Result<Gone, StoreError> {
        let lease = leaving.lease();
        let release = |what: &Release<'_>, deadline| lease.store.release(what, deadline);
        match self.ask_to_end(leaving, unanswered, release)? {
            // A release without an answer has run after all: nobody else can have taken the lease
            // while it was valid.
            Gone::NotOurs if *unanswered && lease.is_valid() => Ok(Gone::Released),
            // The cause may be our release, the end of the lease, or somebody else: that is
            // unknown.
            Gone::NotOurs if *unanswered => {
                let late = "the lease ran out before it was known whether it had been released";
                Err(StoreError::not_sent(ErrorKind::Unavailable, late).maybe_run())
            }
            gone => Ok(gone),
        }
    }

    /// Asks the store to end a lease, by `ask`, until there is an answer, or the time is over.
    /// `unanswered`: whether a question without an answer may have arrived, or may still arrive.
    pub(super) fn ask_to_end<T>(
        &self,
        leaving: &Leaving<'_>,
        unanswered: &mut bool,
        ask: impl Fn(&Release<'_>, Instant) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let lease = leaving.lease();
        let take = || leaving.take();
        let mut deadline = self.command_deadline();
        let mut repeated = false;
        loop {
            let error = match ask(&leaving.release(&take), deadline) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            *unanswered |= error.may_have_run;
            if !*unanswered {
                leaving.put_back();
            }
            let timed_out = self.clock.now() >= deadline;
            let again = timed_out && *unanswered && !error.permanent;
            if again && !repeated && lease.is_valid() {
                // An idle connection may have died unnoticed, or one reply got lost: the next
                // connection shows it.
                repeated = true;
                deadline = self.command_deadline();
                continue;
            }
            if error.permanent || timed_out {
                return Err(StoreError { may_have_run: *unanswered, ..error });
            }
            if !error.stale {
                thread::sleep(backoff::outage_pause().min(self.clock.left(deadline)));
            }
        }
    }
}
