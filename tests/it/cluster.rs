//! Locks on a Redis Cluster: each at the node that owns its slot, and followed when the slot moves
//! (R25).
//!
//! The clusters are real; what real nodes say only in trouble is said by fake ones.

mod apart;
mod inboxes;
mod maps;
mod moves;
mod nodes;
mod redirections;
mod settings;
mod wake_ups;

use distlock::{Client, ErrorKind, Layout, LockOptions};

use crate::helpers::{SOON, error, get, ms, on_another_thread};
use crate::support::shards::Shards;
use crate::support::{Server, eventually, in_own_process, thread_names};

/// A client that has been told of the first primary only.
fn client(shards: &Shards) -> Client {
    Client::cluster(&shards.urls()[..1]).unwrap()
}

/// How many commands the nodes have redirected.
fn redirected(shards: &Shards) -> u64 {
    let of = |node: &Server| {
        let stats = node.info("errorstats");
        let count = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(name));
            line.map_or(0, |count| count.trim().parse::<u64>().unwrap())
        };
        count("errorstat_MOVED:count=") + count("errorstat_ASK:count=")
    };
    shards.nodes().map(of).sum()
}

#[test]
fn each_lock_is_at_the_node_that_owns_its_slot() {
    let shards = Shards::start(3);
    let (client, other) = (client(&shards), Client::cluster(&shards.urls()[2..]).unwrap());
    for place in 0..3 {
        let name = shards.name_at(place, "orders");
        let guard = client.lock(&name).guard().unwrap();
        assert!(get(&shards.primaries[place], &name).is_some());
        assert!(!on_another_thread(|| other.lock(&name).try_lock(ms(0))).unwrap());
        assert!(client.lock(&name).is_locked().unwrap());
        guard.release().unwrap();
        assert!(other.lock(&name).guard().is_ok());
    }
}

#[test]
fn after_the_first_redirection_the_client_knows_the_whole_map() {
    let shards = Shards::start(3);
    let client = client(&shards);
    client.lock(&shards.name_at(2, "first")).with(|_| ()).unwrap();
    assert_eq!(redirected(&shards), 1);
    for n in 0..100 {
        client.lock(&format!("lock-{n}")).with(|_| ()).unwrap();
    }
    assert_eq!(redirected(&shards), 1);
    for primary in &shards.primaries {
        assert!(primary.command_count("set") > 20, "the names are spread over the nodes");
    }
}

#[test]
fn every_node_tells_where_a_slot_is_also_a_replica() {
    let shards = Shards::with(2, 1, Shards::node);
    let name = shards.name_at(1, "x");
    let client = Client::open(&shards.replicas[0][0].url().replace("redis://", "redis+cluster://"));
    client.unwrap().lock(&name).with(|_| ()).unwrap();
    assert_eq!(shards.primaries[1].command_count("set"), 1);
}

#[test]
fn layouts_fences_and_limits_work_as_on_one_server() {
    let shards = Shards::start(2);
    let client = client(&shards);
    for place in 0..2 {
        let name = shards.name_at(place, "x");
        let fenced = client.lock_with(&name, LockOptions::new().fenced()).unwrap();
        let first = fenced.guard().unwrap().fence();
        assert!(fenced.guard().unwrap().fence() > first);
        for layout in [Layout::Redisson, Layout::Timestamp] {
            let name = shards.name_at(place, &format!("{layout:?}"));
            let lock = client.lock_with(&name, LockOptions::new().layout(layout)).unwrap();
            lock.with(|_| assert!(lock.is_locked().unwrap())).unwrap();
            assert!(lock.inspect().unwrap().holders.is_empty());
        }
        let limiter = client.rate_limiter(&shards.name_at(place, "limit"), 1, SOON);
        assert!(limiter.check().unwrap().allowed);
        assert!(!limiter.check().unwrap().allowed);
    }
}

#[test]
fn leases_at_several_nodes_are_renewed() {
    let shards = Shards::start(3);
    let options = LockOptions::new().lease(ms(1500));
    let client = Client::cluster_builder(shards.urls()).lock_options(options).build().unwrap();
    let guards: Vec<_> =
        (0..30).map(|n| client.lock(&format!("lock-{n}")).guard().unwrap()).collect();
    std::thread::sleep(ms(3000));
    assert!(guards.iter().all(distlock::LockGuard::is_valid));
    guards.into_iter().for_each(|guard| guard.release().unwrap());
    client.close(SOON).unwrap();
}

