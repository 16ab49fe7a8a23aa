//! Many threads, many clients, one limit.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use distlock::Client;

use super::{LONG, ms, open};
use crate::support::Server;

/// How many of the calls of eight threads pass, each with a client from `client`.
fn passed_of_eight_threads(client: impl Fn() -> Client + Sync, smooth: bool) -> u64 {
    let (passed, begin) = (AtomicU64::new(0), Barrier::new(8));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let fixed = client().rate_limiter("ip", 100, LONG * 60);
                let limiter = if smooth { fixed.smooth() } else { fixed };
                begin.wait();
                for _ in 0..50 {
                    passed.fetch_add(u64::from(limiter.check().unwrap().allowed), Ordering::SeqCst);
                }
            });
        }
    });
    passed.into_inner()
}

#[test]
fn eight_threads_together_get_the_count() {
    for smooth in [false, true] {
        let server = Server::start();
        let client = open(&server);
        assert_eq!(
            passed_of_eight_threads(|| client.clone(), smooth),
            100,
            "one client, smooth: {smooth}"
        );
        let memory = Client::open("memory://").unwrap();
        assert_eq!(
            passed_of_eight_threads(|| memory.clone(), smooth),
            100,
            "memory, smooth: {smooth}"
        );
    }
}

#[test]
fn eight_clients_together_get_the_count() {
    for smooth in [false, true] {
        let server = Server::start();
        assert_eq!(passed_of_eight_threads(|| open(&server), smooth), 100, "smooth: {smooth}");
        let name = format!("memory://together-{smooth}");
        let _kept = Client::open(&name).unwrap();
        assert_eq!(
            passed_of_eight_threads(|| Client::open(&name).unwrap(), smooth),
            100,
            "memory, smooth: {smooth}"
        );
    }
}

#[test]
fn clients_of_unnamed_memory_have_limits_of_their_own() {
    for _ in 0..2 {
        let client = Client::open("memory://").unwrap();
        assert!(client.rate_limiter("ip", 1, LONG).check().unwrap().allowed);
    }
}

#[test]
fn a_limiter_keeps_its_client_open() {
    let limiter = Client::open("memory://").unwrap().rate_limiter("ip", 1, LONG);
    assert!(limiter.check().unwrap().allowed);
}

#[test]
fn a_lock_and_a_limit_do_not_disturb_each_other() {
    super::everywhere(|client| {
        let lock = client.lock("orders");
        lock.lock().unwrap();
        assert!(client.rate_limiter("calls", 1, ms(1000)).check().unwrap().allowed);
        assert!(client.rate_limiter("orders", 1, ms(1000)).smooth().check().unwrap().allowed);
        lock.unlock().unwrap();
    });
}
