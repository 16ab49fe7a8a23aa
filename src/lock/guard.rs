//! `LockGuard`: one hold of a lock, which ends on drop.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::Lock;
use super::redis_lock::RedisLock;
use super::validity::Validity;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log;

/// One hold of a lock; dropping it unlocks.
///
/// It owns its lock, so it fits into a struct. It stays on its thread, because the hold belongs to
/// the thread; a [`Claim`](crate::Claim) can be sent to another. An error of the unlock in `drop`
/// goes to the log at `warn`; [`release`](LockGuard::release) returns it.
///
/// ```
/// # fn main() -> distlock::Result<()> {
/// let lock = distlock::Client::open("memory://")?.lock("ledger");
/// let guard = lock.guard()?;
/// // … read, compute …
/// guard.ensure_valid()?; // last moment to notice a lost lease
/// // … write …
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is unlocked when its guard is dropped: bind it, as in \
              `let _guard = lock.guard()?`"]
pub struct LockGuard {
    lock: RedisLock,
    released: bool,
    /// Whether it has reported the lease as lost. That stays so, also if its thread locks again.
    said_lost: Cell<bool>,
    not_send: PhantomData<*const ()>,
}

impl LockGuard {
    /// For a hold that the caller has just entered.
    fn new(lock: RedisLock) -> Self {
        Self { lock, released: false, said_lost: Cell::new(false), not_send: PhantomData }
    }

    /// The lock.
    #[must_use]
    pub fn lock(&self) -> &RedisLock {
        &self.lock
    }

    /// Whether the lease is still valid, by this process's own clock and by the server's answers so
    /// far. Local: no round trip. Once `false`, it stays `false`.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        if !self.said_lost.get() && !self.lock.is_valid() {
            self.said_lost.set(true);
        }
        !self.said_lost.get()
    }

    /// How long the lease is still valid unless it is extended; zero once it is lost. Local: no
    /// round trip.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let remaining = if self.is_valid() { self.lock.remaining() } else { None };
        remaining.unwrap_or_default()
    }

    /// The same questions for other threads, which work for this one while it holds the lock.
    #[must_use]
    pub fn validity(&self) -> Validity {
        if self.is_valid() { self.lock.validity() } else { self.lock.lost_validity() }
    }

    /// An error unless the lease is valid. Local: no round trip.
    ///
    /// Valid *now*: this process may be paused right after, for longer than the lease. Only the
    /// fence protects the resource then.
    ///
    /// # Errors
    /// `Lost`; another process may hold the lock.
    pub fn ensure_valid(&self) -> Result<()> {
        if self.is_valid() { Ok(()) } else { Err(self.lock.lost()) }
    }

    /// The fence of this hold, for the protected resource to compare; `None` without
    /// [`LockOptions::fenced`](crate::LockOptions::fenced). A wait in a condition changes it,
    /// because the lease after the wait is a new one.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.lock.fence()
    }

    /// The same, for SQL and other languages without unsigned integers. No fence is larger than
    /// [`i64::MAX`].
    #[must_use]
    pub fn fence_i64(&self) -> Option<i64> {
        self.lock.fence_i64()
    }

    /// Extends the lease until `lease` from now, and never shortens it. See
    /// [`RedisLock::extend`].
    ///
    /// # Errors
    /// As [`RedisLock::extend`].
    pub fn extend(&self, lease: Duration) -> Result<()> {
        self.lock.extend(lease)
    }

    /// Unlocks, and returns the result.
    ///
    /// # Errors
    /// As [`Lock::unlock`].
    pub fn release(mut self) -> Result<()> {
        self.released = true;
        self.lock.unlock()
    }

    /// The end of work that was done under the lock: an error if it was not, to the end. A release
    /// without an answer is none.
    fn end(self) -> Result<()> {
        let valid = self.ensure_valid();
        let released = self.release();
        valid.and(unless_unknown(released))
    }
}

