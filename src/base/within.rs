//! How long an exchange may take.

use std::time::{Duration, Instant};

/// How long a call may take that shall not wait for other calls.
#[derive(Debug, Clone, Copy)]
pub struct Within {
    /// How long the reply may take, once there is a connection.
    pub reply: Duration,
    /// When the connection must be open. Opening takes several round trips, so it has more time
    /// than a reply.
    pub connect_by: Instant,
}

impl Within {
    /// Both by this instant.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn until(deadline: Instant) -> Self {
        Self { reply: deadline.saturating_duration_since(Instant::now()), connect_by: deadline }
    }

    /// When the call has ended at the latest, if it begins `now`.
    #[must_use]
    pub fn end(&self, now: Instant) -> Instant {
        now.max(self.connect_by) + self.reply
    }
}

/// The time limit of an exchange.
#[derive(Clone, Copy)]
pub(crate) enum TimeLimit {
    /// One deadline for connecting and for the replies.
    By(Instant),
    /// A deadline for connecting; the replies have a time of their own, which starts once the
    /// connection is open.
    Within(Within),
}

impl TimeLimit {
    /// For a connection that is open.
    pub(crate) fn once_open(reply: Duration, now: Instant) -> Self {
        Self::Within(Within { reply, connect_by: now })
    }

    pub(crate) fn connect_by(self) -> Instant {
        match self {
            Self::By(deadline) => deadline,
            Self::Within(within) => within.connect_by,
        }
    }

    pub(crate) fn reply_by(self, connected: Instant) -> Instant {
        match self {
            Self::By(deadline) => deadline,
            Self::Within(within) => connected + within.reply,
        }
    }
}
