//! A caller's own value, used again and again: what one hold leaves behind never undoes the next
//! one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Instant;

use distlock::{Client, LockOptions, Renewal};

use crate::faults::{PATIENCE, impatient, nothing_is_left, through_proxy};
use crate::helpers::{Asked, Notes, SOON, Underway, client, error, get, ms, on_another_thread};
use crate::support::{Fault, Rule, Server, eventually, on_time, within};

const VALUE: &str = "worker-7";
/// A withdrawal is repeated after 50, 100, 200 and 400 ms, and so on.
const SOME_WITHDRAWALS: std::time::Duration = ms(900);

fn options() -> LockOptions {
    LockOptions::new().owner(VALUE)
}

/// The hold lasts, on the server too, for longer than some withdrawals take.
fn stays_held(server: &crate::support::Server, lock: &distlock::RedisLock) {
    let until = Instant::now() + SOME_WITHDRAWALS;
    while Instant::now() < until {
        assert_eq!(get(server, "job").as_deref(), Some(VALUE));
        thread::sleep(ms(5));
    }
    assert!(lock.is_valid());
}

#[test]
fn a_hold_is_not_withdrawn_with_an_unanswered_attempt_of_the_previous_hold() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock_with("job", options()).unwrap();
    let lost = proxy.add(Rule::on("SET", Fault::SwallowReply).next(1));
    lock.lock().unwrap();
    lost.wait_fired(SOON);
    // A copy of that attempt may still arrive, so the value is withdrawn again and again from here
    // on.
    lock.unlock().unwrap();
    for _ in 0..3 {
        lock.lock().unwrap();
        stays_held(&server, &lock);
        lock.unlock().unwrap();
    }
    nothing_is_left(&server);
}

#[test]
fn a_late_copy_of_an_attempt_is_still_withdrawn_after_the_value_was_used_again() {
    let (server, proxy) = through_proxy();
    let client = Client::builder(&proxy.url()).command_timeout(ms(1000)).build().unwrap();
    let lock = client.lock_with("job", options()).unwrap();
    let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    lock.lock().unwrap();
    lock.unlock().unwrap();
    lock.with(|_| ()).unwrap();
    assert_eq!(get(&server, "job"), None);
    let before = server.command_count("set");
    late.wait_held(SOON).release();
    eventually(SOON, || server.command_count("set") > before);
    nothing_is_left(&server);
}

#[test]
fn a_value_whose_release_may_still_arrive_is_not_used_again() {
    on_time(ms(100), || {
        let (_server, proxy) = through_proxy();
        let client = impatient(&proxy.url()).build().unwrap();
        let lock = client.lock_with("job", options()).unwrap();
        lock.lock().unwrap();
        // The release is under way, and so is its repetition.
        let late = [(); 2].map(|()| proxy.add(Rule::on("EVALSHA", Fault::HoldRequest).next(1)));
        assert!(error(lock.unlock()).is_unknown());
        let again = within(PATIENCE..SOON, || lock.try_lock(PATIENCE * 2));
        assert!(error(again).is_unavailable(), "the late release would delete it");
        late.into_iter().for_each(|late| late.wait_held(SOON).release());
        // A lock with another value is not affected.
        let other = client.lock_with("job", LockOptions::new()).unwrap();
        eventually(SOON, || other.try_lock(PATIENCE).unwrap_or(false));
        other.unlock().unwrap();
    });
}

#[test]
fn a_lease_that_ran_out_is_not_withdrawn_during_the_next_hold() {
    let server = crate::support::Server::start();
    let client = client(&server);
    let lock = client.lock_with("job", options().lease(ms(150)).renewal(Renewal::Never)).unwrap();
    let kept = client.lock_with("job", options()).unwrap();
    lock.lock().unwrap();
    eventually(SOON, || !lock.is_valid());
    // Its thread still owes an unlock; another thread of the client uses the value meanwhile.
    on_another_thread(|| {
        kept.lock().unwrap();
        stays_held(&server, &kept);
        kept.unlock().unwrap();
    });
    assert!(error(lock.unlock()).is_lost());
    nothing_is_left(&server);
}

