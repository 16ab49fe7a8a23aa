//! Redisson's layout: what is on the wire, and how we and Redisson's own scripts meet there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use distlock::testing::{Answer, Ask, Gone, Key, Release, Token};
use distlock::{Client, Layout, Lock, LockOptions, Queue, RedisLock, Renewal, Retry};

use crate::helpers::{SOON, error, ms};
use crate::support::{Fault, Proxy, Rule, Server, eventually, within};

mod java;
mod waking;

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
    let lock = client(&server.url()).lock("a");
    let owners: Vec<String> =
        (0..5).map(|_| lock.with(|_| owner(&server, "a").0).unwrap()).collect();
    for part in [0, 1] {
        let parts: std::collections::HashSet<_> =
            owners.iter().map(|owner| owner.split(':').nth(part).unwrap()).collect();
        assert_eq!(parts.len(), 5, "{owners:?}");
    }
}

#[test]
fn each_side_refuses_while_the_other_holds() {
    let server = Server::start();
    let (lock, mut java) = (client(&server.url()).lock("a"), Java::new(&server, 7));
    lock.lock().unwrap();
    let left = java.acquire("a", 5_000).expect("refused");
    assert!((15_000..=30_000).contains(&left), "{left}");
    assert_eq!(java.release("a", 5_000), None, "a stranger's unlock");
    lock.unlock().unwrap();

    assert_eq!(java.acquire("a", 5_000), None);
    assert!(!lock.try_lock(Duration::ZERO).unwrap());
    let holder = lock.inspect().unwrap().unwrap();
    assert_eq!(holder.token, java.owner);
    assert!(holder.remaining.is_some_and(|left| left > ms(1_000) && left <= ms(5_000)));
    assert!(error(lock.unlock()).is_not_held());
    // Its second hold is its own business.
    assert_eq!(java.acquire("a", 5_000), None);
    assert_eq!(hash(&server, "a"), HashMap::from([(java.owner.clone(), "2".to_owned())]));
    assert_eq!(java.release("a", 5_000), Some(0));
    assert!(!lock.try_lock(Duration::ZERO).unwrap());
    assert_eq!(java.release("a", 5_000), Some(1));
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    lock.unlock().unwrap();
}

#[test]
fn each_side_takes_over_when_the_lease_of_the_other_has_run_out() {
    let server = Server::start();
    let client = client(&server.url());
    let short = client.lock_with("a", options().lease(ms(300)).renewal(Renewal::Never)).unwrap();
    let mut java = Java::new(&server, 7);
    short.lock().unwrap();
    within(ms(50)..SOON, || eventually(SOON, || java.acquire("a", 400).is_none()));
    assert!(error(short.unlock()).is_lost());
    assert_eq!(owner(&server, "a").0, java.owner, "not ours to release");
    // Nobody publishes that; the waiter knows when to ask.
    within(ms(100)..ms(1_400), || client.lock("a").lock().unwrap());
    assert_eq!(java.release("a", 400), None);
    client.lock("a").unlock().unwrap();
}

#[test]
fn a_lease_is_renewed_and_only_ours() {
    let server = Server::start();
    let lock = client(&server.url()).lock_with("a", options().lease(ms(1_000))).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    lock.lock().unwrap();
    let mut java = Java::new(&server, 7);
    let start = Instant::now();
    while start.elapsed() < ms(2_500) {
        assert!(lock.is_valid() && java.acquire("a", 5_000).is_some());
        thread::sleep(ms(20));
    }
    let () = ask(&server, &["DEL", "a"]);
    assert_eq!(java.acquire("a", 5_000), None);
    told.recv_timeout(SOON).unwrap();
    assert_eq!(hash(&server, "a"), HashMap::from([(java.owner.clone(), "1".to_owned())]));
    let left: i64 = ask(&server, &["PTTL", "a"]);
    assert!(left > 1_000, "the other's lease is as long as it was: {left}");
    assert!(error(lock.unlock()).is_lost());
    assert_eq!(java.release("a", 5_000), Some(1));
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
    // Late, after an extend: the end stays where it is.
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
    let client = Client::builder(&proxy.url())
        .command_timeout(ms(300))
        .lock_options(options())
        .build()
        .unwrap();
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
        // First the one that would not wait for ever.
        assert!(error(lock.try_lock(Duration::ZERO)).is_wrong_type(), "{data:?}");
        assert!(error(lock.lock()).is_wrong_type());
        assert!(error(lock.inspect()).is_wrong_type());
        assert!(error(lock.force_unlock()).is_wrong_type());
        assert_eq!(ask::<Vec<u8>>(&server, &["DUMP", "a"]), before);
        let () = ask(&server, &["DEL", "a"]);
    }
}

