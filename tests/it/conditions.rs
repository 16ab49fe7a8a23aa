//! Conditions: waiting under a lock for what another holder of it brings about.

mod faults;
mod in_time;
mod losses;

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use distlock::{Client, Condition, Interrupt, Layout, LockOptions, Queue, RedisLock, Result};

use crate::faults::through_proxy;
use crate::helpers::{get, keys};
use crate::support::{Fault, Rule, Server, eventually, within};

const SOON: Duration = Duration::from_secs(10);
const A_WHILE: Duration = Duration::from_millis(150);

/// With this prefix, a client's lock is the write side of a read-write lock.
const WRITE_SIDE: &str = "rw:";

/// Runs a statement over every store that has conditions, for a lock and for a write lock: `open`
/// makes another client of the same store.
fn everywhere(statement: impl Fn(&dyn Fn() -> Client)) {
    let named = format!("memory://conditions-{:?}", thread::current().id());
    let server = Server::start();
    for url in [named, server.url()] {
        for prefix in ["", WRITE_SIDE] {
            let open = || Client::builder(&url).key_prefix(prefix).build().unwrap();
            let _keeps_the_memory = open();
            statement(&open);
        }
    }
}

fn lock_and_condition(client: &Client) -> (RedisLock, Condition) {
    let options = LockOptions::new().fenced();
    let mut lock = client.lock_with("buffer", options.clone()).unwrap();
    if lock.key().starts_with(WRITE_SIDE) {
        lock = client.rw_lock_with("buffer", options).unwrap().write_lock().clone();
    }
    let condition = lock.new_condition("not-empty").unwrap();
    (lock, condition)
}

/// Starts a thread that waits in the condition. Returns once it waits and listens, with a channel
/// that tells how its wait ended.
fn waiting<T: Send + 'static>(
    client: Client,
    wait: impl FnOnce(&Condition) -> T + Send + 'static,
) -> Receiver<T> {
    let probe = client.clone();
    waiting_as_seen_by(&probe, client, wait)
}

/// Like [`waiting`]; another client looks whether it waits.
///
/// It waits as soon as somebody else can lock: entering and releasing are one step.
fn waiting_as_seen_by<T: Send + 'static>(
    probe: &Client,
    client: Client,
    wait: impl FnOnce(&Condition) -> T + Send + 'static,
) -> Receiver<T> {
    let (say, hear) = mpsc::channel();
    let (locked, is_locked) = mpsc::channel();
    thread::spawn(move || {
        let (lock, condition) = lock_and_condition(&client);
        let _guard = lock.guard().unwrap();
        locked.send(()).unwrap();
        let ended = wait(&condition);
        assert!(lock.is_held() && lock.is_valid(), "held again, whatever the outcome");
        say.send(ended).unwrap();
    });
    is_locked.recv_timeout(SOON).unwrap();
    let (lock, _) = lock_and_condition(probe);
    assert!(lock.try_lock(SOON).unwrap(), "a waiting thread does not hold the lock");
    lock.unlock().unwrap();
    eventually(SOON, || all_listen(probe));
    hear
}

