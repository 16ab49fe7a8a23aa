//! Read-write locks on a server: what each side costs, and what a thread may do with both.
//!
//! What holds in every store is in `contract/rw_locks.rs`.

mod conditions;
mod crowds;
mod downgrades;
mod ends;
mod fairness;
mod leases;
mod permissions;
mod reentrancy;
mod sharing;

use std::time::Duration;

use distlock::{
    Client, ErrorKind, Interrupt, Lock, LockOptions, Queue, RedisLock, Renewal, Retry, RwLock,
};

use crate::faults::{nothing_is_left, through_proxy};
use crate::helpers::{
    Elsewhere, SOON, Underway, client, error, keys, lease, memory, ms, on_another_thread,
};
use crate::loss::timed;
use crate::support::{Mode, Server, eventually, within};

/// How many wait in the server's queue.
fn waiting(server: &Server) -> usize {
    redis::cmd("ZCARD").arg("{rw}:queue").query(&mut server.connection()).unwrap()
}

/// Returns once another thread waits in the server's queue.
#[track_caller]
fn waits(server: &Server, side: &RedisLock) -> Elsewhere {
    let before = waiting(server);
    let elsewhere = Elsewhere::locks(side);
    eventually(SOON, || waiting(server) > before);
    elsewhere
}

/// A client whose clock stands still: its readers share leases, however slow the machine is.
fn at_rest(url: &str) -> Client {
    timed(Client::builder(url)).0.build().unwrap()
}

fn may_write(lock: &RwLock) -> bool {
    on_another_thread(|| lock.try_write(Duration::ZERO).unwrap().is_some())
}

fn may_read(lock: &RwLock) -> bool {
    on_another_thread(|| lock.try_read(Duration::ZERO).unwrap().is_some())
}

#[test]
fn without_contention_each_side_is_two_round_trips_and_reading_under_a_write_costs_none() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    for options in [LockOptions::new(), LockOptions::new().fenced()] {
        let rw = client.rw_lock_with("rw", options).unwrap();
        // The server does not know the scripts yet.
        drop(rw.downgrade(rw.write().unwrap()).unwrap());
        rw.readers().unwrap();
        rw.read_lock().inspect().unwrap();
        let requests = |work: &dyn Fn()| {
            let before = proxy.requests();
            work();
            proxy.requests() - before
        };
        assert_eq!(requests(&|| rw.read().unwrap().release().unwrap()), 2);
        assert_eq!(requests(&|| rw.write().unwrap().release().unwrap()), 2);
        let downgraded = requests(&|| {
            let writing = rw.write().unwrap();
            rw.downgrade(writing).unwrap().release().unwrap();
        });
        assert_eq!(downgraded, 3);
        let writing = rw.write().unwrap();
        assert_eq!(requests(&|| rw.read().unwrap().release().unwrap()), 0);
        assert_eq!(requests(&|| assert!(rw.readers().unwrap() == 0)), 1);
        assert_eq!(requests(&|| drop(rw.read_lock().inspect().unwrap())), 1);
        writing.release().unwrap();
    }
    drop(client);
    eventually(SOON, || keys(&server) == ["{rw}:fence"]);
}

#[test]
fn each_side_is_a_lock_with_all_that_a_lock_has() {
    let server = Server::start();
    for client in [memory(), client(&server)] {
        let rw = client.rw_lock("rw");
        for side in [rw.read_lock(), rw.write_lock()] {
            let any: &dyn Lock = side;
            any.lock().unwrap();
            assert!(any.try_lock(Duration::ZERO).unwrap() && side.hold_count() == 2);
            any.unlock().unwrap();
            any.unlock().unwrap();
            assert!(error(any.unlock()).is_not_held());
            assert!(side.with(|guard| guard.is_valid()).unwrap());
            let claim = side.claim().unwrap();
            std::thread::spawn(move || claim.release().unwrap()).join().unwrap();
            let interrupt = Interrupt::new();
            interrupt.interrupt();
            assert!(error(side.lock_interruptibly(&interrupt)).is_interrupted());
            assert!(side.extend(SOON).is_err_and(|error| error.is_not_held()));
            let guard = side.guard().unwrap();
            side.extend(SOON * 60).unwrap();
            assert!(guard.remaining() > SOON * 50 && guard.validity().is_valid());
            assert!(side.inspect().unwrap().holders[0].remaining.unwrap() > SOON * 50);
        }
        assert_eq!(rw.read_lock().key(), rw.write_lock().key());
    }
    nothing_is_left(&server);
}

