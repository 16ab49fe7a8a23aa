//! A writer that goes on as a reader: what may get lost on the way.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::{Client, ErrorKind, LockOptions, LostReason, Retry, RwLock};

use super::{Elsewhere, may_read, may_write, waits};
use crate::faults::{PATIENCE, impatient, nothing_is_left, through_proxy};
use crate::helpers::{Busy, SOON, Underway, client, delete, error, lease, ms};
use crate::loss::timed;
use crate::support::{Fault, Mode, Proxy, Rule, Server, eventually, within};

fn through(proxy: &Proxy) -> (Client, RwLock) {
    let client = impatient(&proxy.url()).build().unwrap();
    let rw = client.rw_lock("rw");
    // The server does not know the scripts yet.
    drop(rw.downgrade(rw.write().unwrap()).unwrap());
    (client, rw)
}

#[test]
fn it_is_repeated_after_a_lost_reply_and_finds_the_reader_there() {
    let (server, proxy) = through_proxy();
    let (_client, rw) = through(&proxy);
    let other = client(&server).rw_lock("rw");
    let writing = rw.write().unwrap();
    let rule = proxy.add(Rule::on("EVALSHA", Fault::CutAfter).next(1));
    let reading = rw.downgrade(writing).unwrap();
    assert_eq!((rule.fired(), other.readers().unwrap()), (1, 1));
    assert!(reading.is_valid() && may_read(&other) && !may_write(&other));
    reading.extend(SOON * 6).unwrap();
    reading.release().unwrap();
    // A copy may still be on its way.
    assert!(may_write(&other));
    nothing_is_left(&server);
}

#[test]
fn a_reply_that_was_lost_for_good_ends_both_and_the_background_releases() {
    let (server, proxy) = through_proxy();
    let (_client, rw) = through(&proxy);
    let other = client(&server).rw_lock("rw");
    let writing = rw.write().unwrap();
    let reading = rw.read().unwrap();
    let (tell, told) = mpsc::channel();
    rw.write_lock().on_lost(move |lost| tell.send(lost.reason()).unwrap());
    proxy.freeze();
    let unknown = error(writing.release());
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Expired));
    assert!(unknown.is_unknown() && unknown.may_be_held(), "{unknown}");
    assert!(!reading.is_valid() && !rw.write_lock().is_held() && rw.read_lock().is_held());
    proxy.thaw();
    assert!(error(reading.release()).is_lost());
    eventually(SOON, || may_write(&other));
    drop(rw);
    nothing_is_left(&server);
}

#[test]
fn what_was_not_sent_leaves_the_reader_under_the_writers_lease() {
    let (server, proxy) = through_proxy();
    let (mine, _) = through(&proxy);
    let rw = mine.rw_lock_with("rw", lease(ms(3000))).unwrap();
    let other = client(&server).rw_lock("rw");
    let writing = rw.write().unwrap();
    let reading = rw.read().unwrap();
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    // No connection is left, so none that a question could be lost on.
    assert!(error(mine.ping()).is_unavailable());
    let refused = within(..PATIENCE * 10, || error(writing.release()));
    assert!(refused.is_unavailable() && !rw.write_lock().is_held(), "{refused}");
    proxy.set_mode(Mode::Forward);
    // It is renewed as before.
    thread::sleep(ms(4000));
    assert!(reading.is_valid() && !may_read(&other) && !may_write(&other));
    assert!(other.write_lock().is_locked().unwrap());
    reading.release().unwrap();
    assert!(may_write(&other));
    nothing_is_left(&server);
}

#[test]
fn the_validity_of_the_reader_counts_from_before_the_question() {
    const LATE: Duration = ms(400);
    let (server, proxy) = through_proxy();
    let rw = Client::open(&proxy.url()).unwrap().rw_lock_with("rw", lease(SOON)).unwrap();
    drop(rw.downgrade(rw.write().unwrap()).unwrap());
    let writing = rw.write().unwrap();
    let late = proxy.add(Rule::on("EVALSHA", Fault::DelayReply(LATE)).next(1));
    let reading = rw.downgrade(writing).unwrap();
    assert_eq!(late.fired(), 1);
    assert!(reading.is_valid() && reading.remaining() <= SOON - LATE);
    reading.release().unwrap();
    nothing_is_left(&server);
}

