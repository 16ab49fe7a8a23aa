//! The renewal of all leases of a client.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use super::cleaner::Cleaner;
use super::durations::Timeouts;
use super::granted::Lease;
use super::renewer::Renewer;
use super::store::LeaseStore;
use crate::base::active::ActiveCount;
use crate::base::clock::Clock;
use crate::base::key::Key;
use crate::base::locked;
use crate::base::options::Confirm;
use crate::base::worker::Stopped;

/// Leases are renewed by one thread for each kind of confirmations, and for each shard of the
/// store: while a replica is away, the extends of the locks that ask for it wait, and while a shard
/// is silent, those of its locks; the extends of others must not (R9).
pub(crate) struct Renewers {
    plain: Arc<Renewer>,
    others: Mutex<Others>,
    make: Box<dyn Fn(&'static str, u16) -> Arc<Renewer> + Send + Sync>,
}

#[derive(Default)]
struct Others {
    renewers: BTreeMap<(u16, Confirm), Arc<Renewer>>,
    closed: bool,
}

impl Renewers {
    pub(crate) fn new(
        clock: Clock,
        timeouts: Timeouts,
        cleaner: Cleaner,
        under_way: ActiveCount,
    ) -> Self {
        let make = move |thread, shard| {
            let (clock, cleaner) = (clock.clone(), cleaner.clone());
            Arc::new(Renewer::new((thread, shard), clock, timeouts, cleaner, under_way.clone()))
        };
        Self { plain: make("distlock-renewal", 0), others: Mutex::default(), make: Box::new(make) }
    }

    /// Starts the threads for leases of this store. Called before a lease is requested, so that a
    /// granted lease is always looked after (R8).
    pub(crate) fn start(&self, store: &dyn LeaseStore) -> io::Result<()> {
        self.one(store, 0).start()
    }

    /// The shard whose threads shall look after a lease that was granted. If these cannot be
    /// started, those of the first shard have been.
    pub(super) fn shard(&self, store: &dyn LeaseStore, key: &Key) -> u16 {
        let shard = store.shard(key);
        self.one(store, shard).start().map_or(0, |()| shard)
    }

    /// What looks after this lease.
    pub(crate) fn of(&self, lease: &Lease) -> Arc<Renewer> {
        self.one(&*lease.store, lease.shard)
    }

    fn one(&self, store: &dyn LeaseStore, shard: u16) -> Arc<Renewer> {
        let confirm = store.abilities().confirm;
        if !confirm.is_wanted() && shard == 0 {
            return Arc::clone(&self.plain);
        }
        let name = if confirm.is_wanted() { "distlock-confirm" } else { "distlock-renewal" };
        let Others { renewers, closed } = &mut *locked(&self.others);
        let renewer = renewers.entry((shard, confirm)).or_insert_with(|| (self.make)(name, shard));
        if *closed {
            renewer.close();
            renewer.stop();
        }
        Arc::clone(renewer)
    }

    fn all(&self) -> Vec<Arc<Renewer>> {
        let others = locked(&self.others);
        others.renewers.values().chain([&self.plain]).map(Arc::clone).collect()
    }

    /// How many leases are looked after.
    pub(crate) fn len(&self) -> usize {
        self.all().iter().map(|renewer| renewer.len()).sum()
    }

    /// Removes every lease, and accepts no new one.
    pub(crate) fn close(&self) -> Vec<Arc<Lease>> {
        locked(&self.others).closed = true;
        self.all().iter().flat_map(|renewer| renewer.close()).collect()
    }

    pub(crate) fn stop(&self) -> Vec<Stopped> {
        self.all().iter().map(|renewer| renewer.stop()).collect()
    }
}