#[test]
fn a_wait_for_a_side_ends_by_deadline_attempts_or_interrupt_and_leaves_nothing() {
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let held = other.rw_lock("rw").write().unwrap();
    let rw = mine.rw_lock("rw");
    for side in [rw.read_lock(), rw.write_lock()] {
        let interrupt = Interrupt::new();
        let waiter = Underway::start({
            let (side, interrupt) = (side.clone(), interrupt.clone());
            move || side.lock_interruptibly(&interrupt)
        });
        eventually(SOON, || waiting(&server) == 1);
        interrupt.interrupt();
        let ended = error(waiter.result());
        assert!(ended.is_interrupted() && ended.lock_name() == Some("rw"));
        eventually(SOON, || waiting(&server) == 0);
        assert!(within(ms(50)..SOON, || side.try_guard(ms(50)).unwrap().is_none()));
    }
    let with = |options| mine.rw_lock_with("rw", options).unwrap();
    let few = with(LockOptions::new().retry(Retry::fixed(ms(5)).attempts(3)));
    assert!(error(few.read()).is_exhausted() && few.try_write(SOON).unwrap().is_none());
    // Without a queue they poll.
    let polling = with(LockOptions::new().queue(Queue::None).retry(Retry::fixed(ms(5))));
    let before = server.command_count("evalsha");
    let reader = Elsewhere::locks(polling.read_lock());
    eventually(SOON, || server.command_count("evalsha") > before + 10);
    assert_eq!(waiting(&server), 0);
    held.release().unwrap();
    reader.has_it();
    reader.unlock().unwrap();
    drop((mine, other, rw, few, polling));
    nothing_is_left(&server);
}

#[test]
fn the_write_side_has_conditions_and_the_read_side_has_none() {
    let server = Server::start();
    for client in [memory(), client(&server)] {
        let rw = client.rw_lock("rw");
        assert!(error(rw.read_lock().new_condition("c")).is_unsupported());
        let waiter = Underway::start({
            let rw = rw.clone();
            move || {
                let writing = rw.write().unwrap();
                rw.write_lock().new_condition("c").unwrap().wait().unwrap();
                assert!(writing.is_valid());
                // It is a writer again.
                assert!(!may_read(&rw) && rw.write_lock().hold_count() == 1);
            }
        });
        let condition = rw.write_lock().new_condition("c").unwrap();
        // Until it waits, a notification wakes nobody.
        eventually(SOON, || {
            rw.write_lock().with(|_| condition.notify_one().unwrap()).unwrap();
            waiter.is_done()
        });
        waiter.result();
        // A thread that also reads could not read on.
        let (writing, reading) = (rw.write().unwrap(), rw.read().unwrap());
        let refused = error(condition.wait());
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(writing.is_valid() && reading.is_valid() && rw.write_lock().hold_count() == 1);
        drop((writing, reading));
    }
    nothing_is_left(&server);
}

#[test]
fn holds_are_those_of_the_thread_whatever_handle_it_has() {
    let server = Server::start();
    let client = client(&server);
    let (rw, same) = (client.rw_lock("rw"), client.rw_lock("rw"));
    let writing = rw.write().unwrap();
    let reading = same.read().unwrap();
    assert!(same.write_lock().is_held() && rw.read_lock().is_held());
    on_another_thread(|| {
        assert!(!rw.write_lock().is_held() && error(same.read_lock().unlock()).is_not_held());
    });
    // Other options are other promises.
    let fenced = client.rw_lock_with("rw", LockOptions::new().fenced()).unwrap();
    for refused in [error(fenced.read()), error(fenced.write()), error(fenced.try_read(SOON))] {
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    }
    reading.release().unwrap();
    assert_eq!(error(fenced.read()).kind(), ErrorKind::Conflict);
    assert_eq!(error(fenced.downgrade(writing)).kind(), ErrorKind::Conflict);
    // That guard is dropped.
    assert!(may_write(&rw));
    // Nothing was left to the names.
    assert_eq!(client.remembered(), (2, 0));
    drop((rw, same, fenced));
    eventually(SOON, || client.remembered() == (0, 0));
    nothing_is_left(&server);
}

