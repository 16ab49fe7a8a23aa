//! `Validity`: whether a hold, a claim or a permit still counts, for threads that work for its
//! owner.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::subject::Subject;
use crate::lease::granted::Lease;
use crate::local::holds::Over;

/// Whether a hold, a claim or a permit still counts, for the threads that work for its owner. Made
/// by [`LockGuard::validity`](crate::LockGuard::validity),
/// [`Claim::validity`](crate::Claim::validity) and
/// [`Permit::validity`](crate::Permit::validity); cheap to clone; every call is local.
///
/// It can look, and nothing else: it neither extends nor keeps the lock. It speaks of one hold,
/// claim or permit: once that has ended, or its thread waits in a condition, it is over for good.
///
/// ```
/// # fn main() -> distlock::Result<()> {
/// let lock = distlock::Client::open("memory://")?.lock("ledger");
/// let guard = lock.guard()?;
/// let validity = guard.validity();
/// std::thread::scope(|scope| {
///     scope.spawn(|| validity.ensure_valid()).join().expect("no panic")
/// })?;
/// guard.release()?;
/// assert!(!validity.is_valid());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Validity {
    subject: Subject,
    /// `None`: it was lost, or there was no hold any more.
    lease: Option<Arc<Lease>>,
    over: Over,
    fence: Option<u64>,
}

impl Validity {
    pub(super) fn new(
        subject: &Subject,
        lease: Option<Arc<Lease>>,
        over: Over,
        fence: Option<u64>,
    ) -> Self {
        Self { subject: subject.clone(), lease, over, fence }
    }

    /// Whether the hold, claim or permit lasts and its lease is valid. Once `false`, it stays
    /// `false`.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.valid_lease().is_some()
    }

    /// How long the lease is still valid unless it is extended; zero once it is over.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.valid_lease().map_or(Duration::ZERO, |lease| lease.expiry.remaining())
    }

    /// An error unless the hold, claim or permit lasts and its lease is valid. As
    /// [`LockGuard::ensure_valid`](crate::LockGuard::ensure_valid), it speaks of now.
    ///
    /// # Errors
    /// `NotHeld`: the hold, claim or permit has ended, or its thread waits in a condition. `Lost`:
    /// others may have what it held.
    pub fn ensure_valid(&self) -> Result<()> {
        if self.over.is_over() {
            let error =
                Error::new(ErrorKind::NotHeld, "the hold, the claim or the permit has ended");
            return Err(error.about(&self.subject));
        }
        if self.is_valid() { Ok(()) } else { Err(lost().about(&self.subject)) }
    }

    /// The fence of the hold; `None` without [`LockOptions::fenced`](crate::LockOptions::fenced),
    /// and if the lease had been lost before this value was made.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// The same, for SQL and other languages without unsigned integers.
    #[must_use]
    pub fn fence_i64(&self) -> Option<i64> {
        self.fence.map(signed)
    }

    fn valid_lease(&self) -> Option<&Arc<Lease>> {
        self.lease.as_ref().filter(|lease| !self.over.is_over() && lease.is_valid())
    }
}

/// The error for a lease that was lost while it was held.
pub(super) fn lost() -> Error {
    Error::new(ErrorKind::Lost, "the lease was lost: others may have what it held")
}

/// Redis counts in signed numbers, so every fence is one.
pub(super) fn signed(fence: u64) -> i64 {
    i64::try_from(fence).unwrap_or(i64::MAX)
}

impl fmt::Debug for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Validity")
            .field("name", &self.subject.name())
            .field("is_valid", &self.is_valid())
            .field("fence", &self.fence)
            .finish()
    }
}
