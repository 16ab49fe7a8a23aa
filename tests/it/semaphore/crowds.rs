//! Many threads of several clients: all permits are in use, and never more; who waits for whom.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use distlock::Semaphore;

use super::{waiting, waits};
use crate::faults::nothing_is_left;
use crate::helpers::{SOON, Underway, client, delete, ms};
use crate::support::{Server, eventually};

/// The same semaphore, as four clients have it.
fn four(server: &Server, permits: u32) -> [Semaphore; 4] {
    [(); 4].map(|()| client(server).semaphore("s", permits))
}

#[test]
fn as_many_threads_are_in_at_once_as_there_are_permits() {
    const PERMITS: u32 = 5;
    let server = Server::start();
    let semaphores = four(&server, PERMITS);
    let (arrived, inside) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for number in 0..40 {
            let (semaphore, arrived, inside) = (&semaphores[number % 4], &arrived, &inside);
            scope.spawn(move || {
                let permit = semaphore.try_acquire(SOON * 3).unwrap().unwrap();
                assert!(inside.fetch_add(1, Ordering::SeqCst) < PERMITS);
                // Each waits inside until as many have come as can be there.
                let group = arrived.fetch_add(1, Ordering::SeqCst) / PERMITS;
                let full = (group + 1) * PERMITS;
                eventually(SOON * 2, || arrived.load(Ordering::SeqCst) >= full);
                inside.fetch_sub(1, Ordering::SeqCst);
                permit.release().unwrap();
            });
        }
    });
    assert_eq!(arrived.load(Ordering::SeqCst), 40);
    nothing_is_left(&server);
}

#[test]
fn a_single_permit_excludes_all_threads_of_all_clients_from_each_other() {
    let server = Server::start();
    let semaphores = four(&server, 1);
    let sum = AtomicU32::new(0);
    thread::scope(|scope| {
        for number in 0..12 {
            let (semaphore, sum) = (&semaphores[number % 4], &sum);
            scope.spawn(move || {
                for _ in 0..10 {
                    let permit = semaphore.acquire().unwrap();
                    // An increment in two steps loses others that are made meanwhile.
                    let before = sum.load(Ordering::SeqCst);
                    thread::yield_now();
                    sum.store(before + 1, Ordering::SeqCst);
                    permit.release().unwrap();
                }
            });
        }
    });
    assert_eq!(sum.load(Ordering::SeqCst), 120);
    nothing_is_left(&server);
}

#[test]
fn a_waiter_with_the_smaller_number_holds_up_those_behind_until_it_fits() {
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let (few, many) = (mine.semaphore("s", 2), other.semaphore("s", 4));
    let taken = [few.acquire().unwrap(), many.acquire_many(2).unwrap()];
    let first = waits(&server, &few, 1);
    // By its own number it would fit.
    let second = waits(&server, &many, 1);
    assert!(many.try_acquire(Duration::ZERO).unwrap().is_none());
    assert_eq!((few.available().unwrap(), many.available().unwrap()), (0, 1));
    let [one, two] = taken;
    one.release().unwrap();
    thread::sleep(ms(60));
    assert!(!first.is_done() && !second.is_done());
    two.release().unwrap();
    let permits = [first.result(), second.result()];
    assert_eq!((few.available().unwrap(), many.available().unwrap()), (0, 2));
    drop(permits);
    nothing_is_left(&server);
}

#[test]
fn waiters_whose_places_somebody_deletes_get_their_permits_all_the_same() {
    let server = Server::start();
    let semaphore = client(&server).semaphore("s", 2);
    let all = semaphore.acquire_many(2).unwrap();
    let waiters = [1, 1, 2].map(|permits| {
        let (before, semaphore) = (waiting(&server), semaphore.clone());
        let waiter = Underway::start(move || semaphore.acquire_many(permits)?.release());
        eventually(SOON, || waiting(&server) > before);
        waiter
    });
    delete(&server, "{s}:queue");
    delete(&server, "{s}:waiters");
    assert!(waiters.iter().all(|waiter| !waiter.is_done()));
    all.release().unwrap();
    waiters.into_iter().for_each(|waiter| waiter.result().unwrap());
    nothing_is_left(&server);
}
