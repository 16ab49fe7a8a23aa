//! Who gets a lock next: readers and writers of many processes, in the order in which they came.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::SystemTime;

use distlock::{Interrupt, LockOptions, Retry, RwLock};

use super::{Elsewhere, at_rest, may_read, may_write, waiting, waits};
use crate::faults::nothing_is_left;
use crate::helpers::{SOON, Underway, client, error, lease, ms};
use crate::support::{Server, eventually};

/// The lock as another process has it, which does not ask again until it is woken.
fn patient(server: &Server) -> RwLock {
    let options = lease(SOON * 60).retry(Retry::fixed(SOON * 6));
    client(server).rw_lock_with("rw", options).unwrap()
}

#[test]
fn readers_come_in_up_to_the_next_writer_and_each_writer_alone() {
    let server = Server::start();
    let (rw, [one, two, three]) = (patient(&server), [(); 3].map(|()| patient(&server)));
    let [writer, other_writer, last] = [(); 3].map(|()| patient(&server));
    let held = rw.write().unwrap();
    let first = [waits(&server, one.read_lock()), waits(&server, two.read_lock())];
    let writing = waits(&server, writer.write_lock());
    let reading = waits(&server, three.read_lock());
    // A claim waits in the same queue.
    let claiming = Underway::start(move || other_writer.write_lock().claim().unwrap());
    eventually(SOON, || waiting(&server) == 5);
    let at_last = waits(&server, last.read_lock());
    // The server's answer is from the release itself.
    let inside = || (rw.readers().unwrap(), rw.write_lock().is_locked().unwrap(), waiting(&server));
    assert_eq!(inside(), (0, true, 6));
    held.release().unwrap();
    assert_eq!(inside(), (2, false, 4));
    let [first, second] = first;
    first.has_it();
    second.has_it();
    first.unlock().unwrap();
    assert_eq!(inside(), (1, false, 4));
    second.unlock().unwrap();
    assert_eq!(inside(), (0, true, 3));
    writing.has_it();
    writing.unlock().unwrap();
    assert_eq!(inside(), (1, false, 2));
    reading.has_it();
    reading.unlock().unwrap();
    let claim = claiming.result();
    assert_eq!(inside(), (0, true, 1));
    claim.release().unwrap();
    at_last.has_it();
    assert_eq!(inside(), (1, false, 0));
    at_last.unlock().unwrap();
    nothing_is_left(&server);
}

#[test]
fn a_writer_that_gives_up_lets_in_the_readers_behind_it() {
    let server = Server::start();
    let first = patient(&server);
    let reading = first.read().unwrap();
    for here in [false, true] {
        let mine = client(&server);
        let rw = mine.rw_lock("rw");
        let interrupt = Interrupt::new();
        let writer = Underway::start({
            let (rw, interrupt) = (rw.clone(), interrupt.clone());
            move || rw.write_lock().lock_interruptibly(&interrupt)
        });
        eventually(SOON, || waiting(&server) == 1);
        let mut behind = vec![waits(&server, patient(&server).read_lock())];
        if here {
            // A thread of its own process, which takes the turn from it.
            behind.push(Elsewhere::locks(rw.read_lock()));
            eventually(SOON, || mine.waiting_at_rw_lock("rw") == 1);
        }
        interrupt.interrupt();
        assert!(error(writer.result()).is_interrupted());
        behind.iter().for_each(Elsewhere::has_it);
        assert!(reading.is_valid() && waiting(&server) == 0);
        assert_eq!(first.readers().unwrap() as usize, 1 + behind.len());
        behind.into_iter().for_each(|reader| reader.unlock().unwrap());
    }
    reading.release().unwrap();
    assert!(may_write(&first));
    nothing_is_left(&server);
}

#[test]
fn a_reader_that_gives_up_keeps_neither_readers_nor_writers_waiting() {
    let server = Server::start();
    let operator = patient(&server);
    let held = operator.write().unwrap();
    // Their processes live on, and listen.
    let impatient = [(); 2].map(|()| (patient(&server), Interrupt::new()));
    let gives_up = |(rw, interrupt): &(RwLock, Interrupt)| {
        let (rw, interrupt) = (rw.clone(), interrupt.clone());
        let before = waiting(&server);
        let reader = Underway::start(move || rw.read_lock().lock_interruptibly(&interrupt));
        eventually(SOON, || waiting(&server) > before);
        reader
    };
    let in_front = gives_up(&impatient[0]);
    let reader = waits(&server, patient(&server).read_lock());
    let in_between = gives_up(&impatient[1]);
    let writer = waits(&server, patient(&server).write_lock());
    impatient.iter().for_each(|(_, interrupt)| interrupt.interrupt());
    assert!(error(in_front.result()).is_interrupted());
    assert!(error(in_between.result()).is_interrupted());
    eventually(SOON, || waiting(&server) == 2);
    held.release().unwrap();
    // Nobody has it who does not want it any more.
    assert_eq!((operator.readers().unwrap(), waiting(&server)), (1, 1));
    reader.has_it();
    reader.unlock().unwrap();
    writer.has_it();
    writer.unlock().unwrap();
    nothing_is_left(&server);
}

