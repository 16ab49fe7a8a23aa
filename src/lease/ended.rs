//! The four ways in which a lease ends.

use super::lost::LostReason;

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The store confirmed that it was released.
    Released {
        /// Whether a copy of an unanswered release may still be on its way.
        copy_in_flight: bool,
    },
    /// No thread wants the lease any more, and the store may still hold it: its release had no
    /// answer, or was not sent.
    GivenUp {
        /// Whether a release may be on its way.
        release_sent: bool,
    },
    /// It was lost while it was held.
    Lost(LostReason),
    /// Its thread ended while it held it.
    Abandoned,
}
