//! `Semaphore`: a number of permits for all processes together.

use std::fmt;
use std::time::Duration;

use super::permit::Permit;
use super::redis_lock::RedisLock;
use super::redis_lock::inspect::{Holder, LockState};
use crate::base::error::Result;
use crate::base::interrupt::Interrupt;
use crate::base::options::{LockOptions, Share};
use crate::lease::lost::Lost;
use crate::lease::wait_limits::WaitLimits;

/// A number of permits, for all threads of all processes together. Made by
/// [`Client::semaphore`](crate::Client::semaphore); cheap to make and to clone; same name, same
/// semaphore. Java: `Semaphore`, in its fair form.
///
/// A call acquires one permit or several, all or none, as a [`Permit`]. That is a lease, as a lock
/// is: by default it lasts 30 s, and the background extends it until the `Permit` is released. The
/// permits of a dead process are free again when its lease ends. Only the owner of a `Permit` can
/// release it, and releases all of it.
///
/// **First come, first served**, among all threads of all processes, and for large requests, too: a
/// waiter that asks for several permits is not overtaken by one that asks for fewer, even while
/// some permits are free. Each release grants permits to the waiters whose turn it is, up to 128 at
/// once, and wakes only these. A [`try_acquire`](Semaphore::try_acquire) does not overtake, either:
/// Java's `tryAcquire()` without a timeout does. [Guarantees](crate::guide::guarantees#order) says
/// when the order does not hold, and how long a waiter that has died holds up those behind it.
///
/// A semaphore is **not reentrant**. A thread that has a permit and acquires another needs two of
/// them; if all threads do so, all may wait for each other for ever. Acquire what you need at once.
///
/// **The number of permits is each caller's own**, and stored nowhere. A call waits until the
/// permits in use and those that it asks for are together at most its caller's number. While
/// processes with a new number replace those with an old one, up to the larger number may be in
/// use. A waiter with the smaller number holds up those behind it until it fits by its own number,
/// and a waiter with the larger one may get its permits one pause late (1 to 1.5 s, or as
/// [`Retry`](crate::Retry) says).
///
/// There may be any number of permits. But each that is in use is an entry in Redis. To acquire,
/// extend or release a `Permit`, the server works on each of its entries, and for
/// [`available`](Semaphore::available) and [`holders`](Semaphore::holders) on all that are there.
/// So count in units of which a call takes a few.
///
/// If all callers have the same number, more permits than that can be in use only where two can
/// hold a lock: after the server has lost its data, or if an owner works on after it has lost its
/// lease.
///
/// All [`LockOptions`] apply, but for these: an [`owner`](LockOptions::owner) and
/// [`at_least`](LockOptions::at_least) are `InvalidInput`, a layout other than the plain one is
/// `Unsupported`, and [`local_hand_offs`](LockOptions::local_hand_offs) has no effect, because
/// permits do not pass from thread to thread. With [`fenced`](LockOptions::fenced) each `Permit`
/// has a fence. It is a name for a log or a resource, and **must not be compared as that of a
/// lock**: a resource that refuses smaller fences would refuse valid permits.
///
/// An operator who has to take all permits back deletes the key: their owners lose them.
///
/// ```
/// # fn main() -> distlock::Result<()> {
/// use std::time::Duration;
///
/// let exports = distlock::Client::open("memory://")?.semaphore("exports", 3);
/// let small = exports.acquire()?;
/// let large = exports.acquire_many(2)?;
/// assert!(exports.try_acquire(Duration::ZERO)?.is_none());
/// large.release()?;
/// assert_eq!(exports.available()?, 2);
/// # drop(small);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    /// As a lock, with a share of one permit.
    one: RedisLock,
    permits: u32,
}

impl Semaphore {
    /// These options, for a semaphore of so many permits.
    pub(crate) fn options(options: LockOptions, permits: u32) -> LockOptions {
        LockOptions { share: Share::Permits { taken: 1, of: permits }, ..options }
    }

    /// `one`: with a share of one permit.
    pub(crate) fn new(one: RedisLock, permits: u32) -> Self {
        Self { one, permits }
    }

    /// The name with which the semaphore was made.
    #[must_use]
    pub fn name(&self) -> &str {
        self.one.name()
    }

