//! `acquire` of the fixed window by many threads: each sleeps until the window ends, and asks
//! again.

use std::thread;
use std::time::{Duration, Instant};

use distlock::Client;

use super::{CloseAtEnd, LONG, SOON, everywhere, ms, open};
use crate::support::{Mode, Proxy, Server, eventually, within};

#[test]
fn each_thread_asks_once_for_each_window() {
    const THREADS: u64 = 20;
    let server = Server::start();
    let client = open(&server);
    let limiter = client.rate_limiter("ip", 5, ms(300));
    let scripts = server.command_count("evalsha") + server.command_count("eval");
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| assert!(limiter.acquire(SOON).unwrap()));
        }
    });
    let windows = u64::try_from(start.elapsed().as_millis() / 300).unwrap() + 1;
    let asked = server.command_count("evalsha") + server.command_count("eval") - scripts;
    // Each loads the script at most once; and a thread may ask at the very end of a window.
    assert!(asked <= THREADS * (windows + 2), "{asked} questions in {windows} windows");
}

#[test]
fn a_caller_that_cannot_be_served_in_time_is_told_at_once_also_beside_others() {
    let server = Server::start();
    // No log-in of a second connection is counted below.
    let client = Client::builder(&server.url()).pool_size(1).build().unwrap();
    let limiter = client.rate_limiter("ip", 1, LONG);
    assert!(limiter.check().unwrap().allowed);
    let scripts = server.command_count("evalsha");
    thread::scope(|scope| {
        let _closing = CloseAtEnd(&client);
        let first = scope.spawn(|| limiter.acquire(Duration::MAX).unwrap_err());
        eventually(SOON, || server.command_count("evalsha") == scripts + 1);
        for timeout in [Duration::ZERO, ms(1), LONG / 2] {
            assert!(!within(..SOON, || limiter.acquire(timeout).unwrap()));
        }
        assert_eq!(
            server.command_count("evalsha"),
            scripts + 4,
            "by the server, and not by what another was told"
        );
        assert!(!first.is_finished());
        client.close(SOON).unwrap();
        assert!(first.join().unwrap().is_closed());
    });
}

#[test]
fn a_caller_whose_time_runs_out_asks_a_last_time() {
    everywhere(|client| {
        let limiter = client.rate_limiter("ip", 1, ms(400));
        let start = Instant::now();
        assert!(limiter.check().unwrap().allowed);
        thread::scope(|scope| {
            // One permit comes back before their timeouts.
            let waiters: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| within(..SOON, || limiter.acquire(ms(600)).unwrap())))
                .collect();
            let taken =
                waiters.into_iter().map(|waiter| u128::from(waiter.join().unwrap())).sum::<u128>();
            let windows = start.elapsed().as_millis() / 400;
            assert!((1..=windows).contains(&taken), "{taken} in {windows} windows");
        });
    });
}

#[test]
fn an_outage_ends_all_waits_and_not_one_after_the_other() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::builder(&proxy.url())
        .command_timeout(ms(1_500))
        .max_outage(ms(1_000))
        .build()
        .unwrap();
    let limiter = client.rate_limiter("ip", 1, ms(500));
    assert!(limiter.check().unwrap().allowed);
    within(..SOON, || {
        thread::scope(|scope| {
            let scripts = server.command_count("evalsha");
            let waiters: Vec<_> = (0..20)
                .map(|_| scope.spawn(|| while limiter.acquire(Duration::MAX).unwrap_or(false) {}))
                .collect();
            // Each has been refused once, and now all wait.
            eventually(SOON, || server.command_count("evalsha") >= scripts + 20);
            proxy.set_mode(Mode::Refuse);
            proxy.cut_all();
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        });
    });
}

#[test]
fn closing_ends_all_waits() {
    everywhere(|client| {
        let limiter = client.rate_limiter("ip", 1, LONG);
        assert!(limiter.check().unwrap().allowed);
        thread::scope(|scope| {
            let waiters: Vec<_> = (0..5)
                .map(|_| scope.spawn(|| limiter.acquire(Duration::MAX).unwrap_err()))
                .collect();
            client.close(SOON).unwrap();
            for waiter in waiters {
                assert!(within(..SOON, || waiter.join().unwrap()).is_closed());
            }
        });
    });
}
