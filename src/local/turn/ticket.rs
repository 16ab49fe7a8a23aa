//! The turn, as the thread has it whose turn it is.

use std::sync::Arc;

use super::{Phase, Turn};
use crate::base::locked;
use crate::lease::acquisition::Acquisition;
use crate::lease::granted::Lease;

/// The turn, until dropped; then it passes on.
pub(crate) struct Ticket<'a> {
    turn: &'a Turn,
    number: u64,
}

impl<'a> Ticket<'a> {
    pub(super) fn new(turn: &'a Turn, number: u64) -> Self {
        Self { turn, number }
    }

    /// The thread holds `lease` now, and gives its turn up by [`Turn::leave`] or
    /// [`Turn::hand_off`].
    pub(crate) fn hold(self, lease: &Arc<Lease>) -> u64 {
        let number = self.number;
        let mut state = locked(&self.turn.state);
        if state.phase.ticket() == Some(number) {
            state.phase = Phase::Holding(number, Arc::downgrade(lease));
        }
        drop(state);
        std::mem::forget(self);
        number
    }

    /// Gives the turn up, and with it a place in the server's queue. Gives the place back if it is
    /// of no use to the next thread.
    pub(crate) fn pass_place(self, place: Acquisition) -> Option<Acquisition> {
        let unused = self.turn.pass_place(self.number, place);
        // The turn has passed on.
        std::mem::forget(self);
        unused
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.turn.leave(self.number);
    }
}
