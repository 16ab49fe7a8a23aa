//! What a client hands out, by name.

use std::sync::Arc;
use std::time::Duration;

use super::Client;
use super::open::Open;
use crate::base::error::Result;
use crate::base::options::LockOptions;
use crate::lease::store::LeaseStore;
use crate::limiter::RateLimiter;
use crate::lock::redis_lock::RedisLock;
use crate::lock::rw_lock::RwLock;
use crate::lock::semaphore::Semaphore;

impl Client {
    /// The lock of this name, with the client's options for locks. Sends nothing. The key in Redis
    /// is the client's prefix and the name.
    ///
    /// Beside a lock `x` there are keys that begin with `{x}:`, or with `x::` if the name has a
    /// hash tag like `{x}`. Give no lock, semaphore or limiter such a name:
    /// [internals](crate::guide::internals) says, under *Keys*, what would happen.
    ///
    /// An invalid name (empty, or with its prefix longer than 1024 bytes) is reported by the first
    /// call that would use it.
    #[must_use]
    pub fn lock(&self, name: &str) -> RedisLock {
        self.make(name, Arc::clone(&self.open.options), &self.open.store)
    }

    /// The client's own options for locks, to make others from:
    /// `client.lock_with(name, client.lock_options().fenced())`.
    #[must_use]
    pub fn lock_options(&self) -> LockOptions {
        LockOptions::clone(&self.open.options)
    }

    /// The lock of this name, with these options and no others. Sends nothing.
    ///
    /// # Errors
    /// `InvalidInput` for options that cannot work, `Unsupported` for options that this store or
    /// layout does not support.
    pub fn lock_with(&self, name: &str, options: LockOptions) -> Result<RedisLock> {
        let store = self.checked_store(&options)?;
        Ok(self.make(name, Arc::new(options), &store))
    }

    /// The semaphore of this name, with so many permits for all processes together, and with the
    /// client's options for locks. Sends nothing. The key in Redis is the client's prefix and the
    /// name.
    ///
    /// The number of permits is each caller's own: none is stored. [`Semaphore`] says what becomes
    /// of callers with different numbers. Nothing else must have the same name.
    ///
    /// An invalid name, no permits at all, and options that a semaphore cannot have, are reported
    /// by the first call that would use them.
    #[must_use]
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        let options = Semaphore::options(LockOptions::clone(&self.open.options), permits);
        let store = self.store_or_default(&options);
        self.make_semaphore(name, permits, options, store)
    }

    /// The semaphore of this name, with so many permits, and with these options and no others.
    /// Sends nothing.
    ///
    /// # Errors
    /// `InvalidInput` for no permits at all, and for options that cannot work or that a semaphore
    /// cannot have, `Unsupported` for options that this store does not support, and on a quorum.
    pub fn semaphore_with(
        &self,
        name: &str,
        permits: u32,
        options: LockOptions,
    ) -> Result<Semaphore> {
        let options = Semaphore::options(options, permits);
        let store = self.checked_store(&options)?;
        Ok(self.make_semaphore(name, permits, options, store))
    }

    /// The read-write lock of this name, with the client's options for locks. Sends nothing. The
    /// key in Redis is the client's prefix and the name. Nothing else must have the same name.
    ///
    /// An invalid name, and options that a read-write lock cannot have, are reported by the first
    /// call that would use them.
    #[must_use]
    pub fn rw_lock(&self, name: &str) -> RwLock {
        let sides = RwLock::options(&self.open.options);
        let store = self.store_or_default(&sides[0]);
        self.make_rw_lock(name, sides, &store)
    }

    /// The read-write lock of this name, with these options and no others. Sends nothing.
    ///
    /// # Errors
    /// `InvalidInput` for options that cannot work or that a read-write lock cannot have,
    /// `Unsupported` for options that this store does not support, and on a quorum.
    pub fn rw_lock_with(&self, name: &str, options: LockOptions) -> Result<RwLock> {
        let sides = RwLock::options(&options);
        let store = self.checked_store(&sides[0])?;
        Ok(self.make_rw_lock(name, sides, &store))
    }

    /// The store for these options.
    fn checked_store(&self, options: &LockOptions) -> Result<Arc<dyn LeaseStore>> {
        options.check()?;
        // In a forked child a mutex may stay locked for ever.
        self.open.context.check_process()?;
        self.open.backend.leases(options)
    }

    /// The store for these options; if there is none, the client's, which then refuses the options.
    fn store_or_default(&self, options: &LockOptions) -> Arc<dyn LeaseStore> {
        self.checked_store(options).unwrap_or_else(|_| Arc::clone(&self.open.store))
    }

    fn make_rw_lock(
        &self,
        name: &str,
        [read, write]: [LockOptions; 2],
        store: &Arc<dyn LeaseStore>,
    ) -> RwLock {
        let Open { read_sides, write_sides, prefix, context, .. } = &*self.open;
        let side = |shared, options| {
            let client = Arc::clone(&self.open) as Arc<dyn Send + Sync>;
            RedisLock::new(shared, Arc::new(options), Arc::clone(store), client)
        };
        let writers = write_sides.get(name, prefix, context);
        let readers = read_sides.get_beside(&writers, name, prefix, context);
        RwLock::new(side(readers, read), side(writers, write))
    }

    fn make_semaphore(
        &self,
        name: &str,
        permits: u32,
        options: LockOptions,
        store: Arc<dyn LeaseStore>,
    ) -> Semaphore {
        let open = &self.open;
        let shared = open.semaphores.get(name, &open.prefix, &open.context);
        let client = Arc::clone(open) as Arc<dyn Send + Sync>;
        Semaphore::new(RedisLock::new(shared, Arc::new(options), store, client), permits)
    }

    fn make(
        &self,
        name: &str,
        options: Arc<LockOptions>,
        store: &Arc<dyn LeaseStore>,
    ) -> RedisLock {
        let open = &self.open;
        let shared = open.locks.get(name, &open.prefix, &open.context);
        RedisLock::new(shared, options, Arc::clone(store), Arc::clone(open) as Arc<dyn Send + Sync>)
    }

    /// A rate limiter that lets `count` calls through in each `window`, for all processes together.
    /// Sends nothing. The key in Redis is the client's prefix and the name.
    ///
    /// An invalid name, count or window is reported by the first call that would use it.
    #[must_use]
    pub fn rate_limiter(&self, name: &str, count: u64, window: Duration) -> RateLimiter {
        let open = &self.open;
        RateLimiter::new(
            (name, &open.prefix),
            count,
            window,
            (Arc::clone(open.backend.limits()), Arc::clone(&open.context)),
            Arc::clone(open) as Arc<dyn Send + Sync>,
        )
    }
}
