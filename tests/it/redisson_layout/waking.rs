//! Waiters are woken by messages in the lock's channel, also by those of others, and are subscribed
//! only while they wait.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use distlock::{Client, Interrupt, LockOptions, Queue, RedisLock, Retry};

use super::java::Java;
use super::{ask, client, free, options};
use crate::helpers::{SOON, Underway, error, ms};
use crate::support::{Fault, Proxy, Rule, Server, eventually, on_time};

/// A thread that locks, and unlocks when it is told to.
pub struct Waiter {
    locked: mpsc::Receiver<Instant>,
    end: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Waiter {
    pub fn start(lock: &RedisLock) -> Waiter {
        let (tell, locked) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let lock = lock.clone();
        let thread = thread::spawn(move || {
            lock.lock().unwrap();
            tell.send(Instant::now()).unwrap();
            let _ = ended.recv();
            lock.unlock().unwrap();
        });
        Waiter { locked, end, thread }
    }

    /// When it locked. That must be within this time.
    #[track_caller]
    pub fn locked(&self, within: Duration) -> Instant {
        self.locked.recv_timeout(within).expect("locked in time")
    }

    pub fn end(self) {
        drop(self.end);
        self.thread.join().unwrap();
    }
}

/// Never asks again by itself within a test, so only a wake-up can let it in.
fn patient() -> LockOptions {
    options().retry(Retry::fixed(SOON * 6))
}

fn channels(server: &Server) -> Vec<String> {
    ask(server, &["PUBSUB", "CHANNELS", "redisson_lock__channel*"])
}

/// Returns once somebody is subscribed to this lock's releases, and has asked once more after that.
pub fn wait_until_heard(server: &Server, name: &str) {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    eventually(SOON, || ask::<(String, u64)>(server, &["PUBSUB", "NUMSUB", &channel]).1 == 1);
    let quiet = |before: &mut u64| {
        let now = server.command_count("evalsha") + server.command_count("eval");
        std::mem::replace(before, now) == now
    };
    let mut asked = 0;
    eventually(SOON, || {
        thread::sleep(ms(60));
        quiet(&mut asked)
    });
}

fn held_by_java(server: &Server, names: &[&str]) -> Java {
    let mut java = Java::new(server, 7);
    names.iter().for_each(|name| assert_eq!(java.acquire(name, 60_000), None));
    java
}

#[test]
fn a_release_by_java_wakes_the_waiter_long_before_its_pause() {
    let server = Server::start();
    let client = client(&server.url());
    let mut latencies = Vec::new();
    for _ in 0..5 {
        let mut java = held_by_java(&server, &["a"]);
        let waiter = Waiter::start(&client.lock_with("a", patient()).unwrap());
        wait_until_heard(&server, "a");
        let released = Instant::now();
        assert_eq!(java.release("a", 60_000), Some(1));
        latencies.push(waiter.locked(SOON) - released);
        waiter.end();
    }
    latencies.sort();
    println!("woken after {latencies:?}");
    // A waiter that was not woken would ask after a minute.
    assert!(latencies[2] < ms(1000), "{latencies:?}");
}

/// A waiter that is late with the question that follows its subscription would be counted, too.
#[test]
fn a_message_wakes_the_waiter_of_that_lock_only() {
    on_time(ms(30), || {
        let server = Server::start();
        let client = client(&server.url());
        let mut java = held_by_java(&server, &["a", "b"]);
        let waiters =
            ["a", "b"].map(|name| Waiter::start(&client.lock_with(name, patient()).unwrap()));
        ["a", "b"].iter().for_each(|name| wait_until_heard(&server, name));
        // So that the server knows the script; otherwise it would be counted twice.
        assert_eq!(java.release("c", 60_000), None);
        let before = server.command_count("evalsha");
        assert_eq!(java.release("b", 60_000), Some(1));
        waiters[1].locked(SOON);
        // Java's script, and one attempt.
        assert_eq!(server.command_count("evalsha"), before + 2);
        // A message without a release is a hint: the waiter asks, is refused, and waits again.
        let () = ask(&server, &["PUBLISH", "redisson_lock__channel:{a}", "0"]);
        eventually(SOON, || server.command_count("evalsha") == before + 3);
        assert!(waiters[0].locked.recv_timeout(ms(50)).is_err());
        assert_eq!(java.release("a", 60_000), Some(1));
        waiters[0].locked(SOON);
        waiters.into_iter().for_each(Waiter::end);
    });
}

#[test]
fn a_release_between_the_refusal_and_the_subscription_is_not_missed() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = client(&proxy.url());
    let mut java = held_by_java(&server, &["a"]);
    let held = proxy.add(
        Rule::on("SUBSCRIBE", Fault::HoldRequest)
            .when(|command| command[1].starts_with(b"redisson"))
            .next(1),
    );
    let waiter = Waiter::start(&client.lock_with("a", patient()).unwrap());
    let held = held.wait_held(SOON);
    assert_eq!(java.release("a", 60_000), Some(1));
    assert!(waiter.locked.recv_timeout(ms(50)).is_err(), "nobody has told it");
    held.release();
    waiter.locked(SOON);
    waiter.end();
}