#[test]
fn an_invalid_name_or_option_is_told_by_the_first_call() {
    let rw = memory().rw_lock("");
    for told in [error(rw.read()), error(rw.write()), error(rw.readers())] {
        assert!(told.is_invalid_input(), "{told}");
    }
    let owned = Client::builder("memory://").lock_options(LockOptions::new().owner("me"));
    let owned = owned.build().unwrap().rw_lock("rw");
    assert!(error(owned.read()).is_invalid_input() && error(owned.readers()).is_invalid_input());
    let client = memory();
    assert!(error(client.rw_lock_with("rw", lease(ms(5)))).is_invalid_input());
    assert!(error(client.rw_lock_with("rw", LockOptions::new().owner("me"))).is_invalid_input());
    let text = format!("{:?}", client.rw_lock("rw"));
    assert!(text.contains("\"rw\""), "{text}");
}

#[test]
fn a_reader_whose_process_has_died_keeps_nobody_out_after_its_lease() {
    let server = Server::start();
    let rw = client(&server).rw_lock_with("rw", lease(SOON * 60)).unwrap();
    let reading = rw.read().unwrap();
    let mut connection = server.connection();
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut connection).unwrap();
    let end = seconds * 1000 + micros / 1000 + 1500;
    let dead = [end.to_string(), "r:aa-bb@x".to_owned()];
    redis::cmd("ZADD").arg("rw").arg(&dead).exec(&mut connection).unwrap();
    assert_eq!(rw.readers().unwrap(), 2);
    let other = client(&server).rw_lock("rw");
    let writer = waits(&server, other.write_lock());
    // The others read on, and are renewed.
    eventually(SOON, || rw.readers().unwrap() == 1);
    reading.extend(SOON).unwrap();
    assert!(!writer.has_locked());
    reading.release().unwrap();
    writer.has_it();
    writer.unlock().unwrap();
}

#[test]
fn a_waiting_writer_that_has_died_keeps_readers_out_for_a_pause() {
    let (server, proxy) = through_proxy();
    let reading = client(&server).rw_lock("rw").read().unwrap();
    let dies = Client::open(&proxy.url()).unwrap();
    let interrupt = Interrupt::new();
    let writer = Underway::start({
        let (rw, interrupt) = (dies.rw_lock("rw"), interrupt.clone());
        move || rw.write_lock().lock_interruptibly(&interrupt)
    });
    eventually(SOON, || waiting(&server) == 1);
    let reader = waits(&server, client(&server).rw_lock("rw").read_lock());
    // As if it had been killed.
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    reader.has_it();
    reading.release().unwrap();
    reader.unlock().unwrap();
    interrupt.interrupt();
    assert!(writer.result().is_err());
    proxy.set_mode(Mode::Forward);
}

#[test]
fn a_claim_of_the_write_side_is_no_hold_of_its_thread() {
    let rw = memory().rw_lock("rw");
    let claim = rw.write_lock().claim().unwrap();
    assert!(rw.try_read(Duration::ZERO).unwrap().is_none());
    assert!(rw.try_write(Duration::ZERO).unwrap().is_none());
    claim.release().unwrap();
    let claims = [(); 2].map(|()| rw.read_lock().claim().unwrap());
    assert!(rw.try_read(Duration::ZERO).unwrap().is_some());
    assert!(rw.try_write(Duration::ZERO).unwrap().is_none());
    drop(claims);
    assert!(rw.try_write(Duration::ZERO).unwrap().is_some());
}

#[test]
fn the_lease_without_renewal_is_each_readers_own() {
    let server = Server::start();
    let rw = client(&server).rw_lock_with("rw", lease(SOON * 60).renewal(Renewal::Never)).unwrap();
    let reading = rw.read().unwrap();
    let there = Elsewhere::holds(rw.read_lock());
    assert_eq!(rw.readers().unwrap(), 2);
    there.unlock().unwrap();
    reading.release().unwrap();
}
