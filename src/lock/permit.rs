//! `Permit`: what a semaphore gives to those that acquire.

use std::fmt;
use std::time::Duration;

use super::claim::Claim;
use super::validity::Validity;
use crate::base::error::Result;

/// One permit of a [`Semaphore`](crate::Semaphore), or several that were acquired at once. It is
/// `Send` and `Sync`, and belongs to no thread; dropping it releases all of it.
///
/// It is a lease, as a [`Claim`] is: renewed in the background, valid as long as it says so, and
/// lost if the server cannot be reached for too long. Then others may get what it had.
///
/// The drop, like [`release`](Permit::release), may block for up to two command timeouts, and for
/// one more if the permit was the last to keep its client open. An error of the release in `drop`
/// goes to the log at `warn`. A permit that is leaked, as by [`std::mem::forget`], is renewed as
/// its options say, and keeps its client open, until
/// [`Client::close`](crate::Client::close).
#[must_use = "the permit is released when it is dropped: bind it, as in \
              `let _permit = semaphore.acquire()?`"]
pub struct Permit {
    claim: Claim,
    permits: u32,
}

impl Permit {
    pub(super) fn new(claim: Claim, permits: u32) -> Self {
        Self { claim, permits }
    }

    /// The name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.claim.lock().name()
    }

    /// How many permits these are.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Whether the lease is still valid, by this process's own clock and by the server's answers so
    /// far. Local: no round trip. Once `false`, it stays `false`.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.claim.is_valid()
    }

    /// How long the lease is still valid unless it is extended; zero once it is lost. Local: no
    /// round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.claim.remaining()
    }

    /// The same questions, for threads that work for the owner of this permit. They do not keep it.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.claim.validity()
    }

    /// An error unless the lease is valid. Local: no round trip. As
    /// [`LockGuard::ensure_valid`](crate::LockGuard::ensure_valid), it speaks of now.
    ///
    /// # Errors
    /// `Lost`; others may have what it had.
    pub fn ensure_valid(&self) -> Result<()> {
        self.claim.ensure_valid()
    }

    /// The fence of this permit; `None` without
    /// [`LockOptions::fenced`](crate::LockOptions::fenced). It names the permit, and grows with
    /// each acquisition; older permits may still be valid.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.claim.fence()
    }

    /// The same, for SQL and other languages without unsigned integers. No fence is larger than
    /// [`i64::MAX`].
    #[must_use]
    pub fn fence_i64(&self) -> Option<i64> {
        self.claim.fence_i64()
    }

    /// Extends the lease until `lease` from now, and never shortens it. `lease` is 100 ms to 24 h.
    /// One round trip. Renewal goes on as before.
    ///
    /// # Errors
    /// `Lost`: others may have what it had. `Unknown`: no answer; the permits are still the
    /// caller's, at least until the old end of the lease. `Unavailable`, `InvalidInput`, `Denied`,
    /// `Server`, `Unsupported`: the lease is as before.
    pub fn extend(&self, lease: Duration) -> Result<()> {
        self.claim.extend(lease)
    }

    /// Releases it, grants free permits to the waiters whose turn it is, and returns the result.
    ///
    /// One round trip. If the server does not answer, it is asked once more over another
    /// connection, so the call ends within two command timeouts.
    ///
    /// # Errors
    /// `Lost`: it had been lost before. `Unknown`: no answer; the permits may not be free until the
    /// background has released them, or the lease ends. The permit is gone in any case.
    /// `Unsupported` in a forked child, where the permit of the parent stays.
    pub fn release(self) -> Result<()> {
        self.claim.release()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("semaphore", &self.name())
            .field("permits", &self.permits)
            .field("is_valid", &self.is_valid())
            .field("fence", &self.fence())
            .finish()
    }
}
