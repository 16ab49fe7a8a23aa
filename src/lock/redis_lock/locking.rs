//! Locking and unlocking: what [`Lock`] asks for, as methods of `RedisLock` itself, so that nobody
//! has to import the trait first.

use std::time::Duration;

use super::RedisLock;
use crate::base::error::{Error, Result};
use crate::base::interrupt::{Interrupt, Interruption};
use crate::base::options::Queue;
use crate::lease::wait_limits::WaitLimits;
use crate::local::holds::{self, Dropped};
use crate::lock::Lock;
use crate::lock::condition::Condition;

impl RedisLock {
    /// Locks, and blocks until it can. As [`Lock::lock`].
    ///
    /// # Errors
    /// As [`Lock::lock`].
    pub fn lock(&self) -> Result<()> {
        self.acquire(&WaitLimits::endless(None)).map(drop)
    }

    /// Locks, unless `interrupt` ends the wait. As [`Lock::lock_interruptibly`].
    ///
    /// # Errors
    /// As [`Lock::lock_interruptibly`].
    pub fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<()> {
        self.acquire(&WaitLimits::endless(Some(interrupt))).map(drop)
    }

    /// Locks if it can within `timeout`. As [`Lock::try_lock`].
    ///
    /// # Errors
    /// As [`Lock::try_lock`].
    pub fn try_lock(&self, timeout: Duration) -> Result<bool> {
        self.acquire(&self.limits(timeout, None))
    }

    /// Locks if it can within `timeout`, unless `interrupt` ends the wait. As
    /// [`Lock::try_lock_interruptibly`].
    ///
    /// # Errors
    /// As [`Lock::try_lock_interruptibly`].
    pub fn try_lock_interruptibly(&self, timeout: Duration, interrupt: &Interrupt) -> Result<bool> {
        self.acquire(&self.limits(timeout, Some(interrupt)))
    }

    pub(in crate::lock) fn limits<'a>(
        &self,
        timeout: Duration,
        interrupt: Option<&'a Interrupt>,
    ) -> WaitLimits<'a> {
        WaitLimits {
            once: timeout.is_zero(),
            deadline: self.deadline(timeout),
            trying: true,
            interrupt: interrupt.map(Interruption::of),
        }
    }

    /// Removes one hold of this thread, and with the last hold releases the lock. As
    /// [`Lock::unlock`].
    ///
    /// # Errors
    /// As [`Lock::unlock`].
    pub fn unlock(&self) -> Result<()> {
        match holds::drop_one(&self.shared) {
            Dropped::NotHeld => Err(self.not_held()),
            Dropped::Held { lost: false } => Ok(()),
            Dropped::Held { lost: true } => Err(self.lost()),
            Dropped::Last(hold) => self.end_hold(&hold.owned),
        }
    }

    /// A condition of this lock, by name. As [`Lock::new_condition`].
    ///
    /// # Errors
    /// As [`Lock::new_condition`].
    pub fn new_condition(&self, name: &str) -> Result<Condition> {
        if self.is_for_readers() {
            return Err(self.named(Error::unsupported(
                "only the write side of a read-write lock has conditions",
            )));
        }
        let options = &self.options;
        if !self.store.abilities().conditions
            || options.queue != Queue::Fifo
            || options.owner.is_some()
            || options.has_at_least()
        {
            return Err(self.named(Error::unsupported(
                "conditions need the plain layout, Queue::Fifo, no owner and no at_least",
            )));
        }
        Condition::new(std::sync::Arc::new(self.clone()), name).map_err(|error| self.named(error))
    }
}

impl Lock for RedisLock {
    fn lock(&self) -> Result<()> {
        self.lock()
    }

    fn lock_interruptibly(&self, interrupt: &Interrupt) -> Result<()> {
        self.lock_interruptibly(interrupt)
    }

    fn try_lock(&self, timeout: Duration) -> Result<bool> {
        self.try_lock(timeout)
    }

    fn try_lock_interruptibly(&self, timeout: Duration, interrupt: &Interrupt) -> Result<bool> {
        self.try_lock_interruptibly(timeout, interrupt)
    }

    fn unlock(&self) -> Result<()> {
        self.unlock()
    }

    fn new_condition(&self, name: &str) -> Result<Condition> {
        self.new_condition(name)
    }
}
