//! The timestamp layout: what is on the wire, and how we and the old code work together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use distlock::testing::{Answer, Ask, Extend, Gone, Key, Release, Token, Within};
use distlock::{Client, Layout, LockOptions, LostReason, Renewal, Retry};

use crate::helpers::{SOON, error, held, ms};
use crate::support::{Fault, Proxy, Rule, Server, eventually, within};

fn options() -> LockOptions {
    LockOptions::new().layout(Layout::Timestamp)
}

fn client(url: &str) -> Client {
    Client::builder(url).lock_options(options()).build().unwrap()
}

fn ask<T: redis::FromRedisValue>(server: &Server, command: &[&str]) -> T {
    redis::cmd(command[0]).arg(&command[1..]).query(&mut server.connection()).unwrap()
}

fn now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn deadline(server: &Server, key: &str) -> Option<u64> {
    ask::<Option<String>>(server, &["GET", key]).map(|value| value.parse().unwrap())
}

/// A process that runs the old code, command by command. Its clock is the system's, as is the
/// server's.
struct Old {
    connection: redis::Connection,
    lease: u64,
}

impl Old {
    fn new(server: &Server, lease: Duration) -> Old {
        Old { connection: server.connection(), lease: u64::try_from(lease.as_millis()).unwrap() }
    }

    /// One try. Returns the deadline if it holds the lock now.
    fn try_lock(&mut self, key: &str) -> Option<u64> {
        let deadline = now() + self.lease;
        if redis::cmd("SETNX").arg(key).arg(deadline).query(&mut self.connection).unwrap() {
            return Some(deadline);
        }
        let read = self.read(key)?;
        (read < now() && self.take_over(key, deadline, read)).then_some(deadline)
    }

    fn read(&mut self, key: &str) -> Option<u64> {
        redis::cmd("GET").arg(key).query(&mut self.connection).unwrap()
    }

    fn take_over(&mut self, key: &str, deadline: u64, read: u64) -> bool {
        let old: Option<u64> =
            redis::cmd("GETSET").arg(key).arg(deadline).query(&mut self.connection).unwrap();
        old.is_none_or(|old| old == read)
    }

    fn unlock(&mut self, key: &str, deadline: u64) -> bool {
        now() < deadline && redis::cmd("DEL").arg(key).query(&mut self.connection).unwrap()
    }
}

#[test]
fn lease_is_its_deadline_and_ends_with_it() {
    let server = Server::start();
    let lock = client(&server.url()).lock("a");
    let before = now();
    lock.lock().unwrap();
    lock.lock().unwrap();
    let value = deadline(&server, "a").unwrap();
    assert!((before + 30_000..=now() + 30_000).contains(&value), "{value}");
    let mut keys: Vec<String> = ask(&server, &["KEYS", "*"]);
    keys.sort();
    assert_eq!(keys, ["a", "{a}:owner"]);
    for key in &keys {
        let end: u64 = now() + ask::<u64>(&server, &["PTTL", key]);
        assert!(end.abs_diff(value) < 2_000, "{key} ends at {end}, the deadline is {value}");
    }
    lock.unlock().unwrap();
    lock.unlock().unwrap();
    assert!(ask::<Vec<String>>(&server, &["KEYS", "*"]).is_empty());
}

#[test]
fn an_old_client_is_refused_while_we_hold_and_takes_over_when_we_have_died() {
    let server = Server::start();
    let lock = client(&server.url())
        .lock_with("a", options().lease(ms(1_500)).renewal(Renewal::Never))
        .unwrap();
    let mut old = Old::new(&server, ms(5_000));
    let mut theirs = None;
    within(ms(1_400)..SOON, || {
        lock.lock().unwrap();
        assert_eq!(old.try_lock("a"), None);
        eventually(SOON, || {
            theirs = old.try_lock("a");
            theirs.is_some()
        });
    });
    assert!(!lock.is_valid());
    assert!(error(lock.unlock()).is_lost());
    assert_eq!(deadline(&server, "a"), theirs, "not ours to release");
    assert!(old.unlock("a", theirs.unwrap()));
}

#[test]
fn we_are_refused_while_an_old_client_holds_and_take_over_when_it_has_died() {
    let server = Server::start();
    let lock =
        client(&server.url()).lock_with("a", options().retry(Retry::fixed(SOON * 6))).unwrap();
    let mut old = Old::new(&server, ms(2_000));
    let theirs = old.try_lock("a").unwrap();
    assert!(!lock.try_lock(Duration::ZERO).unwrap());
    let holder = lock.inspect().unwrap().holders.remove(0);
    assert_eq!(holder.token, theirs.to_string());
    assert!(holder.remaining.unwrap() <= ms(2_000));
    assert_eq!(ask::<i64>(&server, &["PTTL", "a"]), -1, "old code sets no end");
    // The refusal says until when, so the long pause does not matter.
    within(..SOON, || lock.lock().unwrap());
    assert!(now() > theirs, "not before the deadline");
    assert!(ask::<i64>(&server, &["PTTL", "a"]) > 0);
    assert!(!old.unlock("a", theirs), "not inside its deadline any more");
    lock.unlock().unwrap();
    assert_eq!(deadline(&server, "a"), None);
}

