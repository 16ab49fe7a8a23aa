//! Outages of the server: permits and waiters outlast one, and what a server has lost is lost.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::{Client, LostReason};

use super::{waiting, waits};
use crate::faults::{impatient, nothing_is_left, through_proxy};
use crate::helpers::{SOON, Underway, client, error, lease, ms};
use crate::loss::{HOUR, renewal_finds, timed};
use crate::support::proxy::Mode;
use crate::support::{Server, eventually};

#[test]
fn a_server_that_comes_back_empty_has_lost_all_permits_and_serves_those_who_wait() {
    let server = Server::start();
    // The restart may take as long as it likes: only the test lets time pass.
    let (builder, clock) = timed(Client::builder(&server.url()));
    let mine = builder.build().unwrap();
    let semaphore = mine.semaphore_with("s", 3, lease(HOUR)).unwrap();
    let (tell, told) = mpsc::channel();
    semaphore.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    let lost = [2, 1].map(|permits| semaphore.acquire_many(permits).unwrap());
    let theirs = client(&server).semaphore("s", 3);
    let waiters = [2, 1].map(|permits| waits(&server, &theirs, permits));
    server.restart();
    let permits = waiters.map(Underway::result);
    assert_eq!(theirs.available().unwrap(), 0);
    renewal_finds(&clock, || lost.iter().all(|permit| !permit.is_valid()));
    for _ in &lost {
        assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Taken));
    }
    for permit in lost {
        assert!(error(permit.release()).is_lost());
    }
    // Neither renewal nor release has changed anything.
    assert_eq!((theirs.holders().unwrap().len(), theirs.available().unwrap()), (2, 0));
    for permit in permits {
        permit.release().unwrap();
    }
    let all = semaphore.try_acquire_many(3, SOON).unwrap().unwrap();
    all.release().unwrap();
    nothing_is_left(&server);
}

#[test]
fn permits_and_those_who_wait_for_them_outlast_an_outage() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let semaphore = client.semaphore_with("s", 2, lease(ms(4000))).unwrap();
    let permits = [semaphore.acquire().unwrap(), semaphore.acquire().unwrap()];
    let start = |permits| {
        let semaphore = semaphore.clone();
        Underway::start(move || semaphore.acquire_many(permits)?.release())
    };
    let waiters = [1, 2, 1].map(start);
    eventually(SOON, || waiting(&server) == 3);
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    // One more begins to wait meanwhile.
    let late = start(2);
    thread::sleep(ms(1800));
    assert!(waiters.iter().all(|waiter| !waiter.is_done()) && !late.is_done());
    proxy.set_mode(Mode::Forward);
    // Beyond the end of the leases as they were when the outage began.
    thread::sleep(ms(2700));
    assert!(permits.iter().all(distlock::Permit::is_valid));
    eventually(SOON, || semaphore.available().is_ok_and(|free| free == 0));
    assert!(semaphore.try_acquire(Duration::ZERO).unwrap().is_none());
    drop(permits);
    for waiter in waiters.into_iter().chain([late]) {
        waiter.result().unwrap();
    }
    nothing_is_left(&server);
}
