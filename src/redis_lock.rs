//! `RedisLock`: a `Lock` over one lease.

mod asking;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::interrupt::Interrupt;
use crate::base::options::{LockOptions, Queue, check_lease, whole_millis};
use crate::condition::{Condition, check_name};
use crate::guard::{LockGuard, finish};
use crate::lease::acquire::Acquisition;
use crate::lease::notify::{Keeper, Lost, LostReason};
use crate::lease::patience::{Attempts, Patience};
use crate::lease::store::{End, Extend, Gone, LeaseStore, StoreError};
use crate::lease::{Background, Lease, backoff};
use crate::local::SharedLock;
use crate::local::holds::{self, Dropped, Hold};
use crate::local::turn::{Baton, Ticket};
use crate::lock::Lock;

/// A lock on a server, by name. Made by [`Client::lock`](crate::Client::lock); cheap to make and to clone; same name, same lock.
///
/// A hold belongs to the thread that locked. The same thread may lock again, and unlocks as often; that costs no round trip. With
/// nobody in the way, `lock` and the last `unlock` are one round trip each.
///
/// After a loss this thread still *holds* the lock, in the sense that it owes an `unlock` for each `lock`: each of these unlocks says
/// [`is_lost`](Error::is_lost), and so does any further `lock` before them.
#[derive(Clone)]
pub struct RedisLock {
    shared: Arc<SharedLock>,
    options: Arc<LockOptions>,
    store: Arc<dyn LeaseStore>,
    /// Keeps the client open: dropping the last handle closes it.
    _client: Arc<dyn Send + Sync>,
}

impl RedisLock {
    pub(crate) fn new(
        shared: Arc<SharedLock>,
        options: Arc<LockOptions>,
        store: Arc<dyn LeaseStore>,
        client: Arc<dyn Send + Sync>,
    ) -> Self {
        Self { shared, options, store, _client: client }
    }

