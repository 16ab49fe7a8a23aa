//! What an unlock says of nodes that deny the lease, and of nodes that say nothing; and that it
//! reaches all of them.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use distlock::Layout;
use distlock::testing::{Gone, Key, Look, Release, Token};

use super::nodes::{Mood, Nodes, ask};
use super::take::{QUICK, patient};
use crate::helpers::Underway;
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

/// Nodes 3 and 4 never had the lease, and are not asked. The release still needs node 2.
#[test]
fn an_unlock_waits_for_the_far_node_that_a_majority_needs() {
    let nodes = Nodes::start();
    nodes.set([3, 4], Mood::Down);
    let client = nodes.client();
    let lock = client.lock("a");
    lock.lock().unwrap();
    eventually(SOON, || nodes.nodes.iter().all(|node| node.asked("acquire").len() == 1));
    nodes.set([3, 4], Mood::Fine);
    nodes.set([2], Mood::Late(Duration::from_millis(300)));
    lock.unlock().unwrap();
    assert!(nodes.holding("a").is_empty());
    assert_eq!(nodes.nodes[3].asked("release").len(), 0);
}

/// Nobody renews a lease that is being released.
#[test]
fn a_release_passes_a_crowd_of_questions() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let store = client.store(Layout::Plain).unwrap();
    let (key, token) = (Key::new("a".into()), Token::new("t"));
    store.try_acquire(&ask(&key, &token, Duration::from_secs(30))).unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.set(0..5, Mood::Paused);
    let crowd: Vec<_> = (0..20)
        .map(|_| {
            let (store, key) = (Arc::clone(&store), key.clone());
            Underway::start(move || store.inspect(&key, Look::Holders, Instant::now() + SOON))
        })
        .collect();
    // The others wait behind the first.
    eventually(SOON, || nodes.nodes.iter().all(|node| node.asked("inspect").len() == 1));
    let releasing =
        Underway::start(move || store.release(&Release::of(&key, &token), Instant::now() + SOON));
    thread::sleep(Duration::from_millis(300));
    nodes.set(0..5, Mood::Fine);
    assert_eq!(releasing.result().unwrap(), Gone::Released);
    crowd.into_iter().for_each(|one| _ = one.result());
    for node in &nodes.nodes {
        // The answer of the last nodes was not waited for.
        let at = || node.kinds().iter().position(|kind| *kind == "release");
        eventually(SOON, || at().is_some());
        assert!(at() <= Some(3), "{:?}", node.kinds());
    }
}
