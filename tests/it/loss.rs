//! Losing a lease: how it is found, who is told, and what the holder and the others can do
//! afterwards.

mod callbacks;
mod ends;

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::FakeClock;
use distlock::{Client, ClientBuilder, LostReason, RedisLock, Renewal};
use log::Level;

use crate::helpers::{
    Asked, Elsewhere, Notes, SOON, Underway, client, delete, error, get, is_free, keys, lease,
    memory, ms, on_another_thread, pttl, put,
};
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

/// The loss is told exactly once.
#[track_caller]
fn assert_told_once(told: &Receiver<Told>, expected: &Told) {
    assert_eq!(told.recv_timeout(SOON).as_ref(), Ok(expected));
    assert_eq!(told.recv_timeout(ms(30)).ok(), None, "told twice");
}

/// What a thread that holds a lost lock `holds` times can still do.
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

pub const HOUR: Duration = Duration::from_secs(60 * 60);

/// A client whose clock stands still until the test moves it: however slow the machine is, no lease
/// of an hour runs out by itself.
pub fn timed(builder: ClientBuilder) -> (ClientBuilder, FakeClock) {
    let clock = FakeClock::new();
    (builder.clock(clock.clone()), clock)
}

/// Lets half an hour pass, after which renewal asks for a lease of an hour, and then more until it
/// has `found` what it is to find: it asks again a second after a question that was not answered in
/// time. All that is less than an hour.
#[track_caller]
pub fn renewal_finds(clock: &FakeClock, mut found: impl FnMut() -> bool) {
    clock.advance(HOUR / 2);
    let (begun, mut passed) = (Instant::now(), Duration::ZERO);
    eventually(SOON, || {
        let now = begun.elapsed() * 150;
        clock.advance(now - passed);
        passed = now;
        found()
    });
}

#[test]
fn a_deleted_key_is_noticed_by_renewal() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(3600))).unwrap();
    let told = told_of(&lock);
    let guard = lock.guard().unwrap();
    lock.lock().unwrap();
    delete(&server, "job");
    // Before the lease would have run out: a third of it, and the time for a question.
    within(..ms(3590), || eventually(SOON, || !guard.is_valid()));
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
    let (builder, clock) = timed(Client::builder(&server.url()));
    let lock = builder.build().unwrap().lock_with("job", lease(HOUR)).unwrap();
    let told = told_of(&lock);
    (0..3).for_each(|_| lock.lock().unwrap());
    put(&server, "job", "somebody", SOON);
    renewal_finds(&clock, || !lock.is_valid());
    assert_told_once(&told, &has_told(LostReason::Taken));
    assert_lost(&lock, 3);
    assert_eq!(get(&server, "job").as_deref(), Some("somebody"));
    assert!((5_000..=10_000).contains(&pttl(&server, "job")));
}

#[test]
fn a_key_of_another_type_is_a_loss_and_is_left_alone() {
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let lock = builder.build().unwrap().lock_with("job", lease(HOUR)).unwrap();
    let told = told_of(&lock);
    lock.lock().unwrap();
    delete(&server, "job");
    redis::cmd("RPUSH").arg("job").arg("x").exec(&mut server.connection()).unwrap();
    renewal_finds(&clock, || !lock.is_valid());
    assert_told_once(&told, &has_told(LostReason::Taken));
    assert_lost(&lock, 1);
    assert_eq!(keys(&server), ["job"]);
}

#[test]
fn the_loss_of_a_lease_that_is_never_renewed_is_told_when_it_runs_out() {
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
    // In memory, where every question is answered.
    let (builder, clock) = timed(Client::builder("memory://"));
    let (client, notes) = Notes::of(builder);
    let lock = client.lock_with("job", lease(HOUR).renewal(Renewal::AtMost(2))).unwrap();
    let told = told_of(&lock);
    lock.lock().unwrap();
    for _ in 0..2 {
        renewal_finds(&clock, || lock.remaining().unwrap() > HOUR * 9 / 10);
    }
    assert_eq!(notes.extends(), 2);
    // From the last extend on, a whole lease passes.
    clock.advance(HOUR / 2);
    assert!(lock.is_valid());
    thread::sleep(ms(20));
    clock.advance(HOUR / 2);
    assert_told_once(&told, &has_told(LostReason::Expired));
    assert_eq!(notes.extends(), 2);
    assert_lost(&lock, 1);
}

#[test]
fn force_unlock_is_noticed_by_the_holder() {
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let lock = builder.build().unwrap().lock_with("job", lease(HOUR)).unwrap();
    let told = told_of(&lock);
    lock.lock().unwrap();
    assert!(client(&server).lock("job").force_unlock().unwrap());
    renewal_finds(&clock, || !lock.is_valid());
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
fn the_thread_can_lock_again_once_it_has_unlocked() {
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let lock = builder.build().unwrap().lock_with("job", lease(HOUR)).unwrap();
    lock.lock().unwrap();
    lock.lock().unwrap();
    delete(&server, "job");
    renewal_finds(&clock, || !lock.is_valid());
    assert_lost(&lock, 2);
    lock.lock().unwrap();
    assert!(lock.is_valid() && lock.hold_count() == 1);
    lock.unlock().unwrap();
    assert!(is_free(&lock));
}

#[test]
fn local_threads_go_on_after_a_loss_before_the_loser_has_noticed() {
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let client = builder.build().unwrap();
    let lock = client.lock_with("job", lease(HOUR)).unwrap();
    lock.lock().unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let lock = lock.clone();
            Underway::behind(&client, "job", move || lock.lock().and_then(|()| lock.unlock()))
        })
        .collect();
    delete(&server, "job");
    renewal_finds(&clock, || !lock.is_valid());
    waiters.into_iter().for_each(|waiter| waiter.result().unwrap());
    let next = Elsewhere::holds(&lock);
    let token = get(&server, "job");
    // What the loser does now affects nobody else.
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
    // As if this process had been paused for longer than the lease. The server's clock did not move
    // in this test, so it still has the key.
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
fn a_loss_is_logged_without_the_token() {
    logs::keep();
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let (client, notes) = Notes::of(builder);
    let lock = client.lock_with("loss-logged", lease(HOUR)).unwrap();
    lock.lock().unwrap();
    delete(&server, "loss-logged");
    renewal_finds(&clock, || !logs::lines(Level::Warn, &["loss-logged", "lease lost"]).is_empty());
    let Some((_, _, Asked::Acquire { token, .. })) = notes.asked().into_iter().next() else {
        panic!("an attempt")
    };
    assert!(!logs::everything().contains(&token));
    assert_lost(&lock, 1);
}
