//! `RwLock`: a lock that many may read under, or one write.

use std::fmt;
use std::time::Duration;

use super::guard::LockGuard;
use super::redis_lock::RedisLock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::options::{LockOptions, Share, Side};

/// A read-write lock: many may hold its read side at once, or one its write side. Made by
/// [`Client::rw_lock`](crate::Client::rw_lock); cheap to make and to clone; same name, same lock.
/// Java: `ReentrantReadWriteLock`, in its fair form.
///
/// [`read_lock`](RwLock::read_lock) and [`write_lock`](RwLock::write_lock) are its two sides, each
/// a [`RedisLock`] with all that a lock has: guards, [`with`](RedisLock::with), timeouts,
/// interrupts, [`on_lost`](RedisLock::on_lost), claims. [`read`](RwLock::read) and
/// [`write`](RwLock::write) are short for their guards.
///
/// ```
/// # fn main() -> distlock::Result<()> {
/// let catalogue = distlock::Client::open("memory://")?.rw_lock("catalogue");
/// let reading = catalogue.read()?;
/// // … look something up, while others do …
/// reading.release()?;
///
/// let writing = catalogue.write()?;
/// // … rebuild it, alone …
/// let reading = catalogue.downgrade(writing)?;
/// // … check it, while others look something up, and nobody writes …
/// reading.release()
/// # }
/// ```
///
/// # Order
///
/// First come, first served, among readers and writers of all processes: a reader does not overtake
/// a writer that waits, but for threads that share a lease, as said below. Neither does a
/// [`try_read`](RwLock::try_read). When a writer unlocks, all readers up to the next writer in the
/// queue get the lock at once: up to 128 processes in one step, and the others a pause later at the
/// latest. A waiting writer that has died keeps the readers behind it out for a pause (1 to 1.5 s,
/// or as [`Retry`](crate::Retry) says), one that is frozen or cut off for three.
/// [Guarantees](crate::guide::guarantees#order) says when else the order does not hold.
///
/// # Threads of one process
///
/// Threads that read by one client, and with the same options, share leases. For 2 ms after a
/// thread has got a reader's lease, others join it without a round trip, unless a thread of the
/// client waits for the lock. At most [`local_hand_offs`](LockOptions::local_hand_offs) threads (16
/// by default) join a lease. They may overtake a writer of another process; because of them it
/// waits for no more than those 2 ms and the longest read. If the server is far away, reads of more
/// than 2 ms cost a round trip each. What keeps a lease from being handed off keeps it from being
/// joined, as the option says, and so does an extend beyond its length. A thread that cannot join
/// asks the server, and others may join the lease that it gets. Of the threads under a lease, the
/// last to unlock releases it. An [`extend`](RedisLock::extend) is for all of them. A loss is, too,
/// and `on_lost` is called once for it.
///
/// # Reentrancy
///
/// As in Java, but for the upgrade. A thread that holds a side may lock it again. A thread that
/// writes may also read, under its own lease and at no cost. If it then unlocks the write side
/// first, it reads on: see [`downgrade`](RwLock::downgrade).
///
/// A thread that reads and does not write **cannot lock the write side**: that is `Conflict`, also
/// of a `try_write`, because it would wait for itself. It has to unlock the read side first, and
/// what it has read may have changed by then. As in Java, threads can wait for each other: if a
/// thread that reads waits for another one that has yet to lock the read side, and a writer waits
/// between the two, all three wait for ever.
///
/// [Claims](crate::Claim) belong to no thread, so they do not count: a thread with a claim of the
/// write side that locks the read side waits for itself. A thread that holds either side is refused
/// a claim of the read side or the write side (`Conflict`).
///
/// # Leases and fences
///
/// The lease of each reader ends by itself: a reader that has died keeps writers out until its own
/// lease ends, whoever else reads. The loss of a lease is told by `on_lost` of the side for which
/// it was acquired; a thread that reads while it writes has the writer's.
///
/// With [`fenced`](LockOptions::fenced), a writer's fence is greater than those of all readers and
/// writers before it. Fences of readers are in no order, and a thread that reads under its own
/// write lock, or after a downgrade, has the writer's. So a resource keeps two numbers. It refuses
/// a writer whose fence is smaller than the newest it has seen, and a reader whose fence is smaller
/// than the newest of a *writer*.
///
/// # Options and other calls
///
/// All [`LockOptions`] apply, but an [`owner`](LockOptions::owner) and
/// [`at_least`](LockOptions::at_least) are `InvalidInput`, and a layout other than the plain one is
/// `Unsupported`, as is a quorum. Conditions belong to the write side (`Unsupported` on the read
/// side); a thread that also reads cannot wait in one (`Conflict`).
///
/// [`is_locked`](RedisLock::is_locked) and [`force_unlock`](RedisLock::force_unlock) are about
/// their own side: `force_unlock` of the read side ends all readers and no writer, and `is_locked`
/// of the read side is `false` while a writer has the lock, even if it also reads.
/// [`inspect`](RedisLock::inspect) of either side shows the holders and the waiters of both.
#[derive(Clone)]
pub struct RwLock {
    read: RedisLock,
    write: RedisLock,
}

impl RwLock {
    /// These options, for the read side and for the write side.
    pub(crate) fn options(options: &LockOptions) -> [LockOptions; 2] {
        let side = |side| LockOptions { share: Share::Side(side), ..options.clone() };
        [side(Side::Read), side(Side::Write)]
    }

