//! Conditions of the write side: who may use them, and what readers do meanwhile.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::{Client, Condition, Interrupt, LockOptions, RwLock};

use super::{Elsewhere, at_rest, may_read, may_write, waiting, waits};
use crate::helpers::{SOON, Underway, client, error, inboxes, ms};
use crate::support::{Server, eventually, within};

const A_WHILE: Duration = ms(150);

/// Runs a statement over both stores that have conditions, with the lock as two clients have it.
fn everywhere(statement: impl Fn([Client; 2], [RwLock; 2])) {
    let server = Server::start();
    let named = format!("memory://rw-conditions-{:?}", thread::current().id());
    for url in [named, server.url()] {
        let clients = [(); 2].map(|()| Client::open(&url).unwrap());
        let fenced = LockOptions::new().fenced();
        let locks = clients.each_ref().map(|c| c.rw_lock_with("rw", fenced.clone()).unwrap());
        statement(clients, locks);
    }
}

fn condition(rw: &RwLock) -> Condition {
    rw.write_lock().new_condition("c").unwrap()
}

/// A thread that writes, with so many holds, and waits in the condition. Returns once it waits.
fn waits_in<T: Send + 'static>(
    rw: &RwLock,
    holds: u32,
    wait: impl FnOnce(&Condition) -> T + Send + 'static,
) -> Underway<T> {
    let (say, writes) = mpsc::channel();
    let waiter = Underway::start({
        let rw = rw.clone();
        move || {
            let write = rw.write_lock();
            (0..holds).for_each(|_| write.lock().unwrap());
            let fence = write.fence();
            say.send(()).unwrap();
            let ended = wait(&condition(&rw));
            assert!(write.is_valid() && write.hold_count() == holds, "whatever ended it");
            assert!(write.fence() > fence);
            (0..holds).for_each(|_| write.unlock().unwrap());
            ended
        }
    });
    writes.recv_timeout(SOON).unwrap();
    // To enter and to release are one step.
    eventually(SOON, || may_write(rw));
    waiter
}

#[test]
fn whoever_does_not_write_neither_waits_nor_notifies_though_it_reads() {
    everywhere(|_, [rw, _]| {
        let condition = condition(&rw);
        let refused = || {
            let interrupt = Interrupt::new();
            let refused = [
                condition.wait(),
                condition.wait_timeout(SOON).map(drop),
                condition.wait_interruptibly(&interrupt),
                condition.notify_one(),
                condition.notify_all(),
            ];
            assert!(refused.into_iter().all(|refused| error(refused).is_not_held()));
        };
        refused();
        let reading = rw.read().unwrap();
        refused();
        assert!(reading.is_valid() && rw.readers().unwrap() == 1);
        reading.release().unwrap();
        let reading = rw.downgrade(rw.write().unwrap()).unwrap();
        refused();
        reading.release().unwrap();
    });
}

#[test]
fn while_a_writer_waits_others_read_and_it_writes_again_once_they_have_gone() {
    everywhere(|_, [rw, theirs]| {
        let interrupt = Interrupt::new();
        let waiter = waits_in(&rw, 1, {
            let interrupt = interrupt.clone();
            move |condition| condition.wait_interruptibly(&interrupt)
        });
        let (reading, there) = (rw.read().unwrap(), Elsewhere::holds(theirs.read_lock()));
        interrupt.interrupt();
        // It is a writer that waits: nobody overtakes it.
        eventually(SOON, || !may_read(&theirs));
        assert!(!waiter.is_done() && reading.is_valid());
        reading.release().unwrap();
        assert!(!waiter.is_done() && theirs.readers().unwrap() == 1);
        there.unlock().unwrap();
        assert!(error(waiter.result()).is_interrupted());
        assert!(may_write(&theirs));
    });
}

#[test]
fn a_wait_whose_time_is_over_holds_as_often_as_before() {
    everywhere(|_, [rw, theirs]| {
        let waiter = waits_in(&rw, 3, |condition| {
            within(A_WHILE..SOON, || condition.wait_timeout(A_WHILE).unwrap())
        });
        assert!(!waiter.result(), "nobody has notified it");
        // With as many holds nobody else gets in before the last one ends.
        (0..2).for_each(|_| rw.write_lock().lock().unwrap());
        assert!(!condition(&rw).wait_timeout(ms(1)).unwrap());
        assert!(!may_read(&rw) && !may_read(&theirs));
        rw.write_lock().unlock().unwrap();
        assert!(!may_read(&rw) && !may_read(&theirs));
        rw.write_lock().unlock().unwrap();
        assert!(may_write(&rw) && may_write(&theirs));
    });
}

#[test]
fn readers_overtake_a_writer_that_comes_back_from_a_condition_as_often_as_they_may_join() {
    let server = Server::start();
    let options = LockOptions::new().fenced().local_hand_offs(3);
    let rw = at_rest(&server.url()).rw_lock_with("rw", options).unwrap();
    let interrupt = Interrupt::new();
    let waiter = waits_in(&rw, 1, {
        let interrupt = interrupt.clone();
        move |condition| condition.wait_interruptibly(&interrupt)
    });
    let reading = rw.read().unwrap();
    interrupt.interrupt();
    eventually(SOON, || waiting(&server) == 1);
    assert!(!may_read(&client(&server).rw_lock("rw")));
    assert_eq!((0..10).filter(|_| may_read(&rw)).count(), 3);
    assert!(!waiter.is_done());
    reading.release().unwrap();
    assert!(error(waiter.result()).is_interrupted());
}

#[test]
fn a_notified_writer_comes_after_the_readers_that_already_wait() {
    let server = Server::start();
    let [rw, other, third] =
        [(); 3].map(|()| client(&server).rw_lock_with("rw", LockOptions::new().fenced()).unwrap());
    let waiter = waits_in(&rw, 1, |condition| condition.wait().unwrap());
    eventually(SOON, || inboxes(&server) == 1);
    let writing = other.write().unwrap();
    let reader = waits(&server, third.read_lock());
    condition(&other).notify_one().unwrap();
    writing.release().unwrap();
    reader.has_it();
    // It waits in the queue, and is no longer in the condition.
    eventually(SOON, || waiting(&server) == 1);
    assert!(!waiter.is_done() && !may_read(&other));
    reader.unlock().unwrap();
    waiter.result();
    assert!(may_write(&other));
}

#[test]
fn after_a_wait_a_writer_may_go_on_as_a_reader_and_lets_others_read() {
    everywhere(|clients, [rw, theirs]| {
        let writing = rw.write().unwrap();
        assert!(!condition(&rw).wait_timeout(ms(1)).unwrap());
        let readers = [&rw, &theirs].map(|rw| Elsewhere::locks(rw.read_lock()));
        eventually(SOON, || clients[0].waiting_at_rw_lock("rw") == 1);
        let fence = writing.fence();
        let reading = rw.downgrade(writing).unwrap();
        readers.iter().for_each(Elsewhere::has_it);
        assert!(reading.is_valid() && reading.fence() == fence && !may_write(&theirs));
        reading.release().unwrap();
        readers.into_iter().for_each(|reader| reader.unlock().unwrap());
        assert!(may_write(&rw) && may_write(&theirs));
    });
}
