//! What is sent, and over how many connections: no useless question, and no open connection that
//! nobody uses.

use std::sync::mpsc;
use std::thread;

use distlock::{Client, LockOptions};

use crate::faults::{through_proxy, warm_up};
use crate::helpers::{SOON, Underway, client, delete, inboxes, ms, put};
use crate::support::{Fault, Rule, Server, eventually, in_own_process, thread_names, within};

#[test]
fn a_lock_that_was_refused_once_counts_as_contended_even_if_the_second_look_finds_it_free() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock("a");
    put(&server, "a", "somebody's", SOON);
    let second_look = proxy.add(Rule::on("EVALSHA", Fault::HoldRequest).next(1));
    let waiting = Underway::start({
        let lock = lock.clone();
        move || lock.with(|_| ())
    });
    let held = second_look.wait_held(SOON);
    delete(&server, "a");
    held.release();
    waiting.result().unwrap();
    // The subscription began meanwhile.
    eventually(SOON, || inboxes(&server) == 1);
    // From now on the script is called at once, until that has been unnecessary for a while.
    let bare = proxy.add(Rule::on("SET", Fault::DelayRequest(ms(0))));
    let before = proxy.requests();
    for _ in 0..16 {
        lock.with(|_| ()).unwrap();
    }
    assert_eq!(bare.fired(), 0);
    assert_eq!(proxy.requests() - before, 2 * 16);
    lock.with(|_| ()).unwrap();
    assert_eq!(bare.fired(), 1, "forgotten");
}

#[test]
fn a_lock_that_nobody_else_wants_opens_one_connection_and_no_inbox() {
    in_own_process(
        "round_trips::a_lock_that_nobody_else_wants_opens_one_connection_and_no_inbox",
        || {
            let server = Server::start();
            let client = client(&server);
            for options in [LockOptions::new(), LockOptions::new().fenced()] {
                let lock = client.lock_with("a", options).unwrap();
                for _ in 0..50 {
                    lock.with(|_| ()).unwrap();
                }
            }
            let names = thread_names();
            assert!(!names.iter().any(|name| name.starts_with("distlock-inbox")), "{names:?}");
            assert_eq!(server.client_count(), 1);
            // The inbox would be seen: a wait opens it.
            put(&server, "b", "somebody's", SOON);
            assert!(!client.lock("b").try_lock(ms(50)).unwrap());
            assert!(thread_names().iter().any(|name| name.starts_with("distlock-inbox")));
        },
    );
}

#[test]
fn connections_that_nobody_has_used_for_a_while_are_closed() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    warm_up(&client, 8);
    assert!(proxy.accepted() >= 8);
    // One connection is in use all the time, and stays open.
    let used = client.clone();
    let (stop, stopped) = mpsc::channel::<()>();
    let user = thread::spawn(move || {
        used.execute(|connection| {
            let _ = stopped.recv();
            redis::cmd("PING").exec(connection)
        })
    });
    eventually(SOON, || server.client_count() == 8);
    within(ms(15_000)..ms(90_000), || eventually(ms(90_000), || server.client_count() == 1));
    drop(stop);
    user.join().unwrap().unwrap();
    // Many calls at once open them again.
    warm_up(&client, 8);
    assert!(server.client_count() >= 8);
}
