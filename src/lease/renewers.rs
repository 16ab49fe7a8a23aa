//! The renewal of all leases of a client.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use super::cleaner::Cleaner;
use super::durations::Timeouts;
use super::granted::Lease;
use super::renewer::Renewer;
use super::store::LeaseStore;
use crate::base::active::ActiveCount;
use crate::base::clock::Clock;
use crate::base::locked;
use crate::base::options::Confirm;
use crate::base::worker::Stopped;

/// Leases are renewed by one thread for each kind of confirmations: while a replica is away, the
/// extends of the locks that ask for it wait, and the extends of others must not (R9).
pub(crate) struct Renewers {
    plain: Arc<Renewer>,
    confirmed: Mutex<Confirmed>,
    make: Box<dyn Fn(&'static str) -> Arc<Renewer> + Send + Sync>,
}

#[derive(Default)]
struct Confirmed {
    renewers: HashMap<Confirm, Arc<Renewer>>,
    closed: bool,
}

impl Renewers {
    pub(crate) fn new(
        clock: Clock,
        timeouts: Timeouts,
        cleaner: Cleaner,
        under_way: ActiveCount,
    ) -> Self {
        let make = move |thread| {
            let (clock, cleaner) = (clock.clone(), cleaner.clone());
            Arc::new(Renewer::new(thread, clock, timeouts, cleaner, under_way.clone()))
        };
        Self { plain: make("distlock-renewal"), confirmed: Mutex::default(), make: Box::new(make) }
    }

    /// Starts the thread for leases of this store. Called before a lease is requested, so that a
    /// granted lease is always looked after (R8).
    pub(crate) fn start(&self, store: &dyn LeaseStore) -> io::Result<()> {
        self.of_store(store).start()
    }

    /// What looks after this lease.
    pub(crate) fn of(&self, lease: &Lease) -> Arc<Renewer> {
        self.of_store(&*lease.store)
    }

    fn of_store(&self, store: &dyn LeaseStore) -> Arc<Renewer> {
        let confirm = store.abilities().confirm;
        if !confirm.is_wanted() {
            return Arc::clone(&self.plain);
        }
        let Confirmed { renewers, closed } = &mut *locked(&self.confirmed);
        let renewer = renewers.entry(confirm).or_insert_with(|| (self.make)("distlock-confirm"));
        if *closed {
            renewer.close();
        }
        Arc::clone(renewer)
    }

    fn all(&self) -> Vec<Arc<Renewer>> {
        let confirmed = locked(&self.confirmed);
        confirmed.renewers.values().chain([&self.plain]).map(Arc::clone).collect()
    }

    /// How many leases are looked after.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.all().iter().map(|renewer| renewer.len()).sum()
    }

    /// Removes every lease, and accepts no new one.
    pub(crate) fn close(&self) -> Vec<Arc<Lease>> {
        locked(&self.confirmed).closed = true;
        self.all().iter().flat_map(|renewer| renewer.close()).collect()
    }

    pub(crate) fn stop(&self) -> Vec<Stopped> {
        self.all().iter().map(|renewer| renewer.stop()).collect()
    }
}
