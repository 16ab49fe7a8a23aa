//! Who is told of a loss: each callback once, in order, on a thread where it delays nothing else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

use distlock::{Client, LostReason};
use log::Level;

use super::{
    HOUR, assert_lost, assert_told_nothing_more, assert_told_once, has_told, renewal_finds, timed,
    told_of,
};
use crate::helpers::{Asked, Notes, SOON, client, delete, error, lease, memory, ms};
use crate::logs;
use crate::support::{Server, eventually};

#[test]
fn each_lost_lease_is_told_once_with_its_fence() {
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let lock = builder.build().unwrap().lock_with("job", lease(HOUR).fenced()).unwrap();
    let told = told_of(&lock);
    let mut fences = Vec::new();
    for _ in 0..3 {
        lock.lock().unwrap();
        lock.lock().unwrap();
        let fence = lock.fence();
        delete(&server, "job");
        renewal_finds(&clock, || !lock.is_valid());
        assert_told_once(&told, &("job".to_owned(), fence, LostReason::Taken));
        assert_eq!(lock.fence(), fence, "this thread's hold had it, and may say so still");
        assert_lost(&lock, 2);
        fences.extend(fence);
    }
    assert!(fences.is_sorted_by(|a, b| a < b) && fences.len() == 3);
    // An unlock in time is never reported as a loss.
    lock.with(|_| ()).unwrap();
    assert_told_nothing_more(&told);
}

#[test]
fn a_loss_that_is_found_twice_at_once_is_told_once() {
    let server = Server::start();
    let (client, notes) = Notes::of(Client::builder(&server.url()).command_timeout(SOON));
    let lock = client.lock_with("job", lease(ms(3_000))).unwrap();
    let told = told_of(&lock);
    let found = Arc::new(AtomicBool::new(false));
    let by_renewal = Arc::clone(&found);
    lock.on_lost(move |_| by_renewal.store(true, Ordering::SeqCst));
    // This thread's extend is under way while renewal finds the loss. A moment later the extend
    // finds it, too.
    notes.before(move |asked| {
        if *asked == Asked::ExtendOne {
            eventually(SOON, || found.load(Ordering::SeqCst));
        }
    });
    lock.lock().unwrap();
    delete(&server, "job");
    assert!(error(lock.extend(SOON)).is_lost());
    assert_told_once(&told, &has_told(LostReason::Taken));
    assert_lost(&lock, 1);
}

#[test]
fn callbacks_run_in_order_on_a_thread_of_their_own() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("job");
    let order = Arc::new(Mutex::new(Vec::new()));
    let (done, all) = mpsc::channel();
    for number in 0..4 {
        let (order, done) = (Arc::clone(&order), done.clone());
        // All callbacks are called, whichever handle they were added to.
        client.lock("job").on_lost(move |_| {
            let name = thread::current().name().map(str::to_owned);
            order.lock().unwrap().push((number, name, thread::current().id()));
            done.send(()).unwrap();
        });
    }
    lock.lock().unwrap();
    delete(&server, "job");
    assert!(error(lock.unlock()).is_lost());
    (0..4).for_each(|_| all.recv_timeout(SOON).unwrap());
    let order = order.lock().unwrap();
    assert_eq!(order.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(order.iter().all(
        |(_, name, thread)| name.as_deref() == Some("distlock-notify") && *thread == order[0].2
    ));
}

#[test]
fn a_callback_that_panics_is_logged_and_harms_nobody() {
    logs::keep();
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let client = builder.build().unwrap();
    let [bad, good] =
        ["loss-panicking", "job"].map(|name| client.lock_with(name, lease(HOUR)).unwrap());
    bad.on_lost(|_| panic!("planned"));
    let after_the_panic = told_of(&bad);
    let told = told_of(&good);
    for _ in 0..2 {
        bad.lock().unwrap();
        delete(&server, "loss-panicking");
        renewal_finds(&clock, || !bad.is_valid());
        after_the_panic.recv_timeout(SOON).unwrap();
        assert!(error(bad.unlock()).is_lost());
    }
    assert_eq!(logs::lines(Level::Error, &["loss-panicking", "panicked"]).len(), 2);
    // The background threads are still alive: a lease is renewed, and another loss is told.
    good.lock().unwrap();
    renewal_finds(&clock, || good.remaining().unwrap() > HOUR * 9 / 10);
    delete(&server, "job");
    renewal_finds(&clock, || !good.is_valid());
    assert_told_once(&told, &has_told(LostReason::Taken));
    assert!(error(good.unlock()).is_lost());
}

