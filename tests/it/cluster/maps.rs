//! The whole map: when it is asked for, and what that may cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use distlock::testing::FakeClock;
use distlock::{Client, LockOptions};

use super::redirections::{node, serves};
use crate::helpers::{SOON, ms};
use crate::support::eventually;
use crate::support::fake::{FakeServer, Reply};
use crate::support::proxy::{Fault, Proxy, Rule};
use crate::support::shards::Shards;

/// A node that carries out everything, and whose map says that the slots up to `last` are its own.
/// Its port is in `port`.
fn owner(port: &Arc<AtomicU16>, last: i64) -> FakeServer {
    let own = Arc::clone(port);
    let node = FakeServer::start(move |_, command| match command.get(1) {
        Some(word) if word == b"SLOTS" => {
            let owner = [Reply::bulk(b""), Reply::int(own.load(Ordering::SeqCst).into())];
            let its = [Reply::int(0), Reply::int(last), Reply::array(&owner)];
            Reply::array(&[Reply::array(&its)])
        }
        _ => serves(0, command),
    });
    port.store(node.port(), Ordering::SeqCst);
    node
}

/// Whether a command asks for the map.
fn is_for_the_map(words: &[Vec<u8>]) -> bool {
    words.get(1).is_some_and(|word| word == b"SLOTS")
}

/// How often this node was asked for the map.
fn maps_of(node: &FakeServer) -> usize {
    node.commands().iter().filter(|(_, command)| is_for_the_map(command)).count()
}

#[test]
fn the_map_is_asked_for_at_most_once_a_second() {
    let to = Arc::new(AtomicU16::new(0));
    let owner = owner(&to, 0);
    let seed = node("MOVED", &to);
    let clock = FakeClock::new();
    let client = Client::cluster_builder([seed.url()]).clock(clock.clone()).build().unwrap();
    let maps = || maps_of(&seed) + maps_of(&owner);
    for seconds in 1..4 {
        for n in 0..20 {
            client.lock(&format!("{seconds}-{n}")).with(|_| ()).unwrap();
        }
        assert_eq!(maps(), seconds);
        clock.advance(ms(1000));
    }
    assert_eq!(owner.count("SET"), 60, "each command is carried out once");
}

#[test]
fn a_map_that_does_not_come_is_asked_for_more_and_more_seldom() {
    let to = Arc::new(AtomicU16::new(0));
    // It does not understand the question.
    let owner = FakeServer::start(serves);
    to.store(owner.port(), Ordering::SeqCst);
    let seed = node("MOVED", &to);
    let clock = FakeClock::new();
    let client = Client::cluster_builder([seed.url()]).clock(clock.clone()).build().unwrap();
    let mut asked = Vec::new();
    for seconds in 0..200 {
        let before = maps_of(&owner);
        client.lock(&format!("{seconds}")).with(|_| ()).unwrap();
        if maps_of(&owner) > before {
            asked.push(seconds);
        }
        clock.advance(ms(1000));
    }
    assert_eq!(asked, [0, 2, 6, 14, 30, 62, 122, 182], "in the end once a minute");
}

/// Nodes that have come since are in no redirection, and the nodes that the client knows may all be
/// gone one day.
#[test]
fn the_map_is_asked_for_once_a_minute_where_nothing_is_redirected() {
    let node = owner(&Arc::default(), 16_383);
    let clock = FakeClock::new();
    let client = Client::cluster_builder([node.url()]).clock(clock.clone()).build().unwrap();
    let lock = || client.lock("x").with(|_| ()).unwrap();
    lock();
    for minutes in 1..4 {
        clock.advance(ms(59_000));
        lock();
        assert_eq!(maps_of(&node), minutes);
        clock.advance(ms(1000));
        lock();
        assert_eq!(maps_of(&node), minutes + 1);
    }
}

#[test]
fn a_node_without_a_map_costs_no_lock() {
    let to = Arc::new(AtomicU16::new(0));
    let owner = FakeServer::start(|_, command| match command.get(1) {
        Some(word) if word == b"SLOTS" => Reply::Silence,
        _ => serves(0, command),
    });
    to.store(owner.port(), Ordering::SeqCst);
    let seed = node("MOVED", &to);
    let client = Client::cluster([seed.url()]).unwrap();
    client.lock("x").with(|guard| assert!(guard.is_valid())).unwrap();
    assert_eq!(maps_of(&owner), 1);
}

/// The commands that ask for the map.
fn for_the_map(fault: Fault) -> Rule {
    Rule::on("CLUSTER", fault).when(is_for_the_map)
}

/// Whether a command is about the lock "busy".
fn is_busy(words: &[Vec<u8>]) -> bool {
    words.iter().any(|word| word.ends_with(b"busy"))
}

/// The pool's only connection is in use when the map is due.
#[test]
fn renewal_asks_for_the_map_over_its_own_connection() {
    let shards = Shards::start(1);
    let proxy = Proxy::start(shards.primaries[0].port());
    let client = Client::cluster_builder([proxy.url()])
        .pool_size(1)
        .command_timeout(SOON * 2)
        .lock_options(LockOptions::new().lease(ms(1500)))
        .build()
        .unwrap();
    let lost = proxy.add(for_the_map(Fault::SwallowReply).next(1));
    let next = proxy.add(for_the_map(Fault::DelayReply(ms(0))));
    let held = client.lock("held").guard().unwrap();
    assert_eq!(lost.fired(), 1, "it is due again in two seconds");
    let busy = proxy.add(Rule::any(Fault::HoldReply).when(is_busy).next(1));
    thread::scope(|scope| {
        let looking = scope.spawn(|| client.lock("busy").is_locked());
        let reply = busy.wait_held(SOON);
        next.wait_fired(SOON);
        assert!(held.is_valid());
        reply.release();
        assert!(!looking.join().unwrap().unwrap());
    });
}

#[test]
fn a_map_that_comes_late_costs_one_connection() {
    let shards = Shards::start(1);
    let proxy = Proxy::start(shards.primaries[0].port());
    let client = Client::cluster([proxy.url()]).unwrap();
    let lost = proxy.add(for_the_map(Fault::SwallowReply));
    let look = |name: &str| assert!(!client.lock(name).is_locked().unwrap());
    look("x");
    assert_eq!(lost.fired(), 1);
    let three_at_once = || {
        let busy = proxy.add(Rule::any(Fault::HoldReply).when(is_busy).next(3));
        thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| look("busy"))));
            let held: Vec<_> = (0..3).map(|_| busy.wait_held(SOON)).collect();
            held.into_iter().for_each(|reply| reply.release());
        });
    };
    three_at_once();
    let before = proxy.accepted();
    eventually(SOON, || {
        look("x");
        lost.fired() == 2
    });
    three_at_once();
    assert_eq!(proxy.accepted(), before + 1);
}
