//! What a call that waits for long says in the log, and what a thread says that locks again.

use std::time::{Duration, Instant};

use distlock::{Client, ClientBuilder, LockOptions, RedisLock, Retry};
use log::Level;

use crate::elsewhere::Elsewhere;
use crate::helpers::{Notes, SOON, Underway, client, ms};
use crate::logs;
use crate::redlock::nodes::{Mood, Nodes};
use crate::support::{Server, eventually};

const SLOW: Duration = ms(100);

/// A client that speaks soon, and asks often.
fn impatient(url: &str) -> ClientBuilder {
    let options = LockOptions::new().retry(Retry::fixed(ms(20)));
    Client::builder(url).name("waiter-1").slow_wait(SLOW).lock_options(options)
}

/// What was said of the long waits for the lock or semaphore of this name.
fn said_of(name: &str) -> Vec<String> {
    logs::lines(Level::Warn, &[&format!("{name:?}"), "a call has waited for"])
}

/// What was said first, once something was.
#[track_caller]
fn says(name: &str) -> String {
    eventually(SOON, || !said_of(name).is_empty());
    said_of(name).remove(0)
}

/// Somebody has said this.
#[track_caller]
fn hears(name: &str, text: &str) {
    eventually(SOON, || said_of(name).iter().any(|said| said.contains(text)));
}

#[test]
fn a_call_says_who_holds_the_lock_and_how_many_wait_before_it() {
    logs::keep();
    let server = Server::start();
    for (name, url) in [("slow-there", server.url()), ("slow-here", "memory://slow".into())] {
        let holder = Client::builder(&url).name("holder-1").build().unwrap();
        let guard = holder.lock(name).guard().unwrap();
        let first = Elsewhere::locks(&Client::open(&url).unwrap().lock(name));
        eventually(SOON, || holder.lock(name).inspect().unwrap().waiters.len() == 1);
        let waiting = impatient(&url).build().unwrap();
        let began = Instant::now();
        let second = Elsewhere::locks(&waiting.lock(name));
        let said = says(name);
        assert!(said.starts_with(&format!("lock {name:?}: a call has waited for ")), "{said}");
        assert!(said.contains(" s: held by holder-1 for at most "), "{said}");
        assert!(said.ends_with(" s; waiters before it: 1"), "{said}");
        // As long as it waits it says so again, and at most once in a second.
        eventually(SOON, || said_of(name).len() > 1);
        let lines = said_of(name).len() as u64;
        assert!(lines <= 1 + began.elapsed().as_secs(), "{lines} in {:?}", began.elapsed());
        let token = &holder.lock(name).inspect().unwrap().holders[0].token;
        assert!(!logs::everything().contains(token.as_str()));
        guard.release().unwrap();
        first.unlock().unwrap();
        second.unlock().unwrap();
    }
}

#[test]
fn a_call_that_waits_for_permits_or_a_side_says_so_too() {
    logs::keep();
    let server = Server::start();
    let (holder, waiting) = (client(&server), impatient(&server.url()).build().unwrap());
    let (permits, reading) =
        (holder.semaphore("slow-s", 3).acquire_many(2), holder.rw_lock("slow-rw").read());
    let semaphore = waiting.semaphore("slow-s", 3);
    let acquired = Underway::start(move || semaphore.acquire_many(2));
    let writer = Elsewhere::locks(waiting.rw_lock("slow-rw").write_lock());
    let held = format!("held by {} for at most ", holder.name());
    let (of_permits, of_side) = (says("slow-s"), says("slow-rw"));
    assert!(of_permits.starts_with("semaphore ") && of_permits.contains(&held), "{of_permits}");
    assert!(of_side.starts_with("write lock ") && of_side.contains(&held), "{of_side}");
    permits.unwrap().release().unwrap();
    acquired.result().unwrap().release().unwrap();
    reading.unwrap().release().unwrap();
    writer.unlock().unwrap();
}

#[test]
fn a_thread_behind_another_of_its_process_says_so() {
    logs::keep();
    let server = Server::start();
    let waiting = impatient(&server.url()).build().unwrap();
    let lock = waiting.lock("slow-local");
    lock.lock().unwrap();
    let threads = [(); 3].map(|()| {
        let before = waiting.waiting("slow-local");
        let thread = Elsewhere::locks(&lock);
        eventually(SOON, || waiting.waiting("slow-local") > before);
        thread
    });
    hears("slow-local", "another thread of this process holds it; threads before it: ");
    lock.unlock().unwrap();
    for thread in threads {
        thread.unlock().unwrap();
    }
}

