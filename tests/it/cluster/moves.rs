//! Slots that move to another node, while locks in them are held, asked for, and released.

use distlock::ErrorKind;

use super::{client, redirected};
use crate::helpers::{error, get, ms, on_another_thread};
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
    let options = distlock::LockOptions::new().lease(ms(1500));
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
    // `SET NX` alone is asked at both; a refusal looks closer, by a script of several keys, and
    // that has no answer while the slot moves.
    for name in [&held, &moved] {
        assert_eq!(error(try_lock(name)).kind(), ErrorKind::Unavailable, "{name}");
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
    assert_eq!(error(try_lock(&held)).kind(), ErrorKind::Unavailable);
    shards.move_keys(&[&held], 0, 1);
    shards.end_move(&held, 0, 1);
    third.release().unwrap();
    for name in [&held, &moved] {
        assert!(!try_lock(name).unwrap(), "{name}");
    }
    guards.into_iter().for_each(|guard| guard.release().unwrap());
}
