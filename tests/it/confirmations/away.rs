//! A replica that is away delays only those who asked for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, LockOptions};

use super::{Group, options};
use crate::helpers::{SOON, error, ms};
use crate::support::{
    Fault, Proxy, Rule, eventually, in_own_process, on_time, thread_count, thread_names,
};

#[test]
fn other_leases_of_the_client_are_renewed_meanwhile() {
    on_time(ms(150), || are_renewed_while_one_is_away(1, LockOptions::new));
}

/// Both kinds wait for replicas, but these have the one that they need.
#[test]
fn leases_that_ask_for_fewer_replicas_are_renewed_meanwhile() {
    on_time(ms(150), || are_renewed_while_one_is_away(2, options));
}

/// Leases with these options, while an extend waits for all replicas, of which one is away.
fn are_renewed_while_one_is_away(replicas: usize, others: fn() -> LockOptions) {
    let group = Group::start(replicas);
    let proxy = Proxy::start(group.primary.port());
    // Renewal waits for an answer for four times as long as the quickest grant took, if the lease
    // allows it: so it would wait for longer than the shortest lease lasts.
    let slow = proxy.add(Rule::on("SET", Fault::DelayReply(ms(700))));
    let client = Client::builder(&proxy.url()).command_timeout(SOON).build().unwrap();
    let held = |name: &str, options: LockOptions| {
        let lock = client.lock_with(name, options).unwrap();
        lock.lock().unwrap();
        lock
    };
    // It is renewed after a third, and then waits for the replicas for a quarter.
    let all = options().replicas(u32::try_from(replicas).unwrap()).lease(ms(10_000));
    let all = held("all", all);
    let others =
        [3_000, 2_000].map(|length| held(&format!("other {length}"), others().lease(ms(length))));
    slow.remove();
    group.replicas[0].stop_process();
    let since = Instant::now();
    while since.elapsed() < ms(4_300) {
        for lock in &others {
            assert!(lock.is_valid(), "{} was lost after {:?}", lock.name(), since.elapsed());
        }
        thread::sleep(ms(5));
    }
    assert!(all.remaining().unwrap() < ms(5_000), "it was extended without the replica");
    group.replicas[0].cont();
    others.iter().for_each(|lock| lock.unlock().unwrap());
    all.unlock().unwrap();
}

#[test]
fn other_locks_of_the_client_find_a_connection_meanwhile() {
    const LIMIT: Duration = ms(500);
    let group = Group::start(1);
    on_time(LIMIT / 10, || {
        let client = Client::builder(&group.primary.url()).pool_size(2).build().unwrap();
        let held = client.lock_with("held", options()).unwrap();
        held.lock().unwrap();
        group.replicas[0].stop_process();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for n in 0..6 {
                let lock = client.lock_with(&format!("confirmed {n}"), options()).unwrap();
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        let _ = lock.try_lock(LIMIT);
                    }
                });
            }
            thread::sleep(ms(300));
            let plain = client.lock("plain");
            let mut cycles = (0..100).map(|_| {
                thread::sleep(ms(10));
                let since = Instant::now();
                (plain.try_lock(LIMIT).and_then(|_| plain.unlock()), since.elapsed())
            });
            let bad = cycles.find(|(cycle, took)| cycle.is_err() || *took > LIMIT);
            let since = Instant::now();
            let released = (held.unlock(), since.elapsed());
            // Before anything can fail: the threads would go on.
            is_over.store(true, Ordering::SeqCst);
            group.replicas[0].cont();
            assert!(bad.is_none(), "a lock without confirmations: {bad:?}");
            assert!(released.0.is_ok() && released.1 <= LIMIT, "a release: {released:?}");
        });
    });
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
    // Its own is not used again.
    confirmed.with(|_| ()).unwrap();
    assert_eq!(proxy.accepted(), before + 1, "the connection of others was closed, too");
}

/// What opening the connection took is not there for the `WAIT` any more.
#[test]
fn a_wait_ends_with_its_attempt_also_over_a_new_connection() {
    let group = Group::start(1);
    let proxy = Proxy::start(group.primary.port());
    let client = Client::builder(&proxy.url()).command_timeout(ms(3_000)).build().unwrap();
    let slow = proxy.add(Rule::on("ROLE", Fault::DelayReply(ms(1_500))).next(1));
    let (tell, told) = mpsc::channel();
    let _seen =
        proxy.add(Rule::on("WAIT", Fault::DelayRequest(Duration::ZERO)).when(move |words| {
            let _ = tell.send(String::from_utf8_lossy(&words[2]).into_owned());
            false
        }));
    client.lock_with("job", options()).unwrap().try_lock(SOON).unwrap();
    assert_eq!(slow.fired(), 1);
    let millis: u64 = told.try_recv().unwrap().parse().unwrap();
    assert!((1..1_500).contains(&millis), "the replicas had {millis} ms");
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
