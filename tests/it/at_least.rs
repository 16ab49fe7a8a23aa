//! A lock that is kept for a while, even if it is unlocked before: `LockOptions::at_least`.

mod faults;
mod jobs;

use std::time::{Duration, Instant};

use distlock::testing::FakeClock;
use distlock::{Client, ClientBuilder, ErrorKind, Layout, LockOptions, RedisLock, Renewal, Retry};

use crate::helpers::{Notes, SOON, Underway, error, ms, on_another_thread, pttl};
use crate::support::shards::Shards;
use crate::support::{Server, eventually};

/// A lock of the first client that is kept for so long, and the same lock of the second, which asks
/// by itself only once a minute: before that, only what it is told lets it ask.
fn two_clients(open: impl Fn() -> ClientBuilder, layout: Layout, kept: Duration) -> [RedisLock; 2] {
    let options = LockOptions::new().lease(SOON * 6).layout(layout);
    let patient = options.clone().retry(Retry::fixed(SOON * 6));
    [("first", options.at_least(kept)), ("second", patient)]
        .map(|(name, options)| open().name(name).build().unwrap().lock_with("x", options).unwrap())
}

/// Unlocks before the time is over, and looks who gets the lock, and when. `is_waited_for`: whether
/// a release would wake somebody now.
fn is_kept(
    open: impl Fn() -> ClientBuilder,
    layout: Layout,
    is_waited_for: impl Fn(&RedisLock) -> bool,
) {
    const KEPT: Duration = ms(4000);
    let [lock, other] = two_clients(&open, layout, KEPT);
    let waits = {
        let other = other.clone();
        move || {
            other.lock().unwrap();
            let at = Instant::now();
            other.unlock().unwrap();
            at
        }
    };
    let asked = Instant::now();
    lock.lock().unwrap();
    let waiter = Underway::start(waits);
    eventually(SOON, || is_waited_for(&lock));
    lock.unlock().unwrap();
    assert!(!lock.is_held() && error(lock.unlock()).is_not_held());
    let state = lock.inspect().unwrap();
    let (holder, rest) = (&state.holders[0], state.holders[0].remaining.unwrap());
    assert!(holder.is_kept && rest <= KEPT, "{rest:?} are left");
    assert!(layout == Layout::Redisson || holder.client == Some("first".into()), "{holder:?}");
    assert!(!lock.try_lock(Duration::ZERO).unwrap(), "as everybody else, it has to wait");
    // At once afterwards, although its own pause is a minute, and the lease was one.
    let got_it = waiter.result();
    assert!(got_it >= asked + KEPT, "after {:?}", got_it - asked);
}

fn has_a_waiter(lock: &RedisLock) -> bool {
    lock.inspect().unwrap().waiters.len() == 1
}

#[test]
fn an_unlock_before_its_time_keeps_everybody_out_until_then_on_a_server() {
    let server = Server::start();
    is_kept(|| Client::builder(&server.url()), Layout::Plain, has_a_waiter);
}

#[test]
fn an_unlock_before_its_time_keeps_everybody_out_until_then_in_redissons_layout() {
    let server = Server::start();
    let listens = || {
        let mut asking = redis::cmd("PUBSUB");
        asking.arg("NUMSUB").arg("redisson_lock__channel:{x}");
        asking.query::<(String, u32)>(&mut server.connection()).unwrap().1 == 1
    };
    is_kept(|| Client::builder(&server.url()), Layout::Redisson, |_| listens());
}

#[test]
fn an_unlock_before_its_time_keeps_everybody_out_until_then_in_memory() {
    is_kept(|| Client::builder("memory://at-least"), Layout::Plain, has_a_waiter);
}

#[test]
fn an_unlock_before_its_time_keeps_everybody_out_until_then_in_a_cluster() {
    let shards = Shards::start(2);
    if shards.have_channels() {
        is_kept(|| Client::cluster_builder(shards.urls()), Layout::Plain, has_a_waiter);
    }
}

#[test]
fn an_unlock_after_its_time_frees_the_lock_at_once() {
    let clock = FakeClock::new();
    let open = || Client::builder("memory://at-least-over").clock(clock.clone());
    let [lock, other] = two_clients(open, Layout::Plain, ms(5000));
    for (held, free) in [(4999, false), (5000, true), (5001, true)] {
        lock.lock().unwrap();
        clock.advance(ms(held));
        lock.unlock().unwrap();
        assert_eq!(other.try_lock(Duration::ZERO).unwrap(), free, "after {held} ms");
        clock.advance(ms(1));
        if !free {
            assert!(other.try_lock(Duration::ZERO).unwrap());
        }
        other.unlock().unwrap();
    }
}

