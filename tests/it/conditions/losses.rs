//! What becomes of waits and notifications when the lease, the waiter, its client or the server's
//! data is lost.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::{Client, ErrorKind, Lock, LockOptions, Retry};

use super::{A_WHILE, SOON, everywhere, lock_and_condition, waiting};
use crate::helpers::{Underway, delete, ms};
use crate::support::{Proxy, Server, eventually, within};

#[test]
fn a_lost_lease_neither_waits_nor_notifies() {
    everywhere(|open| {
        let woken = waiting(open(), |condition| condition.wait_timeout(A_WHILE * 2));
        let (lock, condition) = lock_and_condition(&open());
        lock.lock().unwrap();
        lock_and_condition(&open()).0.force_unlock().unwrap();
        assert!(condition.notify_one().unwrap_err().is_lost());
        assert!(condition.wait().unwrap_err().is_lost());
        assert!(lock.unlock().unwrap_err().is_lost());
        assert!(
            !woken.recv_timeout(SOON).unwrap().unwrap(),
            "who does not own the lock notifies nobody"
        );
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
        assert_eq!(hear.recv_timeout(SOON).unwrap(), (Err(ErrorKind::Unavailable), false));
        lock.unlock().unwrap();
    });
}

#[test]
fn waiters_wake_spuriously_when_their_server_has_lost_its_data() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let woken = waiting(client, |condition| condition.wait());
    server.kill();
    server.restart();
    // At the latest with the next sign of life; in fact as soon as the inbox is open again.
    within(..SOON, || woken.recv_timeout(SOON).unwrap().unwrap());
}

#[test]
fn a_client_closed_during_a_hand_off_to_it_leaves_its_notification_to_another() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let doomed = Client::open(&proxy.url()).unwrap();
    let _ended = waiting(doomed.clone(), |condition| {
        condition.wait_timeout(SOON).map_err(|error| error.kind())
    });
    let alive = waiting(Client::open(&server.url()).unwrap(), |condition| condition.wait());
    let (lock, condition) = lock_and_condition(&Client::open(&server.url()).unwrap());
    // It is handed the lock. When it is closed, neither the hand-off nor the hint has reached it.
    proxy.set_delay(Duration::ZERO, Duration::from_millis(400));
    let guard = lock.guard().unwrap();
    condition.notify_one().unwrap();
    guard.release().unwrap();
    doomed.close(SOON).unwrap();
    within(..Duration::from_secs(3), || alive.recv_timeout(SOON).unwrap().unwrap());
}

#[test]
fn a_notified_waiter_that_finds_the_lock_free_gets_it_however_long_its_pauses_are() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let patient = LockOptions::new().retry(Retry::fixed(Duration::from_secs(15)));
    let lock = Client::open(&proxy.url()).unwrap().lock_with("a", patient).unwrap();
    let waiter = Underway::start(move || {
        lock.lock().unwrap();
        lock.new_condition("c").unwrap().wait().unwrap();
        lock.unlock()
    });
    let in_line = || redis::cmd("ZCARD").arg("{a}:condition:c:queue").clone();
    eventually(SOON, || in_line().query::<u64>(&mut server.connection()).unwrap() == 1);
    let lock = Client::open(&server.url()).unwrap().lock("a");
    lock.lock().unwrap();
    // It asks when the hint has reached it. By then the notifier's lease is gone: nobody hands the
    // lock over, and there is no holder whose lease could run out.
    proxy.set_delay(Duration::ZERO, ms(200));
    lock.new_condition("c").unwrap().notify_one().unwrap();
    delete(&server, "a");
    within(ms(200).., || waiter.result_within(ms(3000))).unwrap();
    assert!(lock.unlock().unwrap_err().is_lost());
}
