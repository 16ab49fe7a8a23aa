//! Waiters that are dead, frozen, not listening or gone: they are passed over, and cost the others
//! little.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::testing::Answer;
use distlock::{Client, Lock};

use super::{A_WHILE, At, ByHand, SOON, listen};
use crate::support::{Server, within};

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
fn a_cancelled_waiter_that_was_granted_meanwhile_passes_the_lock_on() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let _ears = (listen(&server, "b"), listen(&server, "c"));
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("b", 1, &At::new("b"));
    lock.is_refused("c", 1, &At::new("c"));
    lock.release("holder");
    assert_eq!(lock.holder().as_deref(), Some("b"));
    lock.withdraw("b");
    assert_eq!(lock.holder().as_deref(), Some("c"));
    lock.withdraw("b");
    assert_eq!(lock.holder().as_deref(), Some("c"), "a withdrawal may be repeated");
    lock.release("c");
    assert_eq!(lock.holder(), None);
}

#[test]
fn a_frozen_waiter_costs_no_more_than_its_first_lease() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let _ear = listen(&server, "frozen");
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("frozen", 1, &At { first_lease: A_WHILE, ..At::new("frozen") });
    lock.release("holder");
    assert_eq!(lock.holder().as_deref(), Some("frozen"));
    // A hand-off grants at most three seconds, whatever the lease.
    let client = Client::open(&server.url()).unwrap();
    within(..Duration::from_secs(2), || {
        assert!(client.lock("a").try_lock(Duration::from_secs(2)).unwrap())
    });
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
