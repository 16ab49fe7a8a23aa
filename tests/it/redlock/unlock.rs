//! What an unlock says of nodes that deny the lease, and of nodes that say nothing; and that it
//! reaches all of them.

use std::time::Duration;

use super::nodes::{Mood, Nodes};
use super::take::{QUICK, patient};
use crate::support::{eventually, within};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn an_unlock_that_some_nodes_deny_and_some_do_not_answer_is_unknown() {
    let nodes = Nodes::start();
    let client = nodes.builder().command_timeout(Duration::from_millis(300)).build().unwrap();
    let lock = client.lock("a");
    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.nodes[..2].iter().for_each(|node| node.forget("a"));
    nodes.set([3, 4], Mood::Silent);
    // One node has released the lease. Asked again it would deny it, too, and that would look like
    // a release that has run after all.
    assert!(lock.unlock().unwrap_err().is_unknown());
    eventually(SOON, || nodes.holding("a") == [3, 4]);
    nodes.set([3, 4], Mood::Fine);
    eventually(SOON, || nodes.holding("a").is_empty());
    assert!(nodes.nodes[..3].iter().all(|node| node.asked("release").len() == 1));
}

#[test]
fn unlock_reaches_a_node_that_did_not_answer_the_lock() {
    let nodes = Nodes::start();
    nodes.set([4], Mood::Mute);
    let lock = patient(&nodes).lock("a");
    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a") == [0, 1, 2, 3, 4]);
    nodes.set([4], Mood::Fine);
    lock.unlock().unwrap();
    eventually(QUICK, || nodes.holding("a").is_empty());
    // A copy of the unanswered attempt may still arrive, so the node is asked again.
    eventually(SOON, || nodes.nodes[4].asked("release").len() > 1);
    assert_eq!(nodes.nodes[0].asked("release").len(), 1);
}

#[test]
fn unlock_reaches_a_node_that_was_silent_meanwhile() {
    let nodes = Nodes::start();
    let lock = patient(&nodes).lock("a");
    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.set([2], Mood::Silent);
    within(..QUICK, || lock.unlock().unwrap());
    eventually(QUICK, || nodes.holding("a") == [2]);
    // It was told, and says nothing: what it is told later is told again.
    eventually(QUICK, || !nodes.nodes[2].asked("release").is_empty());
    nodes.set([2], Mood::Fine);
    eventually(SOON, || nodes.holding("a").is_empty());
}