    /// The name that it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The key in Redis: the client's prefix and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.shared.key.as_str()
    }

    /// Locks, and unlocks when the guard is dropped. Otherwise as [`Lock::lock`].
    ///
    /// # Errors
    /// As [`Lock::lock`].
    pub fn guard(&self) -> Result<LockGuard> {
        self.lock()?;
        Ok(LockGuard::new(self.clone()))
    }

    /// Locks if it can within `timeout`, and unlocks when the guard is dropped. Otherwise as [`Lock::try_lock`].
    ///
    /// # Errors
    /// As [`Lock::try_lock`].
    pub fn try_guard(&self, timeout: Duration) -> Result<Option<LockGuard>> {
        Ok(self.try_lock(timeout)?.then(|| LockGuard::new(self.clone())))
    }

    /// Runs `work` under the lock, and gives its value back if the lease lasted until its end.
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
    /// As [`Lock::lock`], before `work` ran; `Lost` after it ran, if the lease was lost before its end: the value is dropped, and another process may have
    /// worked at the same time. A release without an answer is no error here: the work was done under a valid lease, and the background removes the rest.
    pub fn with<T>(&self, work: impl FnOnce(&LockGuard) -> T) -> Result<T> {
        let guard = self.guard()?;
        let value = work(&guard);
        finish(guard, value)
    }

    /// Whether this thread holds the lock: it has locked more often than it has unlocked, be the lease lost or not. Local: no round trip.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// How often this thread has locked and not yet unlocked. Local: no round trip.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        holds::with(&self.shared, |hold| hold.count).unwrap_or(0)
    }

    /// Whether this thread holds the lock and its lease is valid. Local: no round trip.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        holds::with(&self.shared, |hold| hold.lease.is_valid()).unwrap_or(false)
    }

    /// How long this thread's lease is still valid unless it is extended: zero once lost, `None` if it holds none. Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        holds::with(&self.shared, |hold| hold.lease.remaining())
    }

    /// The fence of this thread's hold; `None` if it holds none, or without [`LockOptions::fenced`]. Local: no round trip.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        holds::with(&self.shared, |hold| hold.fence).flatten()
    }

    /// Moves the end of this thread's lease to `lease` from now, be that later or earlier; also with [`Renewal::Never`](crate::Renewal::Never). 100 ms to 24 h.
    /// One round trip. Renewal goes on as before, and never to an earlier end.
    ///
    /// # Errors
    /// `NotHeld`: by this thread. `Lost`: another may hold the lock. `Unknown`: no answer; the lock is held still, and valid until the earlier of
    /// the two ends. If the new end was the earlier one, nothing makes the lease longer any more: a late copy could end it unseen. `InvalidInput`: nothing was sent.
    pub fn extend(&self, lease: Duration) -> Result<()> {
        let length = whole_millis(lease);
        check_lease(length).map_err(|error| self.named(error))?;
        let held = holds::with(&self.shared, |hold| Arc::clone(&hold.lease)).ok_or_else(|| self.not_held())?;
        if !held.is_valid() {
            return Err(self.lost());
        }
        let background = self.background();
        let (mark, asked_at) = (held.mark(), background.clock.now());
        let shorter = held.remaining() > length;
        if shorter && !held.begin_shortening(asked_at, length) {
            return Err(self.named(Error::new(ErrorKind::Unknown, "an earlier end of the lease has not been answered")));
        }
        let end = if shorter { End::Exactly } else { End::NotBefore };
        let moved = Extend { key: &held.key, token: &held.token, lease: length, settles: held.settles() };
        let answer = self.store.end_in(&moved, end, background.command_deadline());
        if matches!(answer, Ok(true)) {
            held.settled();
        }
        if shorter && answer.is_ok() {
            held.end_shortening();
        }
        let result = match answer {
            Ok(true) if shorter => held.is_valid().then_some(()).ok_or_else(|| self.lost()),
            Ok(true) => held.extended(mark, asked_at, length).then_some(()).ok_or_else(|| self.lost()),
            Ok(false) => {
                background.renewal.remove(&held);
                held.lose(LostReason::Taken);
                Err(self.lost())
            }
            Err(error) => Err(self.unknown("nobody knows whether the end of the lease was moved", error)),
        };
        background.renewal.reschedule(&held);
        result
    }

    /// Has `callback` called whenever a lease of this lock is lost in this client: once per lost lease, on a thread of its own, in the order in
    /// which callbacks were added. It stays as long as a handle or a hold of the lock exists.
    ///
    /// Called when the server says that a lease is not ours, when a lease runs out while it is held, when an `unlock` finds the loss, and when the client
    /// is closed while the lock is held. A callback that panics is logged; a slow one delays other callbacks, and no renewal.
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// let lock = distlock::Client::open("memory://")?.lock("ledger");
    /// lock.on_lost(|lost| eprintln!("{} was lost: {:?}", lost.name(), lost.reason()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_lost(&self, callback: impl Fn(&Lost) + Send + Sync + 'static) {
        self.shared.on_lost(Arc::new(callback));
    }

    fn check_usable(&self) -> Result<()> {
        self.shared.check_name()?;
        self.background().check_open().map_err(|error| self.named(error))
    }

    fn background(&self) -> &Arc<Background> {
        &self.shared.background
    }

    fn acquire(&self, patience: &Patience<'_>) -> Result<bool> {
        if let Some(again) = holds::with(&self.shared, |hold| self.lock_again(hold)) {
            return again.map(|()| true);
        }
        self.acquire_first(patience).map_err(|error| self.named(error))
    }

    /// Another hold of a lock that this thread holds already.
    fn lock_again(&self, hold: &mut Hold) -> Result<()> {
        if !Arc::ptr_eq(&hold.options, &self.options) && hold.options != self.options {
            return Err(self.named(Error::new(ErrorKind::Conflict, "this thread holds the lock with other options")));
        }
        if !hold.lease.is_valid() {
            return Err(self.lost());
        }
        hold.count = hold.count.checked_add(1).ok_or_else(|| self.named(Error::invalid("the hold count is at its limit")))?;
        Ok(())
    }

    fn acquire_first(&self, patience: &Patience<'_>) -> Result<bool> {
        self.shared.check_name()?;
        let background = self.background();
        patience.check(background)?;
        background.start()?;
        let mut attempts = Attempts::new(&self.options);
        let turn = self.shared.turn.take(background, &self.options, patience, &mut attempts)?;
        let Some((ticket, baton)) = turn else { return Ok(false) };
        let mut acquisition = match baton {
            Baton::Lease(lease) if lease.is_valid() => return self.hold(ticket, &lease).map(|()| true),
            Baton::Place(place) => *place,
            // Lost on its way from the last thread.
            Baton::Lease(_) => self.acquisition()?,
            Baton::Turn { silent_since } => self.acquisition()?.silent_since(silent_since),
        };
        let report = |report| self.shared.turn.report(report, background.clock.now());
        let result = acquisition.run(patience, &mut attempts, &self.shared.contention, &report);
        match result {
            Ok(Some(lease)) => {
                // Looked after from before `lock` returns (R8).
                if !background.renewal.add(&lease) {
                    background.cleaner.withdraw_now(lease.withdrawal(), background.command_deadline());
                    return Err(Error::new(ErrorKind::Unavailable, "the client is closed"));
                }
                self.hold(ticket, &lease).map(|()| true)
            }
            ended => {
                ticket.pass_place(acquisition);
                ended.map(|_| false)
            }
        }
    }

    fn acquisition(&self) -> Result<Acquisition> {
        let keeper = Arc::clone(&self.shared) as Arc<dyn Keeper>;
        Acquisition::new(self.background(), &self.store, keeper, &self.shared.key, &self.options)
    }

    fn hold(&self, ticket: Ticket<'_>, lease: &Arc<Lease>) -> Result<()> {
        let ticket = ticket.hold(lease);
        let hold = Hold {
            lock: Arc::clone(&self.shared),
            options: Arc::clone(&self.options),
            lease: Arc::clone(lease),
            ticket,
            count: 1,
            fence: lease.held_fence(),
        };
        holds::enter(hold).or_else(|hold| {
            // The thread is ending, and nobody would ever take this hold back, nor give up its turn.
            let released = self.release(&hold);
            self.shared.turn.leave(hold.ticket);
            released.and_then(|()| Err(Error::unsupported("a thread that is ending cannot lock")))
        })
    }

    /// Releases what this thread held (R12).
    fn release(&self, hold: &Hold) -> Result<()> {
        let (lease, background) = (&hold.lease, self.background());
        if background.is_forked() {
            return Err(self.named(Error::unsupported("the lock belongs to the process that this one was forked from")));
        }
        if lease.is_told() {
            return Err(self.lost());
        }
        // Before the release is sent, so that no extend of ours follows it (R8).
        background.renewal.remove(lease);
        let mut deadline = background.command_deadline();
        let (mut unanswered, mut repeated) = (false, false);
        loop {
            match self.store.release(&lease.key, &lease.token, lease.settles(), deadline) {
                Ok(Gone::Released) => break,
                // A release without an answer has run after all: nobody else can have taken it while it was valid.
                Ok(Gone::NotOurs) if unanswered && lease.is_valid() => break,
                Ok(Gone::NotOurs) => {
                    lease.lose(LostReason::Taken);
                    return Err(self.lost());
                }
                Err(error) => {
                    unanswered |= error.may_have_run;
                    let timed_out = background.clock.now() >= deadline;
                    if timed_out && unanswered && !repeated && lease.is_valid() {
                        // An idle connection may have died without a word, or one reply got lost: the next connection tells.
                        repeated = true;
                        deadline = background.command_deadline();
                        continue;
                    }
                    if error.permanent || timed_out {
                        lease.settle_as_released();
                        background.cleaner.withdraw(lease.withdrawal());
                        return Err(self.unknown("nobody knows whether the lock was released", error));
                    }
                    if !error.stale {
                        std::thread::sleep(backoff::outage_pause());
                    }
                }
            }
        }
        let released = lease.settle_as_released();
        if lease.is_unsettled() {
            // A copy of an unanswered attempt may still arrive, and make an orphan of the lease that has just been released (R5).
            background.cleaner.withdraw(lease.withdrawal());
        }
        if released { Ok(()) } else { Err(self.lost()) }
    }

    pub(crate) fn deadline(&self, timeout: Duration) -> Option<Instant> {
        self.background().clock.after(timeout)
    }

    pub(crate) fn lost(&self) -> Error {
        self.named(Error::new(ErrorKind::Lost, "the lease was lost; another may hold the lock"))
    }

    fn not_held(&self) -> Error {
        self.named(Error::new(ErrorKind::NotHeld, "this thread does not hold the lock"))
    }

    fn unknown(&self, message: &'static str, error: StoreError) -> Error {
        self.named(Error::new(ErrorKind::Unknown, message).because(error.into_error()))
    }

    fn failed(&self, error: StoreError) -> Error {
        self.named(error.into_error())
    }

    fn named(&self, error: Error) -> Error {
        // A name that is refused is not worth repeating, and may be a megabyte.
        if self.shared.check_name().is_ok() { error.named(&self.shared.name) } else { error }
    }
}

