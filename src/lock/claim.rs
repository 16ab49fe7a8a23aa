//! `Claim`: a lock held by a value instead of a thread.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::redis_lock::RedisLock;
use super::validity::{Validity, signed};
use crate::base::error::Result;
use crate::base::interrupt::Interrupt;
use crate::base::log;
use crate::lease::wait_limits::WaitLimits;
use crate::local::holds::OverOnDrop;
use crate::local::owned::Owned;

/// A lock that belongs to this value, and to no thread; dropping it releases the lock. Made by
/// [`RedisLock::claim`].
///
/// It is for a lock that has to leave its thread, such as that of a job which one thread accepts
/// and another finishes. Where the lock stays, prefer [`with`](RedisLock::with) and guards: they
/// are reentrant.
///
/// **A claim is not reentrant.** A thread that has a claim, and calls `lock`, `guard`, `with` or
/// `claim` on the same lock, waits for itself: for ever, unless its attempts are limited or the
/// claim's lease runs out. `try_lock` and [`try_claim`](RedisLock::try_claim) say that another has
/// it. The crate cannot refuse such a wait, because another thread might end the claim.
///
/// In everything else it is as a hold: it waits in the same queues, excludes whom a hold
/// excludes, is renewed, has a fence if the lock is [`fenced`](crate::LockOptions::fenced), and its
/// loss is told to [`on_lost`](RedisLock::on_lost). It ends when it is dropped, and not with any
/// thread, and keeps its client open until then.
///
/// Of the calls of [`RedisLock`], those that ask the server see a claim:
/// [`is_locked`](RedisLock::is_locked), [`inspect`](RedisLock::inspect) and
/// [`force_unlock`](RedisLock::force_unlock). Those that are about this thread's hold do not:
/// [`is_held`](RedisLock::is_held), [`fence`](RedisLock::fence), [`extend`](RedisLock::extend),
/// [`unlock`](RedisLock::unlock) and so on. Conditions need a hold.
///
/// The drop, like [`release`](Claim::release), may block for up to two command timeouts, and for
/// one more if the claim was the last to keep its client open. An error of the release in `drop`
/// goes to the log at `warn`. A claim that is leaked, as by [`std::mem::forget`], is renewed as its
/// options say, and keeps its client open, until [`Client::close`](crate::Client::close).
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
    owned: Owned,
    released: bool,
    /// What its `Validity` values look at.
    over: OnceLock<OverOnDrop>,
}

impl Claim {
    /// The lock. Its `is_valid`, `fence` and `extend` are about this thread's hold, and not about
    /// this claim.
    #[must_use]
    pub fn lock(&self) -> &RedisLock {
        &self.lock
    }

    /// Whether the lease is still valid, by this process's own clock and by the server's answers so
    /// far. Local: no round trip. Once `false`, it stays `false`.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.owned.lease.is_valid()
    }

    /// How long the lease is still valid unless it is extended; zero once it is lost. Local: no
    /// round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.owned.lease.expiry.remaining()
    }

    /// The same questions, for threads that work for the owner of this claim. They do not keep the
    /// lock.
    #[must_use]
    pub fn validity(&self) -> Validity {
        let over = self.over.get_or_init(OverOnDrop::default).over();
        self.lock.validity_of(&self.owned.lease, over, self.fence())
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
        self.owned.fence
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
        self.lock.extend_lease(Some(Arc::clone(&self.owned.lease)), lease)
    }

    /// Releases the lock, and returns the result. One round trip; none if another thread of this
    /// process waits for the lock with the same options and gets the lease as it is.
    ///
    /// # Errors
    /// As [`Lock::unlock`](crate::Lock::unlock), without `NotHeld`. The claim is gone in any case.
    /// `Unsupported` in a forked child, where the claim of the parent stays.
    pub fn release(mut self) -> Result<()> {
        self.give_up()
    }

    fn give_up(&mut self) -> Result<()> {
        self.released = true;
        // Every `Validity` hears of the end before the release.
        self.over.take();
        self.lock.give_up(&self.owned)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.released
            && let Err(error) = self.give_up()
        {
            log::warn!("{error}: found when a claim or a permit was dropped");
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
    /// Takes the lock for a [`Claim`], which belongs to no thread, and blocks until it can. It
    /// waits as [`lock`](Self::lock) does; one round trip without contention.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), without `Lost`. `Conflict` if this thread holds the lock by `lock`,
    /// a guard or `with`, also if the lease of that hold is lost, or holds the other side of a
    /// read-write lock: the thread has to unlock first, because the claim might wait for it. In the
    /// destructor of a thread that ends, where [`lock`](Self::lock) is `Unsupported`, a claim
    /// works.
    pub fn claim(&self) -> Result<Claim> {
        self.claim_or_fail(None)
    }

    /// Takes the lock for a [`Claim`], unless `interrupt` ends the wait. Otherwise as
    /// [`claim`](Self::claim).
    ///
    /// # Errors
    /// As [`claim`](Self::claim), and `Interrupted`, as of
    /// [`lock_interruptibly`](Self::lock_interruptibly).
    pub fn claim_interruptibly(&self, interrupt: &Interrupt) -> Result<Claim> {
        self.claim_or_fail(Some(interrupt))
    }

    /// Takes the lock for a [`Claim`] if it can within `timeout`, which is that of
    /// [`Lock::try_lock`](crate::Lock::try_lock). `None`: another has it.
    ///
    /// # Errors
    /// As [`claim`](Self::claim); but `Unavailable` as soon as the time is over, if the last
    /// attempt had no answer, as of [`Lock::try_lock`](crate::Lock::try_lock).
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

    pub(super) fn claim_or_fail(&self, interrupt: Option<&Interrupt>) -> Result<Claim> {
        let claim = self.claim_within(&WaitLimits::endless(interrupt))?;
        claim.ok_or_else(|| self.ended_without_lease())
    }

    pub(super) fn claim_within(&self, limits: &WaitLimits<'_>) -> Result<Option<Claim>> {
        let claim =
            |owned| Claim { lock: self.clone(), owned, released: false, over: OnceLock::new() };
        Ok(self.acquire_lease(limits)?.map(claim))
    }
}
