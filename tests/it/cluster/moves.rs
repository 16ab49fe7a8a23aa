//! Slots that move to another node, while locks in them are held, asked for, and released.

use std::sync::mpsc;

use distlock::{ErrorKind, LockOptions, Retry};

use super::wake_ups::{channels, has_a_waiter};
use super::{client, redirected};
use crate::helpers::{SOON, Underway, error, get, ms, on_another_thread};
use crate::support::eventually;
use crate::support::shards::Shards;

#[test]
fn a_held_lock_moves_with_its_slot() {
    let shards = Shards::start(2);
    let (client, other) = (client(&shards), client(&shards));
    let name = shards.name_at(0, "x");
    let guard = client.lock(&name).guard().unwrap();
    assert!(!on_another_thread(|| other.lock(&name).try_lock(ms(0))).unwrap());
    shards.move_slot(&[&name], 0, 1);
    assert!(!on_another_thread(|| other.lock(&name).try_lock(ms(0))).unwrap(), "it is held");
    guard.extend(ms(20_000)).unwrap();
    guard.release().unwrap();
    assert_eq!(get(&shards.primaries[1], &name), None);
    assert!(other.lock(&name).guard().is_ok());
}

#[test]
fn the_new_owner_of_a_slot_is_learned_from_one_redirection() {
    let shards = Shards::start(2);
    let client = client(&shards);
    let name = shards.name_at(0, "x");
    client.lock(&name).with(|_| ()).unwrap();
    let before = redirected(&shards);
    for (moves, (from, to)) in (1..).zip([(0, 1), (1, 0), (0, 1)]) {
        shards.move_slot(&[&name], from, to);
        let asked = redirected(&shards);
        for _ in 0..5 {
            client.lock(&name).with(|_| ()).unwrap();
        }
        assert_eq!(redirected(&shards), asked + 1, "move {moves}");
    }
    assert!(before <= 1);
}

#[test]
fn leases_of_a_slot_that_moves_are_extended_at_the_new_node() {
    let shards = Shards::start(2);
    let options = LockOptions::new().lease(ms(1500));
    let client = distlock::Client::cluster_builder(shards.urls());
    let client = client.lock_options(options).build().unwrap();
    let (moved, other) = (shards.name_at(0, "x"), shards.name_at(1, "x"));
    let guards = [&moved, &other].map(|name| client.lock(name).guard().unwrap());
    shards.move_slot(&[&moved], 0, 1);
    std::thread::sleep(ms(2500));
    assert!(guards.iter().all(distlock::LockGuard::is_valid));
    guards.into_iter().for_each(|guard| guard.release().unwrap());
}

#[test]
fn while_a_slot_moves_a_lock_is_asked_for_at_both_nodes_and_never_granted_twice() {
    let shards = Shards::start(2);
    let (client, other) = (client(&shards), client(&shards));
    let tag = format!("{{{}}}", shards.name_at(0, "x"));
    let (held, moved, free) = (format!("{tag}:1"), format!("{tag}:2"), format!("{tag}:3"));
    let guards = [&held, &moved].map(|name| client.lock(name).guard().unwrap());
    shards.begin_move(&held, 0, 1);
    shards.move_keys(&[&moved], 0, 1);
    let try_lock = |name: &str| on_another_thread(|| other.lock(name).try_lock(ms(0)));
    for name in [&held, &moved] {
        assert!(!try_lock(name).unwrap(), "{name}");
    }
    let third = other.lock(&free).guard().unwrap();
    let mut asking = redis::pipe();
    asking.cmd("ASKING").ignore().cmd("EXISTS").arg(&free);
    let there: (bool,) = asking.query(&mut shards.primaries[1].connection()).unwrap();
    assert!(there.0, "new keys are made at the new node");
    for guard in guards.iter().chain([&third]) {
        guard.extend(ms(30_000)).unwrap();
    }
    assert!(other.lock(&format!("{tag}:4")).guard().is_ok());
    // Asked for at the new node without being sent there, it would be granted twice.
    assert!(!try_lock(&held).unwrap());
    shards.move_keys(&[&held], 0, 1);
    shards.end_move(&held, 0, 1);
    third.release().unwrap();
    for name in [&held, &moved] {
        assert!(!try_lock(name).unwrap(), "{name}");
    }
    guards.into_iter().for_each(|guard| guard.release().unwrap());
}

