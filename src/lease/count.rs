//! The acquisitions and releases that are under way, so that closing can wait until each has ended.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::base::clock::Clock;
use crate::base::locked;

/// Counts them.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<Shared>);

#[derive(Default)]
struct Shared {
    count: Mutex<usize>,
    less: Condvar,
}

/// One of them, until dropped.
pub(crate) struct Counted(Count);

impl Count {
    pub(crate) fn add(&self) -> Counted {
        *locked(&self.0.count) += 1;
        Counted(self.clone())
    }

    /// Waits until there is none. How many there still are at the deadline.
    pub(crate) fn wait(&self, clock: &Clock, deadline: Instant) -> usize {
        let mut count = locked(&self.0.count);
        while *count > 0 {
            let left = clock.sleep_for(deadline);
            if left.is_zero() {
                break;
            }
            count = self.0.less.wait_timeout(count, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *count
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *locked(&self.0.0.count) -= 1;
        self.0.0.less.notify_all();
    }
}