#[test]
fn readers_of_many_processes_that_never_pause_do_not_keep_a_writer_out() {
    const READERS: u32 = 4;
    let server = Server::start();
    let [first, writes] = [(); 2].map(|()| client(&server).rw_lock("rw"));
    // The readers go on until the test is over, passed or failed.
    let (begun, goes_on) = (Arc::new(AtomicU32::new(0)), Arc::new(()));
    let readers = [(); READERS as usize].map(|()| {
        let rw = client(&server).rw_lock("rw");
        let (begun, goes_on) = (Arc::clone(&begun), Arc::downgrade(&goes_on));
        Underway::start(move || {
            while goes_on.strong_count() > 0 {
                let reading = rw.read().unwrap();
                begun.fetch_add(1, Ordering::SeqCst);
                thread::sleep(ms(2));
                reading.release().unwrap();
            }
        })
    });
    for _ in 0..3 {
        // Somebody reads, so that the writer has to wait.
        let held = Elsewhere::holds(first.read_lock());
        let writer = waits(&server, writes.write_lock());
        let seen = begun.load(Ordering::SeqCst);
        // Each ends its turn, and then waits behind the writer.
        eventually(SOON, || waiting(&server) == 1 + READERS as usize);
        assert_eq!(first.readers().unwrap(), 1);
        // Those that had the lock before may not have counted it yet.
        let overtook = begun.load(Ordering::SeqCst) - seen;
        assert!(overtook <= READERS, "{overtook} began to read after the writer");
        held.unlock().unwrap();
        writer.has_it();
        writer.unlock().unwrap();
    }
    drop(goes_on);
    readers.into_iter().for_each(Underway::result);
    nothing_is_left(&server);
}

#[test]
fn all_threads_that_wait_behind_a_writer_read_at_once_however_few_share_a_lease() {
    let server = Server::start();
    let (mine, other) = (at_rest(&server.url()), patient(&server));
    let options = LockOptions::new().local_hand_offs(4);
    let rw = mine.rw_lock_with("rw", options).unwrap();
    let held = other.write().unwrap();
    let first = waits(&server, rw.read_lock());
    let mut readers: Vec<_> = (1..12).map(|_| Elsewhere::locks(rw.read_lock())).collect();
    eventually(SOON, || mine.waiting_at_rw_lock("rw") == 11);
    readers.push(first);
    readers.extend([(); 2].map(|()| waits(&server, patient(&server).read_lock())));
    held.release().unwrap();
    readers.iter().for_each(Elsewhere::has_it);
    // One asks, and four read with it.
    assert_eq!(other.readers().unwrap(), 3 + 2);
    assert!(!may_write(&other) && !may_write(&rw));
    for reader in readers {
        reader.unlock().unwrap();
    }
    assert!(may_write(&other));
    nothing_is_left(&server);
}

#[test]
fn a_forced_unlock_lets_in_whoever_waits_for_either_side() {
    let server = Server::start();
    let (mine, operator) = (patient(&server), client(&server).rw_lock("rw"));
    let sides: [fn(&RwLock) -> &distlock::RedisLock; 2] = [RwLock::read_lock, RwLock::write_lock];
    let [read, write] = sides;
    for (held, wanted) in [(write, read), (write, write), (read, write)] {
        let guard = held(&mine).guard().unwrap();
        let other = patient(&server);
        let waiter = waits(&server, wanted(&other));
        assert!(held(&operator).force_unlock().unwrap());
        waiter.has_it();
        assert!(error(guard.release()).is_lost());
        assert!(wanted(&operator).is_locked().unwrap());
        waiter.unlock().unwrap();
    }
    nothing_is_left(&server);
}

#[test]
fn when_a_dead_writers_lease_has_ended_all_readers_that_wait_come_in_before_the_next_writer() {
    let server = Server::start();
    let mut connection = server.connection();
    let mut writer_until = |end: SystemTime| {
        let end = end.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis().to_string();
        redis::cmd("ZADD").arg("rw").arg(&[&*end, "w:aa-bb@x"]).exec(&mut connection).unwrap();
    };
    writer_until(SystemTime::now() + SOON * 60);
    let others = [(); 4].map(|()| client(&server).rw_lock("rw"));
    let [one, two, three, four] = &others;
    let readers = [waits(&server, one.read_lock()), waits(&server, two.read_lock())];
    let writer = waits(&server, three.write_lock());
    let behind = waits(&server, four.read_lock());
    assert!(!readers.iter().any(Elsewhere::has_locked) && one.write_lock().is_locked().unwrap());
    // Nobody tells them. The first that asks again serves all.
    writer_until(SystemTime::now());
    readers.iter().for_each(Elsewhere::has_it);
    assert!(!writer.has_locked() && !behind.has_locked());
    assert!(!may_read(&client(&server).rw_lock("rw")));
    for reader in readers {
        reader.unlock().unwrap();
    }
    writer.has_it();
    writer.unlock().unwrap();
    behind.unlock().unwrap();
    nothing_is_left(&server);
}