/// Whether everybody in the condition hears of a notification: a client opens its inbox beside its
/// first wait, and waiters that listen are notified first. In memory there are no inboxes.
fn all_listen(client: &Client) -> bool {
    let waiters = format!("{{{}}}:waiters", lock_and_condition(client).0.key());
    let all_listen = client.execute(|connection| {
        let entries: Vec<String> = redis::cmd("HVALS").arg(&waiters).query(connection)?;
        for entry in entries.iter().filter(|entry| entry.contains("|line|")) {
            let inbox = entry.split('|').nth(4).expect("an inbox");
            let (_, ears): (String, u64) =
                redis::cmd("PUBSUB").arg("NUMSUB").arg(inbox).query(connection)?;
            if ears == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    });
    all_listen.unwrap_or_else(|error| error.is_unsupported())
}

/// Starts a thread that waits like [`waiting`] until it is notified or interrupted.
fn waiting_until(interrupt: &Interrupt, client: Client) -> Receiver<Result<()>> {
    let interrupt = interrupt.clone();
    waiting(client, move |condition| condition.wait_interruptibly(&interrupt))
}

/// Ends a wait. A notification that came before would win.
#[track_caller]
fn was_not_notified(woken: &Receiver<Result<()>>, interrupt: &Interrupt) {
    interrupt.interrupt();
    let ended = woken.recv_timeout(SOON).unwrap();
    assert!(ended.is_err_and(|error| error.is_interrupted()), "it was notified");
}

fn notify(client: &Client, notify: impl FnOnce(&Condition) -> Result<()>) {
    let (lock, condition) = lock_and_condition(client);
    lock.with(|_| notify(&condition)).unwrap().unwrap();
}

#[test]
fn a_notified_waiter_has_the_lock_again() {
    everywhere(|open| {
        let woken = waiting(open(), |condition| condition.wait());
        assert!(woken.recv_timeout(A_WHILE).is_err(), "nobody has notified it");
        notify(&open(), Condition::notify_one);
        woken.recv_timeout(SOON).unwrap().unwrap();
    });
}

#[test]
fn a_wait_restores_all_holds_under_a_new_lease_with_a_larger_fence() {
    everywhere(|open| {
        let client = open();
        let (lock, _) = lock_and_condition(&client);
        let woken = waiting(client, move |condition| {
            lock.lock().unwrap();
            lock.lock().unwrap();
            let (before, holds) = (lock.fence().unwrap(), lock.hold_count());
            condition.wait().unwrap();
            assert_eq!((lock.hold_count(), holds), (3, 3));
            lock.unlock().unwrap();
            lock.unlock().unwrap();
            (before, lock.fence().unwrap())
        });
        notify(&open(), Condition::notify_one);
        let (before, after) = woken.recv_timeout(SOON).unwrap();
        assert!(after > before, "{after} is not larger than {before}");
    });
}

#[test]
fn notify_one_wakes_in_the_order_of_waiting_and_notify_all_wakes_all() {
    everywhere(|open| {
        let (say, hear) = mpsc::channel();
        let start = |number: u32| {
            let say = say.clone();
            waiting(open(), move |condition| {
                condition.wait().unwrap();
                say.send(number).unwrap();
            })
        };
        let _threads: Vec<_> = (0..5).map(start).collect();
        let client = open();
        for expected in 0..2 {
            notify(&client, Condition::notify_one);
            assert_eq!(hear.recv_timeout(SOON).unwrap(), expected);
        }
        assert!(hear.recv_timeout(A_WHILE).is_err(), "one notification wakes one");
        notify(&client, Condition::notify_all);
        let rest: Vec<_> = (2..5).map(|_| hear.recv_timeout(SOON).unwrap()).collect();
        assert_eq!(rest, [2, 3, 4]);
    });
}

#[test]
fn a_notification_that_nobody_waits_for_is_not_kept() {
    everywhere(|open| {
        notify(&open(), Condition::notify_all);
        let woken = waiting(open(), |condition| condition.wait_timeout(A_WHILE));
        assert!(!woken.recv_timeout(SOON).unwrap().unwrap());
    });
}

#[test]
fn a_timed_wait_says_whether_it_was_notified_and_holds_in_both_cases() {
    everywhere(|open| {
        let woken =
            waiting(open(), |condition| within(A_WHILE..SOON, || condition.wait_timeout(A_WHILE)));
        assert!(!woken.recv_timeout(SOON).unwrap().unwrap(), "the time was over");
        let woken = waiting(open(), |condition| condition.wait_timeout(Duration::MAX));
        notify(&open(), Condition::notify_one);
        assert!(woken.recv_timeout(SOON).unwrap().unwrap(), "it was notified");
    });
}

#[test]
fn a_waiter_that_timed_out_takes_no_notification_from_another() {
    everywhere(|open| {
        let first = waiting(open(), |condition| condition.wait_timeout(A_WHILE));
        let second = waiting(open(), |condition| condition.wait());
        assert!(!first.recv_timeout(SOON).unwrap().unwrap());
        notify(&open(), Condition::notify_one);
        second.recv_timeout(SOON).unwrap().unwrap();
    });
}

#[test]
fn an_interrupted_wait_holds_the_lock_and_takes_no_notification() {
    everywhere(|open| {
        let interrupt = Interrupt::new();
        let first = waiting_until(&interrupt, open());
        let second = waiting(open(), |condition| condition.wait());
        was_not_notified(&first, &interrupt);
        notify(&open(), Condition::notify_one);
        second.recv_timeout(SOON).unwrap().unwrap();
    });
}

#[test]
fn a_notification_that_came_before_the_interrupt_wins() {
    everywhere(|open| {
        let interrupt = Interrupt::new();
        let woken = waiting_until(&interrupt, open());
        let (lock, condition) = lock_and_condition(&open());
        let guard = lock.guard().unwrap();
        condition.notify_one().unwrap();
        interrupt.interrupt();
        guard.release().unwrap();
        woken.recv_timeout(SOON).unwrap().unwrap();
    });
}

#[test]
fn waiting_and_notifying_need_the_lock() {
    everywhere(|open| {
        let (_lock, condition) = lock_and_condition(&open());
        for refused in [condition.wait(), condition.notify_one(), condition.notify_all()] {
            assert!(refused.unwrap_err().is_not_held());
        }
    });
}

#[test]
fn a_condition_is_identified_by_its_name_and_its_lock() {
    everywhere(|open| {
        let interrupt = Interrupt::new();
        let woken = waiting_until(&interrupt, open());
        let client = open();
        let (lock, _) = lock_and_condition(&client);
        lock.with(|_| lock.new_condition("other").unwrap().notify_all()).unwrap().unwrap();
        let other = client.lock("other");
        other.with(|_| other.new_condition("not-empty").unwrap().notify_all()).unwrap().unwrap();
        was_not_notified(&woken, &interrupt);
    });
}

#[test]
fn conditions_need_the_queue_and_the_plain_layout() {
    let client = Client::open("memory://").unwrap();
    let refused = |options| client.lock_with("a", options).unwrap().new_condition("c").unwrap_err();
    assert!(refused(LockOptions::new().queue(Queue::None)).is_unsupported());
    assert!(refused(LockOptions::new().owner("me")).is_unsupported());
    assert_eq!(Layout::default(), Layout::Plain);
    let lock = client.lock("a");
    assert!(lock.new_condition("").unwrap_err().is_invalid_input());
    assert!(lock.new_condition(&"x".repeat(257)).unwrap_err().is_invalid_input());
}

#[test]
fn nothing_is_left_on_the_server_after_waits() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let woken = waiting(client.clone(), |condition| condition.wait());
    let timed_out = waiting(client.clone(), |condition| condition.wait_timeout(A_WHILE));
    notify(&client, Condition::notify_one);
    woken.recv_timeout(SOON).unwrap().unwrap();
    assert!(!timed_out.recv_timeout(SOON).unwrap().unwrap());
    eventually(SOON, || keys(&server) == ["{buffer}:fence"]);
}

