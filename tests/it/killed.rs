//! Waiters that are killed with SIGKILL, as real processes: while they queue, just after they were
//! granted the lock, and while they cancel.

use std::thread;
use std::time::Instant;
use std::{env, process};

use distlock::{Client, LockGuard, LockOptions, RedisLock, Retry};

use crate::faults::through_proxy;
use crate::helpers::{SOON, Underway, client, get, inboxes, ms};
use crate::support::process::Guarded;
use crate::support::{Fault, Rule, Server, eventually};

/// What this process has to do, if a test has started it.
const ROLE: &str = "DISTLOCK_TEST_WAITER";
/// The process waits in a condition.
const IN_CONDITION: &str = "condition";
/// Starts this test again in a process of its own. That waits for the lock for `patience` (ms), and
/// then stays alive.
fn another_process(test: &str, url: &str, patience: impl std::fmt::Display) -> Guarded {
    let dir = tempfile::tempdir().unwrap();
    let role = format!("{ROLE}={patience} {url}");
    let own = env::current_exe().unwrap().display().to_string();
    let arguments = [role, own, test.to_owned(), "--exact".to_owned(), "--nocapture".to_owned()];
    // Removed with the process.
    Guarded::start(&dir.keep(), "env", &arguments)
}

/// In such a process: waits, and never returns.
fn wait_if_started_for_that() {
    let Ok(role) = env::var(ROLE) else { return };
    let (patience, url) = role.split_once(' ').unwrap();
    let client = Client::open(url).unwrap();
    if patience == IN_CONDITION {
        let lock = client.lock("a");
        let _guard = lock.guard().unwrap();
        let _ = lock.new_condition("news").unwrap().wait();
        thread::sleep(SOON * 6);
    }
    let _ = client.lock("a").try_lock(ms(patience.parse().unwrap()));
    thread::sleep(SOON * 6);
    process::exit(1);
}

/// The scene: this process holds the lock, the process that will be killed waits first, and a
/// client of ours second.
struct Scene {
    server: Server,
    held: LockGuard,
    /// The token of the process that will be killed.
    doomed: String,
    second: Underway<Instant>,
}

impl Scene {
    /// `start` starts the process, once the lock is held. The second waiter never asks again by
    /// itself.
    fn new(server: Server, start: impl FnOnce() -> Guarded) -> (Scene, Guarded) {
        Scene::with(LockOptions::new().retry(Retry::fixed(SOON * 6)), server, start)
    }

    /// The same, with options of the second waiter.
    fn with(
        options: LockOptions,
        server: Server,
        start: impl FnOnce() -> Guarded,
    ) -> (Scene, Guarded) {
        let holder = client(&server).lock("a");
        // From here on the server knows the release script,
        holder.with(|_| ()).unwrap();
        let held = holder.guard().unwrap();
        // and the withdrawal script.
        assert!(!client(&server).lock("a").try_lock(ms(50)).unwrap());
        eventually(SOON, || inboxes(&server) == 0);
        let process = start();
        eventually(SOON, || waiters(&server).len() == 1 && inboxes(&server) == 1);
        let doomed = waiters(&server).remove(0);
        let lock = client(&server).lock_with("a", options).unwrap();
        let second = Underway::start(move || {
            let _guard = lock.guard().unwrap();
            Instant::now()
        });
        eventually(SOON, || waiters(&server).len() == 2 && inboxes(&server) == 2);
        (Scene { server, held, doomed, second }, process)
    }
}

fn waiters(server: &Server) -> Vec<String> {
    redis::cmd("ZRANGE").arg("{a}:queue").arg(0).arg(-1).query(&mut server.connection()).unwrap()
}

#[test]
fn a_waiter_that_is_killed_in_the_queue_is_passed_over_at_once() {
    wait_if_started_for_that();
    let server = Server::start();
    let url = server.url();
    let start = || {
        another_process(
            "killed::a_waiter_that_is_killed_in_the_queue_is_passed_over_at_once",
            &url,
            60_000,
        )
    };
    let (scene, mut process) = Scene::new(server, start);
    process.signal("KILL");
    eventually(SOON, || inboxes(&scene.server) == 1);
    scene.held.release().unwrap();
    scene.second.result();
}

#[test]
fn a_waiter_that_is_killed_just_after_it_was_granted_the_lock_costs_one_first_lease() {
    wait_if_started_for_that();
    let server = Server::start();
    let url = server.url();
    let test =
        "killed::a_waiter_that_is_killed_just_after_it_was_granted_the_lock_costs_one_first_lease";
    let start = || another_process(test, &url, 60_000);
    let (scene, mut process) = Scene::with(LockOptions::new(), server, start);
    // The grant arrives, and the process does nothing more: it is killed between the grant and its
    // first step.
    process.stop();
    scene.held.release().unwrap();
    let granted = Instant::now();
    assert_eq!(get(&scene.server, "a"), Some(scene.doomed));
    process.signal("KILL");
    let entered = scene.second.result();
    let took = entered - granted;
    assert!((ms(1000)..SOON).contains(&took), "it took {took:?}, and a first lease is 3 s");
}

#[test]
fn a_waiter_that_is_killed_before_its_cancellation_arrives_is_passed_over_at_once() {
    wait_if_started_for_that();
    let (server, proxy) = through_proxy();
    let withdrawal = proxy.add(withdrawal());
    let test =
        "killed::a_waiter_that_is_killed_before_its_cancellation_arrives_is_passed_over_at_once";
    let (scene, mut process) = Scene::new(server, || another_process(test, &proxy.url(), 1500));
    let held = withdrawal.wait_held(SOON);
    process.signal("KILL");
    eventually(SOON, || inboxes(&scene.server) == 1);
    scene.held.release().unwrap();
    scene.second.result();
    // The late copy finds nothing of its own, and takes nothing of anybody's.
    let lock = client(&scene.server).lock("a");
    let guard = lock.guard().unwrap();
    held.release();
    eventually(SOON, || !waiters(&scene.server).contains(&scene.doomed));
    guard.ensure_valid().unwrap();
    assert!(lock.is_locked().unwrap());
    guard.release().unwrap();
}

