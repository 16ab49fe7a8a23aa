//! Wake-ups: a waiter gets the lock at once after a release, a lost wake-up costs a pause, and a
//! forged one lets nobody in.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, LockOptions, Renewal, Retry};

use super::{A_WHILE, SOON};
use crate::support::{Server, eventually, on_time};

/// A waiter that receives nothing asks again after this at the latest.
const ONE_PAUSE: Duration = Duration::from_millis(1_600);

/// Never asks again by itself within a test, so only a wake-up can let it in.
fn patient() -> LockOptions {
    LockOptions::new().retry(Retry::fixed(SOON * 6))
}

/// A client that holds the lock and one that waits for it in its own thread.
fn held_and_waited_for(
    server: &Server,
    options: LockOptions,
) -> (distlock::LockGuard, mpsc::Receiver<(Instant, Option<Duration>)>) {
    let holder = Client::open(&server.url()).unwrap();
    let guard = holder.lock("a").guard().unwrap();
    let (say, hear) = mpsc::channel();
    let url = server.url();
    thread::spawn(move || {
        let client = Client::open(&url).unwrap();
        let lock = client.lock_with("a", options).unwrap();
        lock.lock().unwrap();
        say.send((Instant::now(), lock.remaining())).unwrap();
        lock.unlock().unwrap();
    });
    waits_and_listens(server);
    (guard, hear)
}

/// The one waiter at "a" listens, and has asked again since: from here on it asks only when a
/// message comes, or when its pause is over.
fn waits_and_listens(server: &Server) {
    let mut before_it_listened = 1;
    eventually(SOON, || {
        let mut connection = server.connection();
        let entries: Vec<String> =
            redis::cmd("HVALS").arg("{a}:waiters").query(&mut connection).unwrap();
        let channels: Vec<String> = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg("distlock:inbox:*")
            .query(&mut connection)
            .unwrap();
        let attempt = entries.first().map_or(0, |entry| attempt_in(entry));
        if channels.is_empty() {
            before_it_listened = attempt.max(1);
        }
        entries.len() == 1 && channels.len() == 1 && attempt > before_it_listened
    });
}

/// The attempt that a waiter's entry names.
fn attempt_in(entry: &str) -> u64 {
    entry.split('|').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_waiting_process_has_the_lock_at_once_after_a_release() {
    let server = Server::start();
    let (guard, hear) = held_and_waited_for(&server, patient());
    guard.release().unwrap();
    hear.recv_timeout(SOON).unwrap();
    eventually(SOON, || {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("*").query(&mut server.connection()).unwrap();
        keys.is_empty()
    });
}

#[test]
fn a_lease_without_renewal_is_whole_after_a_hand_off() {
    let server = Server::start();
    let options = LockOptions::new().lease(Duration::from_secs(60)).renewal(Renewal::Never);
    let (guard, hear) = held_and_waited_for(&server, options);
    guard.release().unwrap();
    let (_, remaining) = hear.recv_timeout(SOON).unwrap();
    assert!(remaining.unwrap() > Duration::from_secs(50), "{remaining:?}");
}

#[test]
fn a_lost_wake_up_costs_at_most_one_pause() {
    on_time(Duration::from_millis(100), || {
        let server = Server::start();
        let (guard, hear) = held_and_waited_for(&server, LockOptions::new());
        // The lock disappears, and nobody is told.
        let _: u32 = redis::cmd("DEL").arg("a").query(&mut server.connection()).unwrap();
        let gone = Instant::now();
        let (entered, _) = hear.recv_timeout(SOON).unwrap();
        let took = entered - gone;
        assert!(took < ONE_PAUSE + Duration::from_secs(1), "it took {took:?}");
        assert!(guard.release().unwrap_err().is_lost());
    });
}

#[test]
fn a_lost_inbox_is_opened_again_and_loses_nobody() {
    let server = Server::start();
    let (guard, hear) = held_and_waited_for(&server, patient());
    let killed: u32 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "pubsub"])
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(killed, 1);
    guard.release().unwrap();
    // Whoever listens again asks what it has missed.
    hear.recv_timeout(SOON).unwrap();
}

#[test]
fn forged_and_stale_wake_ups_let_nobody_in() {
    let server = Server::start();
    // It asks again only when a message concerns it, so until then the number of its last attempt
    // is known.
    let (guard, hear) = held_and_waited_for(&server, patient());
    let mut connection = server.connection();
    let channels: Vec<String> = redis::cmd("PUBSUB")
        .arg("CHANNELS")
        .arg("distlock:inbox:*")
        .query(&mut connection)
        .unwrap();
    let entries: Vec<(String, String)> =
        redis::cmd("HGETALL").arg("{a}:waiters").query(&mut connection).unwrap();
    let (token, entry) = &entries[0];
    let attempt = attempt_in(entry);
    for message in [
        // Another's token comes first: the waiter does not ask because of that.
        &format!("{attempt} 0 0 somebody a"),
        "",
        "hello",
        "1",
        "1 2",
        "x y z t a",
        // The lock is not fenced: this one has the right attempt and token, and a fence.
        &format!("{attempt} 7 1 {token} a"),
        &format!("0 0 0 {token} a"),
        &format!("{} 0 0 {token} a", attempt - 1),
        &format!("{} 0 0 {token} a", attempt + 1_000),
    ] {
        let heard: u32 =
            redis::cmd("PUBLISH").arg(&channels[0]).arg(message).query(&mut connection).unwrap();
        assert_eq!(heard, 1, "{message:?}");
        // One by one: of several grants that come before the waiter wakes, it sees the last.
        assert!(hear.recv_timeout(A_WHILE / 4).is_err(), "nobody released the lock");
    }
    assert!(hear.recv_timeout(A_WHILE).is_err(), "nobody released the lock");
    assert!(guard.is_valid());
    guard.release().unwrap();
    hear.recv_timeout(SOON).unwrap();
}
