//! The time limit of an exchange.

use std::time::Instant;

use crate::base::within::Within;

/// The time limit of an exchange.
#[derive(Clone, Copy)]
pub(super) enum TimeLimit {
    /// One deadline for connecting and for the replies.
    By(Instant),
    /// A deadline for connecting; the replies have a time of their own, which starts once the
    /// connection is open.
    Within(Within),
}

impl TimeLimit {
    pub(super) fn connect_by(self) -> Instant {
        match self {
            Self::By(deadline) => deadline,
            Self::Within(within) => within.connect_by,
        }
    }

    pub(super) fn reply_by(self, connected: Instant) -> Instant {
        match self {
            Self::By(deadline) => deadline,
            Self::Within(within) => connected + within.reply,
        }
    }
}
