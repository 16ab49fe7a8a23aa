//! Processes that are killed while they have permits, or while they wait for some.

use std::{env, process, thread};

use distlock::{Client, LockOptions, Retry};

use super::{waiting, waits};
use crate::faults::nothing_is_left;
use crate::helpers::{SOON, Underway, client, lease, ms};
use crate::support::process::Guarded;
use crate::support::{Server, eventually};

/// The address of the server, if a test has started this process.
const SERVER: &str = "DISTLOCK_TEST_PERMITS_OF";

/// Starts this test again in a process of its own.
fn another_process(test: &str, server: &Server) -> Guarded {
    let dir = tempfile::tempdir().unwrap();
    let variable = format!("{SERVER}={}", server.url());
    let own = env::current_exe().unwrap().display().to_string();
    let arguments = [
        variable,
        own,
        format!("semaphore::killed::{test}"),
        "--exact".into(),
        "--nocapture".into(),
    ];
    // Removed with the process.
    Guarded::start(&dir.keep(), "env", &arguments)
}

/// In such a process: acquires, and never returns.
fn acquire_if_started_for_that(permits: u32, options: impl FnOnce() -> LockOptions) {
    let Ok(url) = env::var(SERVER) else { return };
    let semaphore = Client::open(&url).unwrap().semaphore_with("s", 3, options()).unwrap();
    let _permit = semaphore.acquire_many(permits).unwrap();
    thread::sleep(SOON * 6);
    process::exit(1);
}

#[test]
fn a_process_keeps_its_permits_while_it_lives_and_for_one_lease_after_it_is_killed() {
    let length = ms(2000);
    acquire_if_started_for_that(2, || lease(length));
    let server = Server::start();
    let semaphore = client(&server).semaphore("s", 3);
    let mut process = another_process(
        "a_process_keeps_its_permits_while_it_lives_and_for_one_lease_after_it_is_killed",
        &server,
    );
    eventually(SOON, || semaphore.available().unwrap() == 1);
    let ours = semaphore.acquire().unwrap();
    let waiter = waits(&server, &semaphore, 2);
    thread::sleep(length + ms(500));
    assert!(!waiter.is_done() && semaphore.holders().unwrap().len() == 2);
    process.signal("KILL");
    let permit = waiter.result();
    assert_eq!((semaphore.holders().unwrap().len(), semaphore.available().unwrap()), (2, 0));
    ours.ensure_valid().unwrap();
    ours.release().unwrap();
    permit.release().unwrap();
    nothing_is_left(&server);
}

#[test]
fn a_killed_waiter_for_many_permits_holds_up_those_behind_for_one_pause() {
    // It would count as alive for a minute if it could still be told.
    acquire_if_started_for_that(3, || LockOptions::new().retry(Retry::fixed(SOON * 2)));
    let server = Server::start();
    let semaphore = client(&server).semaphore("s", 3);
    let ours = semaphore.acquire_many(2).unwrap();
    let mut process = another_process(
        "a_killed_waiter_for_many_permits_holds_up_those_behind_for_one_pause",
        &server,
    );
    eventually(SOON, || waiting(&server) == 1);
    let options = LockOptions::new().retry(Retry::fixed(ms(300)));
    let behind = client(&server).semaphore_with("s", 3, options).unwrap();
    let waiter = Underway::start(move || behind.acquire().unwrap());
    eventually(SOON, || waiting(&server) == 2);
    thread::sleep(ms(600));
    assert!(!waiter.is_done());
    process.signal("KILL");
    let permit = waiter.result_within(ms(3000));
    ours.ensure_valid().unwrap();
    permit.release().unwrap();
    ours.release().unwrap();
}
