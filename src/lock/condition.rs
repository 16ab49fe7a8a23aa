//! `Condition`: waiting, under a lock, for something that another holder of the lock does.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::error::{Error, Result};
use crate::base::interrupt::Interrupt;

const LONGEST_NAME: usize = 256;

/// What a lock does for its conditions. The holder of the lock calls it.
pub(crate) trait ConditionLock: fmt::Debug + Send + Sync {
    /// Gives up all holds of this thread, waits in this condition, and restores the holds before it
    /// returns. `Ok(false)`: `timeout` ended before a notification came. `None` is no limit.
    ///
    /// # Errors
    /// As [`Condition::wait_interruptibly`].
    fn wait_in(
        &self,
        condition: &str,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<bool>;

    /// Wakes at most `most` waiters of this condition, those that have waited longest.
    ///
    /// # Errors
    /// As [`Condition::notify_one`].
    fn notify(&self, condition: &str, most: u32) -> Result<()>;
}

/// A condition of a lock, between processes; Java's `java.util.concurrent.locks.Condition`. Made by
/// [`Lock::new_condition`](crate::Lock::new_condition).
///
/// Same name on the same lock: same condition, in every process. A wait gives the lock up, with all
/// holds of this thread, and restores them before it returns:
///
/// ```
/// # fn main() -> distlock::Result<()> {
/// use distlock::Client;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// let client = Client::open("memory://")?;
/// let ready = AtomicBool::new(false);
/// std::thread::scope(|scope| {
///     scope.spawn(|| -> distlock::Result<()> {
///         let lock = client.lock("queue");
///         let _guard = lock.guard()?;
///         ready.store(true, Ordering::SeqCst);
///         lock.new_condition("not-empty")?.notify_one()
///     });
///     let lock = client.lock("queue");
///     let _guard = lock.guard()?;
///     lock.new_condition("not-empty")?.wait_while(|| !ready.load(Ordering::SeqCst))
/// })
/// # }
/// ```
///
/// # What is promised
///
/// | Java's `Condition` | here |
/// |---|---|
/// | waiting releases the lock atomically | same: one script enters the condition and releases |
/// | the lock is held again when a wait returns | same, with as many holds; the lease is new, and its fence is larger. Different if the server cannot be reached for `max_outage`, or the client is closed: then the wait fails with `Unavailable` or `Closed`, and the lock is **not** held |
/// | spurious wake-ups may occur | same: one waiter of a condition every 10 s, and all of them after the server lost its data. Wait in a loop, as [`wait_while`](Condition::wait_while) does |
/// | `signal` needs the lock | same: `NotHeld` otherwise, checked on the server, too |
/// | `signal` wakes one waiter, `signalAll` all | same, in the order in which they began to wait. If the notified waiter dies, another is woken: at the next release of the lock, and within 16 s if the dead one had the lock already ([details](crate::guide::internals#conditions)) |
/// | a signal wakes nobody who began to wait after it | same, unless the server's clock was set back in between |
/// | one signal wakes one waiter | same, unless the notified waiter was cut off or slow, and another was notified in its place, or the notification was sent twice: then both may wake |
/// | `awaitUninterruptibly` | [`wait`](Condition::wait): a thread is interruptible only with an [`Interrupt`] |
/// | `await` throws `InterruptedException` with the lock held | same: [`wait_interruptibly`](Condition::wait_interruptibly) fails with `Interrupted`, and the lock is held. A notification that came first wins |
/// | `await(time)` returns false after the time | same: [`wait_timeout_interruptibly`](Condition::wait_timeout_interruptibly), and [`wait_timeout`](Condition::wait_timeout) |
/// | `awaitUntil(date)` | not here: no wall clock decides anything in this crate |
#[derive(Clone)]
pub struct Condition {
    lock: Arc<dyn ConditionLock>,
    name: Arc<str>,
}

impl Condition {
    /// `InvalidInput` for a name that is empty or longer than 256 bytes.
    pub(crate) fn new(lock: Arc<dyn ConditionLock>, name: &str) -> Result<Self> {
        if name.is_empty() || name.len() > LONGEST_NAME {
            return Err(Error::invalid("the name of a condition must have 1 to 256 bytes"));
        }
        Ok(Self { lock, name: name.into() })
    }

