//! Leases: ownership limited in time. Nothing here names Redis.

pub(crate) mod acquire;
pub(crate) mod acquisition;
mod background;
pub(crate) mod cleaner;
pub(crate) mod condition;
pub(crate) mod count;
mod granted;
pub(crate) mod leaving;
pub(crate) mod notify;
pub(crate) mod patience;
pub(crate) mod release;
pub(crate) mod renewal;
pub(crate) mod store;
pub(crate) mod token;

use std::time::{Duration, Instant};

pub(crate) use background::{Background, Limits};
pub(crate) use granted::{Lease, Terms};
use notify::LostReason;

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The store confirmed that it was released.
    Released {
        /// Whether a copy of the release, which had no answer, may still be on its way.
        copy_in_flight: bool,
    },
    /// Nobody wants it any more, and the store may hold it still: its release had no answer, or
    /// none was sent.
    GivenUp {
        /// Whether a release may be on its way.
        release_sent: bool,
    },
    /// It was lost while it was held.
    Lost(LostReason),
    /// Its thread ended while it held it.
    Abandoned,
}

/// What is taken off a lease's length for clocks that run at slightly different rates: 1 % and 2 ms
/// (R1).
pub(crate) fn drift(length: Duration) -> Duration {
    length / 100 + Duration::from_millis(2)
}

/// The end of the validity of a lease of `length` that was asked for at `asked_at` (R1): counted
/// from before the first byte was sent, because the server's clock for it starts at some moment
/// after that.
pub(crate) fn valid_until(asked_at: Instant, length: Duration) -> Instant {
    asked_at + length.saturating_sub(drift(length))
}
