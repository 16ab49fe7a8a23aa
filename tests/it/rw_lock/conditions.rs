//! Conditions of the write side: who may use them, and what readers do meanwhile.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::{Client, Condition, Interrupt, LockOptions, RwLock};

use super::{Elsewhere, may_read, may_write, waiting, waits};
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
fn notifications_wake_writers_in_the_order_of_waiting_once_the_notifier_has_unlocked() {
    everywhere(|clients, [rw, theirs]| {
        let (say, hear) = mpsc::channel();
        let waiters: Vec<_> = (0..4)
            .map(|number| {
                let say = say.clone();
                let waiter = waits_in(&rw, number + 1, move |condition| {
                    condition.wait().unwrap();
                    say.send(number).unwrap();
                });
                eventually(SOON, || listens(&clients[0]));
                waiter
            })
            .collect();
        for (notify, woken) in [
            (Condition::notify_one as fn(&Condition) -> _, &[0][..]),
            (Condition::notify_all, &[1, 2, 3]),
        ] {
            let writing = theirs.write().unwrap();
            notify(&condition(&theirs)).unwrap();
            assert!(hear.recv_timeout(ms(50)).is_err(), "the notifier still writes");
            writing.release().unwrap();
            let order: Vec<_> = woken.iter().map(|_| hear.recv_timeout(SOON).unwrap()).collect();
            assert_eq!(order, woken);
        }
        waiters.into_iter().for_each(Underway::result);
        assert!(may_write(&rw));
    });
}

/// Whether this client's inbox is open: those that listen are notified first. In memory there is
/// none.
fn listens(client: &Client) -> bool {
    let channels = client.execute(|connection| {
        redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg("distlock:inbox:*")
            .query::<Vec<String>>(connection)
    });
    channels.map_or_else(|error| error.is_unsupported(), |channels| !channels.is_empty())
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
