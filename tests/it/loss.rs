//! Losing a lease: how it is found, who is told, and what the holder and the others can do
//! afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::FakeClock;
use distlock::{Client, Lock, LockOptions, LostReason, RedisLock, Renewal};
use log::Level;

use crate::helpers::{
    Asked, Elsewhere, Notes, SOON, Underway, client, delete, error, get, is_free, keys, lease,
    memory, ms,
};
use crate::helpers::{on_another_thread, pttl, put};
use crate::logs;
use crate::support::{Fault, Proxy, Rule, Server, eventually, within};

/// What callbacks are told, as name, fence and reason.
type Told = (String, Option<u64>, LostReason);

fn told_of(lock: &RedisLock) -> Receiver<Told> {
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| {
        let _ = tell.send((lost.name().to_owned(), lost.fence(), lost.reason()));
    });
    told
}

/// The loss is told, once.
#[track_caller]
fn assert_told_once(told: &Receiver<Told>, expected: &Told) {
    assert_eq!(told.recv_timeout(SOON).as_ref(), Ok(expected));
    assert_eq!(told.recv_timeout(ms(30)).ok(), None, "told twice");
}

/// What is left to a thread that holds a lost lock `holds` times.
#[track_caller]
fn assert_lost(lock: &RedisLock, holds: u32) {
    assert!(!lock.is_valid() && lock.remaining() == Some(Duration::ZERO));
    for left in (1..=holds).rev() {
        assert_eq!((lock.is_held(), lock.hold_count()), (true, left));
        assert!(error(lock.lock()).is_lost() && error(lock.try_lock(Duration::ZERO)).is_lost());
        assert!(error(lock.extend(SOON)).is_lost());
        assert!(error(lock.unlock()).is_lost());
    }
    assert!(!lock.is_held() && lock.remaining().is_none());
    assert!(error(lock.unlock()).is_not_held());
}

fn has_told(reason: LostReason) -> Told {
    ("job".to_owned(), None, reason)
}

#[test]
fn a_deleted_key_is_noticed_by_renewal() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(900))).unwrap();
    let told = told_of(&lock);
    let guard = lock.guard().unwrap();
    lock.lock().unwrap();
    delete(&server, "job");
    // Before the lease would have run out: a third of it, and the time for a question.
    within(..ms(890), || eventually(SOON, || !guard.is_valid()));
    assert!(error(guard.ensure_valid()).is_lost());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_told_once(&told, &has_told(LostReason::Taken));
    assert_eq!(get(&server, "job"), None, "never created again");
    assert!(error(lock.unlock()).is_lost());
    assert!(error(guard.release()).is_lost());
    assert!(error(lock.unlock()).is_not_held());
    assert_told_nothing_more(&told);
}

#[track_caller]
fn assert_told_nothing_more(told: &Receiver<Told>) {
    assert_eq!(told.recv_timeout(ms(30)).ok(), None);
}

#[test]
fn an_overwritten_key_is_noticed_and_left_alone() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(900))).unwrap();
    let told = told_of(&lock);
    (0..3).for_each(|_| lock.lock().unwrap());
    put(&server, "job", "somebody", SOON);
    assert_told_once(&told, &has_told(LostReason::Taken));
    assert_lost(&lock, 3);
    assert_eq!(get(&server, "job").as_deref(), Some("somebody"));
    assert!((5_000..=10_000).contains(&pttl(&server, "job")));
}

#[test]
fn a_key_of_another_type_is_a_loss_and_is_left_alone() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(900))).unwrap();
    let told = told_of(&lock);
    lock.lock().unwrap();
    delete(&server, "job");
    redis::cmd("RPUSH").arg("job").arg("x").exec(&mut server.connection()).unwrap();
    assert_told_once(&told, &has_told(LostReason::Taken));
    assert_lost(&lock, 1);
    assert_eq!(keys(&server), ["job"]);
}

