//! Tests for the rule patches in `tests/rules` that no behaviour test catches.

use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::FakeClock;
use distlock::{Client, Interrupt, LockOptions, LostReason, Queue, RedisLock, Retry};

use crate::faults::through_proxy;
use crate::helpers::{
    Asked, Notes, SOON, Underway, client, delete, error, get, keys, memory, ms, put,
};
use crate::support::{Fault, Rule, Server, eventually, on_time, within};

/// A lock in memory with a lease of 30 s, and a clock that the test moves.
fn on_fake_clock() -> (Client, std::sync::Arc<Notes>, FakeClock) {
    let clock = FakeClock::new();
    let (client, notes) = Notes::of(Client::builder("memory://").clock(clock.clone()));
    (client, notes, clock)
}

/// The channel on which the only waiting client receives hand-offs.
fn inbox(server: &Server) -> String {
    let mut channels: Vec<String> = Vec::new();
    eventually(SOON, || {
        channels = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg("distlock:inbox:*")
            .query(&mut server.connection())
            .unwrap();
        channels.len() == 1
    });
    channels.remove(0)
}

#[test]
fn a_renewed_validity_counts_from_before_the_extend_was_sent() {
    let (client, notes, clock) = on_fake_clock();
    let lock = client.lock("job");
    let late = Mutex::new(Some(clock.clone()));
    notes.after(move |asked| {
        if matches!(asked, Asked::Extend { .. })
            && let Some(clock) = late.lock().unwrap().take()
        {
            clock.advance(ms(5_000));
        }
    });
    lock.lock().unwrap();
    clock.advance(ms(11_000));
    eventually(SOON, || lock.remaining().unwrap() > ms(20_000));
    let remaining = lock.remaining().unwrap();
    assert!(remaining <= ms(30_000 - 302 - 5_000), "{remaining:?}");
    lock.unlock().unwrap();
}

#[test]
fn a_lease_that_has_run_out_is_not_handed_to_the_next_thread() {
    let (client, notes, clock) = on_fake_clock();
    let lock = client.lock("job");
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
    let next = {
        let lock = lock.clone();
        Underway::behind(&client, "job", move || {
            lock.lock().unwrap();
            let valid = lock.is_valid();
            let _ = lock.unlock();
            valid
        })
    };
    // Renewal stands still in the middle of its extend, so that only the holder can notice.
    clock.advance(ms(11_000));
    hears.recv_timeout(SOON).unwrap();
    clock.advance(ms(60_000));
    let unlocked = lock.unlock();
    assert!(next.result(), "it was told that it has the lock, and its lease had run out");
    assert!(error(unlocked).is_lost());
    drop(go_on);
}

#[test]
fn a_hand_off_that_comes_after_its_validity_is_confirmed_by_the_server_first() {
    let server = Server::start();
    let guard = client(&server).lock("job").guard().unwrap();
    let clock = FakeClock::new();
    let (waiter, notes) = Notes::of(Client::builder(&server.url()).clock(clock.clone()));
    // It does not ask by itself meanwhile.
    let lock = waiter.lock_with("job", LockOptions::new().retry(Retry::fixed(SOON * 6))).unwrap();
    let waiting = Underway::start(move || {
        let guard = lock.guard().unwrap();
        (guard.remaining(), lock.inspect().unwrap().holders[0].remaining.unwrap())
    });
    // Refused once before it listened, and once after.
    eventually(SOON, || notes.attempts() == 2 && notes.under_way() == 0);
    // As if the process had been paused: the validity of a hand-off counts from the last refusal,
    // so it is over.
    clock.advance(SOON);
    guard.release().unwrap();
    let (remaining, on_server) = waiting.result();
    assert!(remaining > ms(25_000), "{remaining:?}");
    assert!(on_server > ms(20_000), "{on_server:?}");
    assert_eq!(notes.attempts(), 3);
}

#[test]
fn a_validity_that_was_seen_to_end_stays_ended() {
    let (client, notes, clock) = on_fake_clock();
    let lock = client.lock("job");
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    let (asked, hears) = mpsc::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    notes.after(move |call| {
        if matches!(call, Asked::Extend { .. }) {
            let _ = asked.send(());
            let _ = waits.lock().unwrap().recv_timeout(SOON);
        }
    });
    lock.lock().unwrap();
    clock.advance(ms(11_000));
    hears.recv_timeout(SOON).unwrap();
    // The store has extended it until 41 s; the answer is on its way while the old validity ends,
    // at 29.7 s, and the holder looks.
    clock.advance(ms(20_000));
    assert!(!lock.is_valid());
    drop(go_on);
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Expired));
    assert!(!lock.is_valid());
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn late_replies_are_not_taken_for_the_next_ones() {
    // An extend that a stalled machine leaves without an answer is not repeated: the clock stands.
    on_time(ms(100), late_replies_come_before_the_next_extend);
}

fn late_replies_come_before_the_next_extend() {
    const TIMEOUT: Duration = ms(1_500);
    let (server, proxy) = through_proxy();
    let clock = FakeClock::new();
    let client = Client::builder(&proxy.url())
        .command_timeout(TIMEOUT)
        .clock(clock.clone())
        .build()
        .unwrap();
    let (first, second) = (client.lock("first"), client.lock("second"));
    let (tell, told) = mpsc::channel();
    let locked = |lock: &RedisLock| {
        let tell = tell.clone();
        lock.on_lost(move |lost| drop(tell.send(lost.name().to_owned())));
        lock.lock().unwrap();
        // So that the server knows the renewal script.
        lock.extend(ms(30_000)).unwrap();
    };
    locked(&second);
    delete(&server, "second");
    // The reply, 0, comes when nobody waits for it any more.
    let late = proxy.add(Rule::on("EVALSHA", Fault::DelayReply(TIMEOUT + ms(50))).next(1));
    clock.advance(ms(11_000));
    late.wait_fired(SOON);
    thread::sleep(TIMEOUT + ms(200));
    locked(&first);
    // Then the same lease is extended again, and after it the other one.
    clock.advance(ms(1_500));
    assert_eq!(told.recv_timeout(SOON).as_deref(), Ok("second"));
    clock.advance(ms(11_000));
    eventually(SOON, || !first.is_valid() || first.remaining().unwrap() > ms(25_000));
    assert!(first.is_valid(), "the reply was another lock's");
    assert_eq!(told.recv_timeout(ms(100)).ok(), None);
    first.unlock().unwrap();
    assert!(error(second.unlock()).is_lost());
}

