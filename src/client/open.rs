//! An open client, and how it is closed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log;
use crate::base::options::LockOptions;
use crate::lease::context::Context;
use crate::lease::lost::{Ended, LostReason};
use crate::lease::store::LeaseStore;
use crate::local::Names;
use crate::server::counters::ServerCounters;
use crate::store::Backend;

/// Closes the client when the last handle is dropped.
pub(super) struct Open {
    pub(super) backend: Arc<Backend>,
    pub(super) context: Arc<Context>,
    pub(super) counters: Arc<ServerCounters>,
    pub(super) locks: Arc<Names>,
    pub(super) semaphores: Arc<Names>,
    /// The two sides of read-write locks.
    pub(super) read_sides: Arc<Names>,
    pub(super) write_sides: Arc<Names>,
    pub(super) prefix: String,
    pub(super) options: Arc<LockOptions>,
    /// The store of locks with these options.
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) command_timeout: Duration,
    /// The result of closing.
    pub(super) closed: Mutex<Closed>,
}

#[derive(Clone, Copy, Default)]
pub(super) enum Closed {
    #[default]
    NotYet,
    /// Not confirmed in time: the release of this many locks; `true`: the end of the threads.
    Left(usize, bool),
}

impl Open {
    pub(super) fn close(&self, timeout: Duration) -> Result<()> {
        let context = &self.context;
        // In a fork, the threads and the sockets belong to the parent (R11).
        if context.is_forked() {
            return Ok(());
        }
        // Held until the client is closed. A second call at the same time does not wait for the
        // first, which may be waiting for the second call's thread.
        let Ok(mut closed) = self.closed.try_lock() else {
            return Err(Error::new(
                ErrorKind::Unknown,
                "the client is being closed by another call",
            ));
        };
        if let Closed::Left(locks, threads) = *closed {
            return unconfirmed(locks, threads);
        }
        let deadline = Instant::now().checked_add(timeout);
        let deadline =
            deadline.unwrap_or_else(|| Instant::now() + Duration::from_secs(u64::from(u32::MAX)));
        // From here on no thread waits or begins to wait. A thread that is granted a lock at this
        // very moment finds the book closed and gives the lock up.
        context.closing.interrupt();
        for lease in context.renewers.close() {
            context.finish(&lease, Ended::Lost(LostReason::Closed));
        }
        // Threads that were waiting for a lock, or in a condition, hand what they leave behind to
        // the cleaner.
        let waiting = context.acquiring.wait(&context.clock, deadline);
        let mut threads = context.cleaner.close(deadline);
        threads.extend(context.renewers.stop());
        threads.push(context.notifier.stop());
        let in_time = threads.iter().filter(|thread| !thread.wait(deadline)).count() == 0;
        let in_time = self.backend.close(deadline) && in_time;
        // The last: nothing happens any more.
        context.counters.calls.waiting.wait(&context.clock, deadline);
        let events = context.counters.events.as_ref();
        let in_time = events.is_none_or(|events| events.stop().wait(deadline)) && in_time;
        let left = context.cleaner.unanswered() + waiting;
        *closed = Closed::Left(left, !in_time);
        unconfirmed(left, !in_time)
    }
}

/// The result of `close`: what it could not confirm.
fn unconfirmed(locks: usize, threads: bool) -> Result<()> {
    let message = match locks {
        0 if threads => "the threads of the client did not end in time".to_owned(),
        0 => return Ok(()),
        locks => format!(
            "the server did not confirm in time that {locks} of the client's locks and permits \
             were released"
        ),
    };
    Err(Error::new(ErrorKind::Unknown, message))
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.context.is_forked() {
            // Not dropped: a destructor might wait for a mutex that another thread held when this
            // process was copied.
            return std::mem::forget((Arc::clone(&self.context), Arc::clone(&self.backend)));
        }
        if self.context.closing.is_interrupted() {
            // Closed before: that call returned the result.
            return;
        }
        if let Err(error) = self.close(self.command_timeout) {
            log::warn!("{error}: found when a client was dropped");
        }
    }
}
