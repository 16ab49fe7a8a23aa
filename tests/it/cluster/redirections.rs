//! Redirections that never end, or lead nowhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use distlock::testing::slot_of_name;
use distlock::{Client, ErrorKind, Layout, LockOptions};

use super::client;
use crate::helpers::{SOON, error, ms};
use crate::support::fake::{FakeServer, Reply, is};
use crate::support::shards::Shards;
use crate::support::{eventually, ports, within};

/// A node that redirects every `SET` in this way, to this port.
pub(super) fn node(says: &'static str, to: &Arc<AtomicU16>) -> FakeServer {
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
fn a_node_that_does_not_know_its_own_name_is_found_by_the_map() {
    let serving = FakeServer::start(serves);
    let owner = Reply::array(&[Reply::bulk(b"127.0.0.1"), Reply::int(serving.port().into())]);
    let everything = Reply::array(&[Reply::int(0), Reply::int(16_383), owner]);
    // As where all nodes have this port, and one has not told its name to the others yet.
    let port = Arc::new(AtomicU16::new(0));
    let own = Arc::clone(&port);
    let asked = FakeServer::start(move |_, command| match command.get(1) {
        Some(word) if word == b"SLOTS" => Reply::array(std::slice::from_ref(&everything)),
        _ if is(command, "SET") => {
            let slot = slot_of_name(std::str::from_utf8(&command[1]).unwrap());
            Reply::error(&format!("MOVED {slot} ?:{}", own.load(Ordering::SeqCst)))
        }
        _ => Reply::usual(command),
    });
    port.store(asked.port(), Ordering::SeqCst);
    let client = Client::cluster([asked.url()]).unwrap();
    for name in ["x", "y"] {
        client.lock(name).with(|_| ()).unwrap();
    }
    assert_eq!(asked.count("SET"), 1);
}

/// A node that carries out everything.
pub(super) fn serves(_: usize, command: &[Vec<u8>]) -> Reply {
    let is_script = is(command, "EVALSHA") && command[2] != b"0";
    if is_script { Reply::int(1) } else { Reply::usual(command) }
}

/// A node that can carry out nothing answers each lock and each extend with `says`, or `logs_in`
/// nobody.
#[test]
fn a_node_that_cannot_serve_is_passed_over() {
    let of_a_script = |command: &[Vec<u8>]| is(command, "EVALSHA") && command[2] != b"0";
    for (name, says) in [
        ("SET", "CLUSTERDOWN Hash slot not served"),
        ("SET", "LOADING Redis is loading the dataset in memory"),
        ("CLUSTER", "ERR This instance has cluster support disabled"),
        ("AUTH", "WRONGPASS invalid username-password pair or user is disabled."),
    ] {
        let useless = FakeServer::start(move |_, command| {
            let refuses = is(command, name) || name == "SET" && of_a_script(command);
            if refuses { Reply::error(says) } else { Reply::usual(command) }
        });
        let good = FakeServer::start(serves);
        let urls = [&useless, &good].map(|node| node.url().replace("://", "://user:secret@"));
        let client = Client::cluster(urls).unwrap();
        for n in 0..6 {
            let guard = client.lock(&format!("x-{n}")).guard().unwrap();
            guard.extend(ms(20_000)).unwrap();
            guard.release().unwrap();
            client.ping().unwrap();
        }
        assert!(useless.count(name) > 0, "{says}: it was asked");
    }
}

#[test]
fn a_client_that_was_never_redirected_knows_the_other_nodes() {
    let node = || Shards::node().arg("cluster-require-full-coverage", "no");
    let shards = Shards::with(3, 0, node);
    let client = client(&shards);
    let names = [0, 1, 2].map(|place| shards.name_at(place, "x"));
    client.lock(&names[0]).with(|_| ()).unwrap();
    shards.primaries[0].stop_process();
    for name in &names[1..] {
        client.lock(name).with(|_| ()).unwrap();
    }
    shards.primaries[0].cont();
}

#[test]
fn a_client_that_is_closed_keeps_no_connection_to_where_it_was_redirected_meanwhile() {
    let (to, owner) = (Arc::new(AtomicU16::new(0)), FakeServer::start(serves));
    to.store(owner.port(), Ordering::SeqCst);
    let (asked, ready) = crossbeam_channel::bounded(1);
    let (go, wait) = crossbeam_channel::bounded::<()>(0);
    let seed = FakeServer::start(move |_, command| {
        if !is(command, "SET") {
            return Reply::usual(command);
        }
        let _ = asked.send(());
        let _ = wait.recv();
        let slot = slot_of_name("x");
        Reply::error(&format!("MOVED {slot} 127.0.0.1:{}", to.load(Ordering::SeqCst)))
    });
    let client = Client::cluster([seed.url()]).unwrap();
    std::thread::scope(|scope| {
        let lock = client.lock("x");
        let locking = scope.spawn(move || lock.try_lock(ms(0)));
        ready.recv().unwrap();
        let _ = client.close(ms(1));
        drop(go);
        let _ = locking.join().unwrap();
    });
    assert!(owner.count("SET") > 0, "it was redirected there");
    eventually(SOON, || owner.open() == 0);
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
    let other = Client::cluster([&gone, &shards.primaries[0].url()]).unwrap();
    (0..3).for_each(|_| other.ping().unwrap());
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
        assert!(error(client.lock(name).inspect()).is_invalid_input());
        assert_eq!(shards.primaries[0].command_count("set"), 0);
    }
    for name in ["a{b}c", "{a}", "a{b", "{a}{b}"] {
        client.lock(name).with(|_| ()).unwrap();
    }
    let fenced = LockOptions::new().layout(Layout::Redisson).fenced();
    let failed = error(client.lock_with("a{b", fenced).unwrap().try_lock(ms(0)));
    assert_eq!(failed.kind(), ErrorKind::InvalidInput, "its counter is elsewhere");
}