    /// The condition's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until notified. Java: `awaitUninterruptibly()`.
    ///
    /// One round trip to enter; the hand-off of the lock ends the wait. Meanwhile the waiter sends
    /// a sign of life every 4 to 6 s. It may wake for no reason: wait in a loop.
    ///
    /// # Errors
    /// `NotHeld`, `Lost` (perhaps while nothing could be sent), `Conflict` (this thread holds the
    /// lock by a handle with other options, or also reads): nothing was done. `Unavailable`,
    /// `Denied`, `Server`, `WrongType`: the lock is not held, and what may be left behind is
    /// withdrawn in the background; if nothing was sent before the error, the lock is held as
    /// before (ask [`is_held`](crate::RedisLock::is_held)).
    pub fn wait(&self) -> Result<()> {
        self.wait_for(None, None).map(drop)
    }

    /// Waits until notified, at most for `timeout`; [`Duration::MAX`] is no limit. `Ok(false)`: the
    /// time was over first. Java: `await(time, unit)`, without an interrupt.
    ///
    /// The lock is held again in both cases; the wait for the lock is not part of `timeout`.
    ///
    /// # Errors
    /// As [`wait`](Condition::wait). `Unavailable` also if nothing could be sent within `timeout`:
    /// the lock is held as before.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.wait_for(Some(timeout), None)
    }

    /// Waits while `unready` returns `true`. It is called under the lock, before the first wait and
    /// after each wait.
    ///
    /// # Errors
    /// As [`wait`](Condition::wait).
    pub fn wait_while(&self, mut unready: impl FnMut() -> bool) -> Result<()> {
        while unready() {
            self.wait()?;
        }
        Ok(())
    }

    /// Waits while `unready` returns `true`, at most for `timeout`; [`Duration::MAX`] is no limit.
    /// `unready` is called under the lock, before the first wait and after each wait. `Ok(false)`:
    /// the time is over, and it returned `true` after that.
    ///
    /// # Errors
    /// As [`wait_timeout`](Condition::wait_timeout).
    pub fn wait_while_timeout(
        &self,
        timeout: Duration,
        mut unready: impl FnMut() -> bool,
    ) -> Result<bool> {
        let begun = Instant::now();
        while unready() {
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            self.wait_timeout(left)?;
        }
        Ok(true)
    }

    /// Waits until notified, at most for `timeout`, or until `interrupt` ends the wait.
    /// `Ok(false)`: the time was over first. Java: `await(time, unit)`.
    ///
    /// # Errors
    /// As [`wait_timeout`](Condition::wait_timeout) and
    /// [`wait_interruptibly`](Condition::wait_interruptibly).
    pub fn wait_timeout_interruptibly(
        &self,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<bool> {
        self.wait_for(Some(timeout), Some(interrupt))
    }

    /// Waits until notified, or until `interrupt` ends the wait. Java: `await()`.
    ///
    /// # Errors
    /// `Interrupted`, with the lock **held**: held again, or still held if nothing could be sent
    /// before; otherwise as [`wait`](Condition::wait).
    pub fn wait_interruptibly(&self, interrupt: &Interrupt) -> Result<()> {
        self.wait_for(None, Some(interrupt)).map(drop)
    }

    /// Wakes the waiter that has waited longest. It gets the lock when this thread, and all waiters
    /// that already queue for the lock, have released it. Java: `signal()`.
    ///
    /// One round trip, and one more over a fresh connection if an idle one turned out to be closed.
    ///
    /// # Errors
    /// `NotHeld`, `Lost`, `Conflict` (this thread holds the lock by a handle with other options):
    /// nobody was woken. `Unknown`: no answer; a waiter may have been woken. `Unavailable`,
    /// `Denied`, `Server`: nobody was woken. The lock is held as before.
    pub fn notify_one(&self) -> Result<()> {
        self.lock.notify(&self.name, 1)
    }

    /// Wakes all waiters, in the order in which they began to wait. Java: `signalAll()`.
    ///
    /// One round trip.
    ///
    /// # Errors
    /// As [`notify_one`](Condition::notify_one).
    pub fn notify_all(&self) -> Result<()> {
        self.lock.notify(&self.name, u32::MAX)
    }

    fn wait_for(&self, timeout: Option<Duration>, interrupt: Option<&Interrupt>) -> Result<bool> {
        self.lock.wait_in(&self.name, timeout, interrupt)
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condition").field("name", &self.name).field("lock", &self.lock).finish()
    }
}
