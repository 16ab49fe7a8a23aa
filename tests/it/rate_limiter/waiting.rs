//! `acquire`: waits for room, and no longer than it has to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::Client;

use super::{LONG, SOON, both, everywhere, in_memory, ms, open, take_all};
use crate::support::{Proxy, Server, eventually, within};

#[test]
fn acquire_waits_for_room() {
    everywhere(|client| {
        for limiter in both(client, 1, ms(200)) {
            let start = Instant::now();
            for timeout in [SOON, SOON, Duration::MAX] {
                assert!(limiter.acquire(timeout).unwrap());
            }
            // Each took a permit, and waited until the next one was there.
            assert!((ms(395)..SOON).contains(&start.elapsed()), "{:?}", start.elapsed());
        }
    });
}

#[test]
fn acquire_says_at_once_that_there_will_be_no_room_in_time() {
    everywhere(|client| {
        for limiter in both(client, 2, LONG * 10) {
            assert!(limiter.acquire(Duration::ZERO).unwrap() && limiter.acquire(SOON).unwrap());
            for timeout in [Duration::ZERO, ms(1), LONG] {
                within(..SOON, || assert!(!limiter.acquire(timeout).unwrap()));
            }
        }
    });
}

#[test]
fn acquire_waits_where_room_comes_just_in_time_and_not_where_it_comes_too_late() {
    let (client, clock) = in_memory();
    for limiter in both(&client, 1, ms(1000)) {
        assert!(limiter.check().unwrap().allowed);
        assert!(
            !limiter.acquire(ms(1000) - Duration::from_nanos(1)).unwrap(),
            "nobody moves the clock: it did not wait"
        );
        thread::scope(|scope| {
            let waiter = scope.spawn(|| limiter.acquire(ms(1000)).unwrap());
            // Whether it asks earlier or later, there is room by its deadline at the latest.
            while !waiter.is_finished() {
                thread::sleep(ms(1));
                clock.advance(ms(10));
            }
            assert!(waiter.join().unwrap());
        });
        clock.advance(LONG);
    }
}

#[test]
fn acquire_sleeps_until_there_is_room() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    for limiter in both(&client, 1, ms(300)) {
        assert!(limiter.check().unwrap().allowed);
        let requests = proxy.requests();
        assert!(limiter.acquire(SOON).unwrap());
        assert!(
            (1..=4).contains(&(proxy.requests() - requests)),
            "{} questions in 300 ms",
            proxy.requests() - requests
        );
    }
}

#[test]
fn closing_the_client_ends_the_wait() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    for smooth in [false, true] {
        let client = Client::open(&proxy.url()).unwrap();
        let fixed = client.rate_limiter("ip", 1, LONG * 60);
        let limiter = if smooth { fixed.smooth() } else { fixed };
        assert_eq!(take_all(&limiter).0, 1);
        let requests = proxy.requests();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| limiter.acquire(Duration::MAX).unwrap_err());
            eventually(SOON, || proxy.requests() > requests);
            client.close(SOON).unwrap();
            let error = within(..SOON, || waiter.join().unwrap());
            assert!(error.is_closed(), "{error}");
        });
        assert!(limiter.check().unwrap_err().is_closed());
        assert!(limiter.acquire(Duration::ZERO).unwrap_err().is_closed());
    }
}

#[test]
fn many_waiters_together_keep_to_the_limit() {
    everywhere(|client| {
        for limiter in both(client, 5, ms(100)) {
            let (start, passed) = (Instant::now(), AtomicU64::new(0));
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for _ in 0..3 {
                            assert!(limiter.acquire(SOON).unwrap());
                            passed.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                }
            });
            assert_eq!(passed.into_inner(), 24);
            // 24 permits with a count of 5: at least four more windows, or 19 permits that come
            // back at 50 a second.
            assert!(start.elapsed() >= ms(375), "{:?}", start.elapsed());
        }
    });
}

#[test]
fn acquire_takes_nothing_when_it_gives_up() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 2, LONG);
    assert_eq!(take_all(&limiter).0, 2);
    assert!(!limiter.acquire(ms(50)).unwrap());
    assert_eq!(super::get(&server, "ip").as_deref(), Some("2"));
}