#[test]
fn a_loss_before_it_is_told_and_leaves_nothing() {
    let server = Server::start();
    // Renewal does not look while the test runs.
    let rw = client(&server).rw_lock_with("rw", lease(SOON * 60)).unwrap();
    let other = client(&server).rw_lock("rw");
    let (tell, told) = mpsc::channel();
    rw.write_lock().on_lost(move |lost| tell.send(lost.reason()).unwrap());
    let writing = rw.write().unwrap();
    delete(&server, "rw");
    let theirs = other.read().unwrap();
    assert!(error(rw.downgrade(writing)).is_lost());
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Taken));
    assert!(!rw.read_lock().is_held() && !rw.write_lock().is_held());
    assert_eq!(other.readers().unwrap(), 1);
    theirs.release().unwrap();
    // A loss that is known already.
    let (writing, reading) = (rw.write().unwrap(), rw.read().unwrap());
    delete(&server, "rw");
    assert!(error(writing.extend(SOON)).is_lost() && error(rw.read()).is_lost());
    assert!(error(writing.release()).is_lost() && !reading.is_valid());
    assert!(error(reading.release()).is_lost() && may_write(&other));
    let writing = rw.write().unwrap();
    delete(&server, "rw");
    assert!(error(writing.extend(SOON)).is_lost() && error(rw.read()).is_lost());
    assert!(!rw.read_lock().is_held() && error(writing.release()).is_lost());
    nothing_is_left(&server);
}

#[test]
fn the_reader_is_renewed_and_a_thread_that_waits_here_joins_it() {
    let (server, proxy) = through_proxy();
    let (builder, clock) = timed(Client::builder(&proxy.url()));
    let client = builder.build().unwrap();
    let rw = client.rw_lock_with("rw", lease(ms(3000))).unwrap();
    let writing = rw.write().unwrap();
    let validity = writing.validity();
    let here = Elsewhere::locks(rw.read_lock());
    eventually(SOON, || client.waiting_at_rw_lock("rw") == 1);
    let reading = rw.downgrade(writing).unwrap();
    assert!(!validity.is_valid() && reading.is_valid());
    here.has_it();
    assert_eq!(rw.readers().unwrap(), 1);
    // After a third of the lease.
    clock.advance(ms(1100));
    eventually(SOON, || reading.remaining() > ms(2500));
    reading.release().unwrap();
    assert!(!may_write(&rw));
    here.unlock().unwrap();
    assert!(may_write(&rw));
    nothing_is_left(&server);
}

#[test]
fn a_writer_that_waits_here_is_not_handed_what_is_still_read() {
    let server = Server::start();
    let client = client(&server);
    let rw = client.rw_lock("rw");
    let (writing, reading) = (rw.write().unwrap(), rw.read().unwrap());
    let writer = Elsewhere::locks(rw.write_lock());
    eventually(SOON, || client.waiting_at_rw_lock("rw") == 1);
    writing.release().unwrap();
    thread::sleep(ms(100));
    assert!(reading.is_valid() && !writer.has_locked());
    reading.release().unwrap();
    writer.has_it();
    writer.unlock().unwrap();
    // The other way round it is handed over at once, as every lock is.
    let (writing, reading) = (rw.write().unwrap(), rw.read().unwrap());
    let writer = Elsewhere::locks(rw.write_lock());
    eventually(SOON, || client.waiting_at_rw_lock("rw") == 1);
    reading.release().unwrap();
    let asked = server.command_count("evalsha");
    writing.release().unwrap();
    writer.has_it();
    assert_eq!(server.command_count("evalsha"), asked);
    writer.unlock().unwrap();
    assert!(rw.try_write(Duration::ZERO).unwrap().is_some());
}

