//! By when a talk over one connection must be over.

use std::time::Instant;

use crate::lease::store::Within;

/// By when a talk must be over.
#[derive(Clone, Copy)]
pub(super) enum TimeLimit {
    /// Connecting, and the replies.
    By(Instant),
    /// The replies have their own time from when there is a connection.
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
