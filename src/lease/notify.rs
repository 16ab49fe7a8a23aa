//! Telling the program that a lease was lost: `on_lost` callbacks, on a thread of their own (R9).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Lease;
use crate::base::worker::Worker;

/// Told once for each lost lease.
pub type OnLost = dyn Fn(&Lost) + Send + Sync;

/// Whoever a lease was granted for.
pub(crate) trait Keeper: Send + Sync {
    /// The lock's name.
    fn name(&self) -> &Arc<str>;
    /// The lease was lost or given up: whoever waits behind its holder need not wait for that one.
    /// Does not block.
    fn over(&self, lease: &Arc<Lease>);
    /// A lease was lost. Called once, on whatever thread found out: does not block.
    fn lost(&self, lost: &Lost);
}

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

impl LostReason {
    pub(super) fn code(self) -> usize {
        match self {
            Self::Expired => 1,
            Self::Taken => 2,
            Self::Closed => 3,
        }
    }

    pub(super) fn from_code(code: usize) -> Self {
        match code {
            2 => Self::Taken,
            3 => Self::Closed,
            _ => Self::Expired,
        }
    }
}

/// A lease that was lost while it was held; what an [`on_lost`](crate::RedisLock::on_lost) callback
/// is given.
#[derive(Debug, Clone)]
pub struct Lost {
    name: Arc<str>,
    fence: Option<u64>,
    reason: LostReason,
}

impl Lost {
    pub(super) fn new(name: &Arc<str>, fence: Option<u64>, reason: LostReason) -> Self {
        Self { name: Arc::clone(name), fence, reason }
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fence of the lost hold; `None` where the lock is not fenced.
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

/// Runs callbacks one after another on its own thread, started with the first loss that has one.
pub(crate) struct Notifier {
    worker: Worker<(Arc<OnLost>, Lost)>,
}

impl Notifier {
    pub(crate) fn new() -> Self {
        Self { worker: Worker::new("distlock-notify") }
    }

    /// Has `callback` called soon. A slow one delays other callbacks, and nothing else.
    pub(crate) fn notify(&self, callback: Arc<OnLost>, lost: Lost) {
        let started = self.worker.start(|work| {
            for (callback, lost) in work.iter() {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| callback(&lost))) {
                    // Not dropped: that could panic, too.
                    std::mem::forget(payload);
                    log::error!("lock {:?}: an on_lost callback panicked", lost.name());
                }
            }
        });
        if let Err(error) = started {
            log::error!(
                "lock {:?}: lost, and no thread could be started to tell it: {error}",
                lost.name()
            );
        }
        // After the client was closed there is nobody to tell.
        let _ = self.worker.send((callback, lost));
    }

    pub(crate) fn stop(&self) -> crate::base::worker::Stopped {
        self.worker.stop()
    }
}