/// The second wait finds the channel subscribed: messages since its refusal were read before it
/// waited.
#[test]
fn a_release_between_the_refusal_and_the_wait_is_not_missed() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = client(&proxy.url());
    let lock = client.lock_with("a", patient()).unwrap();
    let mut java = held_by_java(&server, &["a"]);
    let first = Waiter::start(&lock);
    wait_until_heard(&server, "a");
    assert_eq!(java.release("a", 60_000), Some(1));
    first.locked(SOON);
    first.end();
    // The channel is kept for up to a second. A wait that comes too late for that is another one.
    let was_kept = (0..20).any(|_| {
        assert_eq!(java.acquire("a", 60_000), None);
        // The release overtakes the refusal, which is still under way.
        let refusal = proxy.add(Rule::on("EVALSHA", Fault::HoldReply).next(1));
        let second = Waiter::start(&lock);
        let refusal = refusal.wait_held(SOON);
        let is_kept = channels(&server).len() == 1;
        assert_eq!(java.release("a", 60_000), Some(1));
        refusal.release();
        second.locked(SOON);
        second.end();
        is_kept
    });
    assert!(was_kept, "still subscribed");
}

#[test]
fn our_release_wakes_our_other_process() {
    let server = Server::start();
    let (one, two) = (client(&server.url()), client(&server.url()));
    let lock = one.lock("a");
    lock.lock().unwrap();
    let waiter = Waiter::start(&two.lock_with("a", patient()).unwrap());
    wait_until_heard(&server, "a");
    lock.unlock().unwrap();
    waiter.locked(SOON);
    waiter.end();
}

#[test]
fn nobody_is_subscribed_when_nobody_waits() {
    let server = Server::start();
    let client = client(&server.url());
    let lock = client.lock("a");
    lock.with(|_| assert!(channels(&server).is_empty(), "not contended")).unwrap();
    let mut java = held_by_java(&server, &["a", "b"]);
    let waiter = Waiter::start(&lock);
    wait_until_heard(&server, "a");
    let (interrupt, other) = (Interrupt::new(), client.lock("b"));
    let interrupted = interrupt.clone();
    let waiting = Underway::start(move || other.lock_interruptibly(&interrupted));
    eventually(SOON, || channels(&server).len() == 2);
    interrupt.interrupt();
    assert!(error(waiting.result()).is_interrupted());
    eventually(SOON, || channels(&server) == ["redisson_lock__channel:{a}"]);
    assert_eq!(java.release("a", 60_000), Some(1));
    waiter.locked(SOON);
    eventually(SOON, || channels(&server).is_empty());
    assert!(!free(&server, "a"), "while it is held");
    waiter.end();
    // Then all again from the start.
    assert_eq!(java.acquire("a", 60_000), None);
    let waiter = Waiter::start(&client.lock_with("a", patient()).unwrap());
    wait_until_heard(&server, "a");
    assert_eq!(java.release("a", 60_000), Some(1));
    waiter.locked(SOON);
    waiter.end();
}

