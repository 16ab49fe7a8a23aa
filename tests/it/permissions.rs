//! The permissions that the guide gives to a user suffice for everything that a lock or a rate
//! limiter does, and each of them is needed.

use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::FakeClock;
use distlock::{Client, Layout, LockOptions, RedisLock, Renewal, Result};

use crate::faults::pool_of;
use crate::helpers::{SOON, Underway, delete};
use crate::support::{Server, eventually};

const GUIDE: &str = include_str!("../../src/guide/security.md");
const NAME: &str = "orders:42";
/// So long that no stall of the machine ends it.
const LEASE: Duration = Duration::from_secs(3);

/// The words of the guide's rule for this user, from its name on.
pub fn rule(user: &str) -> Vec<&'static str> {
    let start = format!("ACL SETUSER {user} ");
    let rules: Vec<&str> =
        GUIDE.split("```text\n").filter(|block| block.starts_with(&start)).collect();
    assert_eq!(rules.len(), 1, "the guide has one rule for {user}");
    rules[0].split("```").next().unwrap().split_whitespace().skip(2).collect()
}

/// Makes every call of a lock, or of a limiter, as the user of this URL.
pub type Everything<'a> = &'a (dyn Fn(&Server, &str) -> Result<()> + Sync);

/// What happens to a user with these permissions: the result, and how often something was refused.
fn outcome(rule: &[&str], everything: Everything<'_>) -> (Result<()>, usize) {
    let server = Server::start();
    let mut operator = server.connection();
    let () = redis::cmd("ACL").arg("SETUSER").arg(rule).query(&mut operator).unwrap();
    let ended = everything(&server, &server.url_with(rule[0], "password"));
    (ended, refused(&server).len())
}

/// What the server has refused to its users.
pub fn refused(server: &Server) -> Vec<redis::Value> {
    redis::cmd("ACL").arg("LOG").query(&mut server.connection()).unwrap()
}

fn with_locks(server: &Server, url: &str, layout: Layout) -> Result<()> {
    let (ours, theirs) = (Client::open(url)?, Client::open(url)?);
    ours.ping()?;
    for fenced in [false, true] {
        if fenced && layout == Layout::Timestamp {
            continue;
        }
        let options = LockOptions::new().layout(layout).lease(LEASE);
        let options = if fenced { options.fenced() } else { options };
        let lock = ours.lock_with(NAME, options.clone())?;
        let other = theirs.lock_with(NAME, options)?;
        lock.lock()?;
        lock.extend(LEASE * 2)?;
        lock.inspect()?;
        other.try_lock(Duration::from_millis(20))?;
        handed_over(server, layout, &lock, &other)?;
        lock.lock()?;
        other.force_unlock()?;
        assert!(lock.unlock().is_err(), "it was taken away");
        if layout == Layout::Plain {
            notified(&lock, &other)?;
        }
    }
    if layout == Layout::Redisson {
        // The channel is left a second after its last waiter.
        let has_left = || server.command_count("unsubscribe") > 0;
        eventually(SOON, || has_left() || !refused(server).is_empty());
    }
    theirs.close(LEASE)?;
    ours.close(LEASE)
}

/// Another client waits, and is woken.
fn handed_over(server: &Server, layout: Layout, lock: &RedisLock, other: &RedisLock) -> Result<()> {
    let can_be_woken = || match layout {
        Layout::Plain => {
            let queue = format!("{{{NAME}}}:queue");
            redis::cmd("EXISTS").arg(queue).query(&mut server.connection()).unwrap()
        }
        Layout::Redisson => server.command_count("subscribe") > 0,
        _ => true,
    };
    thread::scope(|scope| {
        let waiter = scope.spawn(|| other.lock().and_then(|()| other.unlock()));
        // The lock should be handed over and not found free. A user who was refused something has
        // shown what there was to show.
        eventually(SOON, || waiter.is_finished() || can_be_woken() || !refused(server).is_empty());
        let looked = lock.inspect();
        let unlocked = lock.unlock();
        if unlocked.is_err() {
            delete(server, NAME);
        }
        unlocked.and(waiter.join().unwrap()).and(looked.map(drop))
    })
}

