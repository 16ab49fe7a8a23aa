//! Unlocking has three outcomes, each told apart: released, lost before, unknown (R10, R12).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use distlock::{Client, LockOptions, LostReason, RedisLock, Renewal, Result};

use crate::faults::{PATIENCE, impatient, nothing_is_left, through_proxy};
use crate::helpers::{Busy, SOON, Underway, delete, error, get, keys, ms, put};
use crate::support::{Fault, Mode, Rule, Server, eventually, within};

fn is_release(command: &[Vec<u8>]) -> bool {
    // The first script for this lock after it was acquired; renewal's script comes seconds later.
    command[0].starts_with(b"EVAL") && command.get(3).is_some_and(|key| key == b"x")
}

#[test]
fn release_whose_reply_was_lost_with_its_connection_is_released() {
    let (server, proxy) = through_proxy();
    for resets in [false, true] {
        proxy.set_resets(resets);
        for fault in [Fault::CutBefore, Fault::CutAfter] {
            let client = Client::open(&proxy.url()).unwrap();
            let lock = client.lock("x");
            lock.lock().unwrap();
            let cut = proxy.add(Rule::any(fault).when(is_release).next(1));
            lock.unlock().unwrap();
            cut.wait_fired(SOON);
            assert!(!lock.is_held() && keys(&server).is_empty());
            proxy.clear_rules();
        }
    }
}

#[test]
fn release_whose_reply_was_swallowed_is_repeated_and_released() {
    let (server, proxy) = through_proxy();
    let lock = Client::open(&proxy.url()).unwrap().lock("x");
    // Loads the script on the server: otherwise it would not run the first time, and the second
    // release would find the lock.
    lock.with(|_| ()).unwrap();
    lock.lock().unwrap();
    let lost = proxy.add(Rule::any(Fault::SwallowReply).when(is_release).next(1));
    lock.unlock().unwrap();
    lost.wait_fired(SOON);
    assert!(keys(&server).is_empty());
    assert!(lock.unlock().unwrap_err().is_not_held());
}

#[test]
fn release_of_a_silent_server_is_unknown_and_done_in_the_background() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("x");
    lock.lock().unwrap();
    proxy.freeze();
    let error = within(PATIENCE..PATIENCE * 2 + ms(3000), || error(lock.unlock()));
    assert!(error.is_unknown() && !error.is_lost() && !error.is_not_held(), "{error:?}");
    assert_eq!(error.lock_name(), Some("x"));
    assert!(!lock.is_held(), "the hold is taken back whatever came of it");
    assert_eq!(keys(&server), ["x"]);
    proxy.thaw();
    // Long before the lease of 30 s runs out.
    nothing_is_left(&server);
    assert!(lock.try_lock(SOON).unwrap());
    lock.unlock().unwrap();
}

#[test]
fn release_without_a_server_is_unknown() {
    let server = Server::start();
    let client = impatient(&server.url()).build().unwrap();
    let lock = client.lock("x");
    lock.lock().unwrap();
    server.kill();
    let error = within(..SOON, || error(lock.unlock()));
    assert!(error.is_unknown(), "{error:?}");
    assert!(error.to_string().contains("\"x\""));
}

#[test]
fn unlock_after_the_lease_ran_out_is_lost() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let lock =
        client.lock_with("x", LockOptions::new().lease(ms(100)).renewal(Renewal::Never)).unwrap();
    lock.lock().unwrap();
    eventually(SOON, || keys(&server).is_empty());
    assert!(error(lock.unlock()).is_lost());
    assert!(error(lock.unlock()).is_not_held());
}

#[test]
fn unlock_of_a_lock_that_was_deleted_is_lost() {
    let server = Server::start();
    let lock = Client::open(&server.url()).unwrap().lock("x");
    lock.lock().unwrap();
    delete(&server, "x");
    assert!(error(lock.unlock()).is_lost());
    assert!(error(lock.unlock()).is_not_held());
}

#[test]
fn unlock_never_deletes_anothers_lock() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    for fault in [None, Some(Fault::CutBefore), Some(Fault::CutAfter), Some(Fault::SwallowReply)] {
        let lock = client.lock("x");
        lock.lock().unwrap();
        put(&server, "x", "another", SOON * 6);
        let repeats = fault.is_some();
        if let Some(fault) = fault {
            let _ = proxy.add(Rule::any(fault).when(is_release).next(1));
        }
        let outcome = lock.unlock();
        // A repeated release that is answered "not ours" while the lease was valid cannot tell why;
        // the first release can.
        assert!(repeats || error(outcome).is_lost());
        std::thread::sleep(ms(100));
        assert_eq!(get(&server, "x").as_deref(), Some("another"));
        proxy.clear_rules();
        delete(&server, "x");
    }
}

