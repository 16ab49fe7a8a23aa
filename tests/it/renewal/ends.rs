//! Leases whose end the holder moves while they are renewed: neither undoes what the other did.

use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::FakeClock;
use distlock::{Client, RedisLock, Renewal};

use crate::helpers::{Asked, Notes, SOON, client, error, lease, ms, pttl};
use crate::support::{Server, eventually};

#[test]
fn renewal_never_shortens() {
    let server = Server::start();
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let (asked, hears) = mpsc::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    notes.before(move |call| {
        if matches!(call, Asked::Extend { .. }) {
            let _ = asked.send(());
            let _ = waits.lock().unwrap().recv_timeout(SOON);
        }
    });
    let lock = client.lock_with("job", lease(ms(3_000))).unwrap();
    lock.lock().unwrap();
    // Renewal's extend is under way, and the holder's extend overtakes it.
    hears.recv_timeout(SOON).unwrap();
    lock.extend(ms(60_000)).unwrap();
    go_on.send(()).unwrap();
    eventually(SOON, || notes.extends() == 1 && notes.under_way() == 0);
    assert!(pttl(&server, "job") > 40_000 && lock.remaining().unwrap() > ms(40_000));
    lock.unlock().unwrap();
}

/// Stops the clock at `at` after `origin` for long enough that everything that is due gets done.
fn settle(clock: &FakeClock, origin: Instant, at: Duration) {
    clock.advance((origin + at).saturating_duration_since(clock.now()));
    thread::sleep(ms(50));
}

#[test]
fn a_lease_that_was_extended_further_is_renewed_when_two_thirds_of_its_length_are_left() {
    let clock = FakeClock::new();
    let (client, notes) = Notes::of(Client::builder("memory://").clock(clock.clone()));
    let lock = client.lock_with("job", lease(ms(300))).unwrap();
    lock.lock().unwrap();
    let origin = clock.now();
    lock.extend(ms(10_000)).unwrap();
    assert_eq!(notes.extends(), 0);
    // The extend that was due is not put off. Then the lease is valid until 9,898 ms: before
    // 9,698 ms an extend would do nothing.
    for at in [100, 6_899, 6_950, 9_500, 9_690] {
        settle(&clock, origin, ms(at));
        eventually(SOON, || notes.extends() > 0 && notes.under_way() == 0);
        assert_eq!(notes.extends(), 1, "after {at} ms");
    }
    settle(&clock, origin, ms(9_700));
    eventually(SOON, || notes.extends() == 2 && notes.under_way() == 0);
    assert!(lock.remaining().unwrap() > ms(290));
    lock.unlock().unwrap();
}

#[test]
fn a_limited_renewal_counts_the_extends_that_move_the_end() {
    let clock = FakeClock::new();
    let (client, notes) = Notes::of(Client::builder("memory://").clock(clock.clone()));
    let lock = client.lock_with("job", lease(ms(300)).renewal(Renewal::AtMost(2))).unwrap();
    let (asked, hears) = mpsc::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    notes.before(move |call| {
        if matches!(call, Asked::Extend { .. }) {
            let _ = asked.send(());
            let _ = waits.lock().unwrap().recv_timeout(SOON);
        }
    });
    lock.lock().unwrap();
    let mut origin = clock.now();
    // One extend is under way when the holder's own comes, which is longer: so the first moves
    // nothing.
    clock.advance(ms(150));
    hears.recv_timeout(SOON).unwrap();
    lock.extend(ms(10_000)).unwrap();
    go_on.send(()).unwrap();
    origin += ms(150);
    settle(&clock, origin, ms(9_600));
    assert_eq!(notes.extends(), 1);
    drop(go_on);
    // Two extends that move the end.
    for (extends, at) in [(2, 9_700), (3, 9_800), (3, 9_900), (3, 9_990)] {
        settle(&clock, origin, ms(at));
        eventually(SOON, || notes.extends() == extends && notes.under_way() == 0);
        assert!(lock.is_valid());
    }
    settle(&clock, origin, ms(10_100));
    eventually(SOON, || client.remembered().1 == 0);
    assert!(!lock.is_valid() && notes.extends() == 3);
    assert!(error(lock.unlock()).is_lost());
}

/// Whether the lock's validity ends no later than its lease on the server.
#[track_caller]
fn assert_within_the_servers_end(server: &Server, lock: &RedisLock) {
    let asked_at = Instant::now();
    let ours = asked_at + lock.remaining().unwrap();
    let left = pttl(server, lock.key());
    if !lock.is_valid() || left < 0 {
        return;
    }
    let theirs = Instant::now() + ms(u64::try_from(left).unwrap());
    assert!(ours <= theirs + ms(1), "ours ends {:?} after the server's", ours - theirs);
}

#[test]
fn extending_under_renewal_never_leaves_validity_beyond_the_servers_end() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(3_000))).unwrap();
    lock.lock().unwrap();
    for round in 0..60_u64 {
        lock.extend(ms([3_000, 8_000, 4_000, 2_400][round as usize % 4])).unwrap();
        assert_within_the_servers_end(&server, &lock);
        thread::sleep(ms(round % 7));
        assert_within_the_servers_end(&server, &lock);
    }
    lock.unlock().unwrap();
}
