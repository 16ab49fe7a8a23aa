//! How leases are written on a server: each layout beside its scripts.

pub(crate) mod answers;
mod leases;
mod plain;
mod queue;
mod redisson;
mod shared;
mod table;
mod timestamp;

use std::sync::{Arc, OnceLock, Weak};

use self::leases::ServerLeases;
use self::table::Table;
use super::inbox::Inboxes;
use crate::base::options::{Layout, Share, Written};
use crate::lease::cleaner::{Cleaner, Withdrawal};
use crate::lease::store::LeaseStore;
use crate::lease::token::Token;
use crate::server::node::Node;
use crate::server::servers::Servers;

/// Every layout. A new one is a line here, a table beside this file, and a folder with its scripts.
const LAYOUTS: [(Written, fn() -> Table); 4] = [
    ((Layout::Plain, false), plain::table),
    ((Layout::Plain, true), shared::table),
    ((Layout::Redisson, false), redisson::table),
    ((Layout::Timestamp, false), timestamp::table),
];

/// The leases of one place, by how they are written.
pub(crate) type Leases = Vec<(Written, Arc<dyn LeaseStore>)>;

/// Those that are written like this.
pub(crate) fn find(leases: &Leases, written: Written) -> Option<&Arc<dyn LeaseStore>> {
    leases.iter().find(|(how, _)| *how == written).map(|(_, leases)| leases)
}

/// The leases on these servers in every layout, and the inboxes that hear of them. `id`: the
/// client's, which names its inboxes.
pub(crate) fn on_servers(servers: &Servers, id: &str, cleaner: &Cleaner) -> (Leases, Arc<Inboxes>) {
    // Only a layout with a queue sends grants: the plain one, and that of locks with shares.
    let queued: [Arc<OnceLock<Weak<dyn LeaseStore>>>; 2] = Default::default();
    let (stores, cleaner) = (queued.clone(), cleaner.clone());
    let stray = move |key, token: Token| {
        // A waiter that queues has a token of ours.
        let has_share = Share::in_token(token.as_bytes()).is_some();
        if let Some(store) = stores[usize::from(has_share)].get().and_then(Weak::upgrade) {
            cleaner.withdraw_later(Withdrawal::stray(store, key, token));
        }
    };
    let inboxes = Arc::new(Inboxes::new(servers.clone(), id, Arc::new(stray)));
    let leases = every_layout(servers, servers, &inboxes);
    for (has_shares, queued) in [false, true].into_iter().zip(queued) {
        if let Some(leases) = find(&leases, (Layout::Plain, has_shares)) {
            let _ = queued.set(Arc::downgrade(leases));
        }
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
    LAYOUTS.into_iter().map(|(written, table)| (written, leases(table))).collect()
}

/// The leases on one node of a quorum. Nobody ever listens: a quorum has no queue, so its nodes
/// send no wake-ups.
pub(crate) fn on_node(node: &Arc<Node>) -> Arc<dyn LeaseStore> {
    let servers = Servers::One(Arc::clone(node));
    let inboxes = Arc::new(Inboxes::new(servers.clone(), "", Arc::new(|_, _| {})));
    Arc::new(ServerLeases::new((servers.clone(), servers), inboxes, plain::table()))
}

/// The scripts of a layout with a queue, by name, for tests that choose their keys and arguments.
/// `shared`: those of the layout for locks with shares.
#[cfg(feature = "testing")]
#[must_use]
pub fn scripts(shared: bool) -> Vec<(&'static str, &'static str)> {
    let Table { acquire, release, keep, extend, inspect, force, exchange, wakes, .. } =
        if shared { shared::table() } else { plain::table() };
    let mut scripts = vec![
        ("acquire", acquire),
        ("release", release),
        ("extend", extend),
        ("inspect", inspect),
        ("force", force),
    ];
    scripts.extend(keep.map(|keep| ("keep", keep)));
    scripts.extend(exchange.map(|exchange| ("exchange", exchange)));
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
    scripts.into_iter().map(|(name, script)| (name, script.body)).collect()
}