#[test]
fn a_cancellation_that_meets_a_grant_passes_the_lock_on_although_its_process_was_killed() {
    wait_if_started_for_that();
    let (server, proxy) = through_proxy();
    let withdrawal = proxy.add(withdrawal());
    let test = "killed::\
                a_cancellation_that_meets_a_grant_passes_the_lock_on_although_its_process_was_\
                killed";
    let (scene, mut process) = Scene::new(server, || another_process(test, &proxy.url(), 1500));
    let held = withdrawal.wait_held(SOON);
    // It has given up, and the server does not know that yet.
    scene.held.release().unwrap();
    assert_eq!(get(&scene.server, "a").as_ref(), Some(&scene.doomed));
    process.signal("KILL");
    held.release();
    scene.second.result();
}

/// A process that will be killed waits in a condition, and after it a thread of ours.
fn in_a_condition(server: &Server, test: &str) -> (Guarded, RedisLock, Underway<Instant>) {
    let lock = client(server).lock("a");
    let in_line = |count: u32| {
        eventually(SOON, || {
            let mut connection = server.connection();
            redis::cmd("ZCARD").arg("{a}:conditions").query::<u32>(&mut connection).unwrap()
                == count
        });
    };
    let process = another_process(test, &server.url(), IN_CONDITION);
    in_line(1);
    eventually(SOON, || inboxes(server) == 1);
    let waiter = client(server).lock("a");
    let second = Underway::start(move || {
        let _guard = waiter.guard().unwrap();
        waiter.new_condition("news").unwrap().wait().unwrap();
        Instant::now()
    });
    in_line(2);
    eventually(SOON, || inboxes(server) == 2);
    (process, lock, second)
}

#[test]
fn a_waiter_in_a_condition_that_is_killed_before_it_is_notified_is_passed_over() {
    wait_if_started_for_that();
    let server = Server::start();
    let test =
        "killed::a_waiter_in_a_condition_that_is_killed_before_it_is_notified_is_passed_over";
    let (mut process, lock, second) = in_a_condition(&server, test);
    process.signal("KILL");
    eventually(SOON, || inboxes(&server) == 1);
    let notified = Instant::now();
    lock.with(|_| lock.new_condition("news").unwrap().notify_one()).unwrap().unwrap();
    let took = second.result() - notified;
    assert!(took < ms(3000), "it took {took:?}");
}

#[test]
fn a_waiter_in_a_condition_killed_after_its_notification_leaves_it_to_another() {
    wait_if_started_for_that();
    let server = Server::start();
    let test = "killed::a_waiter_in_a_condition_killed_after_its_notification_leaves_it_to_another";
    let (mut process, lock, second) = in_a_condition(&server, test);
    process.stop();
    let guard = lock.guard().unwrap();
    lock.new_condition("news").unwrap().notify_one().unwrap();
    assert_eq!(waiters(&server).len(), 1);
    process.signal("KILL");
    eventually(SOON, || inboxes(&server) == 1);
    let released = Instant::now();
    guard.release().unwrap();
    let took = second.result() - released;
    assert!(took < ms(3000), "it took {took:?}");
}

#[test]
fn a_waiter_in_a_condition_killed_after_it_has_asked_leaves_its_notification_to_another() {
    wait_if_started_for_that();
    let server = Server::start();
    let test = "killed::\
                a_waiter_in_a_condition_killed_after_it_has_asked_leaves_its_notification_to_\
                another";
    let (mut process, lock, second) = in_a_condition(&server, test);
    let guard = lock.guard().unwrap();
    lock.new_condition("news").unwrap().notify_one().unwrap();
    // It has received the notification, and asks for the lock.
    eventually(SOON, || {
        let entries: Vec<String> =
            redis::cmd("HVALS").arg("{a}:waiters").query(&mut server.connection()).unwrap();
        entries.iter().any(|entry| entry.split('|').nth(5) == Some(""))
    });
    process.signal("KILL");
    eventually(SOON, || inboxes(&server) == 1);
    let released = Instant::now();
    guard.release().unwrap();
    let took = second.result() - released;
    assert!(took < ms(3000), "it took {took:?}");
}

#[test]
fn a_waiter_in_a_condition_killed_with_the_lock_leaves_its_notification_to_another() {
    wait_if_started_for_that();
    let server = Server::start();
    let test =
        "killed::a_waiter_in_a_condition_killed_with_the_lock_leaves_its_notification_to_another";
    let (mut process, lock, second) = in_a_condition(&server, test);
    process.stop();
    let guard = lock.guard().unwrap();
    lock.new_condition("news").unwrap().notify_one().unwrap();
    let doomed = waiters(&server).remove(0);
    guard.release().unwrap();
    assert_eq!(get(&server, "a"), Some(doomed));
    process.signal("KILL");
    // This takes a first lease and a sign of life.
    second.result_within(SOON * 3);
}

/// Holds withdrawals, of clients that release nothing: their scripts have the same arguments.
fn withdrawal() -> Rule {
    // EVALSHA, hash, 5, lock, fence, queue, waiters, conditions, token.
    Rule::on("EVALSHA", Fault::HoldRequest).when(|words| words.len() == 9)
}
