//! Calls that are under way when their client is closed: they end, and leave nothing held.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, RedisLock};

use crate::faults::{impatient, nothing_is_left, through_proxy};
use crate::helpers::{Asked, Busy, Elsewhere, Notes, SOON, Underway, client, error, keys, ms, put};
use crate::support::{Fault, Mode, Rule, Server, eventually, within};

#[test]
fn close_wakes_waiters() {
    let server = Server::start();
    put(&server, "foreign", "somebody", SOON * 6);
    let client = client(&server);
    let holder = Elsewhere::holds(&client.lock("mine"));
    let start = |name: &str| {
        let lock = client.lock(name);
        move || (lock.lock(), lock.is_held())
    };
    let at_the_server = Underway::start(start("foreign"));
    eventually(SOON, || server.command_count("set") > 1);
    let behind = [
        Underway::behind(&client, "foreign", start("foreign")),
        Underway::behind(&client, "mine", start("mine")),
    ];
    within(..ms(5000), || client.close(SOON)).unwrap();
    for waiter in behind.into_iter().chain([at_the_server]) {
        let (ended, held) = waiter.result();
        assert!(error(ended).is_closed() && !held);
    }
    assert!(error(holder.unlock()).is_lost());
    assert_eq!(keys(&server), ["foreign"]);
}

#[test]
fn close_in_the_middle_of_everything_leaves_nothing_held() {
    let server = Server::start();
    for round in 0..8 {
        let client = client(&server);
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let lock = client.lock(["a", "b"][worker % 2]);
                Underway::start(move || {
                    loop {
                        match lock.lock().and_then(|()| lock.unlock()) {
                            Ok(()) => {}
                            Err(error) if error.is_lost() => {}
                            Err(error) => break error,
                        }
                    }
                })
            })
            .collect();
        thread::sleep(ms(5 + round * 3));
        client.close(SOON).unwrap();
        for worker in workers {
            assert!(worker.result().is_closed());
        }
        eventually(SOON, || keys(&server).is_empty());
    }
}

#[test]
fn close_releases_the_lease_of_a_wait_that_has_not_entered_its_condition() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("job");
    let (locked, is_locked) = mpsc::channel();
    let (cut, is_cut) = mpsc::channel();
    let waiting = Underway::start(move || {
        lock.lock().unwrap();
        locked.send(()).unwrap();
        is_cut.recv_timeout(SOON).unwrap();
        (lock.new_condition("ready").unwrap().wait(), lock.is_valid())
    });
    is_locked.recv_timeout(SOON).unwrap();
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    cut.send(()).unwrap();
    // It tries to enter the condition, and no server answers.
    thread::sleep(ms(300));
    let closing = Underway::start(move || client.close(SOON));
    let (ended, valid) = waiting.result();
    assert!(error(ended).is_closed() && !valid);
    proxy.set_mode(Mode::Forward);
    closing.result().unwrap();
    nothing_is_left(&server);
}

#[test]
fn close_removes_the_place_of_a_waiter() {
    let (server, proxy) = through_proxy();
    put(&server, "job", "somebody", SOON * 6);
    for _ in 0..3 {
        proxy.set_delay(Duration::ZERO, Duration::ZERO);
        let client = Client::open(&proxy.url()).unwrap();
        let lock = client.lock("job");
        let waiter = Underway::start(move || lock.lock());
        eventually(SOON, || keys(&server).len() == 3);
        // The withdrawal of its place takes longer than anything else that close does.
        proxy.set_delay(ms(60), ms(60));
        client.close(SOON).unwrap();
        assert_eq!(keys(&server), ["job"], "its place is gone when close returns");
        assert!(error(waiter.result()).is_closed());
    }
}

#[test]
fn close_removes_the_place_of_a_waiter_in_a_condition() {
    let (server, proxy) = through_proxy();
    for _ in 0..3 {
        proxy.set_delay(Duration::ZERO, Duration::ZERO);
        let client = Client::open(&proxy.url()).unwrap();
        let lock = client.lock("job");
        let waiter = Underway::start(move || {
            lock.lock().unwrap();
            lock.new_condition("c").unwrap().wait()
        });
        let line = ["{job}:conditions", "{job}:waiters"];
        eventually(SOON, || keys(&server) == line);
        // The withdrawal of its place takes longer than anything else that close does.
        proxy.set_delay(ms(60), ms(60));
        client.close(SOON).unwrap();
        assert_eq!(keys(&server), [""; 0], "its place is gone when close returns");
        assert!(error(waiter.result()).is_closed());
    }
}

