//! What a node may have is withdrawn, however long that takes, and nothing else is withdrawn; and
//! no held lease is lost by it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::{FakeClock, Key, Token, Withdraw};
use distlock::{Layout, LockOptions};

use super::nodes::{Mood, Nodes, ask};
use crate::helpers::on_another_thread;
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(30);

/// Tries this often to lock a lock that somebody holds on three nodes.
fn refused(nodes: &Nodes, client: &distlock::Client, times: usize) {
    nodes.nodes[..3].iter().for_each(|node| node.hold("busy", "somebody", LEASE));
    let lock = client.lock("busy");
    (0..times).for_each(|_| assert!(!lock.try_lock(Duration::ZERO).is_ok_and(|locked| locked)));
}

#[test]
fn a_node_that_has_nothing_is_not_asked_to_withdraw_it() {
    let nodes = Nodes::start();
    nodes.set([3], Mood::Down);
    let client = nodes.client();
    refused(&nodes, &client, 200);
    nodes.set([3], Mood::Fine);
    let lock = client.lock("a");
    lock.lock().unwrap();
    // By now the last refused attempt may have reached the node.
    eventually(SOON, || nodes.nodes[3].holder("a").is_some());
    lock.unlock().unwrap();
    eventually(SOON, || nodes.holding("a").is_empty());
    let asked = nodes.nodes[3].asked("release").len();
    assert!(asked <= 3, "{asked} withdrawals of what never was there");
    // The nodes that refused.
    assert!(nodes.nodes[0].asked("release").len() <= 1);
    assert!(nodes.nodes[..3].iter().all(|node| node.holder("busy").as_deref() == Some("somebody")));
}

#[test]
fn what_a_node_has_is_withdrawn_in_the_end_whatever_else_is_tried_meanwhile() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let kept: Vec<_> = (0..3).map(|i| format!("kept-{i}")).collect();
    kept.iter().for_each(|name| client.lock(name).lock().unwrap());
    eventually(SOON, || kept.iter().all(|name| nodes.holding(name).len() == 5));
    nodes.set([4], Mood::Down);
    kept.iter().for_each(|name| client.lock(name).unlock().unwrap());
    refused(&nodes, &client, 1100);
    assert!(kept.iter().all(|name| nodes.holding(name) == [4]));
    nodes.set([4], Mood::Fine);
    eventually(SOON, || kept.iter().all(|name| nodes.holding(name).is_empty()));
}

#[test]
fn held_leases_outlive_an_outage_in_which_many_threads_try_to_lock() {
    let nodes = Nodes::start();
    let client = nodes.builder().command_timeout(Duration::from_millis(200)).build().unwrap();
    let lease = Duration::from_secs(3);
    let held = client.lock_with("held", LockOptions::new().lease(lease)).unwrap();
    held.lock().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for i in 0..40 {
            let (lock, done) = (client.lock(&format!("{i}")), &done);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    if lock.try_lock(Duration::ZERO).is_ok_and(|locked| locked) {
                        let _ = lock.unlock();
                    }
                }
            });
        }
        nodes.set(0..5, Mood::Silent);
        thread::sleep(Duration::from_secs(1));
        // The nodes are back, and slow: each command to them takes time.
        nodes.set(0..5, Mood::Late(Duration::from_millis(30)));
        let since = Instant::now();
        while since.elapsed() < lease && held.is_valid() {
            thread::sleep(Duration::from_millis(5));
        }
        done.store(true, Ordering::SeqCst);
    });
    assert!(held.is_valid());
    nodes.set(0..5, Mood::Fine);
    held.unlock().unwrap();
    eventually(SOON, || (0..40).all(|i| nodes.holding(&format!("{i}")).is_empty()));
}

#[test]
fn an_answered_withdrawal_is_repeated_where_a_copy_of_the_attempt_may_still_arrive() {
    let nodes = Nodes::start();
    nodes.set([4], Mood::Mute);
    let client = nodes.client();
    let store = client.store(Layout::Plain).unwrap();
    let (key, token) = (Key::new("a".into()), Token::new("t"));
    store.try_acquire(&ask(&key, &token, LEASE)).unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.set([4], Mood::Fine);
    store.withdraw_one(Withdraw::of(&key, &token), Instant::now() + SOON).unwrap();
    eventually(SOON, || nodes.holding("a").is_empty());
    // The late copy arrives.
    nodes.nodes[4].hold("a", "t", LEASE);
    eventually(SOON, || nodes.holding("a").is_empty());
    assert!(nodes.nodes[..4].iter().all(|node| node.asked("release").len() == 1));
}

