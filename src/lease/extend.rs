//! Extending a lease by hand.

use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::ended::Ended;
use super::granted::Lease;
use super::lost::LostReason;
use super::store::Extend;
use crate::base::store_error::StoreError;

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
    /// Extends a lease that is held until `length` from now, unless it ends later anyway.
    pub(crate) fn extend(&self, held: &Arc<Lease>, length: Duration) -> Extended {
        let asked_at = self.clock.now();
        let extend = Extend { key: &held.key, token: &held.token, lease: length };
        held.may_last(length);
        let answer = held.store.extend_one(&extend, asked_at + self.timeouts.command_timeout);
        let result = match answer {
            Ok(true) if held.extended(asked_at, length) => Extended::Yes,
            Ok(true) => Extended::Lost,
            Ok(false) => {
                self.finish(held, Ended::Lost(LostReason::Taken));
                Extended::Lost
            }
            Err(error) if !error.may_have_run => Extended::No(error),
            Err(error) => Extended::Unknown(error),
        };
        self.renewal.of(held).reschedule(held);
        result
    }
}