#[test]
fn a_deadline_that_has_passed_holds_nothing() {
    let server = Server::start();
    let lock = client(&server.url()).lock("a");
    let () = ask(&server, &["SET", "a", &(now() - 1_000).to_string()]);
    assert!(lock.inspect().unwrap().holders.is_empty() && !lock.is_locked().unwrap());
    assert!(!lock.force_unlock().unwrap());
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    assert!(lock.force_unlock().unwrap());
    assert!(error(lock.unlock()).is_lost());
    assert_eq!(ask::<u64>(&server, &["DBSIZE"]), 0);
}

#[test]
fn extends_move_the_deadline() {
    let server = Server::start();
    let client = client(&server.url());
    let lock = client.lock_with("a", options().lease(ms(2_400))).unwrap();
    let mut old = Old::new(&server, ms(5_000));
    lock.lock().unwrap();
    let first = deadline(&server, "a").unwrap();
    let start = Instant::now();
    while start.elapsed() < ms(5_000) {
        assert!(lock.is_valid() && old.try_lock("a").is_none());
        thread::sleep(ms(20));
    }
    assert!(deadline(&server, "a").unwrap() >= first + 2_000);
    lock.unlock().unwrap();

    let lock = client.lock_with("a", options().lease(ms(5_000)).renewal(Renewal::Never)).unwrap();
    lock.lock().unwrap();
    for length in [20_000, 60_000] {
        let before = now();
        lock.extend(ms(length)).unwrap();
        let value = deadline(&server, "a").unwrap();
        assert!((before + length..=now() + length).contains(&value), "{value}");
        assert!(ask::<u64>(&server, &["PTTL", "a"]).abs_diff(length) < 2_000);
    }
    lock.unlock().unwrap();
}

/// 1. an old client reads a passed deadline; 2. we take over; 3. its GETSET arrives.
#[test]
fn an_old_client_that_loses_its_race_makes_us_lose_the_lease_and_we_notice() {
    let server = Server::start();
    let client = client(&server.url());
    let (tell, told) = mpsc::channel();
    let any = client.lock("a");
    any.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    for renewal in [Renewal::Never, Renewal::UntilUnlock] {
        let lock = client.lock_with("a", options().lease(ms(3_000)).renewal(renewal)).unwrap();
        let mut old = Old::new(&server, ms(3_000));
        let () = ask(&server, &["SET", "a", &(now() - 1_000).to_string()]);
        let read = old.read("a").unwrap();
        assert!(read < now());
        lock.lock().unwrap();
        // So that it is not the same as ours by chance.
        let theirs = now() + 3_100;
        assert!(!old.take_over("a", theirs, read), "it knows that it lost");
        if renewal == Renewal::UntilUnlock {
            eventually(SOON, || !lock.is_valid());
        } else {
            assert!(error(lock.extend(ms(9_000))).is_lost());
        }
        assert!(error(lock.unlock()).is_lost());
        assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Taken), "before it ran out");
        assert_eq!(deadline(&server, "a"), Some(theirs), "left alone");
        // Nobody can have the lock until that deadline has passed, and then everybody can.
        assert!(!client.lock("a").try_lock(Duration::ZERO).unwrap());
        within(..SOON, || client.lock("a").with(|_| ()).unwrap());
        assert!(now() > theirs);
    }
}

#[test]
fn a_late_release_leaves_a_later_lease_alone_even_with_the_same_deadline() {
    let server = Server::start();
    let store = client(&server.url()).store(Layout::Timestamp).unwrap();
    let (key, lease) = (Key::new("a".into()), ms(20_000));
    let (old, new) = (Token::new("old"), Token::new("new"));
    let soon = || Instant::now() + SOON;
    let ask_for = |token| {
        let ask = Ask {
            key: &key,
            token,
            attempt: 1,
            lease,
            fences: 0,
            place: None,
            contended: false,
            may_be_mine: true,
            deadline: soon(),
        };
        matches!(store.try_acquire(&ask).unwrap(), Answer::Granted { .. })
    };
    assert!(ask_for(&old));
    let value: String = ask(&server, &["GET", "a"]);
    assert_eq!(store.release(&Release::of(&key, &old), soon()).unwrap(), Gone::Released);
    assert!(ask_for(&new));
    // As if both had been granted in the same millisecond.
    let () = ask(&server, &["SET", "a", &value, "KEEPTTL"]);
    let () = ask(&server, &["SET", "{a}:owner", &format!("{value} new"), "KEEPTTL"]);
    let stale = Extend { key: &key, token: &old, lease: lease * 3 };
    assert!(!store.extend_one(&stale, soon()).unwrap());
    assert!(!store.extend(&[stale], Within::until(soon())).remove(0).unwrap());
    assert_eq!(store.release(&Release::of(&key, &old), soon()).unwrap(), Gone::NotOurs);
    assert_eq!(held(&*store, &key)[0].token.text(), "new");
    assert_eq!(store.release(&Release::of(&key, &new), soon()).unwrap(), Gone::Released);
}