#[test]
fn a_lease_that_is_never_renewed_is_told_when_it_runs_out() {
    for client in [client(&Server::start()), memory()] {
        let lock = client.lock_with("job", lease(ms(200)).renewal(Renewal::Never)).unwrap();
        let told = told_of(&lock);
        let start = Instant::now();
        lock.lock().unwrap();
        if told.recv_timeout(SOON) != Ok(has_told(LostReason::Expired)) {
            panic!("not told");
        }
        assert!((ms(150)..ms(2000)).contains(&start.elapsed()), "{:?}", start.elapsed());
        assert_lost(&lock, 1);
        assert_told_nothing_more(&told);
    }
}

#[test]
fn a_lease_is_renewed_at_most_as_often_as_allowed() {
    let server = Server::start();
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let lock = client.lock_with("job", lease(ms(900)).renewal(Renewal::AtMost(2))).unwrap();
    let told = told_of(&lock);
    let start = Instant::now();
    lock.lock().unwrap();
    assert_told_once(&told, &has_told(LostReason::Expired));
    // Two extends, each after at least some of a third, and a whole lease after the last.
    assert!((ms(1000)..ms(5000)).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(notes.extends(), 2);
    assert_lost(&lock, 1);
}

#[test]
fn force_unlock_is_noticed_by_the_holder() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(900))).unwrap();
    let told = told_of(&lock);
    lock.lock().unwrap();
    assert!(client(&server).lock("job").force_unlock().unwrap());
    assert_told_once(&told, &has_told(LostReason::Taken));
    assert_lost(&lock, 1);
}

#[test]
fn a_loss_is_found_by_unlock_at_the_latest() {
    for client in [client(&Server::start()), memory()] {
        let lock = client.lock("job");
        let told = told_of(&lock);
        lock.lock().unwrap();
        // Renewal would find it in ten seconds.
        assert!(lock.force_unlock().unwrap());
        assert!(lock.is_valid());
        assert!(error(lock.unlock()).is_lost());
        assert_told_once(&told, &has_told(LostReason::Taken));
        assert!(error(lock.unlock()).is_not_held());
    }
}

#[test]
fn a_loss_is_found_by_extend() {
    let server = Server::start();
    let lock = client(&server).lock("job");
    let told = told_of(&lock);
    lock.lock().unwrap();
    delete(&server, "job");
    assert!(error(lock.extend(SOON)).is_lost());
    assert_eq!(get(&server, "job"), None, "never created");
    assert_told_once(&told, &has_told(LostReason::Taken));
    assert_lost(&lock, 1);
}

#[test]
fn each_lost_lease_is_told_once_with_its_fence() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(900)).fenced()).unwrap();
    let told = told_of(&lock);
    let mut fences = Vec::new();
    for _ in 0..3 {
        lock.lock().unwrap();
        lock.lock().unwrap();
        let fence = lock.fence();
        delete(&server, "job");
        assert_told_once(&told, &("job".to_owned(), fence, LostReason::Taken));
        assert_eq!(lock.fence(), fence, "this thread's hold had it, and may say so still");
        assert_lost(&lock, 2);
        fences.extend(fence);
    }
    assert!(fences.is_sorted_by(|a, b| a < b) && fences.len() == 3);
    // What is unlocked in time is never told.
    lock.with(|_| ()).unwrap();
    assert_told_nothing_more(&told);
}

