//! Nodes fail apart: what happens at one costs nothing at another (R9).

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

use distlock::{Client, LockOptions, RedisLock};

use crate::helpers::{Asked, Notes, SOON, Underway, ms};
use crate::support::shards::Shards;
use crate::support::{Server, eventually, in_own_process, thread_names};

/// A client of two nodes, its notes, and a name at each node.
fn of_two_nodes(shards: &Shards) -> (Client, Arc<Notes>, [String; 2]) {
    let options = LockOptions::new().lease(ms(1500));
    let builder = Client::cluster_builder(shards.urls()).lock_options(options);
    let (client, notes) = Notes::of(builder);
    let names = [0, 1].map(|place| shards.name_at(place, "x"));
    // It knows the map from then on.
    client.lock(&names[0]).with(|_| ()).unwrap();
    (client, notes, names)
}

/// The calls that extend a lease with this name.
fn extends(notes: &Notes, name: &str) -> usize {
    notes.count(|asked| matches!(asked, Asked::Extend { keys, .. } if keys.contains(&name.into())))
}

#[test]
fn an_extend_without_an_answer_delays_none_at_another_node() {
    let shards = Shards::start(2);
    let (client, notes, [here, silent]) = of_two_nodes(&shards);
    let (answer, answered) = mpsc::channel::<()>();
    let (name, answered) = (silent.clone(), Mutex::new(answered));
    notes.before(move |asked| {
        if matches!(asked, Asked::Extend { keys, .. } if keys.contains(&name)) {
            let _ = answered.lock().unwrap().recv_timeout(SOON * 3);
        }
    });
    let (held, lost) = (client.lock(&here).guard().unwrap(), client.lock(&silent).guard().unwrap());
    eventually(SOON, || extends(&notes, &silent) == 1);
    let before = extends(&notes, &here);
    eventually(SOON, || extends(&notes, &here) >= before + 4);
    assert_eq!(extends(&notes, &silent), 1, "it waits still");
    drop(answer);
    assert!(held.is_valid() && !lost.is_valid());
    held.release().unwrap();
}

/// Leaves a lock to be withdrawn in the background at a silent node, and then one at another.
fn withdrawals_at_a_silent_node_delay_none(leave_at_the_silent: impl Fn(&Server, &RedisLock)) {
    let shards = Shards::start(2);
    for silent in [0, 1] {
        let names = [0, 1].map(|place| shards.name_at(place, &format!("{silent}")));
        let builder = Client::cluster_builder(shards.urls()).command_timeout(ms(500));
        let (client, notes) = Notes::of(builder);
        let (answer, answered) = mpsc::channel::<()>();
        let (name, answered) = (names[silent].clone(), Mutex::new(answered));
        let is_there =
            move |asked: &Asked| matches!(asked, Asked::Withdraw(keys) if keys.contains(&name));
        let silences = is_there.clone();
        notes.before(move |asked| {
            if silences(asked) {
                let _ = answered.lock().unwrap().recv_timeout(SOON * 3);
            }
        });
        leave_at_the_silent(&shards.primaries[silent], &client.lock(&names[silent]));
        eventually(SOON, || notes.count(&is_there) == 1);
        let here = client.lock(&names[1 - silent]);
        dies_holding(&here);
        eventually(SOON, || !here.is_locked().unwrap());
        assert_eq!(notes.count(&is_there), 1, "it waits still");
        drop(answer);
        client.close(SOON).unwrap();
    }
}

fn dies_holding(lock: &RedisLock) {
    let lock = lock.clone();
    thread::spawn(move || lock.lock().unwrap()).join().unwrap();
}

#[test]
fn a_dead_threads_lock_at_a_silent_node_delays_none_at_another() {
    withdrawals_at_a_silent_node_delay_none(|_, lock| dies_holding(lock));
}

#[test]
fn an_attempt_without_an_answer_delays_no_withdrawal_at_another_node() {
    withdrawals_at_a_silent_node_delay_none(|server, lock| {
        // It has a connection there, so the attempt is sent; and it has never had a lock there.
        assert!(!lock.is_locked().unwrap());
        server.stop_process();
        assert!(lock.try_lock(ms(0)).is_err());
        server.cont();
    });
}

#[test]
fn a_thread_for_each_node_extends_and_withdraws_the_leases_there() {
    let test = "cluster::apart::a_thread_for_each_node_extends_and_withdraws_the_leases_there";
    in_own_process(test, || {
        let shards = Shards::start(3);
        let client = Client::cluster(shards.urls()).unwrap();
        let threads = || {
            ["distlock-renew", "distlock-clean"]
                .map(|begin| thread_names().iter().filter(|name| name.starts_with(begin)).count())
        };
        for place in 0..3 {
            for n in 0..5 {
                let name = shards.name_at(place, &format!("lock-{n}"));
                client.lock(&name).with(|_| ()).unwrap();
            }
        }
        // A thread has its name a moment after it has begun, and keeps it a moment after its end.
        eventually(SOON, || threads() == [3, 3]);
        client.close(SOON).unwrap();
        eventually(SOON, || threads() == [0, 0]);
    });
}

#[test]
fn a_grant_that_comes_after_the_client_was_closed_leaves_no_thread() {
    let test = "cluster::apart::a_grant_that_comes_after_the_client_was_closed_leaves_no_thread";
    in_own_process(test, || {
        let shards = Shards::start(2);
        let client = Client::cluster(shards.urls()).unwrap();
        let [here, silent] = [0, 1].map(|place| shards.name_at(place, "x"));
        client.lock(&here).with(|_| ()).unwrap();
        shards.primaries[1].stop_process();
        let lock = client.lock(&silent);
        let waiting = Underway::start(move || lock.try_lock(ms(0)).is_err());
        eventually(SOON, || thread_names().iter().any(|name| name.starts_with("distlock-connec")));
        assert!(client.close(ms(300)).is_err());
        shards.primaries[1].cont();
        assert!(waiting.result());
        eventually(SOON, || !thread_names().iter().any(|name| name.starts_with("distlock-renew")));
    });
}