#[test]
fn it_counts_from_the_first_lock_to_the_last_unlock() {
    let clock = FakeClock::new();
    let client = Client::builder("memory://").clock(clock.clone()).build().unwrap();
    let lock = client.lock_with("x", LockOptions::new().at_least(ms(5000))).unwrap();
    lock.lock().unwrap();
    clock.advance(ms(3000));
    lock.lock().unwrap();
    lock.unlock().unwrap();
    lock.unlock().unwrap();
    assert_eq!(lock.inspect().unwrap().holders[0].remaining, Some(ms(2000)));
}

/// Shorter than the lease, and longer.
#[test]
fn the_lease_lasts_as_long_as_its_time_and_nobody_extends_it_any_more() {
    let server = Server::start();
    for layout in [Layout::Plain, Layout::Redisson] {
        for (lease, kept) in [(60_000, 5000), (1500, 5000)] {
            let (client, notes) = Notes::of(Client::builder(&server.url()));
            let options = LockOptions::new().layout(layout).lease(ms(lease)).at_least(ms(kept));
            let lock = client.lock_with("x", options).unwrap();
            lock.lock().unwrap();
            lock.unlock().unwrap();
            let extends = notes.extends();
            let rest = pttl(&server, "x");
            assert!(1500 < rest && rest <= 5000, "{rest} ms of {kept} are left");
            eventually(SOON, || pttl(&server, "x") == -2);
            assert_eq!(notes.extends(), extends, "a lease of 1.5 s was due several times");
            assert_eq!((client.stats().held, client.stats().lost), (0, 0));
        }
    }
}

#[test]
fn threads_of_one_process_wait_as_all_do() {
    let client = Client::open("memory://").unwrap();
    let lock = client.lock_with("x", LockOptions::new().at_least(ms(700))).unwrap();
    let asked = Instant::now();
    lock.lock().unwrap();
    let next = lock.clone();
    let waiter = Underway::behind(&client, "x", move || {
        next.lock().unwrap();
        Instant::now()
    });
    lock.unlock().unwrap();
    let got_it = waiter.result();
    assert!(got_it >= asked + ms(700), "after {:?}", got_it - asked);
    assert_eq!(client.stats().grants.local, 0);
}

#[test]
fn a_forced_unlock_frees_it_at_once() {
    let server = Server::start();
    for layout in [Layout::Plain, Layout::Redisson] {
        let open = || Client::builder(&server.url());
        let [lock, other] = two_clients(open, layout, SOON * 6);
        lock.with(|_| ()).unwrap();
        assert!(!other.try_lock(Duration::ZERO).unwrap());
        assert!(other.force_unlock().unwrap());
        assert!(other.try_lock(Duration::ZERO).unwrap());
        other.unlock().unwrap();
        assert!(!other.is_locked().unwrap());
    }
}

#[test]
fn a_claim_is_kept_too_and_a_fence_stays_unique() {
    let clock = FakeClock::new();
    let client = Client::builder("memory://").clock(clock.clone()).build().unwrap();
    let kept = LockOptions::new().lease(SOON).at_least(ms(400)).fenced();
    let lock = client.lock_with("x", kept).unwrap();
    let claim = lock.claim().unwrap();
    let first = claim.fence();
    drop(claim);
    assert!(on_another_thread(|| lock.try_claim(Duration::ZERO).unwrap()).is_none());
    clock.advance(ms(400));
    let claim = lock.try_claim(Duration::ZERO).unwrap().unwrap();
    assert!(claim.fence() > first && first.is_some());
}

#[test]
fn where_it_cannot_be_kept_it_is_refused() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let kept = || LockOptions::new().at_least(SOON);
    let invalid = [
        client.lock_with("x", LockOptions::new().at_least(SOON * 60 * 60 * 24)).err(),
        client.lock_with("x", kept().owner("me")).err(),
        client.semaphore_with("x", 3, kept()).err(),
        client.rw_lock_with("x", kept()).err(),
        client.rw_lock("x").write_lock().run_once(SOON, |_| ()).err(),
        client.lock("x").run_once(Duration::ZERO, |_| ()).err(),
        client.lock("x").run_once(Duration::MAX, |_| ()).err(),
    ];
    for refused in invalid {
        assert_eq!(refused.unwrap().kind(), ErrorKind::InvalidInput);
    }
    let redlock = Client::redlock(["memory://a", "memory://b", "memory://c"]).unwrap();
    let unsupported = [
        client.lock_with("x", kept().layout(Layout::Timestamp)).err(),
        redlock.lock_with("x", kept()).err(),
        redlock.lock("x").run_once(SOON, |_| ()).err(),
        client.lock_with("x", kept()).unwrap().new_condition("c").err(),
    ];
    for refused in unsupported {
        assert_eq!(refused.unwrap().kind(), ErrorKind::Unsupported);
    }
    let day = LockOptions::new().at_least(Duration::from_secs(24 * 60 * 60));
    assert!(client.lock_with("x", day.renewal(Renewal::Never)).is_ok());
}
