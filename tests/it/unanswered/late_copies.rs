//! Requests that arrive late, after their caller has given up or gone on: what they leave behind is
//! removed.

use std::thread;
use std::time::Duration;

use distlock::LockOptions;

use super::{ABOUT_A_SECOND, gives_up, gone_soon};
use crate::faults::through_proxy;
use crate::helpers::{SOON, error, get, keys, ms};
use crate::support::{Fault, Planned, Rule, Server, eventually, within};

/// How often the server has set a key, in scripts and without.
fn sets(server: &Server) -> u64 {
    server.command_count("set")
}

/// Delivers the held request, and waits until the server has made an orphan of it.
fn deliver_late(server: &Server, held: &Planned) {
    let before = sets(server);
    held.wait_held(SOON).release();
    eventually(SOON, || sets(server) > before);
}

#[test]
fn late_copy_after_the_release_is_removed_although_a_later_attempt_succeeded() {
    let (server, proxy) = through_proxy();
    let client = gives_up(&proxy.url());
    for _ in 0..2 {
        let lock = client.lock("x");
        let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
        lock.lock().unwrap();
        lock.unlock().unwrap();
        assert!(keys(&server).is_empty());
        deliver_late(&server, &late);
        gone_soon(&server);
    }
}

#[test]
fn late_copy_while_the_lock_is_held_changes_nothing() {
    let (server, proxy) = through_proxy();
    let client = gives_up(&proxy.url());
    let lock = client.lock("x");
    let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    lock.lock().unwrap();
    let token = get(&server, "x");
    deliver_late(&server, &late);
    assert_eq!(get(&server, "x"), token);
    assert!(lock.is_valid());
    lock.unlock().unwrap();
    assert!(keys(&server).is_empty());
}

#[test]
fn try_lock_whose_request_arrives_late_leaves_nothing_behind() {
    let (server, proxy) = through_proxy();
    let client = gives_up(&proxy.url());
    // The attempt needs no new connection, and is certainly sent.
    eventually(SOON, || client.ping().is_ok());
    let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    assert!(error(client.lock("x").try_lock(Duration::ZERO)).is_unavailable());
    // The withdrawal has been answered before: "not ours" proved nothing. It is the first script
    // here, so the server does not know it by its hash.
    eventually(SOON, || server.command_count("eval") > 0);
    deliver_late(&server, &late);
    gone_soon(&server);
}

#[test]
fn late_copy_of_an_interrupted_lock_is_removed() {
    let (server, proxy) = through_proxy();
    let client = gives_up(&proxy.url());
    let lock = client.lock("x");
    let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    let interrupt = distlock::Interrupt::new();
    let interrupted = thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.lock_interruptibly(&interrupt));
        let held = late.wait_held(SOON);
        interrupt.interrupt();
        let result = waiting.join().unwrap();
        let before = sets(&server);
        held.release();
        eventually(SOON, || sets(&server) > before);
        result
    });
    assert!(error(interrupted).is_interrupted());
    gone_soon(&server);
}

#[test]
fn late_copy_is_removed_after_a_wait_in_a_condition_has_released_the_lease() {
    let (server, proxy) = through_proxy();
    let client = gives_up(&proxy.url());
    let lock = client.lock_with("x", LockOptions::new().lease(SOON)).unwrap();
    let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    lock.lock().unwrap();
    let held = late.wait_held(SOON);
    let condition = lock.new_condition("ready").unwrap();
    thread::scope(|scope| {
        let (before, server) = (sets(&server), &server);
        scope.spawn(move || {
            // Once the lock is free, the wait has entered the condition. Then the late copy makes
            // an orphan that blocks it.
            eventually(SOON, || get(server, "x").is_none());
            held.release();
            eventually(SOON, || sets(server) > before);
        });
        assert!(!within(..ABOUT_A_SECOND * 2, || condition.wait_timeout(ms(600))).unwrap());
    });
    lock.unlock().unwrap();
    gone_soon(&server);
}

#[test]
fn late_copy_is_removed_after_the_lease_was_taken_away() {
    let (server, proxy) = through_proxy();
    let client = gives_up(&proxy.url());
    let lock = client.lock("x");
    let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    lock.lock().unwrap();
    assert!(lock.force_unlock().unwrap());
    assert!(error(lock.extend(ms(60_000))).is_lost());
    deliver_late(&server, &late);
    gone_soon(&server);
    assert!(error(lock.unlock()).is_lost());
}
