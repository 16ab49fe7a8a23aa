//! What a thread may lock again, and that its holds are its own.
//!
//! The order in which it locks and unlocks both sides is in `contract/rw_locks.rs`.

use std::time::Duration;

use distlock::{Client, ErrorKind, Renewal};

use super::{Elsewhere, at_rest, may_write, waits};
use crate::faults::{nothing_is_left, through_proxy};
use crate::helpers::{SOON, Underway, client, error, lease, memory, ms, on_another_thread};
use crate::support::{Server, eventually};

#[test]
fn whoever_waits_a_thread_locks_again_what_it_holds_at_no_cost() {
    let (server, proxy) = through_proxy();
    let mine = Client::open(&proxy.url()).unwrap();
    let rw = mine.rw_lock("rw");
    let (other, third) = (client(&server).rw_lock("rw"), client(&server).rw_lock("rw"));
    // In this process, and in others.
    let crowd = || {
        let here = [rw.read_lock(), rw.write_lock()].map(Elsewhere::locks);
        eventually(SOON, || mine.waiting_at_rw_lock("rw") == 2);
        let there = [waits(&server, other.write_lock()), waits(&server, third.read_lock())];
        here.into_iter().chain(there).collect::<Vec<_>>()
    };
    let writing = rw.write().unwrap();
    let waiters = crowd();
    let before = proxy.requests();
    for side in [rw.read_lock(), rw.write_lock(), rw.read_lock()] {
        assert!(side.try_lock(Duration::ZERO).unwrap());
        side.lock().unwrap();
        assert!(side.is_valid() && side.hold_count() >= 2);
    }
    for side in [rw.read_lock(), rw.read_lock(), rw.write_lock()] {
        side.unlock().unwrap();
        side.unlock().unwrap();
    }
    assert_eq!(proxy.requests(), before);
    assert!(rw.write_lock().hold_count() == 1 && !waiters.iter().any(Elsewhere::has_locked));
    writing.release().unwrap();
    all_get_it(waiters);
    // A reader, too, though nobody else begins to read.
    let reading = rw.read().unwrap();
    let writer = waits(&server, other.write_lock());
    let behind = waits(&server, third.read_lock());
    let before = proxy.requests();
    assert!(rw.read_lock().try_lock(Duration::ZERO).unwrap());
    assert_eq!((proxy.requests(), rw.read_lock().hold_count()), (before, 2));
    rw.read_lock().unlock().unwrap();
    assert!(!writer.has_locked() && !behind.has_locked());
    reading.release().unwrap();
    all_get_it(vec![writer, behind]);
    nothing_is_left(&server);
}

/// Each unlocks as soon as it has locked, so that the next one can.
fn all_get_it(waiters: Vec<Elsewhere>) {
    let waiters: Vec<_> =
        waiters.into_iter().map(|waiter| Underway::start(move || waiter.unlock())).collect();
    waiters.into_iter().for_each(|waiter| waiter.result().unwrap());
}

#[test]
fn threads_that_share_a_lease_have_holds_of_their_own_and_a_writer_waits_for_the_last() {
    let server = Server::start();
    let rw = at_rest(&server.url()).rw_lock("rw");
    let read = rw.read_lock();
    (0..3).for_each(|_| read.lock().unwrap());
    on_another_thread(|| {
        assert!(!read.is_held() && !read.is_valid() && read.remaining().is_none());
        assert!(error(read.unlock()).is_not_held() && error(read.extend(SOON)).is_not_held());
        (0..2).for_each(|_| read.lock().unwrap());
        assert!(read.hold_count() == 2 && rw.readers().unwrap() == 1);
        (0..2).for_each(|_| read.unlock().unwrap());
        assert!(error(read.unlock()).is_not_held());
    });
    assert!(read.hold_count() == 3 && read.is_valid());
    let there = Elsewhere::holds(read);
    let writer = waits(&server, client(&server).rw_lock("rw").write_lock());
    (0..2).for_each(|_| read.unlock().unwrap());
    assert_eq!(rw.readers().unwrap(), 1);
    there.unlock().unwrap();
    // This thread still has one hold.
    assert!(rw.readers().unwrap() == 1 && read.is_valid() && !writer.has_locked());
    read.unlock().unwrap();
    writer.has_it();
    assert!(rw.readers().unwrap() == 0 && error(read.unlock()).is_not_held());
    writer.unlock().unwrap();
    nothing_is_left(&server);
}

#[test]
fn a_thread_that_has_lost_its_read_lock_unlocks_it_before_it_writes() {
    let server = Server::start();
    let options = lease(ms(1_500)).renewal(Renewal::Never);
    for client in [memory(), client(&server)] {
        let rw = client.rw_lock_with("rw", options.clone()).unwrap();
        let reading = rw.read().unwrap();
        // Locking again does not make the lease longer.
        let again = rw.read().unwrap();
        let others = client.rw_lock("rw");
        eventually(SOON, || may_write(&others));
        assert!(rw.read_lock().hold_count() == 2 && !reading.is_valid() && !again.is_valid());
        let refused = [
            error(rw.write()),
            error(rw.try_write(Duration::ZERO)),
            error(rw.write_lock().claim()),
        ];
        for refused in refused {
            assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        }
        assert!(error(rw.try_read(Duration::ZERO)).is_lost());
        assert!(error(again.release()).is_lost() && error(rw.write()).is_conflict());
        assert!(error(reading.release()).is_lost());
        others.write().unwrap().release().unwrap();
    }
    nothing_is_left(&server);
}
