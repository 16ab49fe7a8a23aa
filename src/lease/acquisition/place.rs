//! The place of an acquisition among those who wait.

use std::time::Duration;

use super::Acquisition;
use crate::base::backoff;
use crate::lease::store::Place;

/// A waiter's place, which begins to listen only when the store says that it has to wait.
pub(in crate::lease) struct Waiting<'a> {
    pub(super) acquisition: &'a Acquisition,
}

impl Place for Waiting<'_> {
    fn listen(&self) -> Option<&str> {
        let waiter = self.acquisition;
        let listening = waiter
            .listening
            .get_or_init(|| waiter.store.listen(&waiter.key, &waiter.token, waiter.bell()));
        listening.as_ref().map(|listening| &*listening.address)
    }

    fn alive_for(&self) -> Duration {
        // Three pauses, but not so short that a question over a slow link arrives after the place
        // has expired.
        let pause = backoff::longest_pause(self.acquisition.options.retry, true)
            .max(backoff::longest_pause(None, true));
        pause.saturating_mul(3)
    }

    fn first_lease(&self) -> Duration {
        self.acquisition.first_lease()
    }
}
