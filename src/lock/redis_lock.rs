//! `RedisLock`: a `Lock` over one lease.

mod acquiring;
pub(crate) mod inspect;
mod locking;
mod sides;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::validity::{self, Validity};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::options::{LockOptions, Share, check_lease, whole_millis};
use crate::base::store_error::StoreError;
use crate::lease::context::Context;
use crate::lease::granted::Lease;
use crate::lease::held::{Extended, Released};
use crate::lease::lost::Lost;
use crate::lease::store::LeaseStore;
use crate::local::SharedLock;
use crate::local::holds::{self, Over};

/// A lock on a server, by name. Made by [`Client::lock`](crate::Client::lock); cheap to make and to
/// clone; same name, same lock.
///
/// A hold belongs to the thread that locked. The same thread may lock again, and must unlock as
/// often; that costs no round trip. A [`Claim`](crate::Claim) belongs to no thread. Without
/// contention, `lock` and the last `unlock` are one round trip each, and so are `claim` and its
/// release.
///
/// After a loss this thread still *holds* the lock: it must still call `unlock` for each `lock`.
/// Each of these calls fails with [`is_lost`](Error::is_lost), and so does any further `lock`
/// before them. Only the last `unlock` looks whether the lease has just run out: the others tell a
/// loss that is known.
#[derive(Clone)]
pub struct RedisLock {
    shared: Arc<SharedLock>,
    options: Arc<LockOptions>,
    store: Arc<dyn LeaseStore>,
    /// Of the write side of a read-write lock: the read side.
    readers: Option<Arc<SharedLock>>,
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
        Self { shared, options, store, readers: None, _client: client }
    }

    /// The write side of a read-write lock that has this read side.
    pub(super) fn beside(self, read: &Self) -> Self {
        Self { readers: Some(Arc::clone(&read.shared)), ..self }
    }

    /// The same, for leases that take this share.
    pub(super) fn with_share(&self, share: Share) -> Self {
        self.with_options(LockOptions { share, ..LockOptions::clone(&self.options) })
    }

    /// The same lock, kept for so long by each acquisition. Its options have not been checked.
    pub(super) fn with_at_least(&self, at_least: Duration) -> Self {
        self.with_options(LockOptions { at_least, ..LockOptions::clone(&self.options) })
    }

    fn with_options(&self, options: LockOptions) -> Self {
        Self { options: Arc::new(options), ..self.clone() }
    }

    /// Refuses options that cannot work, or that the store does not support. Those of a lock were
    /// checked when it was made, but not the `at_least` of `run_once`.
    fn check_options(&self) -> Result<()> {
        if self.options.share.is_whole() && !self.options.has_at_least() {
            return Ok(());
        }
        self.options.check()?;
        self.store.supports(&self.options)
    }

    /// Whether both are handles of one lock, or of one side of a read-write lock.
    pub(super) fn is_same_lock(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The name with which the lock was made.
    #[must_use]
    pub fn name(&self) -> &str {
        self.shared.subject.name()
    }

    /// The key in Redis: the client's prefix and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.shared.key.as_str()
    }

    /// Whether this thread holds the lock: it has locked more often than it has unlocked, whether
    /// the lease is lost or not. Local: no round trip.
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
        holds::with(&self.shared, |hold| hold.owned.lease.is_valid()).unwrap_or(false)
    }

    /// How long this thread's lease is still valid unless it is extended: zero once lost, `None` if
    /// the thread does not hold the lock. Local: no round trip.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        holds::with(&self.shared, |hold| hold.owned.lease.expiry.remaining())
    }

    /// The fence of this thread's hold; `None` if it does not hold the lock, or without
    /// [`LockOptions::fenced`]. Local: no round trip.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        holds::with(&self.shared, |hold| hold.owned.fence).flatten()
    }

    /// The same, for SQL and other languages without unsigned integers. No fence is larger than
    /// [`i64::MAX`].
    #[must_use]
    pub fn fence_i64(&self) -> Option<i64> {
        self.fence().map(validity::signed)
    }

    /// What tells other threads whether this thread's hold still counts.
    pub(super) fn validity(&self) -> Validity {
        let hold = holds::with(&self.shared, |hold| {
            (hold.over(), Arc::clone(&hold.owned.lease), hold.owned.fence)
        });
        match hold {
            Some((over, lease, fence)) => self.validity_of(&lease, over, fence),
            None => Validity::new(&self.shared.subject, None, Over::ended(), None),
        }
    }

    pub(super) fn validity_of(
        &self,
        lease: &Arc<Lease>,
        over: Over,
        fence: Option<u64>,
    ) -> Validity {
        Validity::new(&self.shared.subject, Some(Arc::clone(lease)), over, fence)
    }

    /// That of a hold whose lease was lost.
    pub(super) fn lost_validity(&self) -> Validity {
        Validity::new(&self.shared.subject, None, Over::default(), None)
    }

    /// Extends this thread's lease until `lease` from now. It never shortens: if the lease ends
    /// later anyway, nothing changes. `lease` is 100 ms to 24 h. The call works also with
    /// [`Renewal::Never`](crate::Renewal::Never). One round trip. Renewal goes on as before.
    ///
    /// # Errors
    /// `NotHeld`: this thread does not hold the lock. `Lost`: another may hold the lock. `Unknown`:
    /// no answer; the lock is still held, at least until its old end. `Unavailable`,
    /// `InvalidInput`: nothing was sent, and the lease is as before. `Denied`, `Server`: the lease
    /// is as before, too.
    pub fn extend(&self, lease: Duration) -> Result<()> {
        self.extend_lease(holds::with(&self.shared, |hold| Arc::clone(&hold.owned.lease)), lease)
    }

    /// `held`: `None` if this thread does not hold the lock.
    pub(super) fn extend_lease(&self, held: Option<Arc<Lease>>, length: Duration) -> Result<()> {
        let length = whole_millis(length);
        check_lease(length).map_err(|error| self.named(error))?;
        let context = self.context();
        context.check_process().map_err(|error| self.named(error))?;
        let held = held.ok_or_else(|| self.not_held())?;
        if !held.is_valid() {
            return Err(self.lost());
        }
        match context.extend(&held, length) {
            Extended::Yes => Ok(()),
            Extended::Lost => Err(self.lost()),
            Extended::No(error) => Err(self.failed(error)),
            Extended::Unknown(error) => Err(self.unknown(
                "the extend had no answer: the lease has its old end or the new one",
                error,
            )),
        }
    }

    /// Calls `callback` whenever a lease of this lock is lost in this client: once per lost lease,
    /// on a thread of its own, in the order in which callbacks were added. The callback stays as
    /// long as a handle, a hold or a claim of the lock exists.
    ///
    /// Called when the server says that a lease is not ours, when a lease runs out while it is
    /// held, when an `unlock` or a claim's release finds the loss, and when the client is closed
    /// while the lock is held. A callback that panics is logged; a slow one delays other callbacks,
    /// and no renewal. It is dropped on the same thread, after the lock. A callback must not have a
    /// handle or a claim of this lock: as long as it exists, so would the lock, and its client
    /// would stay open.
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
        let checked = self.context().check_open().and_then(|()| self.check_options());
        checked.map_err(|error| self.named(error))
    }

    fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    /// Releases a lease that nobody owns any more (R12).
    fn release(&self, lease: &Arc<Lease>) -> Result<()> {
        match self.context().release(lease) {
            Released::Yes => Ok(()),
            Released::Lost => Err(self.lost()),
            Released::Unknown(error) => {
                Err(self.unknown("the release had no answer: the lease may still last", error))
            }
        }
    }

    fn deadline(&self, timeout: Duration) -> Option<Instant> {
        self.context().clock.after(timeout)
    }

    pub(crate) fn lost(&self) -> Error {
        self.named(validity::lost())
    }

    pub(super) fn not_held(&self) -> Error {
        self.named(Error::new(ErrorKind::NotHeld, "this thread does not hold the lock"))
    }

    fn unknown(&self, message: &'static str, error: StoreError) -> Error {
        self.named(Error::new(ErrorKind::Unknown, message).because(error.into_error()))
    }

    fn failed(&self, error: StoreError) -> Error {
        self.named(error.into_error())
    }

    pub(super) fn named(&self, error: Error) -> Error {
        // An invalid name is left out: it may be a megabyte long.
        if self.shared.check_name().is_ok() { error.about(&self.shared.subject) } else { error }
    }
}

impl fmt::Debug for RedisLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLock")
            .field("name", &self.name())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