#[test]
fn one_subscription_serves_every_lock_of_a_client() {
    let server = Server::start();
    let client = client(&server.url());
    let names = ["a", "b", "c", "d"];
    let mut java = held_by_java(&server, &names);
    let plain = client.lock_with("plain", LockOptions::new()).unwrap();
    let holder = Client::open(&server.url()).unwrap().lock("plain");
    holder.lock().unwrap();
    let waiters = names.map(|name| Waiter::start(&client.lock_with(name, patient()).unwrap()));
    let queued = Waiter::start(&plain);
    names.iter().for_each(|name| wait_until_heard(&server, name));
    let subscribers = || ask::<String>(&server, &["CLIENT", "LIST", "TYPE", "PUBSUB"]);
    // The inbox and four locks.
    eventually(SOON, || subscribers().contains(" sub=5 "));
    assert_eq!(subscribers().lines().count(), 1);
    holder.unlock().unwrap();
    queued.locked(SOON);
    names.iter().for_each(|name| assert_eq!(java.release(name, 60_000), Some(1)));
    for waiter in &waiters {
        waiter.locked(SOON);
    }
    queued.end();
    waiters.into_iter().for_each(Waiter::end);
}

/// The reader is in a read that lasts up to a second, so it has to be woken.
#[test]
fn a_wait_for_another_lock_subscribes_at_once() {
    on_time(ms(40), || {
        let server = Server::start();
        let client = client(&server.url());
        let names = ["a", "b", "c", "d", "e"];
        let mut java = held_by_java(&server, &names);
        let subscribed = |name| {
            let channel = format!("redisson_lock__channel:{{{name}}}");
            ask::<(String, u64)>(&server, &["PUBSUB", "NUMSUB", &channel]).1 == 1
        };
        let mut latencies = Vec::new();
        let waiters = names.map(|name| {
            let asked = Instant::now();
            let waiter = Waiter::start(&client.lock_with(name, patient()).unwrap());
            eventually(SOON, || subscribed(name));
            latencies.push(asked.elapsed());
            waiter
        });
        names.iter().for_each(|name| assert_eq!(java.release(name, 60_000), Some(1)));
        waiters.into_iter().for_each(Waiter::end);
        assert!(latencies.iter().all(|latency| *latency < ms(400)), "{latencies:?}");
    });
}

#[test]
fn losing_the_subscription_costs_at_most_one_pause() {
    on_time(ms(100), || {
        let server = Server::start();
        let client = client(&server.url());
        let mut java = held_by_java(&server, &["a", "b"]);
        let (usual, waits) = (
            Waiter::start(&client.lock("a")),
            Waiter::start(&client.lock_with("b", patient()).unwrap()),
        );
        ["a", "b"].iter().for_each(|name| wait_until_heard(&server, name));
        assert_eq!(ask::<u64>(&server, &["CLIENT", "KILL", "TYPE", "pubsub"]), 1);
        let released = Instant::now();
        assert_eq!(java.release("a", 60_000), Some(1));
        assert_eq!(java.release("b", 60_000), Some(1));
        assert!(
            usual.locked(SOON) - released < ms(3_000),
            "the longest pause, and some time to run"
        );
        // Nobody received the release; the new subscription makes every waiter ask.
        waits.locked(SOON);
        // And the new subscription receives messages.
        assert_eq!(ask::<u64>(&server, &["PUBSUB", "NUMPAT"]), 0);
        usual.end();
        waits.end();
    });
}

#[test]
fn subscription_is_restored_after_a_restart_of_the_server() {
    let server = Server::start();
    let client = client(&server.url());
    drop(held_by_java(&server, &["a"]));
    let waiter = Waiter::start(&client.lock("a"));
    wait_until_heard(&server, "a");
    server.kill();
    server.restart_without_waiting();
    waiter.locked(SOON);
    waiter.end();
    let mut java = held_by_java(&server, &["a"]);
    let waiter = Waiter::start(&client.lock_with("a", patient()).unwrap());
    wait_until_heard(&server, "a");
    assert_eq!(java.release("a", 60_000), Some(1));
    waiter.locked(SOON);
    waiter.end();
}

#[test]
fn without_a_queue_or_with_an_owner_the_lock_is_polled() {
    let server = Server::start();
    let client = client(&server.url());
    for polled in [options().queue(Queue::None), options().owner("mine:1")] {
        let mut java = held_by_java(&server, &["a"]);
        let waiter = Waiter::start(&client.lock_with("a", polled).unwrap());
        let before = server.command_count("evalsha");
        eventually(SOON, || server.command_count("evalsha") > before + 5);
        assert!(channels(&server).is_empty());
        assert_eq!(java.release("a", 60_000), Some(1));
        waiter.locked(SOON);
        waiter.end();
    }
}