#[test]
fn a_grant_that_nobody_waits_for_is_withdrawn() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON * 6);
    let client = client(&server);
    let (lock, interrupt) = (client.lock("job"), Interrupt::new());
    let waiting = {
        let interrupt = interrupt.clone();
        Underway::start(move || lock.lock_interruptibly(&interrupt))
    };
    let inbox = inbox(&server);
    // A hand-off to a waiter of this client that has given up, and whose withdrawal came before it.
    put(&server, "other", "given-up", SOON * 6);
    let heard: u32 = redis::cmd("PUBLISH")
        .arg(inbox)
        .arg("1 0 0 given-up other")
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(heard, 1);
    eventually(ms(5_000), || get(&server, "other").is_none());
    interrupt.interrupt();
    assert!(error(waiting.result()).is_interrupted());
}

#[test]
fn a_waiter_that_gave_up_leaves_the_queue() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON * 6);
    let clock = FakeClock::new();
    let client = Client::builder(&server.url()).clock(clock.clone()).build().unwrap();
    let waiter = Underway::start(move || client.lock("job").try_lock(ms(100)));
    eventually(SOON, || keys(&server).contains(&"{job}:queue".to_owned()));
    clock.advance(ms(100));
    assert!(!waiter.result().unwrap());
    // The keys of a dead waiter would stay for nine seconds.
    eventually(ms(4_000), || keys(&server) == ["job"]);
}

#[test]
fn nothing_is_renewed_during_a_wait_in_a_condition() {
    let client = memory();
    let lock = client.lock("job");
    let (held, holds) = mpsc::channel();
    let waiting = {
        let lock = lock.clone();
        Underway::start(move || {
            lock.lock().unwrap();
            held.send(()).unwrap();
            let notified = lock.new_condition("news").unwrap().wait_timeout(ms(500)).unwrap();
            lock.unlock().unwrap();
            notified
        })
    };
    holds.recv_timeout(SOON).unwrap();
    // Long before its next extend would find that it is not ours any more.
    eventually(ms(5_000), || client.remembered().1 == 0 && !lock.is_locked().unwrap());
    assert!(!waiting.result());
}

#[test]
fn a_dying_thread_sends_nothing_to_the_server_itself() {
    let (client, notes) = Notes::of(Client::builder("memory://"));
    let lock = client.lock("job");
    let dead = thread::spawn(move || {
        lock.lock().unwrap();
        thread::current().id()
    });
    let dead = dead.join().unwrap();
    let withdrawn_by = || {
        notes
            .asked()
            .into_iter()
            .find_map(|(_, thread, asked)| matches!(asked, Asked::Withdraw(_)).then_some(thread))
    };
    eventually(SOON, || withdrawn_by().is_some());
    assert_ne!(withdrawn_by(), Some(dead));
}

#[test]
fn pauses_are_jittered() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON * 6);
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let lock = client
        .lock_with(
            "job",
            LockOptions::new().queue(Queue::None).retry(Retry::jittered(ms(5), ms(200))),
        )
        .unwrap();
    let interrupt = Interrupt::new();
    let waiting = {
        let interrupt = interrupt.clone();
        Underway::start(move || lock.lock_interruptibly(&interrupt))
    };
    let shorter = |than: Duration| {
        let times: Vec<Instant> = notes
            .asked()
            .into_iter()
            .filter_map(|(at, _, asked)| matches!(asked, Asked::Acquire { .. }).then_some(at))
            .collect();
        times.windows(2).any(|pair| pair[1] - pair[0] < than)
    };
    eventually(SOON, || shorter(ms(100)));
    interrupt.interrupt();
    assert!(error(waiting.result()).is_interrupted());
}

#[test]
fn a_pause_longer_than_the_wait_ends_with_it() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON * 6);
    let lock =
        client(&server).lock_with("job", LockOptions::new().retry(Retry::fixed(SOON * 2))).unwrap();
    assert!(!within(ms(100)..SOON, || lock.try_lock(ms(100)).unwrap()));
}

#[test]
fn a_counter_that_is_lost_while_others_wait_never_makes_a_fence_smaller() {
    let server = Server::start();
    let options = || LockOptions::new().fenced();
    let guard = client(&server).lock_with("job", options()).unwrap().guard().unwrap();
    let (waiter, notes) = Notes::of(Client::builder(&server.url()));
    // It has a place in the queue with its second refusal, and does not ask by itself after that.
    let lock = waiter.lock_with("job", options().retry(Retry::fixed(SOON * 2))).unwrap();
    let waiting = Underway::start(move || lock.with(|guard| guard.fence().unwrap()).unwrap());
    eventually(SOON, || notes.attempts() == 2 && notes.under_way() == 0);
    delete(&server, "{job}:fence");
    let last = guard.fence().unwrap();
    guard.release().unwrap();
    let fence = waiting.result();
    assert!(fence > last, "{fence} after {last}");
}
