//! The turn, as its thread holds it.

use std::sync::Arc;

use super::{LocalQueue, Phase};
use crate::base::locked;
use crate::lease::acquisition::Acquisition;
use crate::lease::granted::Lease;

/// The turn, until dropped; then it passes on.
pub(crate) struct Turn<'a> {
    queue: &'a LocalQueue,
    number: u64,
}

impl<'a> Turn<'a> {
    pub(super) fn new(queue: &'a LocalQueue, number: u64) -> Self {
        Self { queue, number }
    }

    /// The thread holds `lease` now, and gives its turn up by [`LocalQueue::leave`] or
    /// [`LocalQueue::hand_off`].
    pub(crate) fn hold(self, lease: &Arc<Lease>) -> u64 {
        let number = self.number;
        let mut state = locked(&self.queue.state);
        if state.phase.turn() == Some(number) {
            state.phase = Phase::Holding(number, Arc::downgrade(lease));
        }
        drop(state);
        std::mem::forget(self);
        number
    }

    /// Gives the turn up, and with it a place in the server's queue. Returns the place if the next
    /// thread cannot use it.
    pub(crate) fn pass_place(self, place: Acquisition) -> Option<Acquisition> {
        let unused = self.queue.pass_place(self.number, place);
        // The turn has passed on.
        std::mem::forget(self);
        unused
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.queue.leave(Some(self.number));
    }
}