#[test]
fn a_thread_behind_one_that_asks_lets_that_one_name_the_holder() {
    logs::keep();
    let server = Server::start();
    let waiting = impatient(&server.url()).build().unwrap();
    let there = client(&server).lock("slow-behind");
    there.lock().unwrap();
    let ask = |lock: &RedisLock| (lock.clone(), Elsewhere::locks(lock));
    // It asks rarely: those behind it are due to speak before it does.
    let rarely = LockOptions::new().retry(Retry::fixed(SLOW * 5));
    let (lock, asking) = ask(&waiting.lock_with("slow-behind", rarely).unwrap());
    let try_lock = lock.clone();
    let deadline = Underway::behind(&waiting, "slow-behind", move || try_lock.try_lock(SLOW * 10));
    assert!(!deadline.result().unwrap(), "it looks up to speak, and waits on");
    hears("slow-behind", ": held by ");
    let said = said_of("slow-behind");
    assert!(!said.iter().any(|said| said.contains("another thread")), "{said:?}");
    // Behind one that holds it, nobody else knows.
    let before = waiting.waiting("slow-behind");
    let behind = Elsewhere::locks(&lock);
    eventually(SOON, || waiting.waiting("slow-behind") > before);
    there.unlock().unwrap();
    asking.has_it();
    hears("slow-behind", "another thread of this process holds it; threads before it: 0");
    asking.unlock().unwrap();
    behind.unlock().unwrap();
}

#[test]
fn a_store_that_does_not_answer_or_has_no_queue_is_told_apart() {
    logs::keep();
    for name in ["slow-quorum", "slow-silent"] {
        let nodes = Nodes::start();
        let there = nodes.client().lock(name);
        there.lock().unwrap();
        if name == "slow-silent" {
            nodes.set(0..5, Mood::To("inspect", &Mood::Down));
        }
        let waiting = nodes.builder().slow_wait(SLOW).build().unwrap();
        let waiter = Elsewhere::locks(&waiting.lock(name));
        let said = says(name);
        if name == "slow-silent" {
            assert!(said.contains(" s: the server did not say who holds it ("), "{said}");
        } else {
            assert!(said.ends_with("; waiters in the queue: 0, and it has no place"), "{said}");
        }
        there.unlock().unwrap();
        waiter.unlock().unwrap();
    }
}

#[test]
fn a_wait_in_a_condition_is_not_slow_and_the_wait_for_the_lock_after_it_is() {
    logs::keep();
    let server = Server::start();
    let (waiting, notes) = Notes::of(impatient(&server.url()));
    let (lock, there) = (waiting.lock("slow-condition"), client(&server).lock("slow-condition"));
    let waiter = Underway::start(move || {
        lock.lock()?;
        let woken = lock.new_condition("c")?.wait();
        lock.unlock()?;
        woken
    });
    let condition = there.new_condition("c").unwrap();
    let in_condition = || {
        let members = redis::cmd("ZCARD").arg("{slow-condition}:conditions").to_owned();
        members.query::<usize>(&mut server.connection()).unwrap() == 1
    };
    eventually(SOON, in_condition);
    std::thread::sleep(SLOW * 2);
    assert_eq!(said_of("slow-condition"), Vec::<String>::new());
    there.lock().unwrap();
    condition.notify_one().unwrap();
    assert!(says("slow-condition").contains("waiters before it: 0"));
    assert!(notes.attempts() > 1, "it waits for the lock");
    there.unlock().unwrap();
    waiter.result().unwrap();
}

#[test]
fn without_a_limit_nothing_is_said() {
    logs::keep();
    let server = Server::start();
    let there = client(&server).lock("slow-never");
    there.lock().unwrap();
    let (waiting, notes) = Notes::of(impatient(&server.url()).slow_wait(Duration::MAX));
    let waiter = Elsewhere::locks(&waiting.lock("slow-never"));
    eventually(SOON, || notes.attempts() > 20);
    there.unlock().unwrap();
    waiter.unlock().unwrap();
    assert_eq!(said_of("slow-never"), Vec::<String>::new());
}

#[test]
fn a_thread_that_locks_what_it_holds_says_so_for_whoever_looks_for_a_forgotten_hold() {
    logs::keep();
    let lock = Client::open("memory://").unwrap().lock("held-again");
    let said = || logs::lines(Level::Debug, &["\"held-again\"", "holds it locks it again"]).len();
    lock.lock().unwrap();
    assert_eq!(said(), 0);
    lock.lock().unwrap();
    assert_eq!(said(), 1);
    lock.unlock().unwrap();
    lock.unlock().unwrap();
}