/// Another client waits in a condition, and is notified.
fn notified(lock: &RedisLock, other: &RedisLock) -> Result<()> {
    let (say, is_locked) = mpsc::channel();
    thread::scope(|scope| {
        let waiter = scope.spawn(move || -> Result<()> {
            let guard = other.guard()?;
            let _ = say.send(());
            other.new_condition("not-empty")?.wait_timeout(Duration::from_secs(2))?;
            guard.release()
        });
        // Also if the wait failed: then its end of the channel is gone.
        let _ = is_locked.recv();
        // The lock is free as soon as the other client is in the condition: entering it releases.
        let guard = lock.guard()?;
        lock.new_condition("not-empty")?.notify_all()?;
        guard.release()?;
        waiter.join().unwrap()
    })
}

pub fn suffice_and_are_the_smallest(user: &str, everything: Everything<'_>) {
    let rule = rule(user);
    let (ended, refused) = outcome(&rule, everything);
    ended.unwrap();
    assert_eq!(refused, 0, "the server refused something to {user}, see ACL LOG");
    let granted = rule.iter().filter(|word| word.starts_with(['+', '~', '&']));
    let granted = Mutex::new(granted);
    let next = || granted.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some(without) = next() {
                    let less: Vec<&str> =
                        rule.iter().filter(|word| *word != without).copied().collect();
                    let (ended, refused) = outcome(&less, everything);
                    assert!(ended.is_err() || refused > 0, "{user} needs no {without}");
                }
            });
        }
    });
}

/// A user of the guide's rule for plain locks, without one permission.
fn user_without(server: &Server, permission: &str) -> String {
    let rule: Vec<&str> = rule("plain").into_iter().filter(|word| *word != permission).collect();
    let () = redis::cmd("ACL").arg("SETUSER").arg(&rule).query(&mut server.connection()).unwrap();
    server.url_with(rule[0], "password")
}

#[test]
fn waiters_that_cannot_be_heard_poll_and_leave_no_place_behind() {
    for permission in ["+subscribe", "&distlock:inbox:*", "+pubsub|numsub"] {
        let server = Server::start();
        let url = user_without(&server, permission);
        let guard = Client::open(&server.url()).unwrap().lock(NAME).guard().unwrap();
        let waiting =
            Underway::start(move || Client::open(&url).unwrap().lock(NAME).with(|_| ()).unwrap());
        // A waiter that is woken would only ask once a second while the lease has no end in sight.
        let since = Instant::now();
        let before = server.command_count("evalsha");
        eventually(SOON, || server.command_count("evalsha") > before + 12);
        assert!(since.elapsed() < Duration::from_secs(7), "without {permission}");
        let places: u32 =
            redis::cmd("EXISTS").arg("{orders:42}:queue").query(&mut server.connection()).unwrap();
        assert_eq!(places, 0, "without {permission}");
        guard.release().unwrap();
        waiting.result();
    }
}

#[test]
fn conditions_work_for_users_that_cannot_be_heard() {
    thread::scope(|scope| {
        for permission in ["+subscribe", "+pubsub|numsub"] {
            scope.spawn(move || {
                let server = Server::start();
                let url = user_without(&server, permission);
                let (ours, theirs) = (
                    Client::open(&url).unwrap().lock(NAME),
                    Client::open(&url).unwrap().lock(NAME),
                );
                let (say, is_locked) = mpsc::channel();
                let waiting = Underway::start(move || {
                    let _guard = theirs.guard().unwrap();
                    say.send(()).unwrap();
                    theirs.new_condition("news").unwrap().wait_timeout(SOON * 6).unwrap()
                });
                is_locked.recv().unwrap();
                ours.with(|_| ours.new_condition("news").unwrap().notify_one()).unwrap().unwrap();
                assert!(waiting.result(), "without {permission}");
            });
        }
    });
}

#[test]
fn the_guides_permissions_for_plain_locks_suffice_and_are_the_smallest() {
    suffice_and_are_the_smallest("plain", &|server, url| with_locks(server, url, Layout::Plain));
}

#[test]
fn the_guides_permissions_for_redissons_layout_suffice_and_are_the_smallest() {
    suffice_and_are_the_smallest("redisson", &|server, url| {
        with_locks(server, url, Layout::Redisson)
    });
}

