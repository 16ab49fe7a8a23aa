//! How a permit ends: by a drop anywhere, by a loss, with its process, by the close of its client.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use distlock::{Client, LostReason};
use log::Level;

use super::{waiting, waits};
use crate::faults::{impatient, nothing_is_left, through_proxy};
use crate::helpers::{SOON, Underway, client, delete, error, lease, ms, on_another_thread};
use crate::holds::forked;
use crate::logs;
use crate::support::{Fault, Rule, Server, eventually, in_own_process, within};

#[test]
fn a_permit_is_released_by_a_drop_on_any_thread_and_by_a_panic() {
    let server = Server::start();
    let client = client(&server);
    let semaphore = client.semaphore("s", 2);
    let permit = on_another_thread(|| semaphore.acquire_many(2).unwrap());
    permit.ensure_valid().unwrap();
    on_another_thread(|| drop(permit));
    assert_eq!(semaphore.available().unwrap(), 2);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _permit = semaphore.acquire().unwrap();
        panic!("planned")
    }));
    assert!(panicked.is_err());
    nothing_is_left(&server);
}

#[test]
fn the_permits_of_a_dead_holder_come_back_with_its_lease_and_those_of_others_stay() {
    let server = Server::start();
    let semaphore = client(&server).semaphore("s", 3);
    let one = semaphore.acquire().unwrap();
    // As a process that has died left it.
    let mut connection = server.connection();
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut connection).unwrap();
    let end = seconds * 1000 + micros / 1000 + 2000;
    // This one has ended long ago.
    redis::cmd("ZADD").arg("s").arg(&["1", "p1/3:bb@x"]).exec(&mut connection).unwrap();
    assert_eq!((semaphore.holders().unwrap().len(), semaphore.available().unwrap()), (1, 2));
    redis::cmd("ZADD")
        .arg("s")
        .arg(&[end.to_string(), "p2/3:aa@x".into(), end.to_string(), "p2/3:aa@x#2".into()])
        .exec(&mut connection)
        .unwrap();
    assert_eq!(semaphore.available().unwrap(), 0);
    // The server says when enough leases will have ended, and nobody has to poll for that.
    let waiter = waits(&server, &semaphore, 2);
    let asked = server.command_count("evalsha");
    let permit = waiter.result();
    assert!(server.command_count("evalsha") - asked <= 4);
    one.ensure_valid().unwrap();
    assert_eq!(semaphore.holders().unwrap().len(), 2);
    permit.release().unwrap();
    one.release().unwrap();
}

#[test]
fn a_lost_permit_is_told_once_and_its_late_release_takes_nothing_from_others() {
    logs::keep();
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let semaphore = mine.semaphore("semaphores-lost", 2);
    let (tell, told) = mpsc::channel();
    semaphore.on_lost(move |lost| tell.send((lost.name().to_owned(), lost.reason())).unwrap());
    // A lock of this name is something else.
    let (tell, lost_locks) = mpsc::channel();
    let lock = mine.lock("semaphores-lost");
    lock.on_lost(move |lost| tell.send(lost.clone()).unwrap());
    let lost = semaphore.acquire().unwrap();
    let (validity, first) = (lost.validity(), semaphore.holders().unwrap()[0].token.clone());
    let kept = semaphore.acquire().unwrap();
    redis::cmd("ZREM").arg("semaphores-lost").arg(&first).exec(&mut server.connection()).unwrap();
    assert!(error(lost.extend(SOON * 6)).is_lost());
    assert!(!lost.is_valid() && lost.remaining() == Duration::ZERO && !validity.is_valid());
    assert!(error(lost.ensure_valid()).is_lost() && error(validity.ensure_valid()).is_lost());
    assert_eq!(told.recv_timeout(SOON), Ok(("semaphores-lost".to_owned(), LostReason::Taken)));
    let next = other.semaphore("semaphores-lost", 2).acquire().unwrap();
    let text = error(lost.release()).to_string();
    assert!(text.starts_with("semaphore \"semaphores-lost\": the lease was lost"), "{text}");
    kept.ensure_valid().unwrap();
    assert_eq!(semaphore.available().unwrap(), 0);
    delete(&server, "semaphores-lost");
    assert!(error(kept.release()).is_lost() && error(next.release()).is_lost());
    assert_eq!(told.recv_timeout(SOON).unwrap().1, LostReason::Taken);
    mine.close(SOON).unwrap();
    assert!(told.try_recv().is_err(), "once each");
    assert!(lost_locks.try_recv().is_err());
}

