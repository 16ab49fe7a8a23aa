//! Moving the end of a lease, to a later or to an earlier one (R36, R40).

use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::ended::Ended;
use super::granted::Lease;
use super::lost::LostReason;
use super::store::{End, Extend, StoreError};

/// The result of a new end.
pub(crate) enum Moved {
    Yes,
    /// The lease is lost.
    Lost,
    /// Nothing was sent: a shortening that was sent before has no answer.
    Unanswered,
    /// The lease is as before.
    No(StoreError),
    /// No answer: the lease has its old end or the new one.
    Unknown(StoreError),
}

impl Context {
    /// Moves the end of a lease that is held to `length` from now.
    pub(crate) fn move_end(&self, held: &Arc<Lease>, length: Duration) -> Moved {
        let (mark, asked_at) = (held.mark(), self.clock.now());
        let shorter = held.remaining() > length;
        if shorter && !held.begin_shortening(asked_at, length) {
            return Moved::Unanswered;
        }
        let end = if shorter { End::Exactly } else { End::NotBefore };
        let moved =
            Extend { key: &held.key, token: &held.token, lease: length, settles: held.settles() };
        // Our own end has moved already: if there is no connection to send over, we must know that
        // before the new end.
        let deadline = self.command_deadline();
        let deadline = if shorter { deadline.min(asked_at + length * 2 / 3) } else { deadline };
        held.may_last(length);
        let answer = held.store.move_end(&moved, end, deadline);
        match &answer {
            Ok(_) if shorter => held.end_shortening(),
            Err(error) if shorter && !error.may_have_run => held.cancel_shortening(),
            _ => {}
        }
        let result = match answer {
            Ok(true) => {
                held.settled();
                let is_valid =
                    if shorter { held.is_valid() } else { held.extended(mark, asked_at, length) };
                if is_valid { Moved::Yes } else { Moved::Lost }
            }
            Ok(false) => {
                self.finish(held, Ended::Lost(LostReason::Taken));
                Moved::Lost
            }
            Err(error) if !error.may_have_run => Moved::No(error),
            Err(error) => Moved::Unknown(error),
        };
        self.renewal.of(held).reschedule(held);
        result
    }
}
