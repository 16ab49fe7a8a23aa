//! Renewal: one thread that keeps every lease of a client alive for as long as it is held, and not
//! a moment longer.

mod ends;
mod faults;
mod load;
mod shared;

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::FakeClock;
use distlock::{Client, LockGuard, LockOptions, RedisLock, Renewal, Retry};

use crate::helpers::{
    Asked, Notes, SOON, Underway, client, delete, error, get, is_free, lease, memory, ms, pttl, put,
};
use crate::support::{Server, eventually};

/// Checks the lock again and again for this long: it must be valid all the time.
#[track_caller]
fn assert_valid_for(lock: &RedisLock, length: Duration) {
    let until = Instant::now() + length;
    while Instant::now() < until {
        assert!(lock.is_valid());
        thread::sleep(ms(5));
    }
}

/// Returns once renewal has moved the end of each of the locks so often. They must be valid all the
/// time.
#[track_caller]
fn assert_renewed(locks: &[RedisLock], times: usize) {
    let left = |lock: &RedisLock| lock.remaining().unwrap_or_default();
    let mut seen: Vec<(Duration, usize)> = locks.iter().map(|lock| (left(lock), 0)).collect();
    let since = Instant::now();
    while seen.iter().any(|(_, renewed)| *renewed < times) {
        for (lock, (before, renewed)) in locks.iter().zip(&mut seen) {
            assert!(lock.is_valid());
            let now = left(lock);
            // Only renewal adds to it.
            *renewed += usize::from(now > *before);
            *before = now;
        }
        assert!(since.elapsed() < SOON * 2, "not renewed {times} times");
        thread::sleep(ms(5));
    }
}

#[test]
fn leases_of_any_length_are_kept_for_as_long_as_they_are_held() {
    let server = Server::start();
    let client = client(&server);
    let locks: Vec<_> = [2_000, 3_000, 4_000, 30_000]
        .iter()
        .map(|length| client.lock_with(&format!("job-{length}"), lease(ms(*length))).unwrap())
        .collect();
    locks.iter().for_each(|lock| lock.lock().unwrap());
    let tokens: Vec<_> = locks.iter().map(|lock| get(&server, lock.key())).collect();
    assert_renewed(&locks[..3], 2);
    for (lock, token) in locks.iter().zip(&tokens) {
        assert!(lock.is_valid() && get(&server, lock.key()) == *token, "{}", lock.name());
    }
    locks.iter().for_each(|lock| lock.unlock().unwrap());
}