#[test]
fn renewal_finds_a_loss_and_logs_it_by_the_name_of_the_semaphore() {
    logs::keep();
    let server = Server::start();
    let semaphore = client(&server).semaphore_with("s-log", 2, lease(ms(1500))).unwrap();
    let permit = semaphore.acquire_many(2).unwrap();
    delete(&server, "s-log");
    eventually(SOON, || !permit.is_valid());
    eventually(SOON, || {
        logs::lines(Level::Warn, &["semaphore \"s-log\": lease lost (Taken)"]).len() == 1
    });
}

#[test]
fn a_release_without_an_answer_is_unknown_and_carried_out_in_the_background() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let semaphore = client.semaphore("s", 3);
    let (released, dropped) = (semaphore.acquire().unwrap(), semaphore.acquire_many(2).unwrap());
    proxy.freeze();
    let unknown = error(released.release());
    assert!(unknown.is_unknown() && unknown.may_be_held() && unknown.lock_name() == Some("s"));
    within(..SOON, || drop(dropped));
    proxy.thaw();
    nothing_is_left(&server);
}

#[test]
fn an_attempt_whose_reply_was_lost_is_repeated_and_takes_no_second_permit() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let semaphore = client.semaphore("s", 4);
    semaphore.acquire().unwrap().release().unwrap();
    let rule = proxy.add(Rule::on("EVALSHA", Fault::CutAfter).next(1));
    let permit = semaphore.acquire_many(3).unwrap();
    assert_eq!((rule.fired(), semaphore.available().unwrap()), (1, 1));
    // A copy may still be on its way: the permit is withdrawn again after its end.
    permit.release().unwrap();
    assert_eq!(semaphore.available().unwrap(), 4);
    nothing_is_left(&server);
}

#[test]
fn a_forked_child_neither_acquires_nor_releases() {
    in_own_process("semaphore::ends::a_forked_child_neither_acquires_nor_releases", || {
        let (server, proxy) = through_proxy();
        let client = Client::open(&proxy.url()).unwrap();
        let semaphore = client.semaphore("s", 3);
        let [released, dropped] = [1, 2].map(|permits| semaphore.acquire_many(permits).unwrap());
        let said = (proxy.requests(), proxy.accepted());
        let in_child = RefCell::new(Some((released, dropped)));
        forked(|| {
            let (released, dropped) = in_child.take().ok_or(1)?;
            drop(dropped);
            let refused = [
                released.release(),
                semaphore.acquire().map(drop),
                semaphore.holders().map(drop),
                client.semaphore("s", 3).try_acquire(SOON).map(drop),
            ];
            let says = |error: &distlock::Error| error.to_string().contains("was forked from");
            let all = refused.iter().all(|refused| refused.as_ref().is_err_and(says));
            if all { Ok(()) } else { Err(2) }
        });
        assert_eq!((proxy.requests(), proxy.accepted()), said, "the child said something");
        assert_eq!(semaphore.available().unwrap(), 0);
        let (one, two) = in_child.take().unwrap();
        one.release().unwrap();
        two.release().unwrap();
        nothing_is_left(&server);
    });
}

#[test]
fn closing_the_client_releases_permits_and_ends_waits() {
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let semaphore = mine.semaphore("s", 2);
    let (tell, told) = mpsc::channel();
    semaphore.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    let permit = semaphore.acquire_many(2).unwrap();
    let waiter = {
        let semaphore = semaphore.clone();
        Underway::start(move || semaphore.acquire())
    };
    eventually(SOON, || waiting(&server) == 1);
    mine.close(SOON).unwrap();
    assert!(error(waiter.result()).is_closed() && error(semaphore.acquire()).is_closed());
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Closed));
    assert!(!permit.is_valid() && error(permit.release()).is_lost());
    assert_eq!(other.semaphore("s", 2).available().unwrap(), 2);
    nothing_is_left(&server);
}