    pub(crate) fn new(read: RedisLock, write: RedisLock) -> Self {
        Self { write: write.beside(&read), read }
    }

    /// The name with which the lock was made.
    #[must_use]
    pub fn name(&self) -> &str {
        self.write.name()
    }

    /// The key in Redis: the client's prefix and the name. Both sides have the same.
    #[must_use]
    pub fn key(&self) -> &str {
        self.write.key()
    }

    /// The read side. Java: `readLock()`.
    #[must_use]
    pub fn read_lock(&self) -> &RedisLock {
        &self.read
    }

    /// The write side. Java: `writeLock()`.
    #[must_use]
    pub fn write_lock(&self) -> &RedisLock {
        &self.write
    }

    /// Locks the read side, and unlocks it when the guard is dropped. One round trip if no writer
    /// has the lock or waits; none if this thread can join the lease of another, or if it
    /// holds the write side.
    ///
    /// # Errors
    /// As [`Lock::lock`](crate::Lock::lock): `Lost` and `Conflict` also because of what this thread
    /// holds of the write side. `Unsupported` on a quorum, and with a layout other than the plain
    /// one.
    pub fn read(&self) -> Result<LockGuard> {
        self.read.guard()
    }

    /// Locks the write side, and unlocks it when the guard is dropped. One round trip if nobody has
    /// the lock or waits.
    ///
    /// # Errors
    /// As [`read`](Self::read), and `Conflict` if this thread reads and does not write, also if the
    /// lease under which it reads is lost.
    pub fn write(&self) -> Result<LockGuard> {
        self.write.guard()
    }

    /// Locks the read side if it can within `timeout`, which is that of
    /// [`Lock::try_lock`](crate::Lock::try_lock). `None`: a writer has the lock, or waits for it.
    ///
    /// # Errors
    /// As [`Lock::try_lock`](crate::Lock::try_lock), and `Unsupported` as of [`read`](Self::read).
    pub fn try_read(&self, timeout: Duration) -> Result<Option<LockGuard>> {
        self.read.try_guard(timeout)
    }

    /// Locks the write side if it can within `timeout`. `None`: others have the lock, or wait for
    /// it.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read), and `Conflict` if this thread reads and does not write.
    pub fn try_write(&self, timeout: Duration) -> Result<Option<LockGuard>> {
        self.write.try_guard(timeout)
    }

    /// Unlocks the write side and goes on reading, without a moment in which another could write.
    /// Readers that wait get the lock, up to the next writer in the queue. One round trip; it ends
    /// within two command timeouts.
    ///
    /// It is the same as locking the read side and then unlocking the write side. The lease is a
    /// new one, of the length in the options: what an `extend` has added is gone. The fence is
    /// still that of the writer. [`Validity`](crate::Validity) values of before are over, those of
    /// this thread's read lock, too.
    ///
    /// A thread that **unlocks the write side by itself** while it reads gets these errors from
    /// that unlock; a guard that is dropped only logs them. With `Unknown` or `Lost`, the thread
    /// has lost its read lock, and still has to unlock it. With any other error, as while the
    /// server cannot be reached or the slot of the lock moves in a cluster, it does not write any
    /// more, and reads on under the writer's lease, which keeps all others out until the thread
    /// unlocks.
    ///
    /// # Errors
    /// `NotHeld`, `Conflict` and `InvalidInput` before anything is done: `writing` is dropped, and
    /// only its own hold ends. `Conflict`: this thread has locked the write side more than once, or
    /// by a handle with other options. `InvalidInput`: it is no guard of the write side of this
    /// lock, as this client has it.
    ///
    /// With any other error, this thread neither reads nor writes, unless it also read before.
    /// `Lost`: the lease was lost before. `Unknown`: no answer, or not as many replicas as
    /// [`replicas`](LockOptions::replicas) asks for have confirmed it; the lock may still be held
    /// on the server, until the background has released it. `Unavailable`, `Denied`, `Server`: it
    /// was not downgraded. `Unsupported` in a forked child.
    pub fn downgrade(&self, writing: LockGuard) -> Result<LockGuard> {
        if !writing.lock().is_same_lock(&self.write) {
            let message = "only a guard of the write side of this very lock can be downgraded";
            return Err(self.write.named(Error::invalid(message)));
        }
        match self.write.hold_count() {
            0 => return Err(self.write.not_held()),
            1 => {}
            _ => {
                let message = "a thread that has locked the write side more than once has to write";
                return Err(self.write.named(Error::new(ErrorKind::Conflict, message)));
            }
        }
        let reading = self.read()?;
        writing.release()?;
        Ok(reading)
    }

    /// How many readers' leases there are, by the server's answer. Threads that share a lease count
    /// once, and a writer that also reads does not count. One round trip; the answer may already be
    /// out of date. Java: `getReadLockCount()`, which counts holds.
    ///
    /// # Errors
    /// `Unavailable`, `Denied`, `WrongType`, `Server`: it is unknown. `InvalidInput`, `Unsupported`
    /// and `Closed` as of [`read`](Self::read).
    pub fn readers(&self) -> Result<u32> {
        Ok(u32::try_from(self.read.holders()?.len()).unwrap_or(u32::MAX))
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").field("name", &self.name()).finish_non_exhaustive()
    }
}
