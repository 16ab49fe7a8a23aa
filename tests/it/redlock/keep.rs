//! Keeping a lease on a majority: renewal, loss, and an end that is moved by hand.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::{Extend, Key, Look, Token, Within};
use distlock::{Layout, LockOptions, LostReason};

use super::nodes::{Mood, Nodes, ask};
use crate::helpers::Underway;
use crate::support::{eventually, within};

const SOON: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_secs(2);

fn short() -> LockOptions {
    LockOptions::new().lease(SHORT)
}

#[test]
fn a_crowd_that_waits_for_the_nodes_keeps_no_extend_out() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let store = client.store(Layout::Plain).unwrap();
    let (key, token) = (Key::new("a".into()), Token::new("t"));
    store.try_acquire(&ask(&key, &token, LONG)).unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.set(0..5, Mood::Paused);
    let looking = {
        let (store, key) = (Arc::clone(&store), key.clone());
        Underway::start(move || store.inspect(&key, Look::Holders, Instant::now() + LONG))
    };
    eventually(SOON, || nodes.nodes.iter().all(|node| node.asked("inspect").len() == 1));
    // Behind that, more than may wait.
    let is_full = |_| {
        (0..256).for_each(|_| assert!(store.inspect(&key, Look::Holders, Instant::now()).is_err()));
        let refused = store.inspect(&key, Look::Holders, Instant::now()).unwrap_err();
        refused.source.is_some_and(|causes| causes.to_string().contains("too many questions"))
    };
    assert!((0..100).any(is_full));
    let extending = {
        let store = Arc::clone(&store);
        Underway::start(move || {
            let extend = Extend { key: &key, token: &token, lease: LONG };
            store.extend(&[extend], Within::until(Instant::now() + LONG)).remove(0)
        })
    };
    thread::sleep(Duration::from_millis(100));
    let refused = extending.is_done();
    nodes.set(0..5, Mood::Fine);
    assert!(!refused, "refused: {:?}", extending.result());
    assert!(extending.result().unwrap());
    let _ = looking.result();
}

#[test]
fn renewal_extends_everywhere() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let lock = client.lock_with("a", short()).unwrap();
    lock.lock().unwrap();
    // Three times a third of it.
    eventually(SOON, || nodes.nodes.iter().all(|node| node.asked("extend").len() > 2));
    assert!(lock.is_valid());
    assert_eq!(nodes.holding("a"), [0, 1, 2, 3, 4]);
    lock.unlock().unwrap();
}

#[test]
fn renewal_does_not_wait_for_silent_nodes() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let lock = client.lock_with("a", short()).unwrap();
    lock.lock().unwrap();
    nodes.set([0, 3], Mood::Silent);
    let before = nodes.nodes[1].asked("extend").len();
    eventually(SOON, || {
        assert!(lock.is_valid());
        nodes.nodes[1].asked("extend").len() > before + 3
    });
    lock.unlock().unwrap();

    let store = client.store(Layout::Plain).unwrap();
    let (key, token) = (Key::new("b".into()), Token::new("t"));
    store.try_acquire(&ask(&key, &token, Duration::from_secs(30))).unwrap();
    let extend = Extend { key: &key, token: &token, lease: Duration::from_secs(30) };
    let answers =
        within(..SOON / 2, || store.extend(&[extend], Within::until(Instant::now() + SOON)));
    assert!(matches!(answers[..], [Ok(true)]));
}

#[test]
fn loss_is_told_when_a_majority_says_so_and_not_earlier() {
    let nodes = Nodes::start();
    let client = nodes.client();
    // So long that no node is given the lease again before it is lost.
    let lock = client.lock_with("a", LockOptions::new().lease(Duration::from_secs(6))).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.nodes[..2].iter().for_each(|node| node.forget("a"));
    // The two nodes that deny the lease answer first.
    nodes.set(2..5, Mood::Paused);
    eventually(SOON, || nodes.nodes.iter().all(|node| !node.asked("extend").is_empty()));
    assert!(told.recv_timeout(Duration::from_millis(300)).is_err());
    nodes.set(2..5, Mood::Fine);
    assert!(told.recv_timeout(Duration::from_millis(300)).is_err());
    assert!(lock.is_valid());
    // A lease that somebody else deleted does not come back: not before a holder would have
    // noticed.
    assert_eq!(nodes.holding("a"), [2, 3, 4]);
    nodes.nodes[2].forget("a");
    assert_eq!(told.recv_timeout(SOON).unwrap(), LostReason::Taken);
    assert!(lock.is_held() && !lock.is_valid());
    // Nobody else would release what the minority still has, and the lease ends by itself later.
    eventually(Duration::from_secs(3), || nodes.holding("a").is_empty());
    assert!(lock.unlock().unwrap_err().is_lost());
}