#[test]
fn a_slow_callback_delays_no_renewal_and_no_other_loss() {
    let server = Server::start();
    let client = client(&server);
    let locks: Vec<_> = ["slow", "job", "kept"]
        .iter()
        .map(|name| client.lock_with(name, lease(ms(4500))).unwrap())
        .collect();
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let (began, begun) = mpsc::channel();
    locks[0].on_lost(move |_| {
        began.send(()).unwrap();
        let _ = wait.lock().unwrap().recv();
    });
    let told = told_of(&locks[1]);
    locks.iter().for_each(|lock| lock.lock().unwrap());
    delete(&server, "slow");
    begun.recv_timeout(SOON).unwrap();
    // The callback sleeps. The next loss is still found, and the other lease is kept.
    delete(&server, "job");
    eventually(SOON, || !locks[1].is_valid());
    thread::sleep(ms(5000));
    assert!(locks[2].is_valid() && told.try_recv().is_err(), "callbacks run one after another");
    drop(go_on);
    // Renewal found it, and not the end of the lease.
    assert_told_once(&told, &has_told(LostReason::Taken));
    locks[2].unlock().unwrap();
    assert_lost(&locks[0], 1);
    assert_lost(&locks[1], 1);
}

#[test]
fn a_callback_may_use_the_lock_that_was_lost() {
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let lock = builder.build().unwrap().lock_with("job", lease(HOUR)).unwrap();
    let (done, outcome) = mpsc::channel();
    let again = lock.clone();
    lock.on_lost(move |_| {
        // This is not the holder's thread: it holds nothing, and can lock.
        let result = (again.is_held(), again.try_lock(SOON).unwrap(), again.unlock().is_ok());
        again.on_lost(|_| {});
        done.send(result).unwrap();
    });
    lock.lock().unwrap();
    delete(&server, "job");
    renewal_finds(&clock, || !lock.is_valid());
    assert_eq!(outcome.recv_timeout(SOON), Ok((false, true, true)));
    assert_lost(&lock, 1);
}

#[test]
fn a_callback_whose_panic_value_panics_ends_no_other_callback() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(thread::panicking(), "dropped");
        }
    }
    let client = memory();
    let (first, second) = (client.lock("first"), client.lock("job"));
    first.on_lost(|_| std::panic::panic_any(Bomb));
    let told = told_of(&second);
    for lock in [&first, &second] {
        lock.lock().unwrap();
        assert!(lock.force_unlock().unwrap());
        assert!(error(lock.unlock()).is_lost());
    }
    assert_told_once(&told, &has_told(LostReason::Taken));
}

/// 1. Renewal extends the lease; 2. it is unlocked, and the last handle of the lock goes; 3. the
///    extend comes back, and renewal drops the last reference to the lease and the lock.
#[test]
fn what_a_callback_owns_is_dropped_where_it_delays_no_renewal() {
    struct Owned(mpsc::Sender<Option<String>>);
    impl Drop for Owned {
        fn drop(&mut self) {
            self.0.send(thread::current().name().map(str::to_owned)).unwrap();
        }
    }
    let (client, notes) = Notes::of(Client::builder("memory://"));
    let (tell, told) = mpsc::channel();
    let (go_on, gone) = mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let (extends, extended) = mpsc::channel();
    notes.after(move |asked| {
        if matches!(asked, Asked::Extend { keys, .. } if keys == &["job"]) {
            extends.send(()).unwrap();
            let _ = gone.lock().unwrap().recv_timeout(SOON);
        }
    });
    let lock = client.lock_with("job", lease(ms(1_500))).unwrap();
    let owned = Owned(tell);
    lock.on_lost(move |_| drop(owned.0.clone()));
    lock.lock().unwrap();
    extended.recv_timeout(SOON).unwrap();
    lock.unlock().unwrap();
    drop(lock);
    go_on.send(()).unwrap();
    assert_eq!(told.recv_timeout(SOON).unwrap().as_deref(), Some("distlock-notify"));
    assert_eq!(client.remembered(), (0, 0));
}