    /// The key in Redis: the client's prefix and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.one.key()
    }

    /// How many permits there are, as this caller said. Local: no round trip.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Acquires a permit, and blocks until it can. Java: `acquireUninterruptibly()`.
    ///
    /// One round trip if a permit is free and nobody waits. It waits through an outage of the
    /// server, up to the client's `max_outage` (30 s by default).
    ///
    /// # Errors
    /// With any error, the caller has no permit; what an unanswered attempt left is withdrawn in
    /// the background. `Unavailable` after an outage of `max_outage`; `Denied`, `WrongType` and
    /// `InvalidInput` at once; `Exhausted` with
    /// [`Retry::attempts`](crate::Retry::attempts); `Unsupported` on a quorum, with a layout other
    /// than the plain one, and in a forked child; `Server` for what else the server refuses;
    /// `Closed` once the client is closed.
    pub fn acquire(&self) -> Result<Permit> {
        self.acquire_many(1)
    }

    /// Acquires `n` permits, all or none, and blocks until it can. Java:
    /// `acquireUninterruptibly(int)`. Otherwise
    /// as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). `InvalidInput` if `n` is 0, above 1,024, or above the number
    /// of permits.
    pub fn acquire_many(&self, n: u32) -> Result<Permit> {
        self.acquire_or_fail(n, None)
    }

    /// Acquires a permit, unless `interrupt` ends the wait. Java: `acquire()`. Otherwise as
    /// [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and `Interrupted`, also if the interrupt is set when the call
    /// begins.
    pub fn acquire_interruptibly(&self, interrupt: &Interrupt) -> Result<Permit> {
        self.acquire_many_interruptibly(1, interrupt)
    }

    /// Acquires `n` permits, unless `interrupt` ends the wait. Java: `acquire(int)`. Otherwise as
    /// [`acquire_many`](Self::acquire_many).
    ///
    /// # Errors
    /// As [`acquire_many`](Self::acquire_many), and `Interrupted`.
    pub fn acquire_many_interruptibly(&self, n: u32, interrupt: &Interrupt) -> Result<Permit> {
        self.acquire_or_fail(n, Some(interrupt))
    }

    /// Acquires a permit if it can within `timeout`. `None`: too few permits were free, or others
    /// waited before this call, until the time or the attempts were used up. Zero is one attempt
    /// without waiting or queueing; [`Duration::MAX`] is no limit. Ends by the deadline, plus one
    /// command timeout if an answer is under way. Java: `tryAcquire(timeout, unit)`
    /// without an interrupt.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without `Exhausted`; but `Unavailable` as soon as the time is
    /// over, if the last attempt had no answer.
    pub fn try_acquire(&self, timeout: Duration) -> Result<Option<Permit>> {
        self.try_acquire_many(1, timeout)
    }

    /// Acquires `n` permits, all or none, if it can within `timeout`. Java:
    /// `tryAcquire(int, timeout, unit)` without an interrupt. Otherwise as
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), and `InvalidInput` as of
    /// [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_many(&self, n: u32, timeout: Duration) -> Result<Option<Permit>> {
        self.acquire_within(n, &self.one.limits(timeout, None))
    }

    /// Acquires a permit if it can within `timeout`, unless `interrupt` ends the wait. Java:
    /// `tryAcquire(timeout, unit)`. Otherwise as [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), and `Interrupted`.
    pub fn try_acquire_interruptibly(
        &self,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<Option<Permit>> {
        self.try_acquire_many_interruptibly(1, timeout, interrupt)
    }

    /// Acquires `n` permits if it can within `timeout`, unless `interrupt` ends the wait. Java:
    /// `tryAcquire(int, timeout, unit)`. Otherwise as
    /// [`try_acquire_many`](Self::try_acquire_many).
    ///
    /// # Errors
    /// As [`try_acquire_many`](Self::try_acquire_many), and `Interrupted`.
    pub fn try_acquire_many_interruptibly(
        &self,
        n: u32,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Result<Option<Permit>> {
        self.acquire_within(n, &self.one.limits(timeout, Some(interrupt)))
    }

    /// How many permits are free, by the server's answer and by this caller's number of permits.
    /// One round trip; the answer may already be out of date. If others wait, a free permit may be
    /// reserved for one of them. Java: `availablePermits()`.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    pub fn available(&self) -> Result<u32> {
        let taken = self.holders()?.iter().fold(0, |sum: u32, one| sum.saturating_add(one.permits));
        Ok(self.permits.saturating_sub(taken))
    }

    /// Who has permits, by the server's answer: each [`Permit`] once, with how many permits it has,
    /// the one whose lease ends first before the others. One round trip.
    ///
    /// # Errors
    /// `Unavailable`, `Denied`, `WrongType`, `Server`: it is unknown who has permits.
    /// `InvalidInput`, `Unsupported` and `Closed` as of [`acquire`](Self::acquire).
    pub fn holders(&self) -> Result<Vec<Holder>> {
        self.one.holders()
    }

    /// Who has permits, and who waits for some, by the server's answer. One round trip. The server
    /// looks at each waiter.
    ///
    /// # Errors
    /// As [`holders`](Self::holders).
    pub fn inspect(&self) -> Result<LockState> {
        self.one.inspect()
    }

    /// Calls `callback` whenever a permit that this client acquired is lost: once per lost
    /// [`Permit`], on a thread of its own. It is told the name, and the fence if there is one; each
    /// `Permit` says by [`is_valid`](Permit::is_valid) whether it was the one. Otherwise as
    /// [`RedisLock::on_lost`]: the callback stays as long as a handle or a permit of the semaphore
    /// exists, and must not own a handle or a permit.
    pub fn on_lost(&self, callback: impl Fn(&Lost) + Send + Sync + 'static) {
        self.one.on_lost(callback);
    }

    fn acquire_or_fail(&self, n: u32, interrupt: Option<&Interrupt>) -> Result<Permit> {
        Ok(Permit::new(self.of(n).claim_or_fail(interrupt)?, n))
    }

    fn acquire_within(&self, n: u32, limits: &WaitLimits<'_>) -> Result<Option<Permit>> {
        Ok(self.of(n).claim_within(limits)?.map(|claim| Permit::new(claim, n)))
    }

    /// As a lock, with a share of `n` permits.
    fn of(&self, n: u32) -> RedisLock {
        match n {
            1 => self.one.clone(),
            _ => self.one.with_share(Share::Permits { taken: n, of: self.permits }),
        }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name())
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}
