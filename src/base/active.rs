//! How many operations are under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::base::clock::Clock;

/// How often closing looks. Counting is part of every lock and unlock, but closing happens once: so
/// a change of the count wakes nobody.
const LOOK: Duration = Duration::from_millis(1);

/// Counts the operations that are under way.
#[derive(Clone, Default)]
pub(crate) struct ActiveCount(Arc<AtomicUsize>);

/// One counted operation, until dropped.
pub(crate) struct Active(ActiveCount);

impl ActiveCount {
    pub(crate) fn add(&self) -> Active {
        self.0.fetch_add(1, Ordering::SeqCst);
        Active(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits until the count is zero, or until the deadline. Returns the count.
    pub(crate) fn wait(&self, clock: &Clock, deadline: Instant) -> usize {
        loop {
            let count = self.count();
            let left = clock.sleep_for(deadline);
            if count == 0 || left.is_zero() {
                return count;
            }
            thread::sleep(left.min(LOOK));
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let before = self.0.0.fetch_sub(1, Ordering::SeqCst);
        debug_assert_ne!(before, 0, "each is counted once");
    }
}
