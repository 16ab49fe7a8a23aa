//! Acquiring and releasing while nodes are slow, silent, down or disagree.

use std::collections::HashSet;
use std::error::Error as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::{Answer, Gone, Key, Release, Token, Withdraw};
use distlock::{Client, ErrorKind, Layout, LockOptions, Retry};

use super::nodes::{Mood, Node, Nodes, ask};
use crate::support::{eventually, within};

const SOON: Duration = Duration::from_secs(5);
/// Far less than the time that nodes have to answer [`patient`] clients with the default lease, and
/// far more than the nodes in memory need.
pub const QUICK: Duration = Duration::from_secs(3);
const LEASE: Duration = Duration::from_secs(30);

/// A client that waits for an answer for far longer than `QUICK`. The nodes have a fifth of the
/// lease to grant it, which is 6 s.
pub fn patient(nodes: &Nodes) -> Client {
    nodes.builder().command_timeout(SOON * 4).build().unwrap()
}

#[test]
fn a_silent_node_delays_nobody() {
    let nodes = Nodes::start();
    nodes.set([0], Mood::Silent);
    let lock = patient(&nodes).lock("a");
    // The first call ever of this client, and those after it, while the node's thread is still busy
    // with the first.
    for _ in 0..3 {
        within(..QUICK, || lock.lock().unwrap());
        eventually(QUICK, || nodes.holding("a") == [1, 2, 3, 4]);
        within(..QUICK, || lock.unlock().unwrap());
    }
    // The client waits for its threads when it is dropped.
    nodes.set([0], Mood::Fine);
}

#[test]
fn two_dead_nodes_do_not_matter() {
    let nodes = Nodes::start();
    nodes.set([1], Mood::Down);
    nodes.set([3], Mood::Silent);
    let client = patient(&nodes);
    let lock = client.lock("a");
    within(..QUICK, || lock.lock().unwrap());
    assert_eq!(nodes.holding("a"), [0, 2, 4]);
    within(..QUICK, || lock.unlock().unwrap());
    nodes.set([3], Mood::Fine);
    eventually(SOON, || nodes.holding("a").is_empty());
}

#[test]
fn without_a_majority_nothing_is_granted_and_nothing_is_left() {
    let nodes = Nodes::start();
    nodes.set([0, 2, 4], Mood::Down);
    let client = patient(&nodes);
    let error = within(..QUICK, || client.lock("a").try_lock(Duration::ZERO)).unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let causes = error.source().unwrap().to_string();
    // The answers of the two others are not waited for.
    assert!(
        ["node 1: refused", "node 3: refused", "node 5: refused"]
            .iter()
            .all(|cause| causes.contains(cause)),
        "{causes}"
    );
    eventually(SOON, || nodes.holding("a").is_empty());
    nodes.set([0], Mood::Fine);
    assert!(client.lock("a").try_lock(Duration::ZERO).unwrap());
}

#[test]
fn a_missing_reply_is_no_vote() {
    let nodes = Nodes::start();
    // The nodes do what they are asked, so only the missing answer prevents a grant.
    nodes.set([0, 1, 2], Mood::Mute);
    let error = nodes.client().lock("a").try_lock(Duration::ZERO).unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    nodes.set([0, 1, 2], Mood::Fine);
    eventually(SOON, || nodes.holding("a").is_empty());
}

#[test]
fn what_a_minority_granted_is_released_at_once() {
    let nodes = Nodes::start();
    for node in [0, 1, 2] {
        nodes.nodes[node].hold("a", "somebody", LEASE);
    }
    // The other nodes have granted it before they are known to be a minority.
    nodes.set([0], Mood::Late(Duration::from_millis(100)));
    let client = patient(&nodes);
    assert!(!client.lock("a").try_lock(Duration::ZERO).unwrap());
    // Earlier than any answer that a background thread waits for.
    eventually(QUICK, || nodes.holding("a") == [0, 1, 2]);
    assert!(nodes.nodes[..3].iter().all(|node| node.holder("a").as_deref() == Some("somebody")));
}

