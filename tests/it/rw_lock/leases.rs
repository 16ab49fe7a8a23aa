//! The leases of readers and writers: whose they are, what the server says of them, and their end.

use std::time::{Duration, Instant};
use std::{ptr, thread};

use distlock::{Client, LockOptions, Retry, RwLock, Side};

use super::{Elsewhere, may_read, may_write};
use crate::faults::{nothing_is_left, through_proxy};
use crate::helpers::{SOON, Underway, client, error, keys, lease, memory, ms, on_another_thread};
use crate::support::{Server, eventually};

/// What the server says: of the read side, of the write side, and how many read.
fn said_of(rw: &RwLock) -> (bool, bool, u32) {
    let locked = [rw.read_lock(), rw.write_lock()].map(|side| {
        let (locked, state) = (side.is_locked().unwrap(), side.inspect().unwrap());
        let sides = state.holders.iter().map(|holder| holder.side.unwrap());
        let ours = if ptr::eq(side, rw.read_lock()) { Side::Read } else { Side::Write };
        assert_eq!(sides.filter(|side| *side == ours).count() > 0, locked);
        locked
    });
    (locked[0], locked[1], rw.readers().unwrap())
}

#[test]
fn each_side_speaks_of_its_own_holders_and_of_nobody_who_waits() {
    let server = Server::start();
    for client in [memory(), client(&server)] {
        let rw = client.rw_lock("rw");
        let says = |expected| {
            assert_eq!(said_of(&rw), expected);
            assert_eq!(on_another_thread(|| said_of(&rw)), expected);
        };
        says((false, false, 0));
        let writing = rw.write().unwrap();
        says((false, true, 0));
        // A writer that reads as well is no reader to the server.
        let reading = rw.read().unwrap();
        assert!(rw.read_lock().is_held() && rw.write_lock().is_held());
        says((false, true, 0));
        reading.release().unwrap();
        says((false, true, 0));
        let reading = rw.downgrade(writing).unwrap();
        says((true, false, 1));
        let writer = Elsewhere::locks(rw.write_lock());
        eventually(SOON, || !may_read(&rw));
        let behind = Elsewhere::locks(rw.read_lock());
        eventually(SOON, || client.waiting_at_rw_lock("rw") == 1);
        says((true, false, 1));
        reading.release().unwrap();
        writer.has_it();
        says((false, true, 0));
        writer.unlock().unwrap();
        behind.has_it();
        says((true, false, 1));
        behind.unlock().unwrap();
        says((false, false, 0));
    }
    nothing_is_left(&server);
}

#[test]
fn every_reader_is_renewed_whoever_reads_with_it() {
    let server = Server::start();
    let short = lease(ms(1_500)).local_hand_offs(2);
    let others = [client(&server), client(&server)];
    let locks = others.each_ref().map(|client| client.rw_lock_with("rw", short.clone()).unwrap());
    let until = Instant::now() + ms(3_000);
    let readers: Vec<_> = (0..16)
        .map(|number| {
            let rw = locks[number % 2].clone();
            Underway::start(move || {
                let reading = rw.read().unwrap();
                while Instant::now() < until {
                    reading.ensure_valid().unwrap();
                    thread::sleep(ms(5));
                }
                reading.release().unwrap();
            })
        })
        .collect();
    // At most three threads read under each lease: six leases, if no thread comes too late to join.
    eventually(SOON, || locks[0].readers().unwrap() >= 6);
    assert!(!may_write(&locks[1]));
    readers.into_iter().for_each(Underway::result);
    assert!(may_write(&locks[0]));
    eventually(SOON, || others.iter().all(|client| client.remembered().1 == 0));
    nothing_is_left(&server);
}

#[test]
fn dead_readers_however_many_cost_nobody_a_question() {
    let (server, proxy) = through_proxy();
    let rw = Client::open(&proxy.url()).unwrap().rw_lock("rw");
    // The server does not know the scripts yet.
    drop(rw.write().unwrap());
    let dead = || {
        let mut add = redis::cmd("ZADD");
        add.arg("rw");
        (0..1_000).for_each(|number| {
            add.arg(1).arg(format!("r:{number:08x}-0000-7000-8000-000000000000@dead"));
        });
        add.exec(&mut server.connection()).unwrap();
    };
    for side in [rw.write_lock(), rw.read_lock()] {
        dead();
        assert_eq!(rw.readers().unwrap(), 0);
        let before = proxy.requests();
        let guard = side.try_guard(Duration::ZERO).unwrap().unwrap();
        assert_eq!(proxy.requests() - before, 1);
        let held: usize = redis::cmd("ZCARD").arg("rw").query(&mut server.connection()).unwrap();
        assert_eq!(held, 1);
        guard.release().unwrap();
    }
    nothing_is_left(&server);
}

#[test]
fn every_name_is_a_lock_of_its_own_with_readers_that_wait_and_are_woken() {
    let names = ["{rw}:a:key", "{rw}:b:key", "{rw}", "rw", "RW", "rw:", "r}w", "{}rw", "ü ☃\n\0"];
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let locks = names.map(|name| mine.rw_lock_with(name, LockOptions::new().fenced()).unwrap());
    let writing = locks.each_ref().map(|rw| rw.try_write(Duration::ZERO).unwrap().unwrap());
    // They do not ask again until they are woken.
    let patient = lease(SOON * 60).retry(Retry::fixed(SOON * 6));
    let readers = names.map(|name| {
        Elsewhere::locks(other.rw_lock_with(name, patient.clone()).unwrap().read_lock())
    });
    let queues = || keys(&server).iter().filter(|key| key.ends_with("queue")).count();
    eventually(SOON, || queues() == names.len());
    for ((rw, writing), reader) in locks.iter().zip(writing).zip(&readers) {
        assert!(!reader.has_locked());
        let reading = rw.downgrade(writing).unwrap();
        assert_eq!(rw.readers().unwrap(), 2, "{:?}", rw.name());
        reader.has_it();
        reading.release().unwrap();
    }
    readers.into_iter().for_each(|reader| reader.unlock().unwrap());
    // One fence counter is left of each.
    eventually(SOON, || keys(&server).len() == names.len());
    assert!(locks.iter().all(may_write));
}

#[test]
fn the_prefix_is_part_of_the_key() {
    let server = Server::start();
    let prefixed = Client::builder(&server.url()).key_prefix("p:").build().unwrap();
    let rw = prefixed.rw_lock("rw");
    assert_eq!((rw.name(), rw.key()), ("rw", "p:rw"));
    let plain = client(&server);
    let reading = rw.read().unwrap();
    assert!(may_write(&plain.rw_lock("rw")));
    let (same, told) = (plain.rw_lock("p:rw"), |rw: &RwLock| rw.readers().unwrap());
    assert!(may_read(&same) && !may_write(&same));
    assert_eq!((told(&same), told(&plain.rw_lock("rw"))), (1, 0));
    reading.release().unwrap();
    let writing = same.write().unwrap();
    assert!(!may_read(&rw) && error(rw.write_lock().unlock()).lock_name() == Some("rw"));
    writing.release().unwrap();
    nothing_is_left(&server);
}