#[test]
fn while_a_slot_moves_locks_are_released_and_waiters_get_them() {
    let shards = Shards::start(2);
    let (client, other) = (client(&shards), client(&shards));
    let tag = format!("{{{}}}", shards.name_at(0, "x"));
    let (waited, late) = (format!("{tag}:1"), format!("{tag}:2"));
    let guards = [&waited, &late].map(|name| client.lock(name).guard().unwrap());
    let lock = |name: &str| {
        let lock = other.lock(name);
        Underway::start(move || lock.with(|guard| guard.is_valid()).unwrap())
    };
    let first = lock(&waited);
    let companions = ["queue", "waiters"].map(|of| format!("{waited}::{of}"));
    if shards.have_channels() {
        // It has a place in the queue before the slot begins to move.
        let places = redis::cmd("ZCARD").arg(&companions[0]).to_owned();
        let mut connection = shards.primaries[0].connection();
        eventually(SOON, || places.query::<u32>(&mut connection).unwrap() == 1);
    }
    shards.begin_move(&waited, 0, 1);
    let second = lock(&late);
    guards.into_iter().for_each(|guard| guard.release().unwrap());
    assert!(first.result() && second.result());
    // A fence is drawn from another key, which may be at the other node.
    let fenced = client.lock_with(&waited, LockOptions::new().fenced()).unwrap();
    assert_eq!(error(fenced.try_lock(ms(100))).kind(), ErrorKind::Unavailable);
    shards.move_keys(&companions.each_ref().map(|name| &**name), 0, 1);
    shards.end_move(&waited, 0, 1);
    fenced.with(|_| ()).unwrap();
}

/// 1. A waiter has a place in the queue when the slot begins to move.
/// 2. The lock is released, and granted to the waiter, by scripts that look at no queue.
/// 3. The slot has moved, with the waiter's place and its inbox.
///
/// Whoever takes the lock from the waiter must not hand it to the waiter's own place.
#[test]
fn a_waiter_that_was_granted_the_lock_during_a_move_is_not_handed_it_again() {
    let shards = Shards::start(2);
    let (client, other) = (client(&shards), client(&shards));
    for by_force in [false, true] {
        let name = shards.name_at(0, if by_force { "force" } else { "release" });
        let guard = client.lock(&name).guard().unwrap();
        // Its place lasts for three of its pauses.
        let patience = LockOptions::new().retry(Retry::jittered(ms(200), ms(2000)));
        let lock = other.lock_with(&name, patience).unwrap();
        let (tell, told) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let waiting = Underway::start(move || {
            let guard = lock.guard().unwrap();
            tell.send(()).unwrap();
            let _ = gone.recv_timeout(SOON * 3);
            guard.release().is_ok()
        });
        if shards.have_channels() {
            eventually(SOON, || has_a_waiter(&shards, &name));
        }
        shards.begin_move(&name, 0, 1);
        guard.release().unwrap();
        told.recv_timeout(SOON).unwrap();
        let all = ["queue", "waiters"].map(|of| format!("{{{name}}}:{of}"));
        shards.move_keys(&[&*all[0], &*all[1], &*name], 0, 1);
        shards.end_move(&name, 0, 1);
        if shards.have_channels() {
            eventually(SOON, || !channels(&shards, 1).is_empty());
        }
        if by_force {
            assert!(client.lock(&name).force_unlock().unwrap());
        }
        go.send(()).unwrap();
        assert_eq!(waiting.result(), !by_force);
        assert!(client.lock(&name).try_lock(ms(500)).unwrap(), "by force: {by_force}");
        client.lock(&name).unlock().unwrap();
    }
}

#[test]
fn closing_releases_a_lock_whose_slot_moves() {
    let shards = Shards::start(2);
    for moved in [false, true] {
        let (client, other) = (client(&shards), client(&shards));
        let name = shards.name_at(0, if moved { "moved" } else { "here" });
        let lock = client.lock(&name);
        lock.lock().unwrap();
        shards.begin_move(&name, 0, 1);
        if moved {
            shards.move_keys(&[&name], 0, 1);
        }
        client.close(SOON).unwrap();
        other.lock(&name).with(|_| ()).unwrap();
        shards.end_move(&name, 0, 1);
    }
}