#[test]
fn nobody_gets_in_between_whoever_waits_first() {
    let server = Server::start();
    let [mine, other, third] = [(); 3].map(|()| client(&server));
    let [rw, other, third] = [&mine, &other, &third].map(|client| client.rw_lock("rw"));
    let writing = rw.write().unwrap();
    let writer = waits(&server, other.write_lock());
    let reader = waits(&server, third.read_lock());
    let reading = rw.downgrade(writing).unwrap();
    thread::sleep(ms(100));
    assert!(!writer.has_locked() && reading.is_valid());
    assert_eq!(other.readers().unwrap(), 1);
    assert!(!reader.has_locked(), "it is behind the writer");
    reading.release().unwrap();
    writer.has_it();
    writer.unlock().unwrap();
    reader.has_it();
    reader.unlock().unwrap();
    drop((mine, rw, other, third));
    nothing_is_left(&server);
}

#[test]
fn readers_that_wait_in_front_are_woken_by_it() {
    let server = Server::start();
    let rw = client(&server).rw_lock("rw");
    let seldom = LockOptions::new().retry(Retry::fixed(SOON * 6));
    let others = [(); 3].map(|()| client(&server).rw_lock_with("rw", seldom.clone()).unwrap());
    let writing = rw.write().unwrap();
    let waiters = others.each_ref().map(|other| waits(&server, other.read_lock()));
    let reading = rw.downgrade(writing).unwrap();
    assert_eq!(rw.readers().unwrap(), 4);
    waiters.iter().for_each(Elsewhere::has_it);
    reading.release().unwrap();
    for waiter in waiters {
        waiter.unlock().unwrap();
    }
    nothing_is_left(&server);
}

#[test]
fn the_lease_is_a_new_one_and_so_are_validities_of_the_reader() {
    let server = Server::start();
    let rw = client(&server).rw_lock("rw");
    let (writing, reading) = (rw.write().unwrap(), rw.read().unwrap());
    let (before, there) = (reading.validity(), writing.validity());
    writing.extend(SOON * 360).unwrap();
    assert!(reading.remaining() > SOON * 300 && before.is_valid());
    writing.release().unwrap();
    // 30 s, by default.
    assert!(reading.is_valid() && reading.remaining() < SOON * 4);
    for over in [before, there] {
        assert!(error(over.ensure_valid()).is_not_held());
    }
    reading.validity().ensure_valid().unwrap();
    reading.release().unwrap();
}

#[test]
fn a_loss_that_is_found_while_it_waits_for_a_connection_is_told_as_one() {
    let server = Server::start();
    let client = Client::builder(&server.url()).pool_size(1).build().unwrap();
    let rw = client.rw_lock_with("rw", lease(ms(3000))).unwrap();
    let (tell, told) = mpsc::channel();
    rw.write_lock().on_lost(move |lost| tell.send(lost.reason()).unwrap());
    let (go, gone) = mpsc::channel::<()>();
    let (has_it, holds) = mpsc::channel();
    let thread = Underway::start({
        let rw = rw.clone();
        move || {
            let writing = rw.write().unwrap();
            has_it.send(()).unwrap();
            let _ = gone.recv();
            rw.downgrade(writing).map(drop)
        }
    });
    holds.recv_timeout(SOON).unwrap();
    let busy = Busy::connection_of(&client);
    drop(go);
    delete(&server, "rw");
    // Renewal has a connection of its own.
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Taken));
    drop(busy);
    let text = error(thread.result()).to_string();
    assert!(text.contains("the lease was lost"), "{text}");
    nothing_is_left(&server);
}

#[test]
fn a_log_in_that_is_refused_leaves_the_reader_under_the_writers_lease() {
    let (server, proxy) = through_proxy();
    let (mine, rw) = through(&proxy);
    let (writing, reading) = (rw.write().unwrap(), rw.read().unwrap());
    proxy.cut_all();
    let password = |password: &str| {
        let set = ["SET", "requirepass", password];
        redis::cmd("CONFIG").arg(&set).exec(&mut server.connection()).unwrap();
    };
    let mut connection = server.connection();
    password("secret");
    // No connection is left, so none that a question could be lost on.
    assert!(error(mine.ping()).kind() == ErrorKind::Denied);
    let denied = error(writing.release());
    assert!(denied.kind() == ErrorKind::Denied && reading.is_valid(), "{denied}");
    redis::cmd("CONFIG").arg(&["SET", "requirepass", ""]).exec(&mut connection).unwrap();
    reading.release().unwrap();
    assert!(may_write(&rw));
}
