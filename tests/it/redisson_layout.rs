//! Redisson's layout: what is on the wire, and how we and Redisson's own scripts work together.

mod fences;
mod java;
mod neighbours;
mod waking;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use distlock::testing::{Answer, Ask, Gone, Key, Release, Token};
use distlock::{Client, Layout, LockOptions, Retry};

use crate::helpers::{SOON, error, ms};
use crate::support::{Fault, Proxy, Rule, Server};

use java::{Java, Listener};

fn options() -> LockOptions {
    LockOptions::new().layout(Layout::Redisson)
}

fn client(url: &str) -> Client {
    Client::builder(url).lock_options(options()).build().unwrap()
}

fn hash(server: &Server, key: &str) -> HashMap<String, String> {
    redis::cmd("HGETALL").arg(key).query(&mut server.connection()).unwrap()
}

fn ask<T: redis::FromRedisValue>(server: &Server, command: &[&str]) -> T {
    redis::cmd(command[0]).arg(&command[1..]).query(&mut server.connection()).unwrap()
}

/// The one field of the lock's hash, and its count.
fn owner(server: &Server, key: &str) -> (String, String) {
    let hash = hash(server, key);
    assert_eq!(hash.len(), 1, "{hash:?}");
    hash.into_iter().next().unwrap()
}

fn free(server: &Server, key: &str) -> bool {
    ask::<u64>(server, &["EXISTS", key]) == 0
}

#[test]
fn lease_is_a_hash_of_one_owner_that_counts_one_hold() {
    let server = Server::start();
    let lock = client(&server.url()).lock("a");
    for holds in 1..=3 {
        lock.lock().unwrap();
        assert_eq!(lock.hold_count(), holds);
        let (owner, count) = owner(&server, "a");
        assert_eq!(count, "1", "further holds are local");
        let (uuid, number) = owner.split_once(':').unwrap();
        assert_eq!(uuid.len(), 36);
        assert!(
            uuid.chars().all(|c| c == '-' || c.is_ascii_hexdigit() && !c.is_ascii_uppercase()),
            "{uuid}"
        );
        assert!(number.parse::<u64>().is_ok(), "{number}");
    }
    assert_eq!(ask::<Vec<String>>(&server, &["KEYS", "*"]), ["a"]);
    let left: i64 = ask(&server, &["PTTL", "a"]);
    assert!((15_000..=30_000).contains(&left), "{left}");
    for _ in 0..3 {
        assert!(!free(&server, "a"));
        lock.unlock().unwrap();
    }
    assert!(ask::<Vec<String>>(&server, &["KEYS", "*"]).is_empty());
}

#[test]
fn every_acquisition_has_an_owner_of_its_own() {
    let server = Server::start();
    let [first, second] = [(); 2].map(|()| {
        let lock = client(&server.url()).lock("a");
        let owner = |_| lock.with(|_| owner(&server, "a").0).unwrap();
        let owners: Vec<String> = (1..=5).map(owner).collect();
        let client = owners[0].split(':').next().unwrap().to_owned();
        let expected: Vec<String> = (1..=5).map(|number| format!("{client}:{number}")).collect();
        assert_eq!(owners, expected, "one UUID for each client and one number for each lease");
        client
    });
    assert_ne!(first, second);
}

#[test]
fn a_late_copy_of_an_attempt_is_no_second_hold() {
    let server = Server::start();
    let store = client(&server.url()).store(Layout::Redisson).unwrap();
    let (key, token) = (Key::new("a".into()), Token::new("u:1"));
    let lease = ms(20_000);
    let attempt = |attempt, lease| {
        let deadline = Instant::now() + SOON;
        store
            .try_acquire(&Ask {
                key: &key,
                token: &token,
                attempt,
                lease,
                fences: 0,
                place: None,
                contended: false,
                may_be_mine: true,
                deadline,
            })
            .unwrap()
    };
    for n in 1..=3 {
        assert!(matches!(attempt(n, lease * u32::try_from(n).unwrap()), Answer::Granted { .. }));
        assert_eq!(owner(&server, "a"), ("u:1".to_owned(), "1".to_owned()));
        let left: u64 = ask(&server, &["PTTL", "a"]);
        assert!(left > 20_000 * n - 10_000, "the whole lease again: {left}");
    }
    // A late copy, after an extend: the end stays where it is.
    assert!(matches!(attempt(4, lease), Answer::Granted { .. }));
    assert!(ask::<u64>(&server, &["PTTL", "a"]) > 50_000);
    assert_eq!(
        store.release(&Release::of(&key, &token), Instant::now() + SOON).unwrap(),
        Gone::Released
    );
    assert!(free(&server, "a"));
}

#[test]
fn an_attempt_whose_reply_is_lost_becomes_one_hold() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = client(&proxy.url());
    let lock = client.lock("a");
    lock.with(|_| ()).unwrap();
    let lost = proxy.add(Rule::on("EVALSHA", Fault::SwallowReply).next(1));
    lock.lock().unwrap();
    assert_eq!(lost.fired(), 1);
    assert_eq!(owner(&server, "a").1, "1");
    lock.unlock().unwrap();
    assert!(free(&server, "a"));
}