#[test]
fn an_owner_is_written_as_given_and_believed_by_nobody_else() {
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
fn fences_grow_in_common_with_javas_tokens() {
    const COUNTER: &str = "redisson_lock_token:{a}";
    let server = Server::start();
    let fenced = |hand_offs| {
        client(&server.url()).lock_with("a", options().fenced().local_hand_offs(hand_offs)).unwrap()
    };
    let (one, block) = (fenced(0), fenced(16));
    let fence = |lock: &RedisLock| lock.with(|guard| guard.fence().unwrap()).unwrap();
    let java = || ask::<u64>(&server, &["INCR", COUNTER]);
    let now = || {
        u64::try_from(
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros(),
        )
        .unwrap()
    };

    assert_eq!((java(), java()), (1, 2));
    let before = now();
    let mut last = 2;
    for (i, next) in
        [fence(&one), java(), java(), fence(&block), java(), fence(&block), fence(&one), java()]
            .into_iter()
            .enumerate()
    {
        assert!(next > last, "number {i}: {next} after {last}");
        last = next;
    }
    assert!(last > before && last < now() + SOON.as_micros() as u64, "near the clock");
    assert_eq!(ask::<i64>(&server, &["PTTL", COUNTER]), -1, "Java would begin at 1 again");
    // Lost, as after a failover.
    let () = ask(&server, &["DEL", COUNTER]);
    assert!(fence(&one) > last);
    // Far ahead of the clock: no precision is lost.
    let far = 1_u64 << 52;
    let () = ask(&server, &["SET", COUNTER, &far.to_string()]);
    assert_eq!((fence(&one), fence(&one), java()), (far + 1, far + 2, far + 3));
    // A fence that waits behind a foreign counter is not made up.
    let () = ask(&server, &["SET", COUNTER, "x"]);
    assert!(error(one.lock()).is_wrong_type());
    assert!(free(&server, "a") && ask::<String>(&server, &["GET", COUNTER]) == "x");
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
                    +publish +subscribe +unsubscribe +ping +echo +role +incrby +time";
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
        client.lock("a").inspect().unwrap().is_none() && !client.lock("a").force_unlock().unwrap()
    );
    let denied: u64 = server
        .info("stats")
        .lines()
        .filter_map(|line| {
            line.strip_prefix("acl_access_denied_")?.split(':').nth(1)?.parse::<u64>().ok()
        })
        .sum();
    assert_eq!(denied, 0);
}

/// Two processes' worth of each kind, one counter that is read and written in two steps.
#[test]
fn no_update_is_lost_between_us_and_java() {
    const EACH: u64 = 40;
    let server = Server::start();
    let done = AtomicU64::new(0);
    let add_one = |connection: &mut redis::Connection| {
        let n: Option<u64> = redis::cmd("GET").arg("counter").query(connection).unwrap();
        redis::cmd("SET").arg("counter").arg(n.unwrap_or(0) + 1).exec(connection).unwrap();
        done.fetch_add(1, Ordering::SeqCst);
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let lock =
                    client(&server.url()).lock_with("a", options().local_hand_offs(0)).unwrap();
                let mut connection = server.connection();
                (0..EACH).for_each(|_| lock.with(|_| add_one(&mut connection)).unwrap());
            });
        }
        for thread in 0..2 {
            let (server, add_one) = (&server, &add_one);
            scope.spawn(move || {
                let (mut java, mut connection) = (Java::new(server, thread), server.connection());
                let listener = Listener::at(server, "redisson_lock__channel:{a}");
                for _ in 0..EACH {
                    while java.acquire("a", 20_000).is_some() {
                        listener.next(ms(50));
                    }
                    add_one(&mut connection);
                    assert_eq!(java.release("a", 20_000), Some(1));
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::SeqCst), EACH * 4);
    assert_eq!(ask::<u64>(&server, &["GET", "counter"]), EACH * 4);
}
