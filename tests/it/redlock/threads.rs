//! The threads behind a quorum: how many, and when they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::nodes::{Mood, Nodes};
use crate::support::{eventually, in_own_process, thread_count, thread_names, within};

const SOON: Duration = Duration::from_secs(10);

fn node_threads() -> Vec<String> {
    let of_a_node =
        |name: &String| ["distlock-node", "distlock-hold"].iter().any(|its| name.starts_with(its));
    let mut names: Vec<_> = thread_names().into_iter().filter(of_a_node).collect();
    names.sort();
    names
}

#[test]
fn there_are_two_threads_per_node_and_none_after_close() {
    in_own_process("redlock::threads::there_are_two_threads_per_node_and_none_after_close", || {
        let nodes = Nodes::start();
        let client = nodes.client();
        assert_eq!(node_threads().len(), 0);
        thread::scope(|scope| {
            for i in 0..20 {
                let lock = client.lock(&format!("{i}"));
                scope.spawn(move || (0..20).for_each(|_| drop(lock.guard().unwrap())));
            }
        });
        let names = |kind| (1..=5).map(move |node| format!("distlock-{kind}-{node}"));
        assert_eq!(node_threads(), names("hold").chain(names("node")).collect::<Vec<_>>());
        within(..SOON, || client.close(SOON)).unwrap();
        // The kernel still lists a thread for a moment after its end.
        eventually(SOON, || !thread_names().iter().any(|name| name.starts_with("distlock")));
        assert!(client.lock("a").try_lock(Duration::ZERO).unwrap_err().is_closed());
    });
}

#[test]
fn questions_to_a_silent_node_wait_for_its_thread() {
    in_own_process("redlock::threads::questions_to_a_silent_node_wait_for_its_thread", || {
        let nodes = Nodes::start();
        let client = nodes.client();
        let lock = |i: usize| client.lock(&format!("{i}")).lock().unwrap();
        lock(0);
        let before = thread_count();
        nodes.set([0], Mood::Silent);
        // It is silent for far longer than it takes to ask the others.
        (1..=20).for_each(lock);
        assert!(thread_count() <= before, "{} threads more", thread_count() - before);
        nodes.set([0], Mood::Fine);
        (0..=20).for_each(|i| client.lock(&format!("{i}")).unlock().unwrap());
    });
}

#[test]
fn threads_end_when_the_client_is_dropped_though_a_node_is_silent() {
    in_own_process(
        "redlock::threads::threads_end_when_the_client_is_dropped_though_a_node_is_silent",
        || {
            let nodes = Nodes::start();
            nodes.set([2], Mood::Silent);
            let client =
                nodes.builder().command_timeout(Duration::from_millis(300)).build().unwrap();
            let lock = client.lock("a");
            lock.lock().unwrap();
            // A thread gets its name a moment after its start.
            eventually(SOON, || node_threads().len() == 10);
            drop((lock, client));
            eventually(SOON, || !thread_names().iter().any(|name| name.starts_with("distlock")));
            assert!(nodes.holding("a").is_empty());
        },
    );
}

#[test]
fn close_releases_what_is_held_and_waits_at_most_until_the_deadline() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let lock = client.lock("a");
    lock.lock().unwrap();
    nodes.set([0], Mood::Silent);
    let _ = within(..Duration::from_secs(2), || client.close(Duration::from_millis(500)));
    assert!(nodes.holding("a").iter().all(|node| *node == 0));
    assert!(lock.unlock().unwrap_err().is_lost());
}

#[test]
fn close_does_not_wait_for_a_node_that_is_down() {
    let nodes = Nodes::start();
    let client = nodes.client();
    let lock = client.lock("a");
    lock.lock().unwrap();
    eventually(SOON, || nodes.holding("a").len() == 5);
    nodes.set([0], Mood::Down);
    // A majority has confirmed the release.
    within(..Duration::from_secs(1), || client.close(SOON)).unwrap();
    assert_eq!(nodes.holding("a"), [0]);
}

#[test]
fn contenders_exclude_each_other_and_all_make_progress() {
    let nodes = Nodes::start();
    let inside = Arc::new(AtomicBool::new(false));
    let done = AtomicUsize::new(0);
    let since = Instant::now();
    thread::scope(|scope| {
        // To the others, each client is like a separate process: only the nodes' votes exclude them
        // from each other.
        for _ in 0..20 {
            let (nodes, inside, done) = (&nodes, Arc::clone(&inside), &done);
            scope.spawn(move || {
                let client = nodes.client();
                let lock = client.lock("a");
                for _ in 0..5 {
                    lock.lock().unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
                    thread::sleep(Duration::from_millis(1));
                    inside.store(false, Ordering::SeqCst);
                    lock.unlock().unwrap();
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::SeqCst), 100);
    assert!(since.elapsed() < Duration::from_secs(60), "took {:?}", since.elapsed());
}