impl Lock for RedisLock {
    fn lock(&self) -> Result<()> {
        self.acquire(&Patience { once: false, deadline: None, trying: false, interrupt: None }).map(|_| ())
    }

    fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<()> {
        self.acquire(&Patience { once: false, deadline: None, trying: false, interrupt: Some(interrupt) }).map(|_| ())
    }

    fn try_lock(&self, timeout: Duration) -> Result<bool> {
        self.acquire(&self.patience(timeout, None))
    }

    fn try_lock_interruptibly(&self, timeout: Duration, interrupt: &Interrupt) -> Result<bool> {
        self.acquire(&self.patience(timeout, Some(interrupt)))
    }

    fn unlock(&self) -> Result<()> {
        match holds::drop_one(&self.shared) {
            Dropped::NotHeld => Err(self.not_held()),
            Dropped::Held { lost: false } => Ok(()),
            Dropped::Held { lost: true } => Err(self.lost()),
            Dropped::Last(hold) => {
                if self.shared.turn.hand_off(hold.ticket, &hold.lease, &hold.options) {
                    return Ok(());
                }
                let released = self.release(&hold);
                self.shared.turn.leave(hold.ticket);
                released
            }
        }
    }

    fn new_condition(&self, name: &str) -> Result<Condition> {
        let options = &self.options;
        if !self.store.has_conditions() || options.queue != Queue::Fifo || options.owner.is_some() {
            return Err(self.named(Error::unsupported("conditions need the plain layout, Queue::Fifo and no owner of the caller's")));
        }
        check_name(name).map_err(|error| self.named(error))?;
        Ok(Condition::new(self.clone(), name))
    }
}

impl RedisLock {
    fn patience<'a>(&self, timeout: Duration, interrupt: Option<&'a Interrupt>) -> Patience<'a> {
        Patience { once: timeout.is_zero(), deadline: self.deadline(timeout), trying: true, interrupt }
    }
}

impl fmt::Debug for RedisLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLock").field("name", &self.name()).field("options", &self.options).finish_non_exhaustive()
    }
}
