//! A replica that is away delays only those who asked for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, Lock, LockOptions};

use super::{Group, options};
use crate::helpers::{SOON, error, lease, ms};
use crate::support::{Fault, Proxy, Rule, eventually, in_own_process, thread_count, thread_names};

#[test]
fn other_leases_of_the_client_are_renewed_meanwhile() {
    let group = Group::start(1);
    let client = group.client();
    let plain = [150, 300, 600].map(|length| {
        let lock = client.lock_with(&format!("plain {length}"), lease(ms(length))).unwrap();
        lock.lock().unwrap();
        lock
    });
    // Each of them is renewed after a third, and then waits for the replica.
    let confirmed = [900, 1_500, 3_000, 6_000].map(|length| {
        let options = options().lease(ms(length));
        let lock = client.lock_with(&format!("confirmed {length}"), options).unwrap();
        lock.lock().unwrap();
        lock
    });
    group.replicas[0].stop_process();
    let since = Instant::now();
    while since.elapsed() < ms(4_000) {
        for lock in &plain {
            assert!(lock.is_valid(), "{} was lost after {:?}", lock.name(), since.elapsed());
        }
        thread::sleep(ms(5));
    }
    assert!(!confirmed[0].is_valid() && !confirmed[1].is_valid());
    group.replicas[0].cont();
    plain.iter().for_each(|lock| lock.unlock().unwrap());
    confirmed[3].unlock().unwrap();
}

#[test]
fn other_locks_of_the_client_find_a_connection_meanwhile() {
    let group = Group::start(1);
    let client = Client::builder(&group.primary.url()).pool_size(2).build().unwrap();
    group.replicas[0].stop_process();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for n in 0..6 {
            let lock = client.lock_with(&format!("confirmed {n}"), options()).unwrap();
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let _ = lock.try_lock(ms(500));
                }
            });
        }
        thread::sleep(ms(300));
        let plain = client.lock("plain");
        let mut cycles = (0..100).map(|_| {
            thread::sleep(ms(10));
            let since = Instant::now();
            (plain.try_lock(ms(500)).and_then(|_| plain.unlock()), since.elapsed())
        });
        let bad = cycles.find(|(cycle, took)| cycle.is_err() || *took > ms(500));
        // Before anything can fail: the threads would go on.
        is_over.store(true, Ordering::SeqCst);
        assert!(bad.is_none(), "a lock without confirmations: {bad:?}");
    });
    group.replicas[0].cont();
}

/// The server answers the command, and the answer to its `WAIT` comes too late.
#[test]
fn a_wait_that_times_out_costs_one_connection() {
    let group = Group::start(1);
    let proxy = Proxy::start(group.primary.port());
    let client =
        Client::builder(&proxy.url()).pool_size(1).command_timeout(ms(1_000)).build().unwrap();
    let (plain, confirmed) = (client.lock("plain"), client.lock_with("job", options()).unwrap());
    plain.with(|_| ()).unwrap();
    confirmed.with(|_| ()).unwrap();
    let before = proxy.accepted();
    let late = proxy.add(Rule::on("WAIT", Fault::HoldReply).next(1));
    assert!(error(confirmed.try_lock(Duration::ZERO)).is_unavailable());
    assert_eq!(late.fired(), 1);
    plain.with(|_| ()).unwrap();
    assert_eq!(proxy.accepted(), before, "the connection of others was closed, too");
    // Its own is not used again.
    confirmed.with(|_| ()).unwrap();
    assert_eq!(proxy.accepted(), before + 1);
}

/// What opening the connection took is not there for the `WAIT` any more.
#[test]
fn a_wait_ends_with_its_attempt_also_over_a_new_connection() {
    let group = Group::start(1);
    let proxy = Proxy::start(group.primary.port());
    let client = Client::builder(&proxy.url()).command_timeout(ms(1_500)).build().unwrap();
    let slow = proxy.add(Rule::on("ROLE", Fault::DelayReply(ms(900))).next(1));
    let (tell, told) = std::sync::mpsc::channel();
    let _seen =
        proxy.add(Rule::on("WAIT", Fault::DelayRequest(Duration::ZERO)).when(move |words| {
            let _ = tell.send(String::from_utf8_lossy(&words[2]).into_owned());
            false
        }));
    client.lock_with("job", options()).unwrap().try_lock(SOON).unwrap();
    assert_eq!(slow.fired(), 1);
    let millis: u64 = told.try_recv().unwrap().parse().unwrap();
    assert!((1..600).contains(&millis), "the replicas had {millis} ms");
}

#[test]
fn only_a_client_with_both_kinds_of_locks_has_two_renewal_threads() {
    let name =
        "confirmations::away::only_a_client_with_both_kinds_of_locks_has_two_renewal_threads";
    in_own_process(name, || {
        let group = Group::start(1);
        let client = group.client();
        let before = thread_count();
        let named = |name: &str| thread_names().iter().filter(|its| its.starts_with(name)).count();
        client.lock_with("job", options()).unwrap().with(|_| ()).unwrap();
        // A thread names itself once it runs.
        eventually(SOON, || named("distlock-confir") == 1);
        assert_eq!(named("distlock-renewa"), 0);
        client.lock_with("plain", LockOptions::new()).unwrap().with(|_| ()).unwrap();
        eventually(SOON, || named("distlock-renewa") == 1);
        assert_eq!((named("distlock-confir"), named("distlock-pool")), (1, 1));
        client.close(SOON).unwrap();
        drop(client);
        eventually(SOON, || thread_count() == before);
    });
}

/// Both kinds wait for replicas, but these have the one that they need.
#[test]
fn leases_that_ask_for_fewer_replicas_are_renewed_meanwhile() {
    let group = Group::start(2);
    let client = group.client();
    let fewer = [300, 600, 1_500].map(|length| {
        let options = LockOptions::new().replicas(1).lease(ms(length));
        let lock = client.lock_with(&format!("one {length}"), options).unwrap();
        lock.lock().unwrap();
        lock
    });
    let options = LockOptions::new().replicas(2).lease(ms(6_000));
    let all = client.lock_with("two", options).unwrap();
    all.lock().unwrap();
    group.replicas[1].stop_process();
    let since = Instant::now();
    while since.elapsed() < ms(5_500) {
        for lock in &fewer {
            assert!(lock.is_valid(), "{} was lost after {:?}", lock.name(), since.elapsed());
        }
        thread::sleep(ms(5));
    }
    group.replicas[1].cont();
    fewer.iter().for_each(|lock| lock.unlock().unwrap());
}