#[test]
fn release_is_published_once_as_redisson_expects_it() {
    let server = Server::start();
    let client = client(&server.url());
    for (name, channel) in
        [("a", "redisson_lock__channel:{a}"), ("x{a}y", "redisson_lock__channel:x{a}y")]
    {
        let listener = Listener::at(&server, channel);
        let lock = client.lock(name);
        lock.lock().unwrap();
        lock.lock().unwrap();
        lock.unlock().unwrap();
        assert_eq!(listener.next(ms(50)), None, "still held");
        lock.unlock().unwrap();
        assert_eq!(listener.next(SOON), Some((channel.to_owned(), "0".to_owned())));
        lock.lock().unwrap();
        assert!(lock.force_unlock().unwrap());
        assert_eq!(listener.next(SOON), Some((channel.to_owned(), "0".to_owned())));
        assert!(error(lock.unlock()).is_lost());
        assert!(!lock.force_unlock().unwrap());
        assert_eq!(listener.next(ms(50)), None, "nothing was released");
    }
}

#[test]
fn foreign_data_is_reported_and_left_alone() {
    let server = Server::start();
    let lock = client(&server.url()).lock("a");
    for data in [
        &["SET", "a", "x"][..],
        &["HSET", "a", "mode", "read", "u:1", "1"],
        &["HSET", "a", "u:1", "1", "u:2", "1"],
        &["HSET", "a", "name", "Ada"],
        &["RPUSH", "a", "x"],
    ] {
        let _: redis::Value = ask(&server, data);
        let before: Vec<u8> = ask(&server, &["DUMP", "a"]);
        // First the call that would not wait for ever.
        assert!(error(lock.try_lock(Duration::ZERO)).is_wrong_type(), "{data:?}");
        assert!(error(lock.lock()).is_wrong_type());
        assert!(error(lock.inspect()).is_wrong_type());
        assert!(error(lock.force_unlock()).is_wrong_type());
        assert_eq!(ask::<Vec<u8>>(&server, &["DUMP", "a"]), before);
        let () = ask(&server, &["DEL", "a"]);
    }
}

#[test]
fn an_owner_is_written_as_given_and_excludes_another_client_with_the_same_owner() {
    let server = Server::start();
    let lock = client(&server.url()).lock_with("a", options().owner("java-uuid:17")).unwrap();
    let same = client(&server.url()).lock_with("a", options().owner("java-uuid:17")).unwrap();
    lock.lock().unwrap();
    assert_eq!(owner(&server, "a"), ("java-uuid:17".to_owned(), "1".to_owned()));
    assert!(!same.try_lock(Duration::ZERO).unwrap());
    lock.unlock().unwrap();
    assert!(free(&server, "a"));
}

#[test]
fn other_stores_have_no_such_layout() {
    let memory = Client::open("memory://").unwrap();
    for layout in [Layout::Redisson, Layout::Timestamp] {
        assert!(error(memory.lock_with("a", LockOptions::new().layout(layout))).is_unsupported());
        assert!(
            error(
                Client::builder("memory://")
                    .lock_options(LockOptions::new().layout(layout))
                    .build()
            )
            .is_unsupported()
        );
    }
}

#[test]
fn a_user_with_the_documented_permissions_can_lock_wait_and_wake() {
    let server = Server::start();
    let commands = "+eval +evalsha +hlen +hgetall +hset +hexists +pexpire +pttl +get +del \
                    +publish +subscribe +unsubscribe +ping +role +incrby +time +cluster|info";
    let mut setuser = redis::cmd("ACL");
    setuser.arg("SETUSER").arg("u").arg("on").arg(">secret").arg("resetchannels").arg("-@all");
    setuser.arg(commands.split(' ').collect::<Vec<_>>());
    setuser.arg(&[
        "~a",
        "~redisson_lock_token:*",
        "&redisson_lock__channel:*",
        "&distlock:inbox:*",
    ]);
    setuser.exec(&mut server.connection()).unwrap();
    let url = server.url_with("u", "secret");
    let client = client(&url);
    let patient = options().fenced().retry(Retry::fixed(SOON * 3));
    let mut java = Java::new(&server, 7);
    assert_eq!(java.acquire("a", 60_000), None);
    let waiter = waking::Waiter::start(&client.lock_with("a", patient).unwrap());
    waking::wait_until_heard(&server, "a");
    assert_eq!(java.release("a", 60_000), Some(1));
    waiter.locked(SOON);
    waiter.end();
    assert!(
        client.lock("a").inspect().unwrap().holders.is_empty()
            && !client.lock("a").force_unlock().unwrap()
    );
    let denied = redis::cmd("ACL").arg("LOG").query::<Vec<redis::Value>>(&mut server.connection());
    assert_eq!(denied, Ok(Vec::new()));
}