#[test]
fn a_loss_that_is_found_twice_at_once_is_told_once() {
    let server = Server::start();
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let lock = client.lock_with("job", lease(ms(900))).unwrap();
    let told = told_of(&lock);
    let found = Arc::new(AtomicBool::new(false));
    let by_renewal = Arc::clone(&found);
    lock.on_lost(move |_| by_renewal.store(true, Ordering::SeqCst));
    // This thread's extend is on its way while renewal finds the loss; it finds it, too, a moment
    // later.
    notes.before(move |asked| {
        if *asked == Asked::EndIn {
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
        // Whichever handle they were added to.
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
    let client = client(&server);
    let (bad, good) = (
        client.lock_with("loss-panicking", lease(ms(900))).unwrap(),
        client.lock_with("job", lease(ms(1500))).unwrap(),
    );
    bad.on_lost(|_| panic!("planned"));
    let after_the_panic = told_of(&bad);
    let told = told_of(&good);
    for _ in 0..2 {
        bad.lock().unwrap();
        delete(&server, "loss-panicking");
        after_the_panic.recv_timeout(SOON).unwrap();
        assert!(error(bad.unlock()).is_lost());
    }
    assert_eq!(logs::lines(Level::Error, &["loss-panicking", "panicked"]).len(), 2);
    // The threads behind it all live: a lease is renewed, and another loss is told.
    good.lock().unwrap();
    thread::sleep(ms(2000));
    assert!(good.is_valid());
    delete(&server, "job");
    assert_told_once(&told, &has_told(LostReason::Taken));
    assert!(error(good.unlock()).is_lost());
}

#[test]
fn a_slow_callback_delays_no_renewal_and_no_other_loss() {
    let server = Server::start();
    let client = client(&server);
    let locks: Vec<_> = ["slow", "job", "kept"]
        .iter()
        .map(|name| client.lock_with(name, lease(ms(1500))).unwrap())
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
    // It sleeps. Validity still ends in time, and what is well goes on.
    delete(&server, "job");
    within(..ms(1490), || eventually(SOON, || !locks[1].is_valid()));
    thread::sleep(ms(2000));
    assert!(locks[2].is_valid() && told.try_recv().is_err(), "callbacks run one after another");
    drop(go_on);
    assert_told_once(&told, &has_told(LostReason::Taken));
    locks[2].unlock().unwrap();
    assert_lost(&locks[0], 1);
    assert_lost(&locks[1], 1);
}

#[test]
fn a_callback_may_use_the_lock_that_was_lost() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock_with("job", lease(ms(900))).unwrap();
    let (done, outcome) = mpsc::channel();
    let again = lock.clone();
    lock.on_lost(move |_| {
        // Another thread than the holder's: it holds nothing, and can lock.
        let result = (again.is_held(), again.try_lock(SOON).unwrap(), again.unlock().is_ok());
        again.on_lost(|_| {});
        done.send(result).unwrap();
    });
    lock.lock().unwrap();
    delete(&server, "job");
    assert_eq!(outcome.recv_timeout(SOON), Ok((false, true, true)));
    assert_lost(&lock, 1);
}

#[test]
fn the_thread_can_lock_again_once_it_has_unlocked() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(900))).unwrap();
    lock.lock().unwrap();
    lock.lock().unwrap();
    delete(&server, "job");
    eventually(SOON, || !lock.is_valid());
    assert_lost(&lock, 2);
    lock.lock().unwrap();
    assert!(lock.is_valid() && lock.hold_count() == 1);
    lock.unlock().unwrap();
    assert!(is_free(&lock));
}

#[test]
fn local_threads_go_on_after_a_loss_before_the_loser_has_noticed() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock_with("job", lease(ms(900))).unwrap();
    lock.lock().unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let lock = lock.clone();
            Underway::behind(&client, "job", move || lock.lock().and_then(|()| lock.unlock()))
        })
        .collect();
    delete(&server, "job");
    waiters.into_iter().for_each(|waiter| waiter.result().unwrap());
    let next = Elsewhere::holds(&lock);
    let token = get(&server, "job");
    // What the loser does now is its own affair.
    assert_lost(&lock, 1);
    assert_eq!(get(&server, "job"), token);
    assert!(!on_another_thread(|| lock.try_lock(Duration::ZERO).unwrap()));
    next.unlock().unwrap();
}

