//! Threads of one process that wait together: one place in the queue, and hand-offs among
//! themselves.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::testing::FakeClock;
use distlock::{Client, LockOptions};

use super::SOON;
use crate::helpers::ms;
use crate::support::{Server, eventually};

#[test]
fn a_thread_that_gives_up_leaves_its_place_to_the_next_thread_of_its_process() {
    let server = Server::start();
    let holder = Client::open(&server.url()).unwrap();
    let guard = holder.lock("a").guard().unwrap();
    let (say, hear) = mpsc::channel();
    let clock = FakeClock::new();
    let ours = Client::builder(&server.url()).clock(clock.clone()).build().unwrap();
    let other = Client::open(&server.url()).unwrap();
    let waiters = |server: &Server| -> u32 {
        redis::cmd("ZCARD").arg("{a}:queue").query(&mut server.connection()).unwrap()
    };
    // The first thread takes the place in the server's queue,
    let first = ours.clone();
    let gives_up = thread::spawn(move || first.lock("a").try_lock(ms(600)).unwrap());
    eventually(SOON, || waiters(&server) == 1);
    // the second waits behind it in this process,
    let (second, said) = (ours.clone(), say.clone());
    thread::spawn(move || second.lock("a").with(|_| said.send("ours").unwrap()));
    eventually(SOON, || ours.waiting("a") == 1);
    // and another process comes last.
    thread::spawn(move || other.lock("a").with(|_| say.send("other").unwrap()));
    eventually(SOON, || waiters(&server) == 2);
    clock.advance(ms(600));
    assert!(!gives_up.join().unwrap());
    assert_eq!(waiters(&server), 2, "the place was handed on, not given back");
    guard.release().unwrap();
    assert_eq!(hear.recv_timeout(SOON).unwrap(), "ours");
    assert_eq!(hear.recv_timeout(SOON).unwrap(), "other");
}

#[test]
fn a_thread_that_is_not_handed_the_lock_gets_its_place_when_the_one_before_it_has_ended() {
    let server = Server::start();
    let guard = Client::open(&server.url()).unwrap().lock("a").guard().unwrap();
    let (say, hear) = mpsc::channel();
    let [ours, other] = [(); 2].map(|()| Client::open(&server.url()).unwrap());
    let waits = |client: &Client, name: &'static str| {
        let options = LockOptions::new().local_hand_offs(0);
        let (lock, say) = (client.lock_with("a", options).unwrap(), say.clone());
        thread::spawn(move || lock.with(|_| say.send(name).unwrap()).unwrap());
    };
    let waiters =
        || -> u32 { redis::cmd("ZCARD").arg("{a}:queue").query(&mut server.connection()).unwrap() };
    waits(&ours, "first");
    eventually(SOON, || waiters() == 1);
    waits(&ours, "second");
    eventually(SOON, || ours.waiting("a") == 1);
    waits(&other, "other");
    eventually(SOON, || waiters() == 2);
    guard.release().unwrap();
    let order = [(); 3].map(|()| hear.recv_timeout(SOON).unwrap());
    assert_eq!(order, ["first", "other", "second"]);
}

#[test]
fn fences_grow_over_local_and_direct_hand_offs() {
    let server = Server::start();
    let (say, hear) = mpsc::channel();
    let holds_of_each = 40_000 / 8;
    for _ in 0..2 {
        let client = Client::open(&server.url()).unwrap();
        for _ in 0..4 {
            let (client, say) = (client.clone(), say.clone());
            thread::spawn(move || {
                let lock = client.lock_with("a", LockOptions::new().fenced()).unwrap();
                for _ in 0..holds_of_each {
                    let guard = lock.guard().unwrap();
                    // Sent while the lock is held, so in the order of the holds.
                    say.send(guard.fence().unwrap()).unwrap();
                }
            });
        }
    }
    drop(say);
    let fences: Vec<u64> = hear.iter().collect();
    assert_eq!(fences.len(), holds_of_each * 8);
    assert!(fences.is_sorted_by(|a, b| a < b));
}

#[test]
fn without_local_hand_offs_every_hold_has_a_lease_of_its_own() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    for (hand_offs, leases) in [(0, 20), (16, 2)] {
        let options = LockOptions::new().local_hand_offs(hand_offs);
        let lock = client.lock_with("a", options).unwrap();
        let guard = lock.guard().unwrap();
        let (say, hear) = mpsc::channel();
        let threads: Vec<_> = (0..19)
            .map(|_| {
                let (lock, say) = (lock.clone(), say.clone());
                thread::spawn(move || {
                    lock.with(|_| {
                        say.send(lock.inspect().unwrap().holders.remove(0).token).unwrap()
                    })
                    .unwrap()
                })
            })
            .collect();
        eventually(SOON, || client.waiting("a") == 19);
        say.send(lock.inspect().unwrap().holders.remove(0).token).unwrap();
        guard.release().unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(say);
        let tokens: std::collections::HashSet<_> = hear.iter().collect();
        assert_eq!(tokens.len(), leases, "with {hand_offs} hand-offs");
    }
}

#[test]
fn a_thread_that_panics_after_a_hand_off_leaves_the_lock_free() {
    let client = Client::open("memory://").unwrap();
    let lock = client.lock("a");
    let guard = lock.guard().unwrap();
    let doomed = lock.clone();
    let panics = thread::spawn(move || {
        let _guard = doomed.guard().unwrap();
        panic!("on purpose, under a lock that was handed over");
    });
    eventually(SOON, || client.waiting("a") == 1);
    guard.release().unwrap();
    assert!(panics.join().is_err());
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    lock.unlock().unwrap();
}