#[test]
fn an_attempt_whose_reply_is_lost_is_found_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = client(&proxy.url());
    let lock = client.lock("a");
    lock.with(|_| ()).unwrap();
    // This does not match a withdrawal, which has fewer arguments.
    let attempt =
        || Rule::on("EVALSHA", Fault::SwallowReply).when(|command| command.len() == 8).next(1);
    // The next attempt finds it: otherwise nobody would know which deadline was written.
    let lost = proxy.add(attempt());
    within(..SOON, || lock.lock().unwrap());
    assert_eq!(lost.fired(), 1);
    lock.unlock().unwrap();
    assert_eq!(deadline(&server, "a"), None);
    // The cleaner finds it if there is no next attempt.
    let lost = proxy.add(attempt());
    assert!(error(lock.try_lock(Duration::ZERO)).is_unavailable());
    assert_eq!(lost.fired(), 1);
    eventually(SOON, || deadline(&server, "a").is_none());
}

#[test]
fn foreign_data_is_reported_and_left_alone() {
    let server = Server::start();
    let lock = client(&server.url()).lock("a");
    for data in [
        &["SET", "a", "8f14e45f-ceea-4b17-8b57-4a1c3a2f7d10"][..],
        &["SET", "a", "42"],
        &["SET", "a", "-1712345678901"],
        &["HSET", "a", "u:1", "1"],
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
    // A deadline that no clock will reach is still a deadline.
    let () = ask(&server, &["SET", "a", "9223372036854775807"]);
    assert!(!lock.try_lock(Duration::ZERO).unwrap());
}

#[test]
fn fences_and_owners_are_refused() {
    let client = client("redis://127.0.0.1:1/");
    assert!(error(client.lock_with("a", options().fenced())).is_unsupported());
    assert!(client.store(Layout::Timestamp).unwrap().supports(&options().fenced()).is_err());
    assert!(error(client.lock_with("a", options().owner("x"))).is_invalid_input());
}

#[test]
fn a_user_with_the_documented_permissions_can_lock() {
    let server = Server::start();
    let mut setuser = redis::cmd("ACL");
    setuser.arg("SETUSER").arg("u").arg(&[
        "on",
        ">secret",
        "resetchannels",
        "-@all",
        "~a",
        "~{a}:owner",
    ]);
    setuser.arg(&["+eval", "+evalsha", "+get", "+set", "+del", "+time"]);
    setuser.exec(&mut server.connection()).unwrap();
    let lock = client(&server.url_with("u", "secret")).lock("a");
    lock.lock().unwrap();
    lock.extend(SOON).unwrap();
    assert!(lock.is_locked().unwrap());
    lock.unlock().unwrap();
    assert!(!lock.force_unlock().unwrap());
}

/// Two old processes and two of ours, and one counter that is read and written in two steps. One of
/// each kind dies while it holds.
#[test]
fn no_update_is_lost_between_us_and_old_clients() {
    const EACH: u64 = 30;
    const LEASE: Duration = ms(2_000);
    let server = Server::start();
    let done = AtomicU64::new(0);
    let add_one = |connection: &mut redis::Connection| {
        let n: Option<u64> = redis::cmd("GET").arg("counter").query(connection).unwrap();
        thread::yield_now();
        redis::cmd("SET").arg("counter").arg(n.unwrap_or(0) + 1).exec(connection).unwrap();
        done.fetch_add(1, Ordering::SeqCst);
    };
    thread::scope(|scope| {
        for process in 0..2 {
            let (server, add_one) = (&server, &add_one);
            scope.spawn(move || {
                let client = client(&server.url());
                let lock =
                    client.lock_with("a", options().lease(LEASE).renewal(Renewal::Never)).unwrap();
                let mut connection = server.connection();
                for i in 0..EACH {
                    lock.lock().unwrap();
                    add_one(&mut connection);
                    if process == 0 && i == EACH / 2 {
                        // To the others, it has died.
                        thread::sleep(LEASE);
                    }
                    // A false loss is possible, but the update was still made under the lock.
                    let _ = lock.unlock();
                }
            });
            scope.spawn(move || {
                let (mut old, mut connection) = (Old::new(server, LEASE), server.connection());
                for i in 0..EACH {
                    let deadline = loop {
                        match old.try_lock("a") {
                            Some(deadline) => break deadline,
                            None => thread::sleep(ms(3)),
                        }
                    };
                    add_one(&mut connection);
                    if !(process == 0 && i == EACH / 2) {
                        old.unlock("a", deadline);
                    }
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::SeqCst), EACH * 4);
    assert_eq!(ask::<u64>(&server, &["GET", "counter"]), EACH * 4, "lost update");
}
