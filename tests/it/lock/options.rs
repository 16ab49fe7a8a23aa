//! Options of a lock: those that conflict or cannot work are refused, and an owner is only a value.

use std::time::Duration;

use distlock::{Client, Layout, LockOptions, Renewal, Retry};

use crate::helpers::{
    Elsewhere, SOON, Underway, client, error, get, lease, memory, ms, on_another_thread, put,
};
use crate::support::{Fault, Proxy, Rule, Server, within};

#[test]
fn locking_again_with_other_options_is_a_conflict() {
    let client = memory();
    let lock = client.lock_with("job", lease(ms(20_000))).unwrap();
    let same = client.lock_with("job", lease(ms(20_000))).unwrap();
    let other = client.lock_with("job", lease(ms(10_000))).unwrap();
    lock.lock().unwrap();
    same.lock().unwrap();
    for refused in [
        other.lock(),
        other.try_lock(Duration::ZERO).map(drop),
        other.guard().map(drop),
        client.lock("job").lock(),
    ] {
        assert!(error(refused).is_conflict());
    }
    assert_eq!((lock.hold_count(), other.hold_count()), (2, 2));
    lock.unlock().unwrap();
    // Any handle of the lock can give up a hold.
    other.unlock().unwrap();
    other.lock().unwrap();
    other.unlock().unwrap();
}

#[test]
fn a_thread_with_other_options_waits_for_its_turn_and_gets_what_it_asked_for() {
    let server = Server::start();
    let client = client(&server);
    let holder = Elsewhere::holds(&client.lock("job"));
    let lock = client.lock_with("job", lease(ms(5_000)).renewal(Renewal::Never)).unwrap();
    let waiter = {
        let lock = lock.clone();
        Underway::behind(&client, "job", move || {
            lock.lock().unwrap();
            let remaining = lock.remaining().unwrap();
            lock.unlock().unwrap();
            remaining
        })
    };
    holder.unlock().unwrap();
    assert!(waiter.result() < ms(5_000), "not the lease of thirty seconds that the other had");
}

#[test]
fn the_owners_value_is_stored_under_the_key() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock_with("job", LockOptions::new().owner("worker-7")).unwrap();
    for _ in 0..2 {
        lock.lock().unwrap();
        assert_eq!(get(&server, "job").as_deref(), Some("worker-7"));
        lock.unlock().unwrap();
        assert_eq!(get(&server, "job"), None);
    }
}

#[test]
fn an_owner_is_refused_even_when_its_own_value_is_under_the_key() {
    let server = Server::start();
    let (mine, theirs) = (client(&server), client(&server));
    let options = || LockOptions::new().owner("worker-7");
    let lock = mine.lock_with("job", options()).unwrap();
    lock.lock().unwrap();
    // Refused are another thread of the client and another client, also when somebody left the
    // value there.
    assert!(!on_another_thread(|| lock.try_lock(ms(30)).unwrap()));
    assert!(!theirs.lock_with("job", options()).unwrap().try_lock(ms(100)).unwrap());
    put(&server, "left", "worker-7", SOON);
    let left = mine.lock_with("left", options()).unwrap();
    assert!(!left.try_lock(Duration::ZERO).unwrap() && !left.try_lock(ms(100)).unwrap());
    assert_eq!(
        get(&server, "left").as_deref(),
        Some("worker-7"),
        "and not withdrawn: it is not ours"
    );
    lock.unlock().unwrap();
}

#[test]
fn an_owner_accepts_already_mine_after_an_unanswered_attempt() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock_with("job", LockOptions::new().owner("worker-7")).unwrap();
    let cut = proxy.add(Rule::on("SET", Fault::CutAfter).next(1));
    within(..SOON, || lock.lock().unwrap());
    assert_eq!(cut.fired(), 1);
    assert_eq!(get(&server, "job").as_deref(), Some("worker-7"));
    lock.unlock().unwrap();
    assert_eq!(get(&server, "job"), None);
}

#[test]
fn owners_that_cannot_work_are_refused() {
    let client = memory();
    for owner in [String::new(), "x".repeat(1025)] {
        assert!(error(client.lock_with("job", LockOptions::new().owner(owner))).is_invalid_input());
    }
    client.lock_with("job", LockOptions::new().owner("x".repeat(1024))).unwrap();
    let timestamp = LockOptions::new().owner("x").layout(Layout::Timestamp);
    let client = Client::open("redis://127.0.0.1:1/").unwrap();
    assert!(error(client.lock_with("job", timestamp)).is_invalid_input());
}

#[test]
fn settings_that_cannot_work_are_refused_where_they_are_given() {
    let client = memory();
    let day = Duration::from_secs(24 * 60 * 60);
    let bad = [
        lease(Duration::ZERO),
        lease(ms(99)),
        lease(day + ms(1)),
        lease(Duration::MAX),
        LockOptions::new().retry(Retry::fixed(Duration::ZERO)),
        LockOptions::new().retry(Retry::jittered(ms(5), ms(4))),
        LockOptions::new().retry(Retry::fixed(ms(5)).attempts(0)),
        LockOptions::new().local_hand_offs(1_000_001),
    ];
    for options in bad {
        assert!(error(client.lock_with("job", options.clone())).is_invalid_input(), "{options:?}");
        assert!(
            error(Client::builder("memory://").lock_options(options.clone()).build())
                .is_invalid_input(),
            "{options:?}"
        );
    }
    for options in [
        lease(ms(100)),
        lease(day),
        LockOptions::new().retry(Retry::jittered(ms(1), Duration::MAX)),
    ] {
        client.lock_with("job", options).unwrap().with(|_| ()).unwrap();
    }
}
