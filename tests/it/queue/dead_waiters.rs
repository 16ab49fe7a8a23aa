//! Waiters that are dead or do not listen: they are passed over.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::testing::Answer;

use super::{At, ByHand, SOON, listen};
use crate::support::Server;

#[test]
fn a_waiter_whose_entry_has_expired_is_dropped() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let _ears = (listen(&server, "dead"), listen(&server, "alive"));
    lock.ask("holder", 1, &At::new("none"));
    // Without another waiter the queue would expire with this entry, but twice as late: there is
    // time for the test.
    lock.is_refused("dead", 1, &At { alive_for: Duration::from_millis(300), ..At::new("dead") });
    lock.is_refused("alive", 1, &At::new("alive"));
    thread::sleep(Duration::from_millis(310));
    lock.release("holder");
    assert_eq!(lock.holder().as_deref(), Some("alive"));
    assert_eq!(lock.redis::<u32>("ZCARD {a}:queue"), 0);
}

#[test]
fn a_waiter_that_is_not_heard_is_told_so_and_has_no_place() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    lock.ask("holder", 1, &At::new("none"));
    assert!(matches!(lock.ask("b", 1, &At::new("b")), Answer::Refused { heard: false, .. }));
    assert_eq!(lock.redis::<u32>("EXISTS {a}:queue {a}:waiters"), 0);
    let _ear = listen(&server, "b");
    assert!(matches!(lock.ask("b", 2, &At::new("b")), Answer::Refused { heard: true, .. }));
    assert_eq!(lock.redis::<u32>("ZCARD {a}:queue"), 1);
}

#[test]
fn a_subscriber_to_every_channel_does_not_make_a_dead_waiter_count_as_listening() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let (say, everything) = mpsc::channel();
    let mut connection = server.connection();
    let (dead, _alive) = (listen(&server, "dead"), listen(&server, "alive"));
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("dead", 1, &At::new("dead"));
    lock.is_refused("alive", 1, &At::new("alive"));
    dead.cut();
    thread::spawn(move || {
        let mut subscription = connection.as_pubsub();
        subscription.psubscribe("*").unwrap();
        say.send(()).unwrap();
        while subscription.get_message().is_ok() {}
    });
    everything.recv_timeout(SOON).unwrap();
    lock.release("holder");
    assert_eq!(lock.holder().as_deref(), Some("alive"));
}
