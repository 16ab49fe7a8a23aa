//! Our threads and Java's at one lock: each side refuses, takes over and goes on counting as the
//! other expects.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::{Client, LostReason, RedisLock, Renewal, Retry};

use super::java::{Java, Listener};
use super::{ask, client, free, hash, options, owner};
use crate::helpers::{SOON, error, ms};
use crate::loss::{HOUR, renewal_finds, timed};
use crate::support::{Server, eventually, within};

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
    let holder = lock.inspect().unwrap().holders.remove(0);
    assert_eq!(holder.token, java.owner);
    assert!(holder.remaining.is_some_and(|left| left > ms(1_000) && left <= ms(5_000)));
    assert!(error(lock.unlock()).is_not_held());
    // Its second hold concerns only itself.
    assert_eq!(java.acquire("a", 5_000), None);
    assert_eq!(hash(&server, "a"), HashMap::from([(java.owner.clone(), "2".to_owned())]));
    assert_eq!(java.release("a", 5_000), Some(0));
    assert!(!lock.try_lock(Duration::ZERO).unwrap());
    assert_eq!(java.release("a", 5_000), Some(1));
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    lock.unlock().unwrap();
}

#[test]
fn a_lock_that_is_kept_after_its_unlock_is_kept_from_java_which_is_told() {
    let server = Server::start();
    let kept = options().lease(SOON * 6).at_least(ms(4000));
    let lock = client(&server.url()).lock_with("a", kept).unwrap();
    let mut java = Java::new(&server, 7);
    let listener = Listener::at(&server, "redisson_lock__channel:{a}");
    within(ms(4000)..SOON * 2, || {
        lock.lock().unwrap();
        assert!(java.acquire("a", 60_000).is_some_and(|left| left > 50_000));
        lock.unlock().unwrap();
        listener.next(SOON).expect("it is told to ask again");
        let left = java.acquire("a", 60_000).expect("kept");
        assert!(left <= 4000, "{left} ms are left");
        eventually(SOON, || java.acquire("a", 60_000).is_none());
    });
    assert_eq!(java.release("a", 60_000), Some(1));
}

#[test]
fn each_side_takes_over_when_the_lease_of_the_other_has_run_out() {
    let server = Server::start();
    let client = client(&server.url());
    let short = client.lock_with("a", options().lease(ms(300)).renewal(Renewal::Never)).unwrap();
    let mut java = Java::new(&server, 7);
    within(ms(290)..SOON, || {
        short.lock().unwrap();
        eventually(SOON, || java.acquire("a", 60_000).is_none());
    });
    assert!(error(short.unlock()).is_lost());
    assert_eq!(owner(&server, "a").0, java.owner, "not ours to release");
    // Nobody publishes that the lease has run out; the waiter knows when to ask, and its pause is a
    // minute.
    let next = client.lock_with("a", options().retry(Retry::fixed(SOON * 6))).unwrap();
    within(ms(990)..SOON, || {
        let () = ask(&server, &["PEXPIRE", "a", "1000"]);
        next.lock().unwrap();
    });
    assert_eq!(java.release("a", 60_000), None);
    next.unlock().unwrap();
}

#[test]
fn only_our_own_lease_is_renewed() {
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let lock = builder.build().unwrap().lock_with("a", options().lease(HOUR)).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    lock.lock().unwrap();
    let mut java = Java::new(&server, 7);
    for _ in 0..2 {
        let () = ask(&server, &["PEXPIRE", "a", "600000"]);
        renewal_finds(&clock, || ask::<i64>(&server, &["PTTL", "a"]) > 600_000);
        assert!(lock.is_valid() && java.acquire("a", 60_000).is_some());
    }
    let () = ask(&server, &["DEL", "a"]);
    assert_eq!(java.acquire("a", 60_000), None);
    renewal_finds(&clock, || !lock.is_valid());
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Taken));
    assert_eq!(hash(&server, "a"), HashMap::from([(java.owner.clone(), "1".to_owned())]));
    let left: i64 = ask(&server, &["PTTL", "a"]);
    assert!((30_000..=60_000).contains(&left), "the other's lease is as long as it was: {left}");
    assert!(error(lock.unlock()).is_lost());
    assert_eq!(java.release("a", 60_000), Some(1));
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
    // With a foreign counter, no fence is made up.
    let () = ask(&server, &["SET", COUNTER, "x"]);
    assert!(error(one.lock()).is_wrong_type());
    assert!(free(&server, "a") && ask::<String>(&server, &["GET", COUNTER]) == "x");
}

/// As if two processes of each kind worked on one counter, which is read and written in two steps.
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
    assert_eq!(ask::<u64>(&server, &["GET", "counter"]), EACH * 4, "lost update");
}