#[test]
fn an_idle_connection_that_was_closed_costs_the_next_hold_nothing() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock_with("job", options()).unwrap();
    lock.with(|_| ()).unwrap();
    for _ in 0..3 {
        proxy.cut_all();
        // The attempt meets a connection that has gone, and nobody knows whether it arrived.
        lock.with(|_| ()).unwrap();
        within(..PATIENCE * 10, || lock.lock().unwrap());
        stays_held(&server, &lock);
        lock.unlock().unwrap();
    }
    nothing_is_left(&server);
}

/// The hold that a late copy may affect lasts, on the server and for the holder.
fn is_refused_or_lasts(
    server: &crate::support::Server,
    lock: &distlock::RedisLock,
    late: crate::support::Held,
    after: std::time::Duration,
) {
    // The value may not be used again, or the copy must not touch it.
    let again = lock.try_lock(PATIENCE).unwrap_or(false);
    late.release();
    thread::sleep(after);
    let other = client(server).lock("job");
    assert!(
        !(again && lock.is_valid() && other.try_lock(std::time::Duration::ZERO).unwrap()),
        "two valid holders"
    );
}

#[test]
fn a_late_first_copy_of_an_answered_release_affects_no_other_hold() {
    let (server, proxy) = through_proxy();
    let client = Client::builder(&proxy.url()).command_timeout(ms(1000)).build().unwrap();
    let lock = client.lock_with("job", options()).unwrap();
    lock.lock().unwrap();
    let late = proxy.add(Rule::on("EVALSHA", Fault::HoldRequest).next(1));
    lock.unlock().unwrap();
    is_refused_or_lasts(&server, &lock, late.wait_held(SOON), ms(100));
}

#[test]
fn a_late_shortening_affects_no_other_hold() {
    on_time(ms(100), || {
        let (server, proxy) = through_proxy();
        let client = impatient(&proxy.url()).build().unwrap();
        let lock = client.lock_with("job", options()).unwrap();
        lock.lock().unwrap();
        // The server knows the script from now on.
        lock.extend(ms(29_000)).unwrap();
        let late = proxy.add(Rule::on("EVALSHA", Fault::HoldRequest).next(1));
        assert!(error(lock.extend(ms(1_000))).is_unknown());
        lock.unlock().unwrap();
        is_refused_or_lasts(&server, &lock, late.wait_held(SOON), ms(1_300));
    });
}

#[test]
fn a_release_that_waited_until_its_lease_was_lost_is_not_sent() {
    let server = Server::start();
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let first =
        client.lock_with("job", options().lease(ms(1_500)).renewal(Renewal::Never)).unwrap();
    let next = client.lock_with("job", options()).unwrap();
    let ((go, goes), is_first) = (mpsc::channel::<()>(), AtomicBool::new(true));
    let goes = Mutex::new(goes);
    notes.before(move |asked| {
        // The release waits, as if for a connection.
        if *asked == Asked::Release && is_first.swap(false, Ordering::SeqCst) {
            let _ = goes.lock().unwrap().recv_timeout(SOON);
        }
    });
    let released = Underway::start(move || {
        first.lock().unwrap();
        first.unlock()
    });
    eventually(SOON, || notes.count(|asked| *asked == Asked::Release) == 1);
    eventually(SOON, || client.remembered().1 == 0);
    // 1. the lease is lost, and the loss is told; 2. its value is used again; 3. only now could the
    //    release be sent.
    assert!(next.try_lock(SOON).unwrap());
    assert_eq!(get(&server, "job").as_deref(), Some(VALUE));
    drop(go);
    let released = released.result();
    assert_eq!(get(&server, "job").as_deref(), Some(VALUE));
    assert!(error(released).is_lost());
    assert!(next.is_valid());
    next.unlock().unwrap();
    notes.before(|_| {});
}
