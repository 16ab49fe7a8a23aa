//! What must not run twice is sent once, over a connection that has just answered (R36); everything
//! else is asked again where an idle connection was closed.

use std::time::Duration;

use distlock::{Client, Lock, LockOptions};

use crate::faults::{impatient, through_proxy, warm_up};
use crate::helpers::{SOON, close_connections, error, get, ms, pttl, put};
use crate::support::{Fault, Rule, Server, within};

fn scripts(server: &Server) -> u64 {
    server.command_count("evalsha") + server.command_count("eval")
}

/// 1. a shortening is on its way when its connection ends: its client has no answer;
/// 2. a second one, over another connection, is answered; then the lease is made whole again;
/// 3. the first arrives: the lease ends early on the server, and its holder does not know.
#[test]
fn a_shortening_that_was_not_answered_is_not_sent_again() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock("x");
    lock.lock().unwrap();
    lock.extend(ms(25_000)).unwrap();
    let before = scripts(&server);
    let cut = proxy.add(Rule::on("EVALSHA", Fault::CutAfter).next(1));
    assert!(error(lock.extend(ms(10_000))).is_unknown());
    cut.wait_fired(SOON);
    assert_eq!(scripts(&server) - before, 1);
    lock.unlock().unwrap();
}

#[test]
fn a_lengthening_that_was_not_answered_is_sent_again() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock("x");
    lock.lock().unwrap();
    lock.extend(ms(25_000)).unwrap();
    let cut = proxy.add(Rule::on("EVALSHA", Fault::CutAfter).next(1));
    lock.extend(ms(60_000)).unwrap();
    cut.wait_fired(SOON);
    assert!(pttl(&server, "x") > 50_000);
    lock.unlock().unwrap();
}

#[test]
fn a_shortening_over_an_idle_connection_that_was_closed_is_sent_once() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock("x");
    warm_up(&client, 4);
    lock.lock().unwrap();
    lock.extend(ms(25_000)).unwrap();
    close_connections(&mut server.connection());
    let before = scripts(&server);
    lock.extend(ms(10_000)).unwrap();
    assert_eq!(scripts(&server) - before, 1);
    assert!((5000..=10_000).contains(&pttl(&server, "x")));
    lock.unlock().unwrap();
}

/// The path of a connection may fail without a message to either side.
#[test]
fn a_shortening_takes_another_connection_when_its_first_one_has_died_silently() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).command_timeout(ms(1500)).build().unwrap();
    let lock = client.lock("x");
    lock.lock().unwrap();
    lock.extend(ms(25_000)).unwrap();
    let silent = proxy.add(Rule::on("PING", Fault::SwallowReply).next(1));
    let before = scripts(&server);
    within(..SOON, || lock.extend(ms(10_000))).unwrap();
    assert_eq!((silent.fired(), scripts(&server) - before), (1, 1));
    assert!(pttl(&server, "x") <= 10_000);
    lock.unlock().unwrap();
}

#[test]
fn force_unlock_and_notify_do_not_notice_that_idle_connections_were_closed() {
    let server = Server::start();
    for options in [LockOptions::new(), LockOptions::new().fenced()] {
        let client = Client::builder(&server.url()).lock_options(options).build().unwrap();
        let lock = client.lock("x");
        put(&server, "x", "somebody's", SOON);
        warm_up(&client, 4);
        close_connections(&mut server.connection());
        assert!(lock.force_unlock().unwrap());
        assert!(lock.try_lock(Duration::ZERO).unwrap());
        close_connections(&mut server.connection());
        lock.new_condition("c").unwrap().notify_one().unwrap();
        close_connections(&mut server.connection());
        assert!(lock.is_locked().unwrap());
        lock.unlock().unwrap();
    }
}

#[test]
fn force_unlock_that_was_not_answered_does_not_release_the_next_holder() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    client.ping().unwrap();
    put(&server, "x", "somebody's", SOON);
    // So that the server knows the script.
    assert!(client.lock("x").force_unlock().unwrap());
    put(&server, "x", "somebody's", SOON);
    let cut = proxy.add(Rule::on("EVALSHA", Fault::HoldReply).next(1));
    let forcing = crate::helpers::Underway::start(move || client.lock("x").force_unlock());
    let held = cut.wait_held(SOON);
    put(&server, "x", "the next holder's", SOON);
    // The held request is dropped: it is lost, and its connection ends.
    drop(held);
    assert!(error(forcing.result()).is_unknown());
    assert_eq!(get(&server, "x").as_deref(), Some("the next holder's"));
}