#[test]
fn close_waits_for_an_unlock_that_is_under_way() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("job");
    let (locked, is_locked) = mpsc::channel();
    let (go, told) = mpsc::channel::<()>();
    let unlocking = Underway::start(move || {
        lock.lock().unwrap();
        locked.send(()).unwrap();
        let _ = told.recv_timeout(SOON);
        (lock.unlock(), Instant::now())
    });
    is_locked.recv_timeout(SOON).unwrap();
    let held = proxy.add(Rule::on("EVALSHA", Fault::HoldReply).next(1));
    drop(go);
    let _held = held.wait_held(SOON);
    let closing = Instant::now();
    client.close(SOON).unwrap();
    let closed = Instant::now();
    let (unlocked, ended) = unlocking.result();
    unlocked.unwrap();
    // The call counts as ended a moment before its thread goes on. A close that did not wait would
    // have returned nearer to its own beginning than to the end of the unlock.
    assert!(ended.saturating_duration_since(closed) < closed - closing, "the unlock ended first");
    assert_eq!(keys(&server), [""; 0]);
}

#[test]
fn close_counts_a_lock_only_once_while_its_unlock_waits_for_a_connection() {
    let server = Server::start();
    let client =
        Client::builder(&server.url()).pool_size(1).command_timeout(ms(3000)).build().unwrap();
    let lock = client.lock("job");
    let (go, told) = mpsc::channel::<()>();
    let (locked, is_locked) = mpsc::channel();
    let unlocking = Underway::start(move || {
        lock.lock().unwrap();
        locked.send(()).unwrap();
        let _ = told.recv_timeout(SOON);
        lock.unlock()
    });
    is_locked.recv_timeout(SOON).unwrap();
    let busy = Busy::connection_of(&client);
    drop(go);
    thread::sleep(ms(100));
    let unconfirmed = client.close(ms(300)).unwrap_err().to_string();
    assert!(unconfirmed.contains("that 1 of the client's locks"), "{unconfirmed}");
    drop(busy);
    assert!(error(unlocking.result()).is_lost(), "close ended the hold first");
}

#[test]
fn close_counts_a_lock_only_once_while_its_wait_in_a_condition_has_no_answer() {
    let (_server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("job");
    let waiting = proxy.add(
        Rule::on("EVALSHA", Fault::HoldReply).when(|command| command.len() == 3 + 5 + 10).next(1),
    );
    let _wait = Underway::start(move || {
        lock.lock().unwrap();
        lock.new_condition("c").unwrap().wait()
    });
    let held = waiting.wait_held(SOON);
    proxy.freeze();
    let unconfirmed = client.close(ms(300)).unwrap_err().to_string();
    assert!(unconfirmed.contains("that 1 of the client's locks"), "{unconfirmed}");
    proxy.thaw();
    held.release();
}

/// 1. the store has granted the lock; 2. the client is closed; 3. the lease would be renewed.
#[test]
fn a_lock_that_was_granted_to_a_closed_client_may_be_held() {
    let wait = |lock: &RedisLock| lock.new_condition("c")?.wait_timeout(ms(50)).map(drop);
    let waits: [fn(&RedisLock) -> distlock::Result<()>; 2] = [RedisLock::lock, wait];
    for (held, call) in [false, true].into_iter().zip(waits) {
        let (client, notes) = Notes::of(Client::builder("memory://"));
        let lock = client.lock("x");
        if held {
            lock.lock().unwrap();
        }
        let closed = client.clone();
        notes.after(move |asked| {
            if matches!(asked, Asked::Acquire { .. }) {
                let closing = closed.clone();
                let _closes = thread::spawn(move || closing.close(SOON));
                let refused = || closed.lock("y").is_locked().is_err_and(|error| error.is_closed());
                eventually(SOON, refused);
            }
        });
        let refused = error(call(&lock));
        assert!(refused.is_closed() && refused.may_be_held(), "{refused:?}");
    }
}