#[test]
fn a_majority_that_does_not_answer_is_unknown_until_the_lease_runs_out() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let lock = client.lock_with("a", short()).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send((lost.reason(), Instant::now())).unwrap());
    let since = Instant::now();
    lock.lock().unwrap();
    nodes.set([0, 1, 2], Mood::Down);
    let (reason, at) = told.recv_timeout(SOON).unwrap();
    assert_eq!(reason, LostReason::Expired);
    assert!(at - since > SHORT / 2, "told after {:?}", at - since);
    nodes.set([0, 1, 2], Mood::Fine);
    eventually(SOON, || nodes.holding("a").is_empty());
}

#[test]
fn guards_and_further_holds_work_as_with_any_lock() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let lock = client.lock("a");
    let guard = lock.guard().unwrap();
    let asked = nodes.nodes[0].asked("acquire").len();
    lock.lock().unwrap();
    assert_eq!((lock.hold_count(), nodes.nodes[0].asked("acquire").len()), (2, asked));
    let other = nodes.client();
    assert!(
        thread::spawn(move || other.lock("a").try_guard(Duration::ZERO).unwrap().is_none())
            .join()
            .unwrap()
    );
    lock.unlock().unwrap();
    guard.extend(Duration::from_secs(60)).unwrap();
    assert!(guard.remaining() > Duration::from_secs(50));
    guard.extend(Duration::from_secs(5)).unwrap();
    assert!(guard.remaining() > Duration::from_secs(40), "it never shortens");
    guard.release().unwrap();
    eventually(SOON, || nodes.holding("a").is_empty());
    assert_eq!(lock.with(|_| 7).unwrap(), 7);
}

/// Two nodes refuse connections, and answer at once so. The majority that is left is not near.
#[test]
fn a_majority_that_is_far_away_keeps_a_lease() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let lock = client.lock_with("a", short()).unwrap();
    lock.lock().unwrap();
    nodes.set([0, 1], Mood::Down);
    nodes.set([3, 4], Mood::Late(Duration::from_millis(150)));
    let before = nodes.nodes[4].asked("extend").len();
    eventually(SOON, || {
        assert!(lock.is_valid());
        nodes.nodes[4].asked("extend").len() > before + 5
    });
    lock.unlock().unwrap();
}

#[test]
fn an_attempt_that_no_node_answers_delays_no_extend() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let lease = Duration::from_millis(1_500);
    let lock = client.lock_with("a", LockOptions::new().lease(lease)).unwrap();
    lock.lock().unwrap();
    nodes.set(0..5, Mood::To("acquire", &Mood::Silent));
    // It waits for the command timeout, which is longer than the lease.
    let other = client.lock("b");
    let trying = Underway::start(move || other.try_lock(Duration::ZERO));
    let before = nodes.nodes[0].asked("extend").len();
    eventually(SOON, || {
        assert!(lock.is_valid());
        nodes.nodes[0].asked("extend").len() > before + 5
    });
    assert!(trying.result().unwrap_err().is_unavailable());
    lock.unlock().unwrap();
}

/// Two near nodes confirm an extend, a third denies it, and the others are not near.
#[test]
fn a_node_that_comes_back_without_the_lease_does_not_end_the_hold() {
    let nodes = Nodes::start();
    nodes.set([2], Mood::Down);
    nodes.set([3, 4], Mood::Late(Duration::from_millis(150)));
    let client = nodes.client();
    let lock = client.lock_with("a", short()).unwrap();
    lock.lock().unwrap();
    nodes.set([2], Mood::Fine);
    eventually(SOON, || {
        assert!(lock.is_valid());
        nodes.nodes[2].holder("a").is_some() && nodes.nodes[4].asked("extend").len() > 5
    });
    nodes.nodes[2].forget("a");
    assert!(lock.is_locked().unwrap(), "asked the far ones, too");
    lock.unlock().unwrap();
}
