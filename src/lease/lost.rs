//! How a lease ends, and what the program learns of one that was lost.

use std::fmt;

use crate::base::subject::Subject;

/// A callback that is called once for each lost lease.
pub type OnLost = dyn Fn(&Lost) + Send + Sync;

/// Why a lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// Its validity ran out: it was not renewed any more, the server could not be reached in time,
    /// or the process was paused.
    Expired,
    /// The server said that it is not ours: the key was deleted or overwritten, or the lease ran
    /// out there.
    Taken,
    /// The client was closed.
    Closed,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "expired",
            Self::Taken => "taken",
            Self::Closed => "closed",
        })
    }
}

/// A lease that was lost while it was held. An [`on_lost`](crate::RedisLock::on_lost) callback gets
/// it.
#[derive(Debug, Clone)]
pub struct Lost {
    subject: Subject,
    fence: Option<u64>,
    reason: LostReason,
}

impl Lost {
    pub(super) fn new(subject: &Subject, fence: Option<u64>, reason: LostReason) -> Self {
        Self { subject: subject.clone(), fence, reason }
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The name of the lock, the read-write lock or the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.subject.name()
    }

    /// The fence of the lost hold, claim or permit; of several readers that shared the lease, that
    /// of the last to join it. `None` where there are no fences.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Why it was lost.
    #[must_use]
    pub fn reason(&self) -> LostReason {
        self.reason
    }
}

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