#[test]
fn a_late_grant_of_a_slow_node_is_released() {
    let nodes = Nodes::start();
    nodes.nodes[..3].iter().for_each(|node| node.hold("a", "somebody", LEASE));
    // Once the slow node has been asked, everything else is known without its answer.
    nodes.set([0, 4], Mood::Paused);
    let client = patient(&nodes);
    let lock = client.lock("a");
    let taker = thread::spawn(move || lock.try_lock(Duration::ZERO));
    eventually(SOON, || !nodes.nodes[4].asked("acquire").is_empty());
    nodes.set([0], Mood::Fine);
    assert!(!within(..QUICK, || taker.join().unwrap()).unwrap());
    nodes.set([4], Mood::Fine);
    // The node answers the attempt before the release.
    eventually(SOON, || !nodes.nodes[4].asked("release").is_empty());
    eventually(SOON, || nodes.holding("a") == [0, 1, 2]);
}

#[test]
fn a_majority_that_answers_too_late_is_no_grant() {
    let nodes = Nodes::start();
    let lease = Duration::from_millis(200);
    nodes.set(0..3, Mood::Late(lease * 2));
    let client = nodes.client();
    let store = client.store(Layout::Plain).unwrap();
    let (key, token) = (Key::new("a".into()), Token::new("t"));
    let error = store.try_acquire(&ask(&key, &token, lease)).unwrap_err();
    assert_eq!(
        (error.kind, error.may_have_run, error.permanent),
        (ErrorKind::Unavailable, true, false)
    );
    // A last attempt may have reached the slow nodes; its release follows there.
    // A node whose thread is late is not asked at all.
    let is_withdrawn =
        |node: &Arc<Node>| node.asked("acquire").is_empty() || !node.asked("release").is_empty();
    eventually(SOON, || nodes.nodes.iter().all(is_withdrawn));
    eventually(SOON, || nodes.holding("a").is_empty());
}

#[test]
fn validity_counts_from_before_the_first_node_was_asked() {
    let nodes = Nodes::start();
    let late = Duration::from_millis(300);
    nodes.set(0..5, Mood::Late(late));
    let client = nodes.client();
    let store = client.store(Layout::Plain).unwrap();
    let (key, token) = (Key::new("a".into()), Token::new("t"));
    let answer = store.try_acquire(&ask(&key, &token, LEASE)).unwrap();
    let Answer::Granted { asked_at, .. } = answer else { panic!("{answer:?}") };
    assert!(asked_at.elapsed() >= late);
}

#[test]
fn a_split_vote_is_a_refusal_and_the_next_attempt_has_another_token() {
    let nodes = Nodes::start();
    nodes.nodes[..2].iter().for_each(|node| node.hold("a", "left", LEASE));
    nodes.nodes[2].hold("a", "right", LEASE);
    let client = nodes.client();
    let retry = LockOptions::new().retry(Retry::fixed(Duration::from_millis(1)).attempts(3));
    assert!(!client.lock_with("a", retry).unwrap().try_lock(Duration::MAX).unwrap());
    // The releases may arrive late: a release with the token of a later attempt would delete that
    // attempt's grant.
    let tokens: HashSet<String> =
        nodes.nodes.iter().flat_map(|node| node.asked("acquire")).collect();
    assert_eq!(tokens.len(), 3);
}

/// Two nodes that refuse at once decide nothing while the others were not asked.
#[test]
fn a_held_lock_is_refused_although_a_node_is_down() {
    let nodes = Nodes::start();
    nodes.nodes.iter().for_each(|node| node.hold("a", "somebody", LEASE));
    nodes.set([2], Mood::Down);
    let client = nodes.client();
    (0..200).for_each(|_| assert!(!client.lock("a").try_lock(Duration::ZERO).unwrap()));
}

/// The node may have granted the lease over the connection that was closed: its answer to a second
/// question would be a refusal, or another server's vote.
#[test]
fn an_attempt_is_sent_to_each_node_once() {
    let nodes = Nodes::start();
    nodes.set([2], Mood::Stale);
    let client = nodes.client();
    client.lock("a").lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    assert!(nodes.nodes.iter().all(|node| node.asked("acquire").len() == 1));
}

