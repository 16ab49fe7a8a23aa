//! Redirections that never end, or lead nowhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use distlock::testing::{FakeClock, slot_of_name};
use distlock::{Client, ErrorKind};

use super::client;
use crate::helpers::{SOON, error, ms};
use crate::support::fake::{FakeServer, Reply, is};
use crate::support::shards::Shards;
use crate::support::{ports, within};

/// A node that redirects every `SET` in this way, to this port.
fn node(says: &'static str, to: &Arc<AtomicU16>) -> FakeServer {
    let to = Arc::clone(to);
    FakeServer::start(move |_, command| {
        if is(command, "SET") {
            let slot = slot_of_name(std::str::from_utf8(&command[1]).unwrap());
            Reply::error(&format!("{says} {slot} 127.0.0.1:{}", to.load(Ordering::SeqCst)))
        } else if is(command, "CLUSTER") {
            Reply::array(&[])
        } else {
            Reply::usual(command)
        }
    })
}

/// Two nodes, each of which sends everything to the other: the first `says` that it moved there, or
/// has to be asked for there.
fn circle(says: &'static str) -> [FakeServer; 2] {
    let ports = [Arc::default(), Arc::default()];
    let nodes = [node(says, &ports[1]), node("MOVED", &ports[0])];
    for (port, node) in ports.iter().zip(&nodes) {
        port.store(node.port(), Ordering::SeqCst);
    }
    nodes
}

#[test]
fn a_circle_ends_after_five_redirections() {
    for says in ["MOVED", "ASK"] {
        let nodes = circle(says);
        let client = Client::cluster([nodes[0].url()]).unwrap();
        let failed = within(..SOON, || error(client.lock("x").try_lock(ms(0))));
        let sent: usize = nodes.iter().map(|node| node.count("SET")).sum();
        assert_eq!(sent, 6, "{says}: the command and five redirections");
        assert_eq!(failed.kind(), ErrorKind::Unavailable);
        assert!(!failed.may_be_held(), "nothing has run");
        assert_eq!(nodes[1].count("ASKING") > 0, says == "ASK");
    }
}

#[test]
fn the_map_is_asked_for_at_most_once_a_second() {
    let to = Arc::new(AtomicU16::new(0));
    let owner = FakeServer::start(|_, command| match command {
        _ if is(command, "EVALSHA") => Reply::int(1),
        _ => Reply::usual(command),
    });
    to.store(owner.port(), Ordering::SeqCst);
    let seed = node("MOVED", &to);
    let clock = FakeClock::new();
    let client = Client::cluster_builder([seed.url()]).clock(clock.clone()).build().unwrap();
    let maps = || {
        let asked =
            |(_, command): &(usize, Vec<Vec<u8>>)| command.get(1) == Some(&b"SLOTS".to_vec());
        seed.commands().into_iter().filter(asked).count()
    };
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
fn a_redirection_to_a_node_that_is_gone_fails_at_once() {
    let gone = Arc::new(AtomicU16::new(ports::refused()));
    let nodes = [node("MOVED", &gone), node("MOVED", &gone)];
    let client = Client::cluster(nodes.iter().map(FakeServer::url)).unwrap();
    for _ in 0..3 {
        let failed = within(..SOON, || error(client.lock("x").try_lock(ms(0))));
        assert_eq!(failed.kind(), ErrorKind::Unavailable);
        assert!(!failed.may_be_held());
    }
    assert!(nodes.iter().map(|node| node.count("SET")).sum::<usize>() <= 6);
}

#[test]
fn a_seed_that_is_gone_is_passed_over() {
    let shards = Shards::start(1);
    let gone = format!("redis://127.0.0.1:{}/", ports::refused());
    let client = Client::cluster([&gone, &gone, &shards.primaries[0].url()]).unwrap();
    for n in 0..4 {
        client.lock(&format!("x-{n}")).with(|_| ()).unwrap();
    }
    assert!(client.lock("y").try_lock(ms(0)).unwrap());
    client.ping().unwrap();
}

#[test]
fn without_the_permission_to_see_the_map_it_is_learned_slot_by_slot() {
    let shards = Shards::start(2);
    for node in &shards.primaries {
        let mut user = redis::cmd("ACL");
        user.arg("SETUSER").arg("worker").arg(&["on", ">secret", "~*", "&*"]);
        user.arg(&["+@read", "+@write", "+@scripting", "+@connection"]);
        user.exec(&mut node.connection()).unwrap();
    }
    let client = Client::cluster([shards.primaries[0].url_with("worker", "secret")]).unwrap();
    for place in [1, 0, 1, 0] {
        client.lock(&shards.name_at(place, "x")).with(|_| ()).unwrap();
    }
    shards.move_slot(&[&shards.name_at(0, "x")], 0, 1);
    client.lock(&shards.name_at(0, "x")).with(|_| ()).unwrap();
}

#[test]
fn a_name_whose_companions_are_elsewhere_is_refused() {
    let shards = Shards::start(1);
    let client = client(&shards);
    for name in ["a}b", "{}x", "{}"] {
        let failed = error(client.lock(name).try_lock(ms(0)));
        assert_eq!(failed.kind(), ErrorKind::InvalidInput, "{name}");
        assert_eq!(shards.primaries[0].command_count("set"), 0);
    }
    for name in ["a{b}c", "{a}", "a{b", "{a}{b}"] {
        client.lock(name).with(|_| ()).unwrap();
    }
}
