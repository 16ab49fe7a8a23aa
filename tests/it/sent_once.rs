//! What must not run twice is sent once, over a new connection; everything else is asked again
//! where an idle connection was closed.

use std::time::Duration;

use distlock::{Client, LockOptions};

use crate::faults::{through_proxy, warm_up};
use crate::helpers::{SOON, close_connections, error, get, ms, pttl, put};
use crate::support::{Fault, Rule, Server};

#[test]
fn an_extend_that_was_not_answered_is_sent_again() {
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
