//! What users work with: the `Lock` trait, which is the contract, and its implementation.

pub(crate) mod claim;
pub(crate) mod condition;
pub(crate) mod guard;
pub(crate) mod permit;
pub(crate) mod redis_lock;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
pub(crate) mod validity;

use std::time::Duration;

use crate::base::error::{Error, Result};
use crate::base::interrupt::Interrupt;
use condition::Condition;

/// A lock with the methods of Java's `java.util.concurrent.locks.Lock`.
///
/// It is owned by threads: only the thread that locked can unlock, and a thread that holds the lock
/// may lock it again (it must then unlock as often). Unlike in Java, every call can fail, because
/// the lock is kept on a server.
///
/// ```
/// use distlock::{Client, Lock, Result};
/// use std::time::Duration;
///
/// /// Takes any lock: one on Redis, or one of your own in a test.
/// fn book(lock: &dyn Lock, seats: &mut u32) -> Result<bool> {
///     if !lock.try_lock(Duration::from_secs(1))? {
///         return Ok(false);
///     }
///     *seats -= 1;
///     lock.unlock()?;
///     Ok(true)
/// }
///
/// # fn main() -> Result<()> {
/// let lock = Client::open("memory://")?.lock("flight:7");
/// assert!(book(&lock, &mut 3)?);
/// # Ok(())
/// # }
/// ```
pub trait Lock: Send + Sync {
    /// Locks, and blocks until it can. Java: `lock()`.
    ///
    /// It returns when this thread holds the lock. It waits through an outage of the server, up to
    /// the client's `max_outage`.
    ///
    /// # Errors
    /// With any error, this call added no hold. `Unavailable` after an outage of `max_outage`;
    /// `Denied`, `WrongType` and `InvalidInput` at once; `Exhausted` with
    /// [`Retry::attempts`](crate::Retry::attempts); `Lost` if this thread holds the lock already
    /// but has lost the lease; `Conflict` if it holds it with other options; `Server` for what else
    /// the server refuses; `Closed` once the client is closed; `Unsupported` in a forked child.
    /// [`ErrorKind`](crate::ErrorKind) says what each error leaves on the server.
    fn lock(&self) -> Result<()>;

    /// Locks as [`lock`](Lock::lock) does, unless `interrupt` ends the wait. Java:
    /// `lockInterruptibly()`.
    ///
    /// # Errors
    /// As `lock`, and `Interrupted`: this call added no hold; what an attempt left on the server is
    /// withdrawn in the background. As in Java, an interrupt that is set when the call begins ends
    /// it, even if the thread holds the lock already and would not have to wait; its holds stay.
    fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<()>;

    /// Locks if it can within `timeout`. Java: `tryLock()` with [`Duration::ZERO`], else
    /// `tryLock(time, unit)` without an interrupt.
    ///
    /// `Ok(true)`: this thread holds the lock. `Ok(false)`: another holds it, or waits for it. If
    /// another thread of this process waits for the lock already, the last answer that it got
    /// counts, which may be a pause old: about two seconds at most, or what [`Retry`](crate::Retry)
    /// says. Zero is one attempt without waiting or queueing; [`Duration::MAX`] is no limit. Ends
    /// by the deadline, plus one command timeout if an answer is under way.
    ///
    /// # Errors
    /// As `lock`; but `Unavailable` as soon as the time is over, if the last attempt had no answer:
    /// what is known to be "Redis is down" is never `Ok(false)`, and "held by another" is never an
    /// error.
    fn try_lock(&self, timeout: Duration) -> Result<bool>;

    /// Locks as [`try_lock`](Lock::try_lock) does, unless `interrupt` ends the wait.
    ///
    /// # Errors
    /// As `try_lock`, and `Interrupted`, as in `lock_interruptibly`.
    fn try_lock_interruptibly(&self, timeout: Duration, interrupt: &Interrupt) -> Result<bool>;

    /// Removes one hold of this thread, and with the last hold releases the lock. Java: `unlock()`.
    ///
    /// One round trip. If the server does not answer, it is asked once more over another
    /// connection, so the call ends within two command timeouts.
    ///
    /// # Errors
    /// `NotHeld`: this thread does not hold the lock; nothing was changed. `Lost`: this thread held
    /// the lock, but the lease was lost before; another may hold the lock now, and the hold is
    /// still removed. `Unknown`: no answer, or none before the lease ran out. The lock may still be
    /// held on the server, until the background has removed it or the lease has run out; this
    /// thread does not hold it any more.
    fn unlock(&self) -> Result<()>;

    /// A condition of this lock, by name. Same name on the same lock: same condition, in every
    /// process. Java: `newCondition()`. Sends nothing.
    ///
    /// # Errors
    /// `Unsupported` unless the lock has conditions; this default body always returns it.
    /// [`RedisLock`](crate::RedisLock) has conditions in the plain layout with
    /// [`Queue::Fifo`](crate::Queue::Fifo), without an `owner` and without `at_least`.
    /// `InvalidInput` for a name that is empty or longer than 256 bytes.
    fn new_condition(&self, name: &str) -> Result<Condition> {
        let _ = name;
        Err(Error::unsupported("this lock has no conditions"))
    }
}