#[test]
fn the_guides_permissions_for_the_timestamp_layout_suffice_and_are_the_smallest() {
    suffice_and_are_the_smallest("timestamp", &|server, url| {
        with_locks(server, url, Layout::Timestamp)
    });
}

#[test]
fn the_guides_permissions_for_rate_limiters_suffice_and_are_the_smallest() {
    suffice_and_are_the_smallest("limiter", &|server, url| {
        let client = Client::open(url)?;
        client.ping()?;
        let limiter = |name| client.rate_limiter(name, 3, Duration::from_secs(60));
        for limiter in [limiter("ip:1"), limiter("ip:1").smooth()] {
            let refused = (0..5)
                .map(|_| limiter.check())
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .filter(|decision| !decision.allowed)
                .count();
            assert_eq!(refused, 2);
        }
        // Left by a process that died between INCR and EXPIRE.
        let () = redis::cmd("SET").arg("ip:2").arg(1).query(&mut server.connection()).unwrap();
        limiter("ip:2").check().map(drop)
    });
}

#[test]
fn a_refused_wait_does_not_restore_the_extends_that_its_lease_has_used() {
    let server = Server::start();
    // Without the key of the conditions.
    let rule = "u on >password +@all ~job ~{job}:fence ~{job}:queue ~{job}:waiters &*";
    redis::cmd("ACL")
        .arg("SETUSER")
        .arg(rule.split(' ').collect::<Vec<_>>())
        .exec(&mut server.connection())
        .unwrap();
    let client = Client::open(&server.url_with("u", "password")).unwrap();
    let lock = client
        .lock_with(
            "job",
            LockOptions::new().lease(Duration::from_millis(1_800)).renewal(Renewal::AtMost(1)),
        )
        .unwrap();
    lock.lock().unwrap();
    let condition = lock.new_condition("c").unwrap();
    let since = Instant::now();
    while lock.is_valid() && since.elapsed() < SOON {
        let refused = condition.wait().unwrap_err();
        // The lease may have ended since the look at it.
        if refused.is_lost() {
            break;
        }
        assert!(refused.is_denied(), "{refused}");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(
        since.elapsed() < Duration::from_millis(7_500),
        "one extend makes it last for so long: {:?}",
        since.elapsed()
    );
}

#[test]
fn a_user_who_may_not_read_the_lock_is_denied_and_not_told_of_foreign_data() {
    let server = Server::start();
    let _held = Client::open(&server.url()).unwrap().lock(NAME).guard().unwrap();
    let poor = Client::open(&user_without(&server, "+get")).unwrap();
    let lock = poor.lock_with(NAME, LockOptions::new().fenced()).unwrap();
    assert!(lock.try_lock(Duration::ZERO).unwrap_err().is_denied());
}

/// 1. the lock is set to the waiter, and the waiter is told; 2. the waiter's place is left, which
///    this user may not; 3. the lock is not handed over after all, and is deleted.
#[test]
fn a_release_that_is_refused_half_way_lets_only_one_in() {
    for permission in ["+zrem", "+hdel"] {
        let server = Server::start();
        let poor = Client::open(&user_without(&server, permission)).unwrap().lock(NAME);
        poor.lock().unwrap();
        let waiter = Client::open(&server.url()).unwrap().lock(NAME);
        let waiting = Underway::start(move || waiter.lock().and_then(|()| waiter.unlock()));
        let queue = format!("{{{NAME}}}:queue");
        let queued =
            || redis::cmd("ZCARD").arg(&queue).query::<u32>(&mut server.connection()).unwrap();
        eventually(SOON, || queued() == 1);
        let third = Client::open(&server.url()).unwrap().lock(NAME);
        poor.unlock().unwrap();
        if third.try_lock(Duration::ZERO).unwrap() {
            thread::sleep(Duration::from_millis(200));
            assert!(third.is_valid() && !waiting.is_done(), "two holders without {permission}");
            third.unlock().unwrap();
        }
        waiting.result().unwrap();
    }
}

/// A waiter that was notified died. Its notification cannot pass on to the other waiter of its
/// condition, because this user may not write that waiter's place; the lock is released all the
/// same.
#[test]
fn a_release_behind_a_dead_waiter_needs_no_permission_to_pass_its_notification_on() {
    for permission in ["+zadd", "+hset"] {
        let server = Server::start();
        let poor = Client::open(&user_without(&server, permission)).unwrap().lock(NAME);
        poor.lock().unwrap();
        let key = |companion: &str| format!("{{{NAME}}}:{companion}");
        let (waiters, connection) = (key("waiters"), &mut server.connection());
        let entries = [
            ("dead", "1|1|3000|0|nobody||2000000000000000|c"),
            ("live", "9000000000000|1|3000|0|nobody|line|1000000000000000|c"),
        ];
        let () = redis::pipe()
            .hset_multiple(&waiters, &entries)
            .zadd(key("queue"), "dead", 1)
            .zadd(key("conditions"), "1:c:1000000000000000|live", 0)
            .query(connection)
            .unwrap();
        poor.unlock().unwrap_or_else(|error| panic!("without {permission}: {error}"));
        let left: Vec<String> = redis::cmd("HKEYS").arg(&waiters).query(connection).unwrap();
        assert!(!left.contains(&"dead".to_owned()), "{left:?}");
        assert!(Client::open(&server.url()).unwrap().lock(NAME).try_lock(Duration::ZERO).unwrap());
    }
}

#[test]
fn what_a_script_did_before_it_was_refused_is_withdrawn() {
    let server = Server::start();
    let client = Client::open(&user_without(&server, "+hdel")).unwrap();
    let lock = client.lock_with(NAME, LockOptions::new().fenced()).unwrap();
    // Ahead of the clock, which is the long script's business.
    let ahead = 9_000_000_000_000_000_u64;
    let fence = format!("{{{NAME}}}:fence");
    let () = redis::cmd("SET").arg(fence).arg(ahead).query(&mut server.connection()).unwrap();
    let refused = lock.lock().unwrap_err();
    assert!(refused.is_denied(), "{refused:?}");
    // This user cannot withdraw it, either.
    assert!(client.close(Duration::from_millis(200)).unwrap_err().is_unknown());
}

#[test]
fn a_user_without_a_permission_makes_the_server_look_down_to_nobody() {
    let server = Server::start();
    let url = user_without(&server, "+set");
    let poor = Client::builder(&url).pool(pool_of(&url, 1, false)).build().unwrap();
    for round in 0..20 {
        assert!(poor.lock(NAME).try_lock(Duration::ZERO).unwrap_err().is_denied());
        let other = Client::open(&server.url()).unwrap();
        assert!(other.lock(&format!("other:{round}")).try_lock(Duration::ZERO).unwrap());
    }
}

/// The lease has become far longer than the one that was granted.
#[test]
fn a_release_that_is_refused_is_repeated_until_the_extended_lease_ends() {
    let server = Server::start();
    let set = |rule: &str| {
        let mut acl = redis::cmd("ACL");
        acl.arg("SETUSER").arg("u").arg(rule.split(' ').collect::<Vec<_>>());
        acl.exec(&mut server.connection()).unwrap();
    };
    set("on >password ~* &* +@all");
    let clock = FakeClock::new();
    let url = server.url_with("u", "password");
    let client = Client::builder(&url).clock(clock.clone()).build().unwrap();
    let denials = || {
        let errors = server.info("errorstats");
        let count = errors.lines().find_map(|line| line.strip_prefix("errorstat_NOPERM:count="));
        count.map_or(0, |count| count.trim().parse::<u64>().unwrap())
    };
    let options = LockOptions::new().lease(LEASE).renewal(Renewal::Never);
    let lock = client.lock_with(NAME, options).unwrap();
    lock.lock().unwrap();
    lock.extend(SOON * 60).unwrap();
    set("-evalsha -eval");
    assert!(lock.unlock().unwrap_err().is_unknown());
    // The lease that was granted is over, and since then the release was refused once more at
    // least.
    clock.advance(LEASE * 2);
    let before = denials();
    eventually(SOON, || {
        clock.advance(Duration::from_millis(10));
        denials() > before + 1
    });
    set("+evalsha +eval");
    let held = || redis::cmd("EXISTS").arg(NAME).query::<bool>(&mut server.connection()).unwrap();
    eventually(SOON, || {
        clock.advance(Duration::from_millis(10));
        !held()
    });
}