#[test]
fn late_copy_of_a_release_leaves_the_next_holder_alone() {
    let (server, proxy) = through_proxy();
    let client = Client::builder(&proxy.url()).command_timeout(ms(1000)).build().unwrap();
    let lock = client.lock("x");
    lock.lock().unwrap();
    let late = proxy.add(Rule::any(Fault::HoldRequest).when(is_release).next(1));
    lock.unlock().unwrap();
    let held = late.wait_held(SOON);
    lock.lock().unwrap();
    let token = get(&server, "x");
    held.release();
    eventually(SOON, || proxy.open() <= 2);
    std::thread::sleep(ms(50));
    assert_eq!(get(&server, "x"), token);
    assert!(lock.is_valid());
    lock.unlock().unwrap();
}

#[test]
fn dropped_guard_is_released_in_the_background_after_an_outage() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("x");
    let guard = lock.guard().unwrap();
    proxy.freeze();
    within(..SOON, || drop(guard));
    proxy.thaw();
    nothing_is_left(&server);
}

#[test]
fn unlock_without_a_hold_sends_nothing() {
    let (_server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    assert!(error(client.lock("x").unlock()).is_not_held());
    assert_eq!((proxy.accepted(), proxy.requests()), (0, 0));
}

/// 1. The release runs, and its reply is lost; 2. nobody can ask again before the lease has run
///    out; 3. the answer is "not ours": because of our own release, or of what came after it.
#[test]
fn a_release_that_was_not_answered_until_the_lease_had_run_out_is_unknown() {
    let (server, proxy) = through_proxy();
    let client = Client::builder(&proxy.url()).command_timeout(SOON).build().unwrap();
    // Not renewed: the first script after it was acquired is the release, however late that is.
    let options = LockOptions::new().lease(ms(2000)).renewal(Renewal::Never);
    let lock = client.lock_with("x", options).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    // So that the server knows the script.
    lock.with(|_| ()).unwrap();
    lock.lock().unwrap();
    let cut = proxy.add(Rule::any(Fault::CutAfter).when(is_release).next(1));
    proxy.set_mode(Mode::Refuse);
    let back = Underway::start(move || {
        thread::sleep(ms(2500));
        proxy.set_mode(Mode::Forward);
        proxy
    });
    let unlocked = error(lock.unlock());
    let _proxy = back.result();
    cut.wait_fired(SOON);
    assert!(unlocked.is_unknown() && keys(&server).is_empty(), "{unlocked}");
    assert_eq!(told.recv_timeout(ms(300)).ok(), None, "nobody lost it");
}

#[test]
fn an_unlock_whose_lease_is_lost_while_it_waits_for_a_connection_is_lost() {
    let server = Server::start();
    let client =
        Client::builder(&server.url()).pool_size(1).command_timeout(ms(2500)).build().unwrap();
    let lock = client.lock_with("x", LockOptions::new().lease(ms(1800))).unwrap();
    let (lost, is_lost) = mpsc::channel();
    lock.on_lost(move |told| lost.send(told.reason()).unwrap());
    lock.lock().unwrap();
    let busy = Busy::connection_of(&client);
    // Renewal finds it long before the lease has run out, and long before the unlock gives up.
    delete(&server, "x");
    assert!(error(lock.unlock()).is_lost());
    assert_eq!(is_lost.recv_timeout(SOON), Ok(LostReason::Taken));
    drop(busy);
}

/// A handler that a program may put into its own pool: it is called where we wait for a connection.
#[derive(Debug)]
struct Panics(Arc<AtomicBool>);

impl r2d2::HandleEvent for Panics {
    fn handle_checkout(&self, _: r2d2::event::CheckoutEvent) {
        assert!(!self.0.swap(false, Ordering::SeqCst), "planned");
    }
}

#[test]
fn a_panic_before_a_release_is_sent_leaves_no_lease_in_renewal_and_nobody_waiting() {
    let waits = |lock: &RedisLock| lock.new_condition("c").unwrap().wait_timeout(ms(10)).map(drop);
    for end in [&(|lock: &RedisLock| lock.unlock()) as &dyn Fn(&RedisLock) -> Result<()>, &waits] {
        let server = Server::start();
        let panics = Arc::new(AtomicBool::new(false));
        let pool =
            r2d2::Pool::builder().max_size(2).event_handler(Box::new(Panics(Arc::clone(&panics))));
        let pool = pool.build(redis::Client::open(server.url()).unwrap()).unwrap();
        let client = Client::builder(&server.url()).pool(pool).build().unwrap();
        // Without local hand-offs: these need no connection.
        let lock = client.lock_with("x", LockOptions::new().local_hand_offs(0)).unwrap();
        lock.lock().unwrap();
        let behind = lock.clone();
        let behind =
            Underway::behind(&client, "x", move || behind.lock().and_then(|()| behind.unlock()));
        panics.store(true, Ordering::SeqCst);
        catch_unwind(AssertUnwindSafe(|| end(&lock))).unwrap_err();
        assert!(!lock.is_held());
        behind.result().unwrap();
        eventually(SOON, || client.remembered().1 == 0 && keys(&server).is_empty());
    }
}