#[test]
fn a_wait_costs_one_round_trip_to_enter_and_a_notification_one() {
    let (server, proxy) = through_proxy();
    let counted = Client::open(&proxy.url()).unwrap();
    let other = Client::open(&server.url()).unwrap();
    // From here on the server knows the scripts, and the inboxes are open.
    for (waiter, notifier) in [(&counted, &other), (&other, &counted)] {
        let woken = waiting_as_seen_by(&other, waiter.clone(), |condition| condition.wait());
        notify(notifier, Condition::notify_one);
        woken.recv_timeout(SOON).unwrap().unwrap();
        eventually(SOON, || get(&server, "buffer").is_none());
    }
    // Not the extends, which have one key: renewal sends them when it likes.
    let counts = |command: &[Vec<u8>]| command[2] != b"1";
    let scripts = proxy.add(Rule::on("EVALSHA", Fault::DelayRequest(Duration::ZERO)).when(counts));
    let woken = waiting_as_seen_by(&other, counted.clone(), |condition| condition.wait());
    // Time for a second question, if it asked one.
    thread::sleep(A_WHILE);
    assert_eq!(scripts.fired(), 2, "to lock, and to enter and release");
    notify(&other, Condition::notify_one);
    woken.recv_timeout(SOON).unwrap().unwrap();
    let woken = waiting(other, |condition| condition.wait());
    let (lock, condition) = lock_and_condition(&counted);
    let guard = lock.guard().unwrap();
    let before = scripts.fired();
    condition.notify_one().unwrap();
    assert_eq!(scripts.fired() - before, 1);
    guard.release().unwrap();
    woken.recv_timeout(SOON).unwrap().unwrap();
}
