//! `Claim`: a lock held by a value instead of a thread.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::redis_lock::RedisLock;
use super::validity::signed;
use crate::base::error::Result;
use crate::base::interrupt::Interrupt;
use crate::base::log;
use crate::lease::granted::Lease;
use crate::lease::wait_limits::WaitLimits;

/// A lock that belongs to this value, and to no thread; dropping it releases the lock. Made by
/// [`RedisLock::claim`].
///
/// **A claim is not reentrant.** A thread that has a claim on a lock, and locks or claims it again,
/// waits for itself: without an end in [`lock`](RedisLock::lock) and [`claim`](RedisLock::claim),
/// which nobody can tell from a wait for another, because any thread may release the claim.
///
/// It can be sent to another thread, kept in a job that several threads work on in turn, or shared
/// by reference or in an `Arc`; whoever drops it releases the lock. In everything else it is as a
/// hold: it waits in the same queues, excludes holds and other claims, is renewed, has a fence of
/// its own, and its loss is told to [`on_lost`](RedisLock::on_lost). It keeps its client open.
///
/// [`is_held`](RedisLock::is_held), [`unlock`](RedisLock::unlock) and the other calls of
/// [`RedisLock`] that speak of this thread's hold do not see claims, and neither do conditions.
///
/// An error of the release in `drop` goes to the log at `warn`; [`release`](Claim::release) returns
/// it. A claim that is leaked, as by [`std::mem::forget`], is renewed until the client is closed.
///
/// ```
/// # fn main() -> distlock::Result<()> {
/// let lock = distlock::Client::open("memory://")?.lock("report:7");
/// let claim = lock.claim()?; // one thread takes the job …
/// let worker = std::thread::spawn(move || {
///     claim.ensure_valid()?; // … and another does it
///     claim.release()
/// });
/// worker.join().expect("no panic")
/// # }
/// ```
#[must_use = "the lock is released when its claim is dropped: bind it, as in \
              `let _claim = lock.claim()?`"]
pub struct Claim {
    lock: RedisLock,
    lease: Arc<Lease>,
    /// The turn that comes with the lease.
    turn: u64,
    released: bool,
}

impl Claim {
    /// The lock.
    #[must_use]
    pub fn lock(&self) -> &RedisLock {
        &self.lock
    }

    /// Whether the lease is still valid, by this process's own clock and by the server's answers so
    /// far. Local: no round trip. Once `false`, it stays `false`.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.lease.is_valid()
    }

    /// How long the lease is still valid unless it is extended; zero once it is lost. Local: no
    /// round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease.expiry.remaining()
    }

    /// An error unless the lease is valid. Local: no round trip. As
    /// [`LockGuard::ensure_valid`](crate::LockGuard::ensure_valid), it speaks of now.
    ///
    /// # Errors
    /// `Lost`; another may hold the lock.
    pub fn ensure_valid(&self) -> Result<()> {
        if self.is_valid() { Ok(()) } else { Err(self.lock.lost()) }
    }

    /// The fence of this claim, for the protected resource to compare; `None` without
    /// [`LockOptions::fenced`](crate::LockOptions::fenced). It stays the same on every thread.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        // Only whoever owns the lease passes it on, and that ends the claim.
        self.lease.held_fence()
    }

    /// The same, for SQL and other languages without unsigned integers. No fence is larger than
    /// [`i64::MAX`].
    #[must_use]
    pub fn fence_i64(&self) -> Option<i64> {
        self.fence().map(signed)
    }

    /// Extends the lease until `lease` from now, and never shortens it. `lease` is 100 ms to 24 h.
    /// One round trip. Renewal goes on as before.
    ///
    /// # Errors
    /// As [`RedisLock::extend`], without `NotHeld`.
    pub fn extend(&self, lease: Duration) -> Result<()> {
        self.lock.extend_lease(Some(Arc::clone(&self.lease)), lease)
    }

    /// Releases the lock, and returns the result. One round trip; none if another thread of this
    /// process waits for the lock with the same options, which may get the lease as it is.
    ///
    /// # Errors
    /// As [`Lock::unlock`](crate::Lock::unlock), without `NotHeld`. The claim is gone in any case.
    pub fn release(mut self) -> Result<()> {
        self.released = true;
        self.give_up()
    }

    fn give_up(&self) -> Result<()> {
        self.lock.give_up_claim(&self.lease, self.turn)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.released
            && let Err(error) = self.give_up()
        {
            log::warn!("{error}: found when a claim was dropped");
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("lock", &self.lock)
            .field("is_valid", &self.is_valid())
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

impl RedisLock {
    /// Takes the lock for a [`Claim`], which belongs to no thread, and blocks until it can. One
    /// round trip without contention; it waits as [`lock`](Self::lock) does.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but for `Lost`; and `Conflict` if this thread holds the lock by
    /// `lock`, a guard or `with`, because the claim would wait for that hold.
    pub fn claim(&self) -> Result<Claim> {
        self.claim_in_the_end(None)
    }

    /// Takes the lock for a [`Claim`], unless `interrupt` ends the wait. Otherwise as
    /// [`claim`](Self::claim).
    ///
    /// # Errors
    /// As [`claim`](Self::claim), and `Interrupted`, as of
    /// [`lock_interruptibly`](Self::lock_interruptibly).
    pub fn claim_interruptibly(&self, interrupt: &Interrupt) -> Result<Claim> {
        self.claim_in_the_end(Some(interrupt))
    }

    /// Takes the lock for a [`Claim`] if it can within `timeout`, which is that of
    /// [`Lock::try_lock`](crate::Lock::try_lock). `None`: another has it.
    ///
    /// # Errors
    /// As [`claim`](Self::claim); but `Unavailable` as
    /// [`Lock::try_lock`](crate::Lock::try_lock).
    pub fn try_claim(&self, timeout: Duration) -> Result<Option<Claim>> {
        self.claim_within(&self.limits(timeout, None))
    }

    /// Takes the lock for a [`Claim`] if it can within `timeout`, unless `interrupt` ends the wait.
    /// Otherwise as [`try_claim`](Self::try_claim).
    ///
    /// # Errors
    /// As [`try_claim`](Self::try_claim), and `Interrupted`.
    pub fn try_claim_interruptibly(
        &self,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<Option<Claim>> {
        self.claim_within(&self.limits(timeout, Some(interrupt)))
    }

    fn claim_in_the_end(&self, interrupt: Option<&Interrupt>) -> Result<Claim> {
        let claim = self.claim_within(&WaitLimits::none(interrupt))?;
        claim.ok_or_else(Self::without_it)
    }

    fn claim_within(&self, limits: &WaitLimits<'_>) -> Result<Option<Claim>> {
        let owned = self.acquire_for_claim(limits)?;
        Ok(owned.map(|(lease, turn)| Claim { lock: self.clone(), lease, turn, released: false }))
    }
}
