//! A held lease is given again to nodes that lost it or never had it, but never after it was given
//! up.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::{LockOptions, LostReason};

use super::nodes::{Mood, Nodes};
use crate::helpers::Underway;
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_secs(2);

fn short() -> LockOptions {
    LockOptions::new().lease(SHORT)
}

#[test]
fn nodes_that_are_down_one_after_another_do_not_end_a_hold() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let lock = client.lock_with("a", short()).unwrap();
    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    // A majority, in the end.
    for node in 0..3 {
        nodes.set([node], Mood::Down);
        thread::sleep(SHORT + Duration::from_millis(100));
        // The lease has run out there, or is forgotten.
        nodes.nodes[node].forget("a");
        nodes.set([node], Mood::Fine);
        eventually(SOON, || {
            assert!(lock.is_valid());
            nodes.holding("a").len() == 5
        });
    }
    let token = nodes.nodes[0].holder("a");
    assert!(nodes.nodes.iter().all(|node| node.holder("a") == token));
    lock.unlock().unwrap();
    eventually(SOON, || nodes.holding("a").is_empty());
}

/// An extend by hand gives the lease back to no node. Renewal does, which it must not put off.
#[test]
fn a_node_gets_the_lease_back_however_often_its_owner_extends_it() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let claim = client.lock_with("a", short()).unwrap().claim().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.nodes[0].forget("a");
    eventually(SOON, || {
        claim.extend(SHORT).unwrap();
        nodes.holding("a").len() == 5
    });
}

#[test]
fn nodes_that_missed_the_lease_are_given_it_and_another_holders_lease_is_left_alone() {
    let nodes = Nodes::start();
    nodes.set([1, 4], Mood::Down);
    let client = nodes.client();
    let lock = client.lock_with("a", short()).unwrap();
    lock.lock().unwrap();
    nodes.nodes[4].hold("a", "somebody", Duration::from_secs(30));
    nodes.set([1, 4], Mood::Fine);
    eventually(SOON, || nodes.holding("a").len() == 5);
    let asked = nodes.nodes[4].asked("acquire").len();
    eventually(SOON, || nodes.nodes[4].asked("acquire").len() > asked);
    assert_eq!(nodes.nodes[4].holder("a").as_deref(), Some("somebody"));
    assert!(lock.is_valid());
    lock.unlock().unwrap();
    eventually(SOON, || nodes.holding("a") == [4]);
}

/// 1. the operator reads whose lease it is; 2. the nodes cannot be reached; 3. the holder goes on;
/// 4. they can be reached again.
#[test]
fn a_forced_unlock_that_failed_is_not_carried_out_later() {
    let nodes = Nodes::start();
    let (client, operator) = (nodes.client(), nodes.client());
    let lock = client.lock("a");
    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.set(0..5, Mood::Last);
    assert!(operator.lock("a").force_unlock().unwrap_err().is_unknown());
    eventually(SOON, || nodes.nodes.iter().all(|node| node.asked("inspect").len() == 1));
    nodes.set(0..5, Mood::Fine);
    let before: usize = nodes.nodes.iter().map(|node| node.asked("release").len()).sum();
    // The first pauses between repetitions are far shorter.
    thread::sleep(Duration::from_secs(2));
    assert!(lock.is_valid() && nodes.holding("a").len() == 5);
    let after: usize = nodes.nodes.iter().map(|node| node.asked("release").len()).sum();
    assert_eq!(after, before);
    lock.unlock().unwrap();
}

#[test]
fn a_forced_unlock_is_final() {
    let nodes = Nodes::start();
    // A node that would be given the lease.
    nodes.set([4], Mood::Down);
    let (client, operator) = (nodes.client(), nodes.client());
    let lock = client.lock_with("a", short()).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    lock.lock().unwrap();
    nodes.set([4], Mood::Fine);
    assert!(operator.lock("a").force_unlock().unwrap());
    assert_eq!(told.recv_timeout(SOON).unwrap(), LostReason::Taken);
    eventually(SOON, || nodes.holding("a").is_empty());
    thread::sleep(SHORT);
    assert!(nodes.holding("a").is_empty());
    assert!(lock.unlock().unwrap_err().is_lost());
}

/// 1. node 4 denies an extend, and the others confirm it; 2. the re-grant waits for node 4; 3. we
///    unlock, and node 4 has nothing to withdraw.
#[test]
fn a_lease_that_is_being_given_up_does_not_come_back() {
    let nodes = Nodes::start();
    nodes.set([4], Mood::Down);
    let client = nodes.client();
    let lock = client.lock_with("a", LockOptions::new().lease(Duration::from_secs(3))).unwrap();
    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 4);
    nodes.set([4], Mood::To("inspect", &Mood::Paused));
    let looking = {
        let lock = client.lock("a");
        Underway::start(move || lock.is_locked())
    };
    eventually(SOON, || !nodes.nodes[4].asked("inspect").is_empty());
    // What the first extend amounts to is known before the second is sent.
    eventually(SOON, || nodes.nodes.iter().all(|node| node.asked("extend").len() >= 2));
    lock.unlock().unwrap();
    nodes.set([4], Mood::Fine);
    assert!(looking.result().is_ok());
    // Whatever node 4 was asked before that, it has answered.
    assert!(!client.lock("a").is_locked().unwrap());
    thread::sleep(Duration::from_millis(300));
    assert_eq!(nodes.holding("a"), [0; 0]);
}

/// 1. the next holder's attempt has reached nodes 3 and 4, and is on its way to the others; 2. the
///    old holder's lease is released by force there; 3. the attempt arrives.
#[test]
fn a_forced_unlock_spares_the_next_holder_whose_attempt_was_under_way() {
    let nodes = Nodes::start();
    nodes.nodes[..3].iter().for_each(|node| node.hold("a", "old", LONG));
    nodes.nodes[3..].iter().for_each(|node| node.hold("a", "next", LONG));
    let lock = nodes.client().lock("a");
    nodes.set(0..5, Mood::To("release", &Mood::Paused));
    let forcing = Underway::start(move || lock.force_unlock());
    eventually(SOON, || nodes.nodes.iter().all(|node| !node.asked("release").is_empty()));
    nodes.set(0..5, Mood::To("inspect", &Mood::Paused));
    eventually(SOON, || nodes.holding("a").is_empty());
    nodes.nodes[..3].iter().for_each(|node| node.hold("a", "next", LONG));
    nodes.set(0..5, Mood::Fine);
    assert!(forcing.result().unwrap());
    assert!(nodes.nodes[..3].iter().all(|node| node.holder("a").as_deref() == Some("next")));
}