#[test]
fn foreign_data_matters_only_on_a_majority() {
    let nodes = Nodes::start();
    nodes.set([0, 1], Mood::Foreign);
    let lock = patient(&nodes).lock("a");
    lock.lock().unwrap();
    lock.unlock().unwrap();
    nodes.set([2], Mood::Foreign);
    let error = within(..QUICK, || lock.lock()).unwrap_err();
    assert!(error.is_wrong_type(), "{error:?}");
    let causes = error.source().unwrap().to_string();
    assert!(
        causes.starts_with("node 1: foreign data; node 2: foreign data; node 3: foreign data"),
        "{causes}"
    );
    eventually(SOON, || nodes.holding("a").is_empty());
}

#[test]
fn a_lost_release_is_unknown_and_a_lease_that_a_majority_forgot_is_lost() {
    let nodes = Nodes::start();
    let hasty = nodes.builder().command_timeout(Duration::from_millis(300)).build().unwrap();
    let lock = hasty.lock("a");
    lock.lock().unwrap();
    nodes.set(0..3, Mood::Silent);
    assert!(lock.unlock().unwrap_err().is_unknown());
    nodes.set(0..3, Mood::Fine);
    eventually(SOON, || nodes.holding("a").is_empty());

    let client = patient(&nodes);
    let lock = client.lock("a");
    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.nodes[..3].iter().for_each(|node| node.forget("a"));
    assert!(lock.unlock().unwrap_err().is_lost());
    // Three nodes have decided: the other two, told later, must not refuse the next lease.
    eventually(SOON, || nodes.holding("a").is_empty());

    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.nodes[..2].iter().for_each(|node| node.forget("a"));
    lock.unlock().unwrap();
}

#[test]
fn a_release_that_some_deny_and_some_do_not_answer_is_unknown() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let store = client.store(Layout::Plain).unwrap();
    // The silent nodes are waited for, where they matter.
    let release = |name: &str, forgotten: usize, silent: usize, limit: Duration| {
        let (key, token) = (Key::new(name.into()), Token::new("t"));
        assert!(matches!(
            store.try_acquire(&ask(&key, &token, LEASE)).unwrap(),
            Answer::Granted { .. }
        ));
        eventually(SOON, || nodes.holding(name).len() == 5);
        nodes.nodes[..forgotten].iter().for_each(|node| node.forget(name));
        nodes.set(5 - silent..5, Mood::Silent);
        let released = store.release(&Release::of(&key, &token), Instant::now() + limit);
        nodes.set(0..5, Mood::Fine);
        // Whatever the result is, the lease is withdrawn.
        eventually(SOON, || nodes.holding(name).is_empty());
        released
    };
    // The silent nodes may have forgotten the lease, too, and then it was lost before; or they may
    // still have it.
    let short = Duration::from_millis(300);
    assert!(release("a", 2, 2, short).unwrap_err().may_have_run);
    assert!(release("b", 2, 1, short).unwrap_err().may_have_run);
    assert_eq!(release("c", 2, 0, SOON).unwrap(), Gone::Released);
    assert_eq!(release("d", 0, 2, SOON).unwrap(), Gone::Released);
    assert_eq!(release("e", 3, 2, SOON).unwrap(), Gone::NotOurs);
}

#[test]
fn the_holder_is_the_one_that_a_majority_names() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let lock = client.lock("a");
    nodes.nodes[..2].iter().for_each(|node| node.hold("a", "left", LEASE));
    nodes.nodes[2..4].iter().for_each(|node| node.hold("a", "right", LEASE));
    assert!(lock.inspect().unwrap().holders.is_empty());
    nodes.set([0], Mood::Down);
    // The node that is down might have the third vote for "right".
    assert!(lock.inspect().unwrap_err().is_unavailable());
    nodes.nodes[4].hold("a", "right", LEASE / 2);
    let holder = lock.inspect().unwrap().holders.remove(0);
    assert_eq!(holder.token, "right");
    assert!(holder.remaining.unwrap() <= LEASE / 2);
    nodes.set(0..3, Mood::Down);
    assert!(lock.inspect().unwrap_err().is_unavailable());
    nodes.set(0..3, Mood::Fine);
    assert!(lock.force_unlock().unwrap());
    eventually(SOON, || nodes.holding("a").is_empty());
    assert!(!lock.force_unlock().unwrap());
}