#[test]
fn a_release_confirmed_before_the_loss_was_told_is_a_release() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let clock = FakeClock::new();
    let client = Client::builder(&proxy.url()).clock(clock.clone()).build().unwrap();
    let lock = client.lock_with("job", lease(ms(10_000)).renewal(Renewal::Never)).unwrap();
    let told = told_of(&lock);
    // The scripts are known to the server from here on.
    lock.with(|_| ()).unwrap();
    let rule = proxy.add(Rule::on("EVALSHA", Fault::HoldReply).next(1));
    let unlocking = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    // The server has released it. The lease runs out before the answer comes.
    let reply = rule.wait_held(SOON);
    assert_eq!(get(&server, "job"), None);
    clock.advance(ms(11_000));
    thread::sleep(ms(20));
    reply.release();
    unlocking.result().unwrap();
    assert_told_nothing_more(&told);
}

#[test]
fn after_a_loss_by_expiry_the_servers_key_is_withdrawn() {
    let server = Server::start();
    let clock = FakeClock::new();
    let client = Client::builder(&server.url()).clock(clock.clone()).build().unwrap();
    let lock = client.lock("job");
    let told = told_of(&lock);
    lock.lock().unwrap();
    assert!((20_000..=30_000).contains(&pttl(&server, "job")));
    // This process stood still for longer than the lease; the server, whose clock did not run on
    // here, has the key still.
    clock.advance(ms(31_000));
    assert_told_once(&told, &has_told(LostReason::Expired));
    eventually(SOON, || get(&server, "job").is_none());
    assert_lost(&lock, 1);
}

#[test]
fn validity_ends_with_the_clock_before_anybody_looks() {
    let server = Server::start();
    let clock = FakeClock::new();
    let client = Client::builder(&server.url()).clock(clock.clone()).build().unwrap();
    let lock = client.lock_with("job", lease(ms(10_000)).renewal(Renewal::Never)).unwrap();
    let told = told_of(&lock);
    lock.lock().unwrap();
    assert!(lock.is_valid());
    // One per cent and 2 ms are taken off for clocks that run at different rates.
    let remaining = lock.remaining().unwrap();
    assert!(remaining <= ms(9_898), "{remaining:?}");
    clock.advance(remaining - ms(1));
    assert!(lock.is_valid() && lock.remaining().unwrap() <= ms(1));
    clock.advance(ms(1));
    assert!(!lock.is_valid());
    // A release that is confirmed before the loss is told would be a release.
    assert_told_once(&told, &has_told(LostReason::Expired));
    assert_lost(&lock, 1);
}

#[test]
fn the_end_of_a_lease_moves_both_ways() {
    let server = Server::start();
    let client = client(&server);
    for renewal in [Renewal::UntilUnlock, Renewal::Never, Renewal::AtMost(3)] {
        let lock = client.lock_with("job", lease(ms(20_000)).renewal(renewal)).unwrap();
        lock.lock().unwrap();
        for (length, least) in [(60_000, 50_000), (5_000, 2_000), (30_000, 20_000), (1_000, 100)] {
            lock.extend(ms(length)).unwrap();
            let (ours, theirs) = (lock.remaining().unwrap(), pttl(&server, "job"));
            let theirs = ms(u64::try_from(theirs).unwrap());
            assert!(ms(least) < ours && ours < ms(length), "{ours:?} after extend({length})");
            // The server's answer came after ours was read, so it may be a little less; never less
            // than our validity at the same moment.
            assert!(
                theirs <= ms(length) && theirs + ms(1) >= lock.remaining().unwrap(),
                "{theirs:?}"
            );
        }
        lock.unlock().unwrap();
        assert_eq!(get(&server, "job"), None);
    }
}

