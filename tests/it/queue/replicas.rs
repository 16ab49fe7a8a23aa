//! Waiters that listen at a replica, as after a failover: what they receive there is true, and they
//! move to the master.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use distlock::Client;
use distlock::testing::Answer;

use super::{A_WHILE, At, ByHand, SOON, listen};
use crate::helpers::{Underway, close_connections};
use crate::support::{Proxy, Server, eventually};

/// A replica of `server`, in step with it.
fn replica_of(server: &Server) -> Server {
    let replica = Server::start();
    follow(&replica, server);
    replica
}

/// Makes one server the replica of another. Returns when they are in step.
fn follow(replica: &Server, server: &Server) {
    // Without it the first replica waits five seconds for others.
    let () = redis::cmd("CONFIG")
        .arg("SET")
        .arg("repl-diskless-sync-delay")
        .arg(0)
        .query(&mut server.connection())
        .unwrap();
    let () = redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(server.port())
        .query(&mut replica.connection())
        .unwrap();
    eventually(SOON, || replica.info("replication").contains("master_link_status:up"));
}

#[test]
fn what_a_waiter_hears_from_a_replica_is_true() {
    let server = Server::start();
    let replica = replica_of(&server);
    let lock = ByHand::new(&server);
    let (ear, second) = (listen(&server, "first"), listen(&server, "second"));
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("a", 1, &At::new("first"));
    lock.is_refused("b", 1, &At::new("second"));
    // It listens at a replica, which only repeats what this server publishes, as after a failover.
    ear.cut();
    let elsewhere = listen(&replica, "first");
    lock.release("holder");
    assert_eq!(lock.holder().as_deref(), Some("b"));
    assert!(second.hears().contains(" b "));
    elsewhere.hears_nothing();
    // It has kept its place, and is told to listen here.
    assert!(matches!(lock.ask("a", 2, &At::new("first")), Answer::Refused { heard: false, .. }));
    let _ear = listen(&server, "first");
    lock.release("b");
    assert_eq!(lock.holder().as_deref(), Some("a"));
    // A waiter that receives both only receives true messages.
    assert!(elsewhere.hears().starts_with("2 "));
}

#[test]
fn an_inbox_at_a_demoted_server_lets_no_second_holder_in_and_moves_to_the_new_master() {
    let old = Server::start();
    let new = replica_of(&old);
    let proxy = Proxy::start(old.port());
    let open = || Client::open(&proxy.url()).unwrap();
    let holder = open();
    let guard = holder.lock("a").guard().unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let waiters = [open(), open(), open()];
    let waits = waiters.clone().map(|client| {
        let inside = Arc::clone(&inside);
        Underway::start(move || {
            let _guard = client.lock("a").guard().unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
            // Longer than a message takes to come by way of the replica.
            thread::sleep(A_WHILE);
            inside.fetch_sub(1, Ordering::SeqCst);
        })
    });
    // The replica knows of all three, and of the holder before them.
    eventually(SOON, || {
        redis::cmd("ZCARD").arg("{a}:queue").query::<u32>(&mut new.connection()).unwrap() == 3
    });
    // A manual failover behind a name that leads to the new master: commands go there, but
    // subscriptions stay.
    let () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut new.connection()).unwrap();
    proxy.set_upstream(new.port());
    follow(&old, &new);
    close_connections(&mut old.connection());
    guard.release().unwrap();
    waits.into_iter().for_each(Underway::result);
    // From now on waiters are handed the lock there, through inboxes that have moved.
    let guard = holder.lock("a").guard().unwrap();
    let again = waiters
        .clone()
        .map(|client| Underway::start(move || client.lock("a").with(|_| ()).unwrap()));
    eventually(SOON, || {
        redis::cmd("ZCARD").arg("{a}:queue").query::<u32>(&mut new.connection()).unwrap() == 3
    });
    guard.release().unwrap();
    again.into_iter().for_each(Underway::result);
}
