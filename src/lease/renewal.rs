//! The renewal of all leases of a client.

use std::io;
use std::sync::Arc;

use super::cleaner::Cleaner;
use super::count::Count;
use super::granted::Lease;
use super::renewer::Renewer;
use super::store::LeaseStore;
use super::timeouts::Timeouts;
use crate::base::clock::Clock;
use crate::base::worker::Stopped;

/// Leases that have to be confirmed are renewed by a thread of their own: while a replica is away,
/// their extends wait for it, and the extends of other leases must not (R9).
pub(crate) struct Renewal {
    plain: Renewer,
    confirmed: Renewer,
}

impl Renewal {
    pub(crate) fn new(
        clock: &Clock,
        timeouts: Timeouts,
        cleaner: &Cleaner,
        under_way: &Count,
    ) -> Self {
        let renewer = |thread| {
            Renewer::new(thread, clock.clone(), timeouts, cleaner.clone(), under_way.clone())
        };
        Self { plain: renewer("distlock-renewal"), confirmed: renewer("distlock-confirm") }
    }

    /// Starts the thread for leases of this store. Called before a lease is requested, so that a
    /// granted lease is always looked after (R8).
    pub(crate) fn start(&self, store: &dyn LeaseStore) -> io::Result<()> {
        self.of_store(store).start()
    }

    /// What looks after this lease.
    pub(crate) fn of(&self, lease: &Lease) -> &Renewer {
        self.of_store(&*lease.store)
    }

    fn of_store(&self, store: &dyn LeaseStore) -> &Renewer {
        if store.abilities().confirms { &self.confirmed } else { &self.plain }
    }

    /// How many leases are looked after.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.plain.len() + self.confirmed.len()
    }

    /// Removes every lease, and accepts no new one.
    pub(crate) fn close(&self) -> Vec<Arc<Lease>> {
        [&self.plain, &self.confirmed].into_iter().flat_map(Renewer::close).collect()
    }

    pub(crate) fn stop(&self) -> [Stopped; 2] {
        [self.plain.stop(), self.confirmed.stop()]
    }
}
