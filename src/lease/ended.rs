//! The four ways in which a lease ends.

use super::lost::LostReason;

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
