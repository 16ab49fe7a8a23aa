//! The return of a server: those who waited have their locks within 300 ms.

use std::thread;
use std::time::{Duration, Instant};

use distlock::Client;

use crate::faults::warm_up;
use crate::helpers::{SOON, Underway, ms};
use crate::support::{Server, on_time};

/// How long it takes after the return of the server, which `end` brings about, until all threads
/// have the locks that they wait for, one lock each.
fn delay_after(
    outage: Duration,
    waiting: usize,
    begin: impl Fn(&Server),
    end: impl Fn(&Server) -> Instant,
) -> Duration {
    let server = Server::start();
    let client = Client::builder(&server.url()).max_outage(SOON * 6).build().unwrap();
    warm_up(&client, 2);
    begin(&server);
    let waiters: Vec<_> = (0..waiting)
        .map(|n| {
            let lock = client.lock(&format!("x{n}"));
            Underway::start(move || {
                lock.lock().unwrap();
                let at = Instant::now();
                lock.unlock().unwrap();
                at
            })
        })
        .collect();
    thread::sleep(outage);
    assert!(waiters.iter().all(|waiter| !waiter.is_done()));
    let back = end(&server);
    waiters.into_iter().map(|waiter| waiter.result().saturating_duration_since(back)).max().unwrap()
}

/// Runs the outage that `run` makes, which says how long the slowest waiter had to wait after it.
#[track_caller]
fn back_within_300_ms(run: impl Fn() -> Duration) {
    on_time(ms(30), || {
        let delay = run();
        assert!(delay < ms(300), "{delay:?}");
    });
}

fn restarted(server: &Server) -> Instant {
    // It answers a little before this returns.
    server.restart();
    Instant::now()
}

fn thawed(server: &Server) -> Instant {
    let back = Instant::now();
    server.cont();
    back
}

#[test]
fn after_an_outage_a_lone_waiter_has_its_lock_within_300_ms() {
    back_within_300_ms(|| delay_after(ms(1500), 1, Server::kill, restarted));
}

#[test]
fn after_an_outage_of_several_seconds_all_waiters_have_their_locks_within_300_ms() {
    back_within_300_ms(|| delay_after(ms(3000), 10, Server::kill, restarted));
}

#[test]
#[ignore = "slow: .ci/full slow"]
fn after_an_outage_of_15_s_a_waiter_has_its_lock_within_300_ms() {
    back_within_300_ms(|| delay_after(ms(15_000), 2, Server::kill, restarted));
}

#[test]
fn frozen_server_that_goes_on_is_noticed_within_300_ms() {
    back_within_300_ms(|| delay_after(ms(2500), 2, Server::stop_process, thawed));
}
