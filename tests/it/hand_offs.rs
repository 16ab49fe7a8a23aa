//! What one waiting thread passes to the next, and what it keeps: turns, leases and places.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::FakeClock;
use distlock::{Client, LockOptions, Renewal, Retry};

use crate::faults::through_proxy;
use crate::helpers::{Asked, Notes, SOON, Underway, client, error, ms, put};
use crate::support::{Fault, Mode, Rule, Server, eventually};

#[test]
fn a_thread_that_asks_after_an_expired_hand_off_keeps_its_turn() {
    // Sometimes the first thread wakes up before its lease runs out, and does not ask the server.
    assert!((0..20).any(|_| a_hand_off_runs_out_on_its_way()), "it never ran out on its way");
}

/// Whether the lease ran out before the first thread had it.
fn a_hand_off_runs_out_on_its_way() -> bool {
    let clock = FakeClock::new();
    let (client, notes) = Notes::of(Client::builder("memory://").clock(clock.clone()));
    let lock = client.lock("job");
    let (lost, is_lost) = mpsc::channel();
    lock.on_lost(move |_| lost.send(()).unwrap());
    lock.lock().unwrap();
    let entered = Arc::new(AtomicUsize::new(0));
    let behind = |until: Option<mpsc::Receiver<()>>| {
        let (lock, entered) = (client.lock("job"), Arc::clone(&entered));
        Underway::behind(&client, "job", move || {
            lock.lock().unwrap();
            entered.fetch_add(1, Ordering::SeqCst);
            let valid = lock.is_valid();
            if let Some(until) = until {
                let _ = until.recv_timeout(SOON * 3);
            }
            lock.unlock().is_ok() && valid
        })
    };
    // If the first thread gets in after all, it holds the lock, and the second thread asks.
    let (go, gone) = mpsc::channel::<()>();
    let (first, second) = (behind(Some(gone)), behind(None));
    // The first thread's question is delayed for a while.
    let (hold, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    notes.before(move |asked| {
        if matches!(asked, Asked::Acquire { .. }) {
            let _ = held.lock().unwrap().recv_timeout(SOON);
        }
    });
    let before = notes.attempts();
    lock.unlock().unwrap();
    // The lease runs out before the first thread has woken up.
    clock.advance(Duration::from_secs(60));
    eventually(SOON, || notes.attempts() > before);
    // Renewal finds that the lease ran out, and reports it. A thread that already asks learns
    // nothing new from that.
    is_lost.recv_timeout(SOON).unwrap();
    thread::sleep(ms(100));
    assert_eq!(notes.attempts(), before + 1, "the turn is one thread's");
    let ran_out = entered.load(Ordering::SeqCst) == 0;
    drop((hold, go));
    let both = [first.result(), second.result()];
    assert!(!ran_out || both == [true, true]);
    ran_out
}

#[test]
fn a_thread_that_takes_over_a_place_measures_its_own_outage() {
    const OUTAGE: Duration = ms(2_100);
    let (server, proxy) = through_proxy();
    put(&server, "job", "somebody", SOON * 6);
    let client = Client::builder(&proxy.url()).max_outage(OUTAGE).build().unwrap();
    // Asks often, so that the first thread notices the outage when it begins.
    let start = || {
        let lock = client.lock_with("job", LockOptions::new().retry(Retry::fixed(ms(50)))).unwrap();
        move || {
            let began = Instant::now();
            (lock.lock(), began.elapsed())
        }
    };
    let first = Underway::start(start());
    eventually(SOON, || server.command_count("zadd") > 0);
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    // So much longer waits the second thread, which still comes long before the first one gives up.
    thread::sleep(OUTAGE / 3);
    let second = Underway::behind(&client, "job", start());
    let (ended, _) = first.result();
    assert!(error(ended).is_unavailable());
    let (ended, waited) = second.result();
    assert!(error(ended).is_unavailable());
    assert!(waited >= OUTAGE, "it failed after {waited:?}, with the other thread's outage");
}

#[test]
fn a_hand_off_near_its_end_is_made_whole_before_lock_returns() {
    let server = Server::start();
    let holder = client(&server);
    let guard = holder.lock("job").guard().unwrap();
    let options = LockOptions::new().lease(ms(20_000)).retry(Retry::fixed(SOON * 6));
    let clock = FakeClock::new();
    let (waiting, notes) = Notes::of(Client::builder(&server.url()).clock(clock.clone()));
    let lock = waiting.lock_with("job", options).unwrap();
    let waiter = Underway::start(move || {
        lock.lock().unwrap();
        let left = lock.remaining().unwrap();
        lock.unlock().unwrap();
        left
    });
    // Refused once before it listened, and once after. The validity of a hand-off counts from the
    // last refused question.
    eventually(SOON, || notes.attempts() == 2 && notes.under_way() == 0);
    // Of the three seconds that a hand-off grants first.
    clock.advance(ms(2_600));
    guard.release().unwrap();
    let left = waiter.result();
    assert!(left > ms(12_000), "{left:?} of 20 s were left when lock() returned");
}

#[test]
fn a_lease_that_was_extended_beyond_its_length_is_not_handed_on() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock_with("job", LockOptions::new().lease(SOON)).unwrap();
    lock.lock().unwrap();
    lock.extend(Duration::from_secs(3_600)).unwrap();
    let next = {
        let lock = lock.clone();
        Underway::behind(&client, "job", move || {
            lock.lock().unwrap();
            let left = lock.remaining().unwrap();
            lock.unlock().unwrap();
            left
        })
    };
    lock.unlock().unwrap();
    assert!(next.result() <= SOON, "a dead process frees its lock within one lease");
}

