//! Claims and the threads of a process: they share one, pass its lease on, and wait for each other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use distlock::{Claim, Client, LockOptions, RedisLock};

use crate::faults::through_proxy;
use crate::helpers::{SOON, Underway, client, get, is_free, keys, lease, memory, ms};
use crate::support::{Server, eventually};

#[test]
fn a_claim_moves_between_threads_and_is_shared_by_them() {
    fn moves<T: Send + Sync + 'static>() {}
    moves::<Claim>();
    let lock = memory().lock("job");
    let claim = Arc::new(lock.claim().unwrap());
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let claim = Arc::clone(&claim);
            thread::spawn(move || {
                claim.ensure_valid().unwrap();
                claim.extend(SOON * 6).unwrap();
                assert!(claim.remaining() > SOON * 3);
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(!is_free(&lock) && claim.lock().name() == "job");
    drop(claim);
    assert!(is_free(&lock));
}

#[test]
fn threads_of_one_process_pass_a_lease_on_between_claims_and_holds() {
    let server = Arc::new(Server::start());
    let client = client(&server);
    let lock = client.lock_with("job", LockOptions::new().fenced()).unwrap();
    // The first block of a counter is a single fence, which is not enough for a hand-off.
    lock.with(|_| ()).unwrap();
    let claim = lock.claim().unwrap();
    let (first, token) = (claim.fence(), get(&server, "job"));
    let holds = {
        let (lock, server) = (lock.clone(), Arc::clone(&server));
        Underway::behind(&client, "job", move || {
            lock.with(|guard| (guard.fence(), get(&server, "job"))).unwrap()
        })
    };
    let claims = |lock: RedisLock| {
        let server = Arc::clone(&server);
        Underway::behind(&client, "job", move || {
            let claim = lock.claim().unwrap();
            let found = (claim.fence(), get(&server, "job"));
            claim.release().unwrap();
            found
        })
    };
    let again = claims(lock.clone());
    let with_other_options = claims(client.lock("job"));
    claim.release().unwrap();
    let (second, third) = (holds.result(), again.result());
    assert!(token.is_some() && second.1 == token && third.1 == token, "one lease");
    assert!(first < second.0 && second.0 < third.0, "a fence for each");
    let (fence, another) = with_other_options.result();
    assert!(fence.is_none() && another.is_some() && another != token);
    assert!(is_free(&lock));
}

#[test]
fn claims_and_holds_of_many_threads_and_clients_are_never_there_at_once() {
    let server = Server::start();
    let (inside, rounds) = (AtomicU64::new(0), 150);
    let enter = || assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
    let clients = [client(&server), client(&server)];
    // Claims go on without a wait for whoever ends them.
    let (give, take) = crossbeam_channel::unbounded::<Claim>();
    let moved = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            let (inside, moved, take) = (&inside, &moved, take.clone());
            scope.spawn(move || {
                for (n, claim) in take.into_iter().enumerate() {
                    claim.ensure_valid().unwrap();
                    moved.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if n % 2 == 0 { claim.release().unwrap() } else { drop(claim) }
                }
            });
        }
        for (client, thread) in clients.iter().flat_map(|client| (0..4).map(move |n| (client, n))) {
            let (inside, enter, give) = (&inside, &enter, give.clone());
            scope.spawn(move || {
                let lock = client.lock("job");
                for round in 0..rounds {
                    if (thread + round) % 2 == 0 {
                        let claim = lock.claim().unwrap();
                        enter();
                        give.send(claim).unwrap();
                    } else {
                        let guard = lock.guard().unwrap();
                        enter();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        guard.release().unwrap();
                    }
                }
            });
        }
        drop(give);
    });
    assert_eq!(moved.load(Ordering::SeqCst), 8 * rounds / 2);
    assert!(is_free(&clients[0].lock("job")));
}

#[test]
fn a_claim_costs_a_round_trip_and_its_release_another() {
    let (_server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock("job");
    // Opens the connection, and loads the scripts.
    lock.claim().unwrap().release().unwrap();
    let before = proxy.requests();
    let claim = lock.claim().unwrap();
    assert_eq!(proxy.requests() - before, 1);
    let _ = (claim.is_valid(), claim.remaining(), claim.fence(), claim.validity());
    let waiting = |claims: bool| {
        let lock = lock.clone();
        Underway::behind(&client, "job", move || {
            if claims { lock.claim().map(Some) } else { lock.lock().map(|()| None) }
                .and_then(|claim| claim.map_or_else(|| lock.unlock(), Claim::release))
        })
    };
    let behind = [waiting(true), waiting(false), waiting(true)];
    claim.release().unwrap();
    behind.into_iter().for_each(|thread| thread.result().unwrap());
    assert_eq!(proxy.requests() - before, 2, "the lease passed through all of them");
}

/// A waiter of a condition that comes back asks for itself, and has no turn then.
#[test]
fn a_claim_waits_for_a_thread_that_comes_back_from_a_condition() {
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let lock = mine.lock("job");
    let waits = Underway::start({
        let lock = lock.clone();
        move || {
            let condition = lock.new_condition("c")?;
            lock.lock()?;
            let woken = condition.wait_timeout(SOON)?;
            thread::sleep(ms(20));
            assert!(lock.is_valid());
            lock.unlock().map(|()| woken)
        }
    });
    eventually(SOON, || keys(&server).contains(&"{job}:conditions".to_owned()));
    let theirs = other.lock("job");
    theirs.lock().unwrap();
    let claims = Underway::start({
        let lock = lock.clone();
        move || lock.claim()
    });
    eventually(SOON, || keys(&server).contains(&"{job}:queue".to_owned()));
    theirs.new_condition("c").unwrap().notify_one().unwrap();
    theirs.unlock().unwrap();
    let claim = claims.result().unwrap();
    claim.ensure_valid().unwrap();
    claim.release().unwrap();
    assert!(waits.result().unwrap());
    assert!(is_free(&theirs));
}

#[test]
fn many_threads_that_extend_one_claim_never_shorten_it() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(1500))).unwrap();
    let claim = lock.claim().unwrap();
    let begin = Barrier::new(8);
    thread::scope(|scope| {
        for length in 1..=8 {
            let (claim, begin) = (&claim, &begin);
            scope.spawn(move || {
                begin.wait();
                for _ in 0..25 {
                    claim.extend(SOON * length).unwrap();
                    assert!(claim.remaining() > SOON * length - SOON / 2);
                }
            });
        }
    });
    assert!(claim.remaining() > SOON * 7);
    assert!(lock.inspect().unwrap().holders[0].remaining.unwrap() > SOON * 7);
    claim.release().unwrap();
    assert_eq!(get(&server, "job"), None);
}
