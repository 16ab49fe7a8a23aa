//! Threads that end while they hold: what they held is released, and nobody waits for them.

use std::cell::RefCell;
use std::sync::mpsc;
use std::thread;

use distlock::RedisLock;
use log::Level;

use crate::helpers::{SOON, Underway, client, error, memory, ms};
use crate::logs;
use crate::support::{Server, eventually, within};

/// A thread locks, and ends without an unlock.
fn dies_holding(lock: &RedisLock, how: impl FnOnce() + Send + 'static) {
    let lock = lock.clone();
    let _ = thread::spawn(move || {
        lock.lock().unwrap();
        lock.lock().unwrap();
        how();
    })
    .join();
}

#[test]
fn what_a_thread_held_at_its_end_is_released_at_once_and_logged() {
    logs::keep();
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let ends: [(&str, fn()); 2] =
        [("holds-ended", || ()), ("holds-panicked", || panic!("planned"))];
    for (name, how) in ends {
        let lock = mine.lock(name);
        let told = mpsc::channel();
        lock.on_lost(move |_| told.0.send(()).unwrap());
        dies_holding(&lock, how);
        // The lease is thirty seconds long.
        within(..ms(5000), || assert!(other.lock(name).try_lock(SOON).unwrap()));
        assert!(!lock.is_held() && error(lock.unlock()).is_not_held());
        assert_eq!(
            logs::lines(Level::Warn, &[name, "a thread ended while it held the lock"]).len(),
            1
        );
        assert!(told.1.try_recv().is_err(), "released, not lost");
        drop(lock);
    }
    eventually(SOON, || mine.remembered() == (0, 0));
}

#[test]
fn the_next_local_thread_does_not_wait_for_a_dead_one() {
    let client = memory();
    let lock = client.lock("job");
    let (go, wait) = mpsc::channel::<()>();
    let (held, holds) = mpsc::channel();
    let dying = {
        let lock = lock.clone();
        thread::spawn(move || {
            lock.lock().unwrap();
            held.send(()).unwrap();
            wait.recv().unwrap();
        })
    };
    holds.recv().unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let lock = lock.clone();
            Underway::behind(&client, "job", move || lock.lock().and_then(|()| lock.unlock()))
        })
        .collect();
    go.send(()).unwrap();
    dying.join().unwrap();
    waiters.into_iter().for_each(|waiter| waiter.result().unwrap());
}

#[test]
fn scoped_threads_leave_nothing_behind() {
    let client = memory();
    let lock = client.lock("job");
    thread::scope(|scope| {
        scope.spawn(|| lock.lock().unwrap());
    });
    within(..ms(5000), || lock.lock().unwrap());
    thread::scope(|scope| {
        let other = scope.spawn(|| lock.try_lock(ms(20)));
        assert!(!other.join().unwrap().unwrap());
    });
    lock.unlock().unwrap();
    drop(lock);
    eventually(SOON, || client.remembered() == (0, 0));
}

#[test]
fn many_threads_that_die_holding_leak_no_holds() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("job");
    for _ in 0..30 {
        dies_holding(&lock, || ());
    }
    within(..SOON, || assert!(lock.try_lock(SOON).unwrap()));
    lock.unlock().unwrap();
    drop(lock);
    eventually(SOON, || client.remembered() == (0, 0) && crate::helpers::keys(&server).is_empty());
}

#[test]
fn a_thread_that_is_ending_cannot_lock_and_leaves_nothing_held() {
    struct LocksWhenDropped(RefCell<Option<(RedisLock, mpsc::Sender<bool>)>>);
    impl Drop for LocksWhenDropped {
        fn drop(&mut self) {
            let (lock, told) = self.0.take().unwrap();
            // The job does not run, so the lock is not kept.
            let ran = lock.run_once(SOON * 60, |_| ());
            told.send(matches!(&ran, Err(error) if error.is_unsupported())).unwrap();
            let result = lock.try_lock(ms(500));
            told.send(matches!(&result, Err(error) if error.is_unsupported()) || result.is_ok())
                .unwrap();
            // Whatever it was told, unlock, so that nothing stays.
            let _ = lock.unlock();
        }
    }
    thread_local! {
        static LATE: LocksWhenDropped = const { LocksWhenDropped(RefCell::new(None)) };
    }
    let client = memory();
    let (told, said) = mpsc::channel();
    let lock = client.lock("job");
    let for_thread = lock.clone();
    thread::spawn(move || {
        // Registered before this crate's own thread-local, so destroyed after it.
        LATE.with(|late| *late.0.borrow_mut() = Some((for_thread.clone(), told)));
        for_thread.with(|_| ()).unwrap();
    })
    .join()
    .unwrap();
    assert!(said.recv_timeout(SOON).unwrap() && said.recv_timeout(SOON).unwrap());
    within(..ms(5000), || assert!(lock.try_lock(SOON).unwrap()));
    lock.unlock().unwrap();
    drop(lock);
    eventually(SOON, || client.remembered() == (0, 0));
}