/// 1. The lock is handed to a waiter whose lease nobody would make whole later; 2. it asks for
///    that, and the server is silent; 3. its time is over.
#[test]
fn a_lock_handed_over_before_the_server_fell_silent_is_not_reported_as_held_by_another() {
    let (server, proxy) = through_proxy();
    let holder = client(&server).lock("job");
    holder.lock().unwrap();
    let options =
        LockOptions::new().lease(SOON).renewal(Renewal::Never).retry(Retry::fixed(SOON * 6));
    // When it has waited for an answer, its time is over.
    let (client, notes) = Notes::of(Client::builder(&proxy.url()).command_timeout(ms(1_500)));
    let lock = client.lock_with("job", options).unwrap();
    let waiter = Underway::start(move || lock.try_lock(ms(1_200)));
    // Refused once before it listened, and once after: no question is under way.
    eventually(SOON, || notes.attempts() == 2 && notes.under_way() == 0);
    // What is pushed still comes through.
    proxy.add(
        Rule::any(Fault::SwallowReply)
            .when(|command| !command[0].eq_ignore_ascii_case(b"SUBSCRIBE")),
    );
    holder.unlock().unwrap();
    assert!(error(waiter.result()).is_unavailable());
}

#[test]
fn a_message_with_an_impossible_fence_is_survived() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON);
    let lock = client(&server).lock_with("job", LockOptions::new().fenced()).unwrap();
    let waiter = Underway::start(move || lock.try_lock(ms(2_000)).map(|_| lock.fence()));
    let mut connection = server.connection();
    let mut waiters = HashMap::<String, String>::new();
    eventually(SOON, || {
        waiters = redis::cmd("HGETALL").arg("{job}:waiters").query(&mut connection).unwrap();
        !waiters.is_empty()
    });
    thread::sleep(ms(100));
    let (token, entry) = waiters.iter().next().unwrap();
    let words: Vec<&str> = entry.split('|').collect();
    let attempt: u64 = words[1].parse().unwrap();
    for attempt in attempt..=attempt + 1 {
        redis::cmd("PUBLISH")
            .arg(words[4])
            .arg(format!("{attempt} {} 1 {token} job", u64::MAX))
            .exec(&mut connection)
            .unwrap();
    }
    // The message may be believed, but it must not end the thread.
    assert!(matches!(waiter.result(), Ok(None | Some(u64::MAX))));
}