/// 1. a withdrawal is answered, and its node stops again before it has read the late copy; 2. for
///    longer than the settling time nothing can be sent there; 3. the node answers again, and only
///    then reads the copy.
#[test]
fn time_in_which_a_node_could_not_be_asked_does_not_settle_a_withdrawal() {
    let (nodes, clock) = (Nodes::start(), FakeClock::new());
    nodes.set([4], Mood::Mute);
    let client = nodes.builder().clock(clock.clone()).build().unwrap();
    let store = client.store(Layout::Plain).unwrap();
    let (key, token, lease) = (Key::new("a".into()), Token::new("t"), Duration::from_secs(600));
    store.try_acquire(&ask(&key, &token, lease)).unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.set([4], Mood::Fine);
    store.withdraw_one(Withdraw::of(&key, &token), Instant::now() + SOON).unwrap();
    let asked = || nodes.nodes[4].asked("release").len();
    let asked_again = || {
        let before = asked();
        eventually(SOON, || {
            clock.advance(Duration::from_millis(100));
            asked() > before
        });
    };
    asked_again();
    nodes.set([4], Mood::Down);
    asked_again();
    clock.advance(Duration::from_secs(11));
    nodes.set([4], Mood::Fine);
    asked_again();
    nodes.nodes[4].hold("a", "t", lease);
    eventually(SOON, || {
        clock.advance(Duration::from_millis(100));
        nodes.holding("a").is_empty()
    });
}

#[test]
fn withdrawals_in_bulk_need_only_a_majority() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let store = client.store(Layout::Plain).unwrap();
    let names: Vec<_> =
        (0..300).map(|i| (Key::new(format!("{i}")), Token::new(format!("t{i}")))).collect();
    for (key, token) in &names[1..] {
        store.try_acquire(&ask(key, token, LEASE)).unwrap();
    }
    let what: Vec<_> = names.iter().map(|(key, token)| Withdraw::of(key, token)).collect();
    nodes.set(0..2, Mood::Down);
    let answers = store.withdraw(&what, Instant::now() + SOON);
    assert_eq!(answers.len(), 300);
    assert!(answers.iter().all(Result::is_ok));
    nodes.set(0..2, Mood::Fine);
    eventually(SOON, || (0..300).all(|i| nodes.holding(&format!("{i}")).is_empty()));
}

#[test]
fn a_node_that_has_answered_is_not_asked_again_because_others_have_not() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let lock = client.lock("a");
    let asked = |node: usize| nodes.nodes[node].asked("release").len();
    // A thread ends while it holds, and no majority can be asked.
    on_another_thread(|| {
        lock.lock().unwrap();
        eventually(SOON, || nodes.holding("a").len() == 5);
        nodes.set(0..3, Mood::Down);
    });
    eventually(SOON, || (0..3).all(|node| asked(node) > 4));
    assert_eq!((asked(3), asked(4)), (1, 1));
    nodes.set(0..3, Mood::Fine);
    eventually(SOON, || nodes.holding("a").is_empty());
    assert_eq!((asked(3), asked(4)), (1, 1));
}

/// 1. nodes 0 to 3 grant the lock; node 4 does not answer, but has it; 2. an extend finds it there,
///    and counts the node; 3. a withdrawal would delete what the hold stands on.
#[test]
fn what_a_node_did_not_answer_is_not_withdrawn_while_the_lock_is_held() {
    let nodes = Nodes::start();
    nodes.set([4], Mood::Mute);
    let client = nodes.client();
    let lock = client.lock_with("a", LockOptions::new().lease(Duration::from_secs(2))).unwrap();
    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.set([4], Mood::Fine);
    let extends = || nodes.nodes[4].asked("extend").len();
    let before = extends();
    eventually(SOON, || extends() > before + 2);
    assert_eq!(nodes.holding("a").len(), 5);
    assert!(nodes.nodes.iter().all(|node| node.asked("release").is_empty()));
    lock.unlock().unwrap();
    eventually(SOON, || nodes.holding("a").is_empty());
}

/// 1. a re-grant to node 4 has no answer; 2. we unlock, and node 4 answers the withdrawal; 3. a
///    late copy of the re-grant arrives.
#[test]
fn a_copy_of_a_re_grant_that_arrives_after_the_unlock_is_withdrawn() {
    let nodes = Nodes::start();
    nodes.set([4], Mood::Down);
    let client = nodes.client();
    let lock = client.lock_with("a", LockOptions::new().lease(Duration::from_secs(2))).unwrap();
    lock.lock().unwrap();
    nodes.nodes[4].hold("a", "somebody", LEASE);
    nodes.set([4], Mood::Fine);
    let acquires = || nodes.nodes[4].asked("acquire").len();
    let before = acquires();
    // It is refused: somebody holds the lock there. The next one is not answered.
    eventually(SOON, || acquires() > before);
    nodes.set([4], Mood::To("acquire", &Mood::Mute));
    let before = acquires();
    eventually(SOON, || acquires() > before);
    nodes.set([4], Mood::Fine);
    let token = nodes.nodes[0].holder("a").unwrap();
    lock.unlock().unwrap();
    eventually(SOON, || !nodes.nodes[4].asked("release").is_empty());
    nodes.nodes[4].forget("a");
    nodes.nodes[4].hold("a", &token, LEASE);
    eventually(SOON, || nodes.holding("a").is_empty());
}
