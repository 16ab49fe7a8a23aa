//! An open client, and how it is closed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::options::LockOptions;
use crate::lease::context::Context;
use crate::lease::ended::Ended;
use crate::lease::lost::LostReason;
use crate::lease::store::LeaseStore;
use crate::local::Names;
use crate::local::line::Lines;
use crate::store::Backend;

/// Closes the client when the last handle goes.
pub(super) struct Open {
    pub(super) backend: Backend,
    pub(super) context: Arc<Context>,
    pub(super) names: Arc<Names>,
    pub(super) lines: Arc<Lines>,
    pub(super) prefix: String,
    pub(super) options: Arc<LockOptions>,
    /// Where locks with these options live.
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) command_timeout: Duration,
    /// What closing came to.
    pub(super) closed: Mutex<Closed>,
}

#[derive(Clone, Copy, Default)]
pub(super) enum Closed {
    #[default]
    NotYet,
    /// Not confirmed in time: so many locks, and the end of the threads.
    Left(usize, bool),
}

impl Open {
    pub(super) fn close(&self, timeout: Duration) -> Result<()> {
        let context = &self.context;
        // The threads and the sockets of a fork belong to its parent (R11).
        if context.is_forked() {
            return Ok(());
        }
        // Held until it is closed: a second call at the same time does not wait for the first,
        // which may be waiting for its caller.
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
        // From here on nobody waits and nobody begins to; whoever is granted a lock at this very
        // moment finds the book closed and gives it up.
        context.closing.interrupt();
        for lease in context.renewal.close() {
            context.finish(&lease, Ended::Lost(LostReason::Closed));
        }
        // Whoever was waiting for a lock, or in a condition, hands what is left of that to the
        // cleaner.
        let waiting = context.acquiring.wait(&context.clock, deadline);
        let cleaner = context.cleaner.close(deadline);
        let threads = [context.renewal.stop(), context.notifier.stop()];
        let cleaned = cleaner.wait(deadline);
        let in_time = threads.iter().filter(|thread| !thread.wait(deadline)).count() == 0;
        let in_time = self.backend.close(deadline) && in_time && cleaned;
        let left = context.cleaner.unanswered() + waiting;
        *closed = Closed::Left(left, !in_time);
        unconfirmed(left, !in_time)
    }
}

/// What `close` says of what it could not confirm.
fn unconfirmed(locks: usize, threads: bool) -> Result<()> {
    let message = match locks {
        0 if threads => "the threads of the client did not end in time".to_owned(),
        0 => return Ok(()),
        locks => format!(
            "the server did not confirm in time that {locks} of the client's locks were released"
        ),
    };
    Err(Error::new(ErrorKind::Unknown, message))
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.context.is_forked() {
            // Left as they are, for a destructor might wait for a mutex that another thread held
            // when this process was copied.
            return std::mem::forget((Arc::clone(&self.context), Arc::clone(&self.store)));
        }
        if self.context.closing.is_interrupted() {
            // Closed before, and what came of that was said.
            return;
        }
        if let Err(error) = self.close(self.command_timeout) {
            log::warn!("{error}");
        }
    }
}
