//! What becomes of waits and notifications when the lease, the waiter, its client or the server's
//! data is lost.

use std::sync::mpsc;
use std::thread;

use distlock::{Client, ErrorKind, Interrupt, LockOptions, Retry};

use super::{SOON, everywhere, lock_and_condition, waiting, waiting_until, was_not_notified};
use crate::faults::through_proxy;
use crate::helpers::{Underway, client, delete};
use crate::support::{Fault, Rule, Server, eventually};

#[test]
fn a_lost_lease_neither_waits_nor_notifies() {
    everywhere(|open| {
        let interrupt = Interrupt::new();
        let woken = waiting_until(&interrupt, open());
        let (lock, condition) = lock_and_condition(&open());
        lock.lock().unwrap();
        lock_and_condition(&open()).0.force_unlock().unwrap();
        assert!(condition.notify_one().unwrap_err().is_lost());
        assert!(condition.wait().unwrap_err().is_lost());
        assert!(lock.unlock().unwrap_err().is_lost());
        was_not_notified(&woken, &interrupt);
    });
}

#[test]
fn a_dead_waiter_passes_its_notification_on() {
    everywhere(|open| {
        let doomed = open();
        let dead = waiting(doomed.clone(), |condition| {
            condition.wait_timeout(SOON).map_err(|error| error.kind())
        });
        let alive = waiting(open(), |condition| condition.wait());
        let client = open();
        let (lock, condition) = lock_and_condition(&client);
        let guard = lock.guard().unwrap();
        condition.notify_one().unwrap();
        // It is notified, and gone before the lock is handed to it: to the server its process has
        // ended.
        let gone = thread::spawn(move || doomed.close(SOON));
        gone.join().unwrap().unwrap();
        drop(dead);
        guard.release().unwrap();
        alive.recv_timeout(SOON).unwrap().unwrap();
    });
}

#[test]
fn a_closed_client_ends_its_waits() {
    everywhere(|open| {
        let client = open();
        let (say, hear) = mpsc::channel();
        let (locked, is_locked) = mpsc::channel();
        let waiter = client.clone();
        thread::spawn(move || {
            let (lock, condition) = lock_and_condition(&waiter);
            lock.lock().unwrap();
            locked.send(()).unwrap();
            say.send((condition.wait().map_err(|error| error.kind()), lock.is_held())).unwrap();
        });
        is_locked.recv_timeout(SOON).unwrap();
        let (lock, _) = lock_and_condition(&open());
        lock.lock().unwrap();
        client.close(SOON).unwrap();
        assert_eq!(hear.recv_timeout(SOON).unwrap(), (Err(ErrorKind::Closed), false));
        lock.unlock().unwrap();
    });
}

#[test]
fn waiters_wake_spuriously_when_their_server_has_lost_its_data() {
    let server = Server::start();
    let woken = waiting(client(&server), |condition| condition.wait());
    server.kill();
    server.restart();
    // At the latest with the next sign of life; in fact as soon as the inbox is open again.
    woken.recv_timeout(SOON).unwrap().unwrap();
}

#[test]
fn a_notified_waiter_that_finds_the_lock_free_gets_it_however_long_its_pauses_are() {
    let (server, proxy) = through_proxy();
    let patient = LockOptions::new().retry(Retry::fixed(SOON * 6));
    let lock = Client::open(&proxy.url()).unwrap().lock_with("a", patient).unwrap();
    let waiter = Underway::start(move || {
        lock.lock().unwrap();
        let condition = lock.new_condition("c").unwrap();
        // The first wait opens the inbox, and then asks once more.
        condition.wait().unwrap();
        condition.wait().unwrap();
        lock.unlock()
    });
    let in_line = redis::cmd("ZCARD").arg("{a}:conditions").clone();
    let somebody_waits = || in_line.query::<u64>(&mut server.connection()).unwrap() == 1;
    eventually(SOON, somebody_waits);
    let lock = client(&server).lock("a");
    lock.with(|_| lock.new_condition("c").unwrap().notify_one()).unwrap().unwrap();
    eventually(SOON, somebody_waits);
    lock.lock().unwrap();
    // It asks when the hint has reached it. By then the notifier's lease is gone: nobody hands the
    // lock over, and there is no holder whose lease could run out.
    let hint = proxy.add(Rule::on("message", Fault::HoldReply).next(1));
    lock.new_condition("c").unwrap().notify_one().unwrap();
    let hint = hint.wait_held(SOON);
    delete(&server, "a");
    hint.release();
    waiter.result().unwrap();
    assert!(lock.unlock().unwrap_err().is_lost());
}
