//! `acquire` of the fixed window: the threads of a client wait in a line, and only as many of them
//! ask as there are permits.

use std::thread;
use std::time::{Duration, Instant};

use distlock::Client;

use super::{CloseAtEnd, LONG, SOON, everywhere, ms, open, questions_per_permit};
use crate::support::{Mode, Proxy, Server, eventually, within};

#[test]
fn fifty_threads_ask_little_more_than_once_for_each_permit() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 5, ms(50));
    let questions = questions_per_permit(&server, &limiter, 4);
    // One question for each permit, one for each window, and one of every thread at the beginning:
    // 1.5, and more if a window passes unused. If all asked whenever there may be room, it would be
    // more than 6.
    assert!((1.0..4.0).contains(&questions), "{questions} questions for each permit");
}

#[test]
fn a_caller_that_cannot_be_served_in_time_is_told_at_once_even_behind_others() {
    let server = Server::start();
    let client = open(&server);
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
        assert!(first.join().unwrap().is_unavailable());
    });
}

#[test]
fn a_caller_whose_time_runs_out_in_the_line_asks_once_itself() {
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
fn an_outage_ends_all_waits_of_the_line_and_not_one_after_the_other() {
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
            // Each has been refused once, and now all wait in the line.
            eventually(SOON, || server.command_count("evalsha") >= scripts + 20);
            proxy.set_mode(Mode::Refuse);
            proxy.cut_all();
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        });
    });
}

#[test]
fn closing_ends_all_waits_of_the_line() {
    everywhere(|client| {
        let limiter = client.rate_limiter("ip", 1, LONG);
        assert!(limiter.check().unwrap().allowed);
        thread::scope(|scope| {
            let waiters: Vec<_> = (0..5)
                .map(|_| scope.spawn(|| limiter.acquire(Duration::MAX).unwrap_err()))
                .collect();
            client.close(SOON).unwrap();
            for waiter in waiters {
                assert!(within(..SOON, || waiter.join().unwrap()).is_unavailable());
            }
        });
    });
}
