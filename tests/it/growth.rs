//! Growth: what was used once leaves nothing behind, in the client or on the server.

use std::thread;

use distlock::{Client, LockOptions};

use crate::helpers::{SOON, client, keys, memory};
use crate::support::{Server, eventually};

#[test]
fn a_hundred_thousand_names_used_once_leave_nothing_in_the_client() {
    let client = memory();
    for i in 0..100_000 {
        client.lock(&format!("job-{i}")).with(|_| ()).unwrap();
    }
    assert_eq!(client.remembered(), (0, 0));
}

#[test]
fn names_that_were_contended_leave_nothing_in_the_client() {
    let client = Client::open("memory://growth").unwrap();
    let other = Client::open("memory://growth").unwrap();
    thread::scope(|scope| {
        for client in [&client, &client, &other] {
            scope.spawn(|| {
                for i in 0..500 {
                    let lock = client.lock(&format!("job-{}", i / 4));
                    lock.on_lost(|_| {});
                    lock.with(|_| ()).unwrap();
                }
            });
        }
    });
    eventually(SOON, || client.remembered() == (0, 0) && other.remembered() == (0, 0));
}

#[test]
fn ten_thousand_names_used_once_leave_only_fences_on_the_server() {
    const NAMES: usize = 10_000;
    let server = Server::start();
    let client = client(&server);
    thread::scope(|scope| {
        for part in 0..4 {
            let client = &client;
            scope.spawn(move || {
                for i in (0..NAMES).filter(|i| i % 4 == part) {
                    let options =
                        if i % 8 < 4 { LockOptions::new().fenced() } else { LockOptions::new() };
                    client.lock_with(&format!("job-{i}"), options).unwrap().with(|_| ()).unwrap();
                }
            });
        }
    });
    eventually(SOON, || client.remembered() == (0, 0));
    let left = keys(&server);
    assert_eq!(left.len(), NAMES / 2);
    assert!(left.iter().all(|key| key.ends_with("}:fence")));
    // And the fences do not stay for ever.
    let life: i64 = redis::cmd("PTTL").arg(&left[0]).query(&mut server.connection()).unwrap();
    assert!(life > 24 * 60 * 60 * 1000, "{life}");
    assert!(server.client_count() <= 9 + 1);
}

#[test]
fn names_that_cannot_be_used_or_were_never_locked_leave_nothing() {
    let client = memory();
    for i in 0..1000 {
        let lock = client.lock(&format!("job-{i}"));
        assert!(!lock.is_held() && lock.unlock().is_err());
        assert!(client.lock("").lock().is_err());
    }
    assert_eq!(client.remembered(), (0, 0));
}
