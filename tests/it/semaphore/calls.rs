//! The calls that acquire: each waits for what others release, and ends when it has to.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use distlock::Interrupt;

use super::{Wait, waiting, waits};
use crate::faults::nothing_is_left;
use crate::helpers::{SOON, Underway, client, error};
use crate::support::{Server, eventually};

/// Longer than any wait of these tests.
const LONG: Duration = Duration::from_secs(60);

/// The calls that no interrupt ends, and how many permits each acquires.
const PLAIN: [(u32, Wait); 4] = [
    (1, |semaphore, _| semaphore.acquire().map(Some)),
    (3, |semaphore, _| semaphore.acquire_many(3).map(Some)),
    (1, |semaphore, _| semaphore.try_acquire(LONG)),
    (3, |semaphore, _| semaphore.try_acquire_many(3, LONG)),
];

/// The calls that an interrupt ends, and how many permits each acquires.
const INTERRUPTIBLE: [(u32, Wait); 4] = [
    (1, |semaphore, interrupt| semaphore.acquire_interruptibly(interrupt).map(Some)),
    (3, |semaphore, interrupt| semaphore.acquire_many_interruptibly(3, interrupt).map(Some)),
    (1, |semaphore, interrupt| semaphore.try_acquire_interruptibly(LONG, interrupt)),
    (3, |semaphore, interrupt| semaphore.try_acquire_many_interruptibly(3, LONG, interrupt)),
];

#[test]
fn every_call_that_waits_gets_what_another_thread_releases() {
    let server = Server::start();
    let semaphore = client(&server).semaphore("s", 4);
    let interrupt = Interrupt::new();
    for (permits, call) in PLAIN.into_iter().chain(INTERRUPTIBLE) {
        let all = semaphore.acquire_many(4).unwrap();
        let waiter = Underway::start({
            let (semaphore, interrupt) = (semaphore.clone(), interrupt.clone());
            move || call(&semaphore, &interrupt).unwrap().unwrap()
        });
        eventually(SOON, || waiting(&server) == 1);
        assert!(!waiter.is_done());
        all.release().unwrap();
        let permit = waiter.result();
        assert_eq!((permit.permits(), semaphore.available().unwrap()), (permits, 4 - permits));
        permit.release().unwrap();
        // What is free is had at once.
        let permit = call(&semaphore, &interrupt).unwrap().unwrap();
        assert_eq!((permit.permits(), semaphore.available().unwrap()), (permits, 4 - permits));
        permit.release().unwrap();
    }
}

#[test]
fn an_interrupt_ends_its_calls_before_they_take_anything_and_while_they_wait() {
    let server = Server::start();
    let semaphore = client(&server).semaphore("s", 4);
    let (interrupt, another) = (Interrupt::new(), Interrupt::new());
    interrupt.interrupt();
    for (_, call) in INTERRUPTIBLE {
        assert!(error(call(&semaphore, &interrupt)).is_interrupted());
        assert_eq!(semaphore.available().unwrap(), 4);
    }
    let all = semaphore.acquire_many(4).unwrap();
    let start = |call: Wait, interrupt: &Interrupt| {
        let before = waiting(&server);
        let (semaphore, interrupt) = (semaphore.clone(), interrupt.clone());
        let waiter = Underway::start(move || call(&semaphore, &interrupt));
        eventually(SOON, || waiting(&server) > before);
        waiter
    };
    interrupt.reset();
    let interrupted = INTERRUPTIBLE.map(|(_, call)| start(call, &interrupt));
    // Those without this interrupt go on, wherever they wait.
    let others = [PLAIN[0], INTERRUPTIBLE[1]].map(|(_, call)| start(call, &another));
    interrupt.interrupt();
    for waiter in interrupted {
        assert!(error(waiter.result()).is_interrupted());
    }
    eventually(SOON, || waiting(&server) == 2);
    assert!(others.iter().all(|waiter| !waiter.is_done()));
    all.release().unwrap();
    let permits = others.map(|waiter| waiter.result().unwrap().unwrap());
    assert_eq!(semaphore.available().unwrap(), 0);
    drop(permits);
    nothing_is_left(&server);
}

#[test]
fn calls_with_almost_no_time_get_what_is_free_and_lose_none_of_it() {
    let server = Server::start();
    let semaphores = [client(&server), client(&server)].map(|client| client.semaphore("s", 2));
    let all = semaphores[0].acquire_many(2).unwrap();
    let (tries, taken) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for number in 0..4 {
            let (semaphore, tries, taken) = (&semaphores[number % 2], &tries, &taken);
            scope.spawn(move || {
                for _ in 0..10 {
                    let mut permit = None;
                    eventually(SOON, || {
                        tries.fetch_add(1, Ordering::SeqCst);
                        permit = semaphore.try_acquire(Duration::from_micros(1)).unwrap();
                        permit.is_some()
                    });
                    assert!(taken.fetch_add(1, Ordering::SeqCst) < 2);
                    thread::yield_now();
                    taken.fetch_sub(1, Ordering::SeqCst);
                    permit.unwrap().release().unwrap();
                }
            });
        }
        eventually(SOON, || tries.load(Ordering::SeqCst) > 40);
        all.release().unwrap();
    });
    let [mine, theirs] = semaphores.each_ref().map(|semaphore| semaphore.available().unwrap());
    assert_eq!((mine, theirs), (2, 2));
    // A waiter comes in as ever.
    let all = semaphores[0].acquire_many(2).unwrap();
    let waiter = waits(&server, &semaphores[1], 2);
    all.release().unwrap();
    waiter.result().release().unwrap();
    nothing_is_left(&server);
}

#[test]
fn long_names_and_names_that_differ_by_case_are_semaphores_of_their_own() {
    let server = Server::start();
    let client = client(&server);
    let long = format!("Größe {} of many!", "o".repeat(1000));
    let semaphore = client.semaphore(&long, u32::MAX);
    let permits: Vec<_> = (0..100).map(|_| semaphore.acquire().unwrap()).collect();
    assert_eq!(semaphore.available().unwrap(), u32::MAX - 100);
    assert_eq!(semaphore.holders().unwrap().len(), 100);
    let [upper, lower] = ["S", "s"].map(|name| client.semaphore(name, 1));
    let others = [upper.acquire().unwrap(), lower.acquire().unwrap()];
    assert_eq!((upper.available().unwrap(), lower.available().unwrap()), (0, 0));
    drop((permits, others));
    assert_eq!(semaphore.available().unwrap(), u32::MAX);
    nothing_is_left(&server);
}