/// The work was done under a valid lease, and the background removes the rest.
fn unless_unknown(released: Result<()>) -> Result<()> {
    released.or_else(|error| if error.is_unknown() { Ok(()) } else { Err(error) })
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.released {
            log_failed(self.lock.unlock());
        }
    }
}

/// Nobody else hears of an unlock that fails in a `drop`.
fn log_failed(unlocked: Result<()>) {
    match unlocked {
        Ok(()) => {}
        // Somebody unlocked the guard's hold by hand. Logged, because the hold that ended may have
        // been another guard's.
        Err(error) if error.kind() == ErrorKind::NotHeld => {
            log::warn!("{error}: a guard found nothing left to unlock")
        }
        Err(error) => log::warn!("{error}: found when a guard was dropped"),
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("lock", &self.lock)
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

impl RedisLock {
    /// Locks, and unlocks when the guard is dropped. Otherwise as [`Lock::lock`].
    ///
    /// # Errors
    /// As [`Lock::lock`].
    pub fn guard(&self) -> Result<LockGuard> {
        self.lock()?;
        Ok(LockGuard::new(self.clone()))
    }

    /// Locks if it can within `timeout`, and unlocks when the guard is dropped. Otherwise as
    /// [`Lock::try_lock`].
    ///
    /// # Errors
    /// As [`Lock::try_lock`].
    pub fn try_guard(&self, timeout: Duration) -> Result<Option<LockGuard>> {
        Ok(self.try_lock(timeout)?.then(|| LockGuard::new(self.clone())))
    }

    /// Runs `work` under the lock, and returns its value if the lease lasted until the end of
    /// `work`.
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// let lock = distlock::Client::open("memory://")?.lock("ledger");
    /// let sum: u64 = lock.with(|_guard| [1, 2, 3].iter().sum())?;
    /// assert_eq!(sum, 6);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Lock::lock`], before `work` runs. `Lost` after `work` ran, if the lease was lost before
    /// its end, or if the release finds the loss: the value is dropped, and another process may
    /// have worked at the same time. A release without an answer is no error here: the work was
    /// done under a valid lease, and the background removes the rest.
    pub fn with<T>(&self, work: impl FnOnce(&LockGuard) -> T) -> Result<T> {
        let guard = self.guard()?;
        let value = work(&guard);
        guard.end().map(|()| value)
    }

    /// As [`with`](RedisLock::with), for work that can fail: with an error type of the program's
    /// own, to which an error of the lock converts.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let lock = distlock::Client::open("memory://")?.lock("ledger");
    /// let sum = lock.try_with(|_guard| -> Result<u64, Box<dyn std::error::Error>> {
    ///     Ok("1".parse::<u64>()? + "2".parse::<u64>()?)
    /// })?;
    /// assert_eq!(sum, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`with`](RedisLock::with), and those of `work`: then what becomes of the lock is only
    /// logged.
    pub fn try_with<T, E: From<Error>>(
        &self,
        work: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.guard()?;
        let value = work(&guard)?;
        guard.end()?;
        Ok(value)
    }

    /// Runs `job` if the lock is free, and keeps the lock until `at_least` after the caller got it,
    /// or until the end of `job` if that is later. `None`: the lock is taken, by a run that goes
    /// on, or by one that began less than `at_least` ago. Does not wait for another holder.
    ///
    /// For jobs that every instance of a service starts at the same times, and one of them shall
    /// run. The guide has [a page on them](crate::guide::jobs), which says how long `at_least`
    /// should be: half of the time between two starts, or some minutes if that is less. It is as
    /// [`LockOptions::at_least`](crate::LockOptions::at_least), for this call; all other options
    /// are the lock's own. A `job` that panics has run, too. The round trips are those of
    /// `try_lock` and `unlock`.
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// use std::time::Duration;
    ///
    /// let nightly = distlock::Client::open("memory://")?.lock("nightly-report");
    /// let start = || nightly.run_once(Duration::from_secs(600), |_guard| 7);
    /// assert_eq!(start()?, Some(7));
    /// assert_eq!(start()?, None); // another instance, a moment later
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Lock::try_lock`]: `job` has not run; `Unavailable` if the server does not answer.
    /// `Lost`, as of [`with`](RedisLock::with): `job` has run, and perhaps beside another.
    /// `Conflict`: this thread holds the lock with other options. Within `job`,
    /// [`guard.lock()`](LockGuard::lock) is the handle with these options. `InvalidInput` for an
    /// `at_least` of zero or above 24 h, `Unsupported` where a lock cannot be kept.
    pub fn run_once<T>(
        &self,
        at_least: Duration,
        job: impl FnOnce(&LockGuard) -> T,
    ) -> Result<Option<T>> {
        if at_least.is_zero() {
            return Err(self.named(Error::invalid("run_once needs an at_least above zero")));
        }
        let Some(guard) = self.with_at_least(at_least).try_guard(Duration::ZERO)? else {
            return Ok(None);
        };
        let value = job(&guard);
        guard.end().map(|()| Some(value))
    }
}

/// One hold of any [`Lock`]; dropping it unlocks. Made by the methods of `dyn Lock`.
///
/// It borrows its lock, and stays on its thread. An error of the unlock in `drop` goes to the log
/// at `warn`; [`release`](DynLockGuard::release) returns it.
#[must_use = "the lock is unlocked when its guard is dropped: bind it, as in \
              `let _guard = lock.guard()?`"]
pub struct DynLockGuard<'a> {
    lock: &'a dyn Lock,
    released: bool,
    not_send: PhantomData<*const ()>,
}

impl DynLockGuard<'_> {
    /// Unlocks, and returns the result.
    ///
    /// # Errors
    /// As [`Lock::unlock`].
    pub fn release(mut self) -> Result<()> {
        self.released = true;
        self.lock.unlock()
    }
}

impl Drop for DynLockGuard<'_> {
    fn drop(&mut self) {
        if !self.released {
            log_failed(self.lock.unlock());
        }
    }
}

impl fmt::Debug for DynLockGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynLockGuard").finish_non_exhaustive()
    }
}

/// For code that takes any lock.
///
/// ```
/// use distlock::{Client, Lock, Result};
///
/// fn book(lock: &dyn Lock, seats: &mut u32) -> Result<()> {
///     lock.with(|| *seats -= 1)
/// }
///
/// # fn main() -> Result<()> {
/// let mut seats = 3;
/// book(&Client::open("memory://")?.lock("flight:7"), &mut seats)?;
/// assert_eq!(seats, 2);
/// # Ok(())
/// # }
/// ```
impl dyn Lock + '_ {
    /// Locks, and unlocks when the guard is dropped.
    ///
    /// # Errors
    /// As [`Lock::lock`].
    pub fn guard(&self) -> Result<DynLockGuard<'_>> {
        self.lock()?;
        Ok(self.locked())
    }

    /// Locks if it can within `timeout`, and unlocks when the guard is dropped.
    ///
    /// # Errors
    /// As [`Lock::try_lock`].
    pub fn try_guard(&self, timeout: Duration) -> Result<Option<DynLockGuard<'_>>> {
        Ok(self.try_lock(timeout)?.then(|| self.locked()))
    }

    fn locked(&self) -> DynLockGuard<'_> {
        DynLockGuard { lock: self, released: false, not_send: PhantomData }
    }

    /// Runs `work` under the lock, and returns its value if the unlock finds no loss.
    ///
    /// # Errors
    /// As [`Lock::lock`], before `work` runs; as [`Lock::unlock`] after that, but a release without
    /// an answer is no error here. With an error the value is dropped.
    pub fn with<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let guard = self.guard()?;
        let value = work();
        unless_unknown(guard.release()).map(|()| value)
    }
}