#[test]
fn a_waiter_gets_the_lock_by_asking_again() {
    let shards = Shards::start(2);
    let (client, other) = (client(&shards), client(&shards));
    let guard = client.lock("x").guard().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.lock("x").guard().map(|guard| guard.is_valid()));
        let place = shards.place("x");
        eventually(SOON, || shards.primaries[place].command_count("evalsha") > 1);
        guard.release().unwrap();
        assert!(waiting.join().unwrap().unwrap());
    });
}

#[test]
fn a_lock_counts_once_replicas_have_confirmed_it() {
    let shards = Shards::with(2, 1, Shards::node);
    let client = client(&shards);
    let options = LockOptions::new().lease(ms(1500)).replicas(1);
    for place in 0..2 {
        let name = shards.name_at(place, "x");
        let guard = client.lock_with(&name, options.clone()).unwrap().guard().unwrap();
        assert!(shards.primaries[place].command_count("wait") > 0);
        std::thread::sleep(ms(2000));
        assert!(guard.is_valid(), "it is renewed, and each extend is confirmed");
        guard.release().unwrap();
    }
    // There is no second replica.
    let two = client.lock_with("y", LockOptions::new().replicas(2)).unwrap();
    assert_eq!(error(two.try_lock(ms(300))).kind(), ErrorKind::Unavailable);
}

#[test]
fn a_node_that_is_down_delays_only_its_own_locks() {
    let shards = Shards::with(3, 0, || Shards::node().arg("cluster-require-full-coverage", "no"));
    let client = Client::cluster_builder(shards.urls()).command_timeout(ms(500)).build().unwrap();
    let (here, away) = (shards.name_at(0, "x"), shards.name_at(1, "x"));
    let lease = LockOptions::new().lease(ms(3000));
    let lock = |name: &str| client.lock_with(name, lease.clone()).unwrap();
    let held = lock(&here).guard().unwrap();
    // Its renewal is that of the silent node.
    let silent = lock(&shards.name_at(1, "y")).guard().unwrap();
    shards.primaries[1].stop_process();
    for _ in 0..3 {
        assert_eq!(error(client.lock(&away).try_lock(ms(0))).kind(), ErrorKind::Unavailable);
    }
    std::thread::sleep(ms(4000));
    assert!(held.is_valid() && !silent.is_valid());
    held.release().unwrap();
    client.lock(&shards.name_at(0, "y")).with(|_| ()).unwrap();
    shards.primaries[1].cont();
    client.lock(&away).with(|_| ()).unwrap();
}

#[test]
fn a_held_lease_outlives_its_silent_primary() {
    let shards = Shards::with(3, 1, Shards::node);
    let client = client(&shards);
    let options = LockOptions::new().lease(ms(9000));
    let lock = client.lock_with(&shards.name_at(0, "x"), options).unwrap();
    let guard = lock.guard().unwrap();
    let replica = &shards.replicas[0][0];
    eventually(SOON, || replica.info("keyspace").contains("keys=1"));
    shards.primaries[0].stop_process();
    eventually(ms(8000), || replica.info("replication").contains("role:master"));
    // Extends go to the promoted one, although nobody asks for a lock, and the old one is not known
    // to be down: it only does not answer.
    std::thread::sleep(ms(9500));
    assert!(guard.is_valid());
    guard.release().unwrap();
    shards.primaries[0].cont();
}

#[test]
fn the_pools_of_all_nodes_have_one_thread() {
    in_own_process("cluster::the_pools_of_all_nodes_have_one_thread", || {
        let shards = Shards::start(3);
        let client = client(&shards);
        for place in 0..3 {
            client.lock(&shards.name_at(place, "x")).with(|_| ()).unwrap();
        }
        let pools = thread_names().into_iter().filter(|name| name == "distlock-pool");
        assert_eq!(pools.count(), 1);
    });
}

#[test]
fn the_slot_of_a_name_is_the_servers() {
    let shards = Shards::start(1);
    let mut connection = shards.primaries[0].connection();
    // Some of them with braces, at random places.
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let names: Vec<String> = (0..10_000)
        .map(|n: usize| {
            let letter = |at: usize| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(at as u64 + 1);
                char::from(b"{}abcdefgh{}ijklmnop"[(random >> 33) as usize % 20])
            };
            (0..n % 40).map(letter).collect()
        })
        .collect();
    let mut pipe = redis::pipe();
    for name in &names {
        pipe.cmd("CLUSTER").arg("KEYSLOT").arg(name);
    }
    let slots: Vec<u16> = pipe.query(&mut connection).unwrap();
    for (name, slot) in names.iter().zip(slots) {
        assert_eq!(distlock::testing::slot_of_name(name), slot, "{name:?}");
    }
}
