//! This process and its threads: who holds what, and whose turn it is.

pub(crate) mod holds;
pub(crate) mod joinable;
pub(crate) mod owned;
pub(crate) mod queue;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use crate::base::error::{Error, Result};
use crate::base::key::{Key, LONGEST_KEY};
use crate::base::locked;
use crate::base::rarely::Rarely;
use crate::base::subject::Subject;
use crate::lease::context::Context;
use crate::lease::granted::{Lease, LeaseObserver};
use crate::lease::lost::{Lost, OnLost};
use crate::lease::slow_wait::SlowWait;
use crate::lease::wait_limits::Contention;
use queue::LocalQueue;

/// What all handles of one lock, of one side of a read-write lock, or of one semaphore share in one
/// client.
pub(crate) struct SharedLock {
    pub(crate) subject: Subject,
    pub(crate) key: Key,
    /// Of the read side of a read-write lock: the write side, whose local queue is for both. It is
    /// kept, so that its name leads to this queue as long as either side is in use.
    writers: Option<Arc<SharedLock>>,
    queue: LocalQueue,
    pub(crate) contention: Contention,
    /// When a call has last said that it waits for long.
    slow_waits: Rarely,
    pub(crate) context: Arc<Context>,
    on_lost: Mutex<Vec<Arc<OnLost>>>,
    /// The table in which the lock is found by its name.
    names: Weak<Names>,
}

impl SharedLock {
    /// An invalid name is reported by the first call that would use it.
    pub(crate) fn check_name(&self) -> Result<()> {
        let problem = if self.subject.name().is_empty() {
            "the name must not be empty"
        } else if self.key.as_str().len() > LONGEST_KEY {
            "the name, with its prefix, must have at most 1024 bytes"
        } else {
            return Ok(());
        };
        // The message leaves the name out: it may be a megabyte long.
        Err(Error::invalid(problem))
    }

    /// Of the read side of a read-write lock: the write side.
    pub(crate) fn writers(&self) -> Option<&Arc<SharedLock>> {
        self.writers.as_ref()
    }

    /// The queue of this process's threads.
    pub(crate) fn queue(&self) -> &LocalQueue {
        self.writers.as_ref().map_or(&self.queue, |writers| &writers.queue)
    }

    /// The wait of a call that begins.
    pub(crate) fn slow_wait(&self) -> SlowWait<'_> {
        SlowWait::new(&self.subject, &self.slow_waits, self.context.timeouts.slow_wait)
    }

    pub(crate) fn on_lost(&self, callback: Arc<OnLost>) {
        if self.context.is_forked() {
            // In a fork no lease is ever lost, and the mutex may stay locked for ever.
            return;
        }
        locked(&self.on_lost).push(callback);
    }
}

impl LeaseObserver for SharedLock {
    fn subject(&self) -> &Subject {
        &self.subject
    }

    fn over(&self, lease: &Arc<Lease>) {
        // The holder goes on until it notices the loss. Other processes do not wait for that, so
        // the other threads of this process need not, either.
        self.queue().leave_after_loss(lease);
    }

    fn lost(&self, lost: &Lost) {
        for callback in locked(&self.on_lost).iter() {
            self.context.notifier.notify(Arc::clone(callback), lost.clone());
        }
    }
}

impl Drop for SharedLock {
    fn drop(&mut self) {
        if self.context.is_forked() {
            return;
        }
        if let Some(names) = self.names.upgrade() {
            names.forget(self.subject.name());
        }
        self.context.notifier.drop_soon(std::mem::take(&mut *locked(&self.on_lost)));
    }
}

/// The locks of one client by name, or its semaphores and so on: same name, same lock. A name that
/// is no longer used leaves nothing behind.
pub(crate) struct Names {
    /// What the names are names of.
    subject: fn(Arc<str>) -> Subject,
    by_name: Mutex<HashMap<Arc<str>, Weak<SharedLock>>>,
}

impl Names {
    pub(crate) fn of(subject: fn(Arc<str>) -> Subject) -> Arc<Self> {
        Arc::new(Self { subject, by_name: Mutex::default() })
    }

    pub(crate) fn get(
        self: &Arc<Self>,
        name: &str,
        prefix: &str,
        context: &Arc<Context>,
    ) -> Arc<SharedLock> {
        self.get_or_make(name, prefix, context, None)
    }

    /// The read side of a read-write lock, beside its write side.
    pub(crate) fn get_beside(
        self: &Arc<Self>,
        writers: &Arc<SharedLock>,
        name: &str,
        prefix: &str,
        context: &Arc<Context>,
    ) -> Arc<SharedLock> {
        self.get_or_make(name, prefix, context, Some(writers))
    }

    fn get_or_make(
        self: &Arc<Self>,
        name: &str,
        prefix: &str,
        context: &Arc<Context>,
        writers: Option<&Arc<SharedLock>>,
    ) -> Arc<SharedLock> {
        let name: Arc<str> = name.into();
        if context.is_forked() {
            // Every call of this lock will be refused. In a fork the mutex may stay locked for
            // ever.
            return self.make(name, prefix, context, writers);
        }
        let mut by_name = locked(&self.by_name);
        if let Some(lock) = by_name.get(&*name).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = self.make(Arc::clone(&name), prefix, context, writers);
        by_name.insert(name, Arc::downgrade(&lock));
        lock
    }

    fn make(
        self: &Arc<Self>,
        name: Arc<str>,
        prefix: &str,
        context: &Arc<Context>,
        writers: Option<&Arc<SharedLock>>,
    ) -> Arc<SharedLock> {
        Arc::new(SharedLock {
            key: Key::new(format!("{prefix}{name}")),
            writers: writers.cloned(),
            queue: LocalQueue::default(),
            contention: Contention::default(),
            slow_waits: Rarely::default(),
            context: Arc::clone(context),
            on_lost: Mutex::default(),
            names: Arc::downgrade(self),
            subject: (self.subject)(name),
        })
    }

    /// Removes the name, unless a new lock has been made under it since the last handle of the old
    /// lock was dropped.
    fn forget(&self, name: &str) {
        let mut by_name = locked(&self.by_name);
        if by_name.get(name).is_some_and(|lock| lock.strong_count() == 0) {
            by_name.remove(name);
        }
    }

    /// How many names are known.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        locked(&self.by_name).len()
    }
}
