//! Outages: they never lead to a refusal, and never to a permit that does not exist.

use std::thread;
use std::time::Duration;

use distlock::{Client, ErrorKind};

use super::{LONG, SOON, both, get, ms, open};
use crate::support::{Fault, Mode, Proxy, Rule, Server, within};

/// A server behind a proxy, and a client that does not wait long, but longer than an answer takes
/// on a busy machine.
fn through_proxy() -> (Server, Proxy, Client) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::builder(&proxy.url())
        .command_timeout(ms(1_000))
        .max_outage(ms(800))
        .build()
        .unwrap();
    (server, proxy, client)
}

#[test]
fn a_server_that_is_down_is_an_error_and_no_refusal() {
    let (_server, proxy, client) = through_proxy();
    proxy.set_mode(Mode::Refuse);
    for limiter in both(&client, 3, LONG) {
        let error = within(..SOON, || limiter.check().unwrap_err());
        assert!(error.is_unavailable(), "{error}");
        assert_eq!(error.lock_name(), Some("both"));
        assert!(within(..SOON, || limiter.acquire(Duration::ZERO).unwrap_err()).is_unavailable());
        assert!(within(ms(500)..SOON, || limiter.acquire(ms(500)).unwrap_err()).is_unavailable());
        assert!(
            within(ms(800)..SOON, || limiter.acquire(Duration::MAX).unwrap_err()).is_unavailable(),
            "after max_outage"
        );
    }
}

#[test]
fn a_silent_server_ends_a_check_within_one_command_timeout() {
    let (_server, proxy, client) = through_proxy();
    for limiter in both(&client, 3, LONG) {
        assert!(limiter.check().unwrap().allowed);
        proxy.freeze();
        assert!(within(ms(950)..SOON, || limiter.check().unwrap_err()).is_unavailable());
        assert!(within(ms(400)..SOON, || limiter.acquire(ms(400)).unwrap_err()).is_unavailable());
        proxy.thaw();
        assert!(limiter.acquire(SOON).is_ok());
    }
}

#[test]
fn acquire_waits_through_an_outage() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    for limiter in both(&client, 30, LONG) {
        proxy.set_mode(Mode::Refuse);
        proxy.cut_all();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| limiter.acquire(SOON));
            thread::sleep(ms(200));
            assert!(!waiter.is_finished());
            proxy.set_mode(Mode::Forward);
            assert!(waiter.join().unwrap().unwrap());
        });
    }
}

#[test]
fn an_outage_after_a_refusal_is_no_refusal() {
    let (_server, proxy, client) = through_proxy();
    let limiter = client.rate_limiter("ip", 1, ms(2_000));
    assert!(limiter.check().unwrap().allowed);
    let refusal = proxy.add(Rule::on("EVALSHA", Fault::DelayReply(ms(50))).next(1));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| limiter.acquire(ms(3_000)));
        refusal.wait_fired(SOON);
        proxy.add(Rule::any(Fault::CutBefore));
        assert!(waiter.join().unwrap().unwrap_err().is_unavailable());
    });
}

#[test]
fn an_unanswered_check_may_have_counted_and_is_not_repeated() {
    let (server, proxy, client) = through_proxy();
    let limiter = client.rate_limiter("ip", 3, LONG);
    assert!(limiter.check().unwrap().allowed);
    let fault = proxy.add(Rule::on("EVALSHA", Fault::SwallowReply));
    assert!(limiter.check().unwrap_err().is_unavailable());
    assert_eq!((fault.fired(), get(&server, "ip").as_deref()), (1, Some("2")));
    proxy.clear_rules();
    // If a connection ends that has just been opened, that says nothing about the question.
    let limiter = client.rate_limiter("other", 3, LONG);
    let fault = proxy.add(Rule::on("EVALSHA", Fault::CutAfter));
    let error = loop {
        // The node's gate may still be shut.
        let error = limiter.check().unwrap_err();
        if fault.fired() > 0 {
            break error;
        }
        thread::sleep(ms(5));
    };
    assert!(error.is_unavailable());
    assert_eq!((fault.fired(), get(&server, "other").as_deref()), (1, Some("1")));
}

#[test]
fn a_connection_closed_while_idle_is_no_error() {
    let server = Server::start();
    let limiters = both(&open(&server), 3, LONG);
    for limiter in &limiters {
        assert!(limiter.check().unwrap().allowed);
    }
    for limiter in &limiters {
        server.restart();
        assert_eq!(limiter.check().unwrap().remaining, 2, "the new server knows of no other call");
    }
}

#[test]
fn a_connection_that_ends_makes_the_limit_stricter_at_worst() {
    let (server, proxy, client) = through_proxy();
    let limiter = client.rate_limiter("ip", 3, LONG);
    assert!(limiter.check().unwrap().allowed);
    proxy.add(Rule::on("EVALSHA", Fault::CutAfter).next(1));
    let decision = limiter.check().unwrap();
    assert_eq!(
        (decision.allowed, decision.remaining),
        (true, 0),
        "put again once, and counted twice"
    );
    assert_eq!(get(&server, "ip").as_deref(), Some("3"));
}

#[test]
fn errors_that_cannot_heal_are_reported_at_once() {
    let server = Server::builder().password("right").start();
    let client = Client::open(&server.url_with("default", "wrong")).unwrap();
    for limiter in both(&client, 3, LONG) {
        assert!(limiter.check().unwrap_err().is_denied());
        assert!(within(..SOON, || limiter.acquire(Duration::MAX).unwrap_err()).is_denied());
    }
}

#[test]
fn a_reply_that_makes_no_sense_is_no_permit() {
    let (_server, proxy, client) = through_proxy();
    let limiter = client.rate_limiter("ip", 100, LONG);
    assert!(limiter.check().unwrap().allowed);
    for reply in [
        "+OK\r\n",
        ":1\r\n",
        "*1\r\n:1\r\n",
        "*3\r\n:1\r\n:-5\r\n:0\r\n",
        "*3\r\n:7\r\n:1\r\n:0\r\n",
        "*3\r\n:1\r\n:1\r\n:5\r\n",
        "*0\r\n",
        "$-1\r\n",
    ] {
        proxy.add(Rule::on("EVALSHA", Fault::ReplaceReply(reply.into())).next(1));
        assert_eq!(limiter.check().unwrap_err().kind(), ErrorKind::Server, "{reply:?}");
        // This may go over a new connection: its first reply must make sense, or the server counts
        // as down.
        assert!(limiter.check().unwrap().allowed);
    }
}
