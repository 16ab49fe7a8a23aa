//! How leases are written on a server: each layout beside its scripts.

pub(crate) mod answers;
mod leases;
mod plain;
mod queue;
mod redisson;
#[cfg(feature = "testing")]
mod shared;
mod table;
mod timestamp;

use std::sync::{Arc, OnceLock, Weak};

use self::leases::ServerLeases;
use self::table::Table;
use super::inbox::Inboxes;
use crate::base::options::Layout;
use crate::lease::cleaner::{Cleaner, Withdrawal};
use crate::lease::store::LeaseStore;
use crate::server::node::Node;
use crate::server::servers::Servers;

/// Every layout. A new one is a line here, a table beside this file, and a folder with its scripts.
const LAYOUTS: [(Layout, fn() -> Table); 3] = [
    (Layout::Plain, plain::table),
    (Layout::Redisson, redisson::table),
    (Layout::Timestamp, timestamp::table),
];

/// The leases of one place, by layout.
pub(crate) type Leases = Vec<(Layout, Arc<dyn LeaseStore>)>;

/// The leases on these servers in every layout, and the inboxes that hear of them. `id`: the
/// client's, which names its inboxes.
pub(crate) fn on_servers(servers: &Servers, id: &str, cleaner: &Cleaner) -> (Leases, Arc<Inboxes>) {
    let queued: Arc<OnceLock<Weak<dyn LeaseStore>>> = Arc::default();
    let (store, cleaner) = (Arc::clone(&queued), cleaner.clone());
    let stray = move |key, token| {
        if let Some(store) = store.get().and_then(Weak::upgrade) {
            cleaner.withdraw_later(Withdrawal::stray(store, key, token));
        }
    };
    let inboxes = Arc::new(Inboxes::new(servers.clone(), id, Arc::new(stray)));
    let leases = every_layout(servers, servers, &inboxes);
    // The plain layout's queue alone sends grants.
    if let Some((_, plain)) = leases.iter().find(|(layout, _)| *layout == Layout::Plain) {
        let _ = queued.set(Arc::downgrade(plain));
    }
    (leases, inboxes)
}

/// The leases on these servers in every layout. `granting`: those for grants and extends.
pub(crate) fn every_layout(
    servers: &Servers,
    granting: &Servers,
    inboxes: &Arc<Inboxes>,
) -> Leases {
    let leases = |table: fn() -> Table| -> Arc<dyn LeaseStore> {
        let servers = (servers.clone(), granting.clone());
        Arc::new(ServerLeases::new(servers, Arc::clone(inboxes), table()))
    };
    LAYOUTS.into_iter().map(|(layout, table)| (layout, leases(table))).collect()
}

/// The leases on one node of a quorum. Nobody ever listens: a quorum has no queue, so its nodes
/// send no wake-ups.
pub(crate) fn on_node(node: &Arc<Node>) -> Arc<dyn LeaseStore> {
    let servers = Servers::One(Arc::clone(node));
    let inboxes = Arc::new(Inboxes::new(servers.clone(), "", Arc::new(|_, _| {})));
    Arc::new(ServerLeases::new((servers.clone(), servers), inboxes, plain::table()))
}

/// The scripts of a layout with a queue, by name, for tests that choose their keys and arguments.
/// `shared`: those of the layout for locks with shares, which no call uses yet.
#[cfg(feature = "testing")]
#[must_use]
pub fn scripts(shared: bool) -> Vec<(&'static str, &'static str)> {
    let Table { acquire, release, extend, inspect, force, wakes, .. } =
        if shared { shared::table() } else { plain::table() };
    let mut scripts = vec![
        ("acquire", acquire),
        ("release", release),
        ("extend", extend),
        ("inspect", inspect),
        ("force", force),
    ];
    if let table::Wakes::Queue(queue) = wakes {
        let table::QueueScripts { acquire_alone, release_alone, withdraw, wait, notify } = *queue;
        scripts.extend([
            ("acquire_alone", acquire_alone),
            ("release_alone", release_alone),
            ("withdraw", withdraw),
            ("wait", wait),
            ("notify", notify),
        ]);
    }
    scripts.into_iter().map(|(name, script)| (name, script.body())).collect()
}