#[test]
fn a_lease_that_was_shortened_by_hand_runs_out_or_is_renewed_as_its_options_say() {
    let server = Server::start();
    let client = client(&server);
    let never = client.lock_with("never", lease(ms(20_000)).renewal(Renewal::Never)).unwrap();
    let told = told_of(&never);
    never.lock().unwrap();
    never.extend(ms(200)).unwrap();
    assert_eq!(told.recv_timeout(SOON).map(|(_, _, reason)| reason), Ok(LostReason::Expired));
    assert_lost(&never, 1);
    let renewed = client.lock_with("renewed", lease(ms(20_000))).unwrap();
    renewed.lock().unwrap();
    renewed.extend(ms(1200)).unwrap();
    eventually(ms(1190), || pttl(&server, "renewed") > 10_000);
    assert!(renewed.is_valid());
    renewed.unlock().unwrap();
}

#[test]
fn an_end_outside_the_bounds_is_refused_and_changes_nothing() {
    let server = Server::start();
    let lock = client(&server).lock("job");
    assert!(error(lock.extend(SOON)).is_not_held());
    lock.lock().unwrap();
    let before = pttl(&server, "job");
    for length in [
        Duration::ZERO,
        ms(99),
        Duration::from_micros(99_999),
        Duration::from_secs(24 * 60 * 60 + 1),
        Duration::MAX,
    ] {
        assert!(error(lock.extend(length)).is_invalid_input());
    }
    assert!(lock.is_valid() && pttl(&server, "job") > before - 5_000);
    lock.extend(ms(100)).unwrap();
    lock.extend(Duration::from_secs(24 * 60 * 60)).unwrap();
    assert!(pttl(&server, "job") > 80_000_000);
    assert!(on_another_thread(|| error(lock.extend(SOON))).is_not_held());
    lock.unlock().unwrap();
}

#[test]
fn an_extend_without_an_answer_is_unknown_and_the_lock_is_held_still() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::builder(&proxy.url()).command_timeout(ms(200)).build().unwrap();
    let lock = client.lock("job");
    lock.lock().unwrap();
    proxy.freeze();
    let before = lock.remaining().unwrap();
    assert!(error(lock.extend(SOON * 60)).is_unknown());
    assert!(lock.is_valid() && lock.remaining().unwrap() <= before, "validity does not move");
    proxy.thaw();
    eventually(SOON, || lock.extend(SOON * 60).is_ok());
    assert!(lock.remaining().unwrap() > SOON * 50);
    lock.unlock().unwrap();
}

#[test]
fn a_shortening_without_an_answer_counts_as_done() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::builder(&proxy.url()).command_timeout(ms(200)).build().unwrap();
    let lock = client.lock_with("job", lease(ms(20_000)).renewal(Renewal::Never)).unwrap();
    let told = told_of(&lock);
    lock.lock().unwrap();
    let lost = proxy.add(Rule::on("EVALSHA", Fault::SwallowReply).next(1));
    assert!(error(lock.extend(ms(900))).is_unknown());
    lost.wait_fired(SOON);
    assert!(lock.remaining().unwrap() < ms(900));
    // A late copy could end it unseen, so nothing makes it longer any more.
    let _ = lock.extend(SOON);
    assert!(lock.remaining().unwrap() < ms(900));
    assert_told_once(&told, &has_told(LostReason::Expired));
    assert_lost(&lock, 1);
}

#[test]
fn a_loss_is_said_in_the_log_without_the_token() {
    logs::keep();
    let server = Server::start();
    let (client, notes) =
        Notes::of(Client::builder(&server.url()).lock_options(LockOptions::new().lease(ms(900))));
    let lock = client.lock("loss-logged");
    lock.lock().unwrap();
    delete(&server, "loss-logged");
    eventually(SOON, || !logs::lines(Level::Warn, &["loss-logged", "lease lost"]).is_empty());
    let Some((_, _, Asked::Acquire { token, .. })) = notes.asked().into_iter().next() else {
        panic!("an attempt")
    };
    assert!(!logs::everything().contains(&token));
    assert_lost(&lock, 1);
}

#[test]
fn a_callback_that_panics_with_a_value_that_panics_ends_no_other() {
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
