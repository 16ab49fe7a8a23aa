//! Nodes that come, go, and change their roles.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use distlock::{Client, ErrorKind, LockOptions};

use super::client;
use crate::helpers::{SOON, error, get, ms};
use crate::support::eventually;
use crate::support::shards::Shards;
use crate::support::tls::Certificates;

#[test]
fn a_cluster_that_died_whole_and_came_back_is_used_again() {
    let shards = Shards::start(2);
    let client = client(&shards);
    let names = [0, 1].map(|place| shards.name_at(place, "x"));
    names.iter().for_each(|name| client.lock(name).with(|_| ()).unwrap());
    shards.nodes().for_each(|node| node.kill());
    for name in &names {
        assert_eq!(error(client.lock(name).try_lock(ms(0))).kind(), ErrorKind::Unavailable);
    }
    shards.nodes().for_each(|node| node.restart());
    for name in &names {
        client.lock(name).with(|guard| assert!(guard.is_valid())).unwrap();
    }
}

#[test]
fn a_slot_that_nobody_owns_is_waited_for() {
    let shards = Shards::with(2, 0, || Shards::node().arg("cluster-require-full-coverage", "no"));
    let client = client(&shards);
    let (owned, orphan) = (shards.name_at(1, "x"), shards.name_at(0, "x"));
    let change = |what: &str| {
        let mut connection = shards.primaries[0].connection();
        let slot = distlock::testing::slot_of_name(&orphan);
        redis::cmd("CLUSTER").arg(what).arg(slot).exec(&mut connection).unwrap();
    };
    change("DELSLOTS");
    let failed = error(client.lock(&orphan).try_lock(ms(0)));
    assert_eq!((failed.kind(), failed.may_be_held()), (ErrorKind::Unavailable, false));
    client.lock(&owned).with(|_| ()).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.lock(&orphan).with(|guard| guard.is_valid()));
        change("ADDSLOTS");
        assert!(waiting.join().unwrap().unwrap());
    });
}

/// Every shard fails over while threads of two clients share locks at all of them.
#[test]
fn locks_that_replicas_confirm_exclude_each_other_while_every_shard_fails_over() {
    let shards = Shards::with(3, 1, Shards::node);
    let names: Vec<_> = (0..3).map(|place| shards.name_at(place, "x")).collect();
    let options = LockOptions::new().replicas(1).lease(ms(10_000));
    let clients: Vec<_> = (0..2)
        .map(|_| Client::cluster_builder(shards.urls()).lock_options(options.clone()))
        .map(|builder| builder.build().unwrap())
        .collect();
    let is_over = AtomicBool::new(false);
    let held: Vec<_> = names.iter().map(|_| AtomicU32::new(0)).collect();
    let cycles: Vec<_> = names.iter().map(|_| AtomicU32::new(0)).collect();
    thread::scope(|scope| {
        for (client, name) in clients.iter().flat_map(|client| (0..3).map(move |n| (client, n))) {
            let (lock, is_over) = (client.lock(&names[name]), &is_over);
            let (held, cycles) = (&held[name], &cycles[name]);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let guard = lock.guard().unwrap();
                    assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    held.fetch_sub(1, Ordering::SeqCst);
                    guard.release().unwrap();
                    cycles.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for (place, primary) in shards.primaries.iter().enumerate() {
            shards.fail_over(place);
            eventually(SOON, || primary.info("replication").contains("link_status:up"));
        }
        let before: Vec<_> = cycles.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        eventually(SOON, || {
            cycles.iter().zip(&before).all(|(now, then)| now.load(Ordering::SeqCst) > then + 10)
        });
        is_over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn nodes_are_reached_where_they_say_over_tls() {
    let certificates = Certificates::new();
    let good = certificates.good();
    let shards = Shards::with(2, 0, || {
        let node = Shards::node().arg("tls-cluster", "yes");
        node.tls(&good.cert, &good.key, certificates.ca())
    });
    let seed = shards.primaries[0].tls_url("127.0.0.1");
    let client =
        Client::cluster_builder([seed]).root_certificates(certificates.ca_pem()).build().unwrap();
    for place in 0..2 {
        let name = shards.name_at(place, "x");
        client
            .lock(&name)
            .with(|_| assert!(get(&shards.primaries[place], &name).is_some()))
            .unwrap();
    }
}

#[test]
fn a_limit_moves_with_its_slot() {
    let shards = Shards::start(2);
    let client = client(&shards);
    let name = shards.name_at(0, "limit");
    let limiter = client.rate_limiter(&name, 2, SOON * 6);
    assert!(limiter.check().unwrap().allowed);
    shards.begin_move(&name, 0, 1);
    shards.move_keys(&[&name], 0, 1);
    assert!(limiter.check().unwrap().allowed);
    shards.end_move(&name, 0, 1);
    assert!(!limiter.check().unwrap().allowed);
}