#[test]
fn renewal_never_creates_a_key() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(300))).unwrap();
    lock.lock().unwrap();
    delete(&server, "job");
    let until = Instant::now() + ms(500);
    while Instant::now() < until {
        assert_eq!(get(&server, "job"), None);
        thread::sleep(ms(2));
    }
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn renewal_never_touches_anothers_key() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(300))).unwrap();
    lock.lock().unwrap();
    put(&server, "job", "somebody", ms(5_000));
    let mut least = pttl(&server, "job");
    let until = Instant::now() + ms(400);
    while Instant::now() < until {
        let now = pttl(&server, "job");
        assert!(now <= least, "its end was moved");
        least = now;
        thread::sleep(ms(5));
    }
    assert_eq!(get(&server, "job").as_deref(), Some("somebody"));
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn no_extend_follows_an_unlock() {
    const LEASE: Duration = ms(30_000);
    let server = Server::start();
    let clock = FakeClock::new();
    let (client, notes) = Notes::of(Client::builder(&server.url()).clock(clock.clone()));
    let lock = client.lock_with("job", lease(LEASE)).unwrap();
    let next_extend_is_due = || {
        clock.advance(LEASE / 2);
        thread::sleep(ms(50));
    };
    for _ in 0..3 {
        let before = notes.extends();
        lock.lock().unwrap();
        clock.advance(LEASE / 2);
        eventually(SOON, || notes.extends() > before);
        lock.unlock().unwrap();
        assert_eq!(client.remembered().1, 0, "nothing to look after any more");
        // An extend may have been under way.
        thread::sleep(ms(20));
        eventually(SOON, || notes.under_way() == 0);
        let (extends, scripts) = (notes.extends(), server.command_count("evalsha"));
        (0..4).for_each(|_| next_extend_is_due());
        assert_eq!((notes.extends(), server.command_count("evalsha")), (extends, scripts));
    }
    // The same for a lease that ended by a loss.
    lock.lock().unwrap();
    delete(&server, "job");
    clock.advance(LEASE / 2);
    eventually(SOON, || !lock.is_valid() && client.remembered().1 == 0);
    let scripts = server.command_count("evalsha");
    (0..4).for_each(|_| next_extend_is_due());
    assert_eq!(server.command_count("evalsha"), scripts);
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn a_lease_leaves_the_renewals_book_before_its_release_is_sent() {
    let client;
    let notes;
    (client, notes) = Notes::of(Client::builder("memory://"));
    let lock = client.lock("job");
    lock.lock().unwrap();
    let seen = Arc::new(Mutex::new(None));
    let (at_release, probe) = (Arc::clone(&seen), client.clone());
    notes.before(move |asked| {
        if *asked == Asked::ReleaseIsSent {
            *at_release.lock().unwrap() = Some(probe.remembered().1);
        }
    });
    lock.unlock().unwrap();
    assert_eq!(*seen.lock().unwrap(), Some(0));
    // The client's own store must not keep the client alive.
    notes.before(|_| {});
}

#[test]
fn a_lease_is_registered_for_renewal_before_lock_returns() {
    let client = memory();
    let lock = client.lock("job");
    for _ in 0..100 {
        lock.lock().unwrap();
        assert_eq!(client.remembered().1, 1);
        lock.unlock().unwrap();
    }
}

#[test]
fn renewal_goes_on_while_the_holder_does_nothing_for_the_lock() {
    let server = Server::start();
    let client = client(&server);
    // A hand-off to another thread keeps the lease, and its renewal, too.
    let lock = client.lock_with("job", lease(ms(3_000))).unwrap();
    thread::scope(|scope| {
        lock.lock().unwrap();
        let next = scope.spawn(|| {
            lock.lock().unwrap();
            assert_renewed(std::slice::from_ref(&lock), 2);
            lock.unlock().unwrap();
        });
        eventually(SOON, || client.waiting("job") == 1);
        thread::sleep(ms(500));
        lock.unlock().unwrap();
        next.join().unwrap();
    });
    assert!(is_free(&lock));
}

#[test]
fn leases_that_are_not_renewed_are_never_extended() {
    let (client, notes) = Notes::of(Client::builder("memory://"));
    let options = LockOptions::new().lease(ms(200)).renewal(Renewal::Never);
    let lock = client.lock_with("job", options).unwrap();
    lock.lock().unwrap();
    eventually(SOON, || client.remembered().1 == 0);
    assert_eq!(notes.extends(), 0);
    assert!(error(lock.unlock()).is_lost());
}

/// The first thread of a client to wait is refused once before the client listens, and once after.
const FIRST_WAIT: usize = 2;

/// Hands the lock over from `guard` to a new thread, which holds it until the sender is dropped.
/// `asks`: how often the thread is refused before it sleeps.
fn handed_over(
    waiter: &Client,
    notes: &Notes,
    name: &str,
    guard: LockGuard,
    asks: usize,
) -> (mpsc::Sender<()>, Underway<distlock::Result<()>>) {
    // It does not ask by itself during the hand-off: the answer would be a whole lease.
    let lock = waiter.lock_with(name, LockOptions::new().retry(Retry::fixed(SOON * 2))).unwrap();
    let (held, holds) = mpsc::channel();
    let (unlock, told) = mpsc::channel::<()>();
    let before = notes.attempts();
    let waiting = Underway::start(move || {
        lock.lock().unwrap();
        held.send(lock.remaining().unwrap()).unwrap();
        let _ = told.recv();
        lock.unlock()
    });
    eventually(SOON, || notes.attempts() == before + asks && notes.under_way() == 0);
    guard.release().unwrap();
    assert!(holds.recv_timeout(SOON).unwrap() <= ms(3_000), "a short lease at first");
    (unlock, waiting)
}

#[test]
fn the_first_lease_of_a_hand_off_is_made_whole_at_once() {
    let server = Server::start();
    let clock = FakeClock::new();
    let (waiter, notes) = Notes::of(Client::builder(&server.url()).clock(clock.clone()));
    let guard = client(&server).lock("job").guard().unwrap();
    let (unlock, waiting) = handed_over(&waiter, &notes, "job", guard, FIRST_WAIT);
    assert!(pttl(&server, "job") <= 3_000);
    // An extend after a third of the first lease would come after 0.8 s at the earliest.
    clock.advance(ms(100));
    eventually(SOON, || pttl(&server, "job") > 20_000);
    drop(unlock);
    waiting.result().unwrap();
}

#[test]
fn a_hold_of_less_than_ten_milliseconds_costs_no_extend_after_a_hand_off() {
    let server = Server::start();
    let clock = FakeClock::new();
    let (waiter, notes) = Notes::of(Client::builder(&server.url()).clock(clock.clone()));
    let holder = client(&server).lock("job");
    let (unlock, waiting) =
        handed_over(&waiter, &notes, "job", holder.guard().unwrap(), FIRST_WAIT);
    clock.advance(ms(9));
    thread::sleep(ms(50));
    drop(unlock);
    waiting.result().unwrap();
    clock.advance(ms(9));
    thread::sleep(ms(50));
    assert_eq!(notes.extends(), 0);
    let (unlock, waiting) = handed_over(&waiter, &notes, "job", holder.guard().unwrap(), 1);
    clock.advance(ms(11));
    eventually(SOON, || notes.extends() == 1);
    drop(unlock);
    waiting.result().unwrap();
}