#[test]
fn a_forced_unlock_that_reaches_a_node_late_spares_the_next_holder() {
    let nodes = Nodes::start();
    let (client, next) = (patient(&nodes), nodes.client());
    client.lock("a").lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.set([4], Mood::Paused);
    assert!(within(..QUICK, || client.lock("a").force_unlock()).unwrap());
    nodes.nodes[4].forget("a");
    nodes.nodes[4].hold("a", "next", LEASE);
    assert!(next.lock("a").try_lock(Duration::ZERO).unwrap());
    nodes.set([4], Mood::Fine);
    // The slow node answers who holds the lock, and carries out the release of the old token, and
    // then what it is asked after that.
    eventually(SOON, || !nodes.nodes[4].asked("release").is_empty());
    client.lock("after that").lock().unwrap();
    eventually(SOON, || nodes.holding("after that").len() == 5);
    assert_eq!(nodes.nodes[4].holder("a").as_deref(), Some("next"));
}

#[test]
fn withdrawing_needs_a_majority_and_may_be_repeated() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let store = client.store(Layout::Plain).unwrap();
    let (key, token) = (Key::new("a".into()), Token::new("t"));
    let soon = || Instant::now() + SOON;
    assert!(matches!(
        store.try_acquire(&ask(&key, &token, LEASE)).unwrap(),
        Answer::Granted { .. }
    ));
    assert_eq!(store.withdraw_one(Withdraw::of(&key, &token), soon()).unwrap(), Gone::Released);
    assert_eq!(store.withdraw_one(Withdraw::of(&key, &token), soon()).unwrap(), Gone::NotOurs);
    assert!(matches!(
        store.try_acquire(&ask(&key, &token, LEASE)).unwrap(),
        Answer::Granted { .. }
    ));
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.set(0..3, Mood::Silent);
    let until = Instant::now() + Duration::from_millis(200);
    assert!(store.withdraw_one(Withdraw::of(&key, &token), until).unwrap_err().may_have_run);
}

#[test]
fn sets_of_nodes_that_are_no_quorum_are_refused() {
    let refused = |urls: &[&str]| Client::redlock(urls).unwrap_err().is_invalid_input();
    assert!(refused(&[]));
    assert!(refused(&["memory://q1", "memory://q2"]));
    assert!(refused(&["memory://q1", "memory://q2", "memory://q1"]));
    assert!(refused(&[
        "redis://127.0.0.1:1/0",
        "redis://127.0.0.1:2",
        "redis://user:secret@127.0.0.1:1/1"
    ]));
    assert!(refused(&["memory://q1", "memory://q2", "nonsense"]));
    assert!(refused(&["memory://"; 33]));
    // Each store without a name is a separate one. An even number is allowed.
    let client = Client::redlock(["memory://"; 4]).unwrap();
    client.lock("a").lock().unwrap();
    let unsupported = |options| client.lock_with("b", options).unwrap_err().is_unsupported();
    assert!(unsupported(LockOptions::new().fenced()));
    assert!(unsupported(LockOptions::new().owner("mine")));
    assert!(unsupported(LockOptions::new().layout(Layout::Redisson)));
    assert!(
        client
            .execute(|connection| redis::cmd("PING").query::<()>(connection))
            .unwrap_err()
            .is_unsupported()
    );
    assert!(client.rate_limiter("c", 1, LEASE).check().unwrap_err().is_unsupported());
    assert!(client.lock("a").new_condition("c").unwrap_err().is_unsupported());
    let pool =
        r2d2::Pool::builder().build_unchecked(redis::Client::open("redis://127.0.0.1:1/").unwrap());
    assert!(
        Client::redlock_builder(["memory://"; 3])
            .pool(pool)
            .build()
            .unwrap_err()
            .is_invalid_input()
    );
}

#[test]
fn a_token_that_a_node_has_from_elsewhere_is_no_vote() {
    let nodes = Nodes::start();
    // As on a replica of another node, or on a server with a second name.
    nodes.nodes[2..].iter().for_each(|node| node.hold("a", "t", LEASE));
    let client = nodes.client();
    let store = client.store(Layout::Plain).unwrap();
    let (key, token) = (Key::new("a".into()), Token::new("t"));
    let asked = ask(&key, &token, LEASE);
    assert!(matches!(store.try_acquire(&asked).unwrap(), Answer::Refused { .. }));
    // They are left alone, too.
    eventually(SOON, || nodes.holding("a") == [2, 3, 4]);
}
