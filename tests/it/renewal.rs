//! Renewal: one thread that keeps every lease of a client alive for as long as it is held, and not
//! a moment longer.

use std::collections::HashSet;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::FakeClock;
use distlock::{Client, Lock, LockGuard, LockOptions, RedisLock, Renewal, Retry};

use crate::faults::through_proxy;
use crate::helpers::{
    Asked, Busy, Notes, SOON, Underway, client, delete, error, get, is_free, lease, memory, ms,
    pttl, put,
};
use crate::support::{
    Fault, Mode, Proxy, Rule, Server, eventually, in_own_process, thread_names, within,
};

/// Looks at the lock again and again for that long: it must be valid all the time.
#[track_caller]
fn assert_valid_for(lock: &RedisLock, length: Duration) {
    let until = Instant::now() + length;
    while Instant::now() < until {
        assert!(lock.is_valid());
        thread::sleep(ms(5));
    }
}

#[test]
fn leases_of_any_length_are_kept_for_as_long_as_they_are_held() {
    let server = Server::start();
    let client = client(&server);
    let locks: Vec<_> = [1_000, 1_500, 2_000, 30_000]
        .iter()
        .map(|length| client.lock_with(&format!("job-{length}"), lease(ms(*length))).unwrap())
        .collect();
    locks.iter().for_each(|lock| lock.lock().unwrap());
    let tokens: Vec<_> = locks.iter().map(|lock| get(&server, lock.key())).collect();
    let until = Instant::now() + ms(2600);
    while Instant::now() < until {
        for (lock, token) in locks.iter().zip(&tokens) {
            assert!(lock.is_valid() && get(&server, lock.key()) == *token, "{}", lock.name());
        }
        thread::sleep(ms(10));
    }
    locks.iter().for_each(|lock| lock.unlock().unwrap());
}

#[test]
fn one_thread_renews_all_leases_of_a_client() {
    in_own_process("renewal::one_thread_renews_all_leases_of_a_client", || {
        let server = Server::start();
        let client = client(&server);
        let locks: Vec<_> = (0..60)
            .map(|i| client.lock_with(&format!("job-{i}"), lease(ms(1500))).unwrap())
            .collect();
        locks.iter().for_each(|lock| lock.lock().unwrap());
        thread::sleep(ms(2000));
        assert!(locks.iter().all(RedisLock::is_valid));
        let names = thread_names();
        let own: Vec<_> = names.iter().filter(|name| name.starts_with("distlock")).collect();
        assert_eq!(
            own.iter().filter(|name| name.starts_with("distlock-renew")).count(),
            1,
            "{own:?}"
        );
        assert!(own.len() <= 4, "{own:?}");
        // Nor does each lease have a connection: the pool's, and renewal's own.
        assert!(server.client_count() <= 3, "{}", server.client_count());
        locks.iter().for_each(|lock| lock.unlock().unwrap());
    });
}

#[test]
fn renewal_never_creates_a_key() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(300))).unwrap();
    lock.lock().unwrap();
    delete(&server, "job");
    let until = Instant::now() + ms(500);
    while Instant::now() < until {
        assert_eq!(get(&server, "job"), None);
        thread::sleep(ms(2));
    }
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn renewal_never_touches_anothers_key() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(300))).unwrap();
    lock.lock().unwrap();
    put(&server, "job", "somebody", ms(5_000));
    let mut least = pttl(&server, "job");
    let until = Instant::now() + ms(400);
    while Instant::now() < until {
        let now = pttl(&server, "job");
        assert!(now <= least, "its end was moved");
        least = now;
        thread::sleep(ms(5));
    }
    assert_eq!(get(&server, "job").as_deref(), Some("somebody"));
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn renewal_never_shortens() {
    let server = Server::start();
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let (asked, hears) = mpsc::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    notes.before(move |call| {
        if matches!(call, Asked::Extend { .. }) {
            let _ = asked.send(());
            let _ = waits.lock().unwrap().recv_timeout(SOON);
        }
    });
    let lock = client.lock_with("job", lease(ms(3_000))).unwrap();
    lock.lock().unwrap();
    // Renewal's extend is on its way, and the holder's passes it.
    hears.recv_timeout(SOON).unwrap();
    lock.extend(ms(60_000)).unwrap();
    go_on.send(()).unwrap();
    eventually(SOON, || notes.extends() == 1 && notes.under_way() == 0);
    assert!(pttl(&server, "job") > 40_000 && lock.remaining().unwrap() > ms(40_000));
    lock.unlock().unwrap();
}

/// Lets the clock stand still at `at` after `origin` for long enough that whatever is due is done.
fn settle(clock: &FakeClock, origin: Instant, at: Duration) {
    clock.advance((origin + at).saturating_duration_since(clock.now()));
    thread::sleep(ms(50));
}

#[test]
fn a_lease_that_was_extended_further_is_renewed_when_two_thirds_of_its_length_are_left() {
    let clock = FakeClock::new();
    let (client, notes) = Notes::of(Client::builder("memory://").clock(clock.clone()));
    let lock = client.lock_with("job", lease(ms(300))).unwrap();
    lock.lock().unwrap();
    let origin = clock.now();
    lock.extend(ms(10_000)).unwrap();
    // Valid until 9,898 ms: before 9,698 ms an extend would do nothing.
    for at in [0, 100, 6_899, 6_950, 9_500, 9_690] {
        settle(&clock, origin, ms(at));
        assert_eq!(notes.extends(), 0, "after {at} ms");
    }
    settle(&clock, origin, ms(9_700));
    eventually(SOON, || notes.extends() == 1 && notes.under_way() == 0);
    assert!(lock.remaining().unwrap() > ms(290));
    lock.unlock().unwrap();
}

#[test]
fn a_limited_renewal_counts_the_extends_that_move_the_end() {
    let clock = FakeClock::new();
    let (client, notes) = Notes::of(Client::builder("memory://").clock(clock.clone()));
    let lock = client.lock_with("job", lease(ms(300)).renewal(Renewal::AtMost(2))).unwrap();
    let (asked, hears) = mpsc::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    notes.before(move |call| {
        if matches!(call, Asked::Extend { .. }) {
            let _ = asked.send(());
            let _ = waits.lock().unwrap().recv_timeout(SOON);
        }
    });
    lock.lock().unwrap();
    let mut origin = clock.now();
    // One is on its way when the holder's own comes, which is longer: it moves nothing.
    clock.advance(ms(150));
    hears.recv_timeout(SOON).unwrap();
    lock.extend(ms(10_000)).unwrap();
    go_on.send(()).unwrap();
    origin += ms(150);
    settle(&clock, origin, ms(9_600));
    assert_eq!(notes.extends(), 1);
    drop(go_on);
    // Two that do.
    for (extends, at) in [(2, 9_700), (3, 9_800), (3, 9_900), (3, 9_990)] {
        settle(&clock, origin, ms(at));
        eventually(SOON, || notes.extends() == extends && notes.under_way() == 0);
        assert!(lock.is_valid());
    }
    settle(&clock, origin, ms(10_100));
    eventually(SOON, || client.remembered().1 == 0);
    assert!(!lock.is_valid() && notes.extends() == 3);
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn no_extend_follows_an_unlock() {
    let server = Server::start();
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let lock = client.lock_with("job", lease(ms(400))).unwrap();
    for _ in 0..3 {
        let before = notes.extends();
        lock.lock().unwrap();
        eventually(SOON, || notes.extends() > before);
        lock.unlock().unwrap();
        assert_eq!(client.remembered().1, 0, "nothing to look after any more");
        // One may have been under way.
        thread::sleep(ms(20));
        eventually(SOON, || notes.under_way() == 0);
        let (extends, scripts) = (notes.extends(), server.command_count("evalsha"));
        thread::sleep(ms(250));
        assert_eq!((notes.extends(), server.command_count("evalsha")), (extends, scripts));
    }
    // The same for one that a loss ended.
    lock.lock().unwrap();
    delete(&server, "job");
    eventually(SOON, || !lock.is_valid() && client.remembered().1 == 0);
    let scripts = server.command_count("evalsha");
    thread::sleep(ms(200));
    assert_eq!(server.command_count("evalsha"), scripts);
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn an_extend_is_taken_out_before_the_release_is_sent() {
    let client;
    let notes;
    (client, notes) = Notes::of(Client::builder("memory://"));
    let lock = client.lock("job");
    lock.lock().unwrap();
    let seen = Arc::new(Mutex::new(None));
    let (at_release, probe) = (Arc::clone(&seen), client.clone());
    notes.before(move |asked| {
        if *asked == Asked::ReleaseIsSent {
            *at_release.lock().unwrap() = Some(probe.remembered().1);
        }
    });
    lock.unlock().unwrap();
    assert_eq!(*seen.lock().unwrap(), Some(0));
    // The client's own store must not keep the client.
    notes.before(|_| {});
}

#[test]
fn a_lease_is_looked_after_before_lock_returns() {
    let client = memory();
    let lock = client.lock("job");
    for _ in 0..100 {
        lock.lock().unwrap();
        assert_eq!(client.remembered().1, 1);
        lock.unlock().unwrap();
    }
}

/// A lock that is held, of a client whose only connection is in use for three leases more.
fn held_beside_an_exhausted_pool(server: &Server) -> RedisLock {
    const LEASE: Duration = ms(600);
    let client = Client::builder(&server.url()).pool_size(1).command_timeout(SOON).build().unwrap();
    let lock = client.lock_with("job", lease(LEASE)).unwrap();
    lock.lock().unwrap();
    Busy::connection_of(&client).for_another(LEASE * 3);
    lock
}

#[test]
fn an_exhausted_pool_does_not_delay_renewal() {
    let server = Server::start();
    let lock = held_beside_an_exhausted_pool(&server);
    assert_valid_for(&lock, ms(1500));
    lock.unlock().unwrap();
}

#[test]
fn a_lease_is_renewed_while_its_release_waits_for_a_connection() {
    let server = Server::start();
    let lock = held_beside_an_exhausted_pool(&server);
    within(ms(1200)..SOON, || lock.unlock()).unwrap();
}

#[test]
fn a_lease_is_renewed_while_a_wait_in_a_condition_waits_for_a_connection() {
    let server = Server::start();
    let lock = held_beside_an_exhausted_pool(&server);
    let condition = lock.new_condition("c").unwrap();
    let notified = within(ms(1200)..SOON, || condition.wait_timeout(ms(1)));
    assert!(!notified.unwrap());
    assert!(lock.is_valid());
    lock.unlock().unwrap();
}

#[test]
fn ten_thousand_leases_are_renewed_in_bulk_by_one_thread() {
    const LEASES: usize = 10_000;
    const THREADS: usize = 20;
    let clock = FakeClock::new();
    let (client, notes) = Notes::of(Client::builder("memory://").clock(clock.clone()));
    let extended = || -> usize {
        let asked = notes.asked();
        asked
            .iter()
            .map(
                |(_, _, asked)| if let Asked::Extend { keys, .. } = asked { keys.len() } else { 0 },
            )
            .sum()
    };
    thread::scope(|scope| {
        let (held, holds) = mpsc::channel();
        let holders: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (unlock, told) = mpsc::channel::<()>();
                let (held, client) = (held.clone(), &client);
                let holder = scope.spawn(move || {
                    let lock = |i| {
                        client.lock_with(&format!("job-{thread}-{i}"), lease(ms(9_000))).unwrap()
                    };
                    let guards: Vec<_> =
                        (0..LEASES / THREADS).map(|i| lock(i).guard().unwrap()).collect();
                    held.send(()).unwrap();
                    let _ = told.recv();
                    guards.iter().all(LockGuard::is_valid)
                        && guards.into_iter().all(|guard| guard.release().is_ok())
                });
                (unlock, holder)
            })
            .collect();
        (0..THREADS).for_each(|_| holds.recv_timeout(SOON * 3).unwrap());
        assert_eq!((client.remembered(), extended()), ((LEASES, LEASES), 0));
        // Each third of the lease; together more than a whole lease.
        for round in 1..=4 {
            // The clock stands still until the last answer of the round before has been noted.
            eventually(SOON, || notes.under_way() == 0);
            thread::sleep(ms(50));
            clock.advance(ms(3_500));
            let (mut seen, mut since) = (0, Instant::now());
            eventually(SOON * 3, || {
                let now = extended();
                if now != seen {
                    (seen, since) = (now, Instant::now());
                } else if since.elapsed() > ms(2_000) {
                    // It had not all the same, on a machine that stood still, so its leases are due
                    // a little later.
                    clock.advance(ms(500));
                    since = Instant::now();
                }
                now >= round * LEASES
            });
        }
        assert!(
            (4 * LEASES..=5 * LEASES).contains(&extended()),
            "each lease once in each round, not {} in all",
            extended()
        );
        for (unlock, holder) in holders {
            drop(unlock);
            assert!(holder.join().unwrap());
        }
    });
    assert!(notes.extends() <= 5 * LEASES / 100, "{} calls are no bulk", notes.extends());
    let threads: HashSet<_> = notes
        .asked()
        .into_iter()
        .filter_map(|(_, thread, asked)| matches!(asked, Asked::Extend { .. }).then_some(thread))
        .collect();
    assert_eq!(threads.len(), 1);
    eventually(SOON, || client.remembered() == (0, 0));
}

#[test]
fn a_lost_lease_does_not_disturb_the_others() {
    let server = Server::start();
    let client = client(&server);
    let locks: Vec<_> =
        (0..30).map(|i| client.lock_with(&format!("job-{i}"), lease(ms(1200))).unwrap()).collect();
    locks.iter().for_each(|lock| lock.lock().unwrap());
    for (i, lock) in locks.iter().enumerate() {
        match i % 10 {
            0 => delete(&server, lock.key()),
            3 => put(&server, lock.key(), "somebody", SOON),
            6 => {
                delete(&server, lock.key());
                redis::cmd("RPUSH")
                    .arg(lock.key())
                    .arg("x")
                    .exec(&mut server.connection())
                    .unwrap();
            }
            _ => {}
        }
    }
    thread::sleep(ms(2000));
    for (i, lock) in locks.iter().enumerate() {
        let lost = [0, 3, 6].contains(&(i % 10));
        assert_eq!(lock.is_valid(), !lost, "{}", lock.name());
        assert_eq!(lock.unlock().is_err(), lost);
    }
}

#[test]
fn a_script_flush_costs_no_lease() {
    let server = Server::start();
    let client = client(&server);
    let locks: Vec<_> =
        (0..5).map(|i| client.lock_with(&format!("job-{i}"), lease(ms(1200))).unwrap()).collect();
    locks.iter().for_each(|lock| lock.lock().unwrap());
    for _ in 0..40 {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection()).unwrap();
        thread::sleep(ms(50));
        assert!(locks.iter().all(RedisLock::is_valid));
    }
    locks.iter().for_each(|lock| lock.unlock().unwrap());
}

#[test]
fn an_extend_without_an_answer_is_tried_again_and_nothing_is_lost() {
    let faults = [
        Fault::SwallowReply,
        Fault::CutAfter,
        Fault::CutBefore,
        Fault::TruncateReply,
        Fault::GarbleReply,
    ];
    thread::scope(|scope| {
        for fault in faults {
            scope.spawn(move || {
                let server = Server::start();
                let proxy = Proxy::start(server.port());
                let lock =
                    Client::open(&proxy.url()).unwrap().lock_with("job", lease(ms(2400))).unwrap();
                lock.lock().unwrap();
                // From here on only renewal talks to the server.
                let rule = proxy.add(Rule::on("EVALSHA", fault).next(1));
                rule.wait_fired(SOON);
                assert_valid_for(&lock, ms(2500));
                assert_eq!(rule.fired(), 1);
                lock.unlock().unwrap();
            });
        }
    });
}

#[test]
fn an_outage_shorter_than_the_lease_costs_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let lock = Client::open(&proxy.url()).unwrap().lock_with("job", lease(ms(2400))).unwrap();
    lock.lock().unwrap();
    proxy.freeze();
    assert_valid_for(&lock, ms(900));
    proxy.thaw();
    assert_valid_for(&lock, ms(900));
    server.stop_process();
    assert_valid_for(&lock, ms(900));
    server.cont();
    assert_valid_for(&lock, ms(1500));
    lock.unlock().unwrap();
}

#[test]
fn an_outage_longer_than_the_lease_ends_the_validity_on_time() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::builder(&proxy.url()).command_timeout(ms(300)).build().unwrap();
    let lock = client.lock_with("job", lease(ms(600))).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    lock.lock().unwrap();
    let frozen_at = Instant::now();
    proxy.freeze();
    eventually(SOON, || !lock.is_valid());
    assert!(frozen_at.elapsed() <= ms(2000), "{:?}", frozen_at.elapsed());
    assert_eq!(told.recv_timeout(SOON), Ok(distlock::LostReason::Expired));
    assert!(error(lock.unlock()).is_lost());
    proxy.thaw();
    // And it is withdrawn, should an extend that was under way have made it whole again.
    eventually(SOON, || get(&server, "job").is_none());
    lock.with(|_| ()).unwrap();
}

/// Whether the lock's validity ends no later than the server's own end of it.
#[track_caller]
fn assert_within_the_servers_end(server: &Server, lock: &RedisLock) {
    let asked_at = Instant::now();
    let ours = asked_at + lock.remaining().unwrap();
    let left = pttl(server, lock.key());
    if !lock.is_valid() || left < 0 {
        return;
    }
    let theirs = Instant::now() + ms(u64::try_from(left).unwrap());
    assert!(ours <= theirs + ms(1), "ours ends {:?} after the server's", ours - theirs);
}

#[test]
fn a_shortening_that_races_a_renewal_never_leaves_validity_beyond_the_servers_end() {
    let server = Server::start();
    // The renewal has been carried out, and its answer is late: the shortening comes between.
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let lock = client.lock_with("job", lease(ms(3_000))).unwrap();
    let (asked, hears) = mpsc::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    notes.after(move |call| {
        if matches!(call, Asked::Extend { .. }) {
            let _ = asked.send(());
            let _ = waits.lock().unwrap().recv_timeout(SOON);
        }
    });
    lock.lock().unwrap();
    hears.recv_timeout(SOON).unwrap();
    assert!(pttl(&server, "job") > 1_500);
    lock.extend(ms(700)).unwrap();
    assert!(lock.remaining().unwrap() < ms(700));
    drop(go_on);
    let until = Instant::now() + ms(150);
    while Instant::now() < until {
        assert!(
            lock.remaining().unwrap() < ms(700) || pttl(&server, "job") > 700,
            "the late answer was believed"
        );
        assert_within_the_servers_end(&server, &lock);
    }
    lock.unlock().unwrap();
}

#[test]
fn moving_the_end_back_and_forth_under_renewal_never_leaves_validity_beyond_the_servers_end() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(1500))).unwrap();
    lock.lock().unwrap();
    for round in 0..60_u64 {
        lock.extend(ms([1_500, 4_000, 2_000, 1_200][round as usize % 4])).unwrap();
        assert_within_the_servers_end(&server, &lock);
        thread::sleep(ms(round % 7));
        assert_within_the_servers_end(&server, &lock);
    }
    lock.unlock().unwrap();
}

#[test]
fn renewal_goes_on_while_the_holder_does_nothing_for_the_lock() {
    let server = Server::start();
    let client = client(&server);
    // A hand-off to another thread keeps the lease, and its renewal, too.
    let lock = client.lock_with("job", lease(ms(1200))).unwrap();
    thread::scope(|scope| {
        lock.lock().unwrap();
        let next = scope.spawn(|| {
            lock.lock().unwrap();
            assert_valid_for(&lock, ms(1600));
            lock.unlock().unwrap();
        });
        eventually(SOON, || client.waiting("job") == 1);
        thread::sleep(ms(500));
        lock.unlock().unwrap();
        next.join().unwrap();
    });
    assert!(is_free(&lock));
}

#[test]
fn leases_that_are_not_renewed_are_never_extended() {
    let (client, notes) = Notes::of(Client::builder("memory://"));
    let options = LockOptions::new().lease(ms(200)).renewal(Renewal::Never);
    let lock = client.lock_with("job", options).unwrap();
    lock.lock().unwrap();
    eventually(SOON, || client.remembered().1 == 0);
    assert_eq!(notes.extends(), 0);
    assert!(error(lock.unlock()).is_lost());
}

/// The first thread of a client to wait is refused once before the client listens, and once after.
const FIRST_WAIT: usize = 2;

/// Has the lock handed over from `guard` to a thread of its own, which holds it until the sender is
/// dropped. `asks`: how often it is refused before it sleeps.
fn handed_over(
    waiter: &Client,
    notes: &Notes,
    name: &str,
    guard: LockGuard,
    asks: usize,
) -> (mpsc::Sender<()>, Underway<distlock::Result<()>>) {
    // It does not ask by itself while it is handed the lock: the answer to that would be a whole
    // lease.
    let lock = waiter.lock_with(name, LockOptions::new().retry(Retry::fixed(SOON * 2))).unwrap();
    let (held, holds) = mpsc::channel();
    let (unlock, told) = mpsc::channel::<()>();
    let before = notes.attempts();
    let waiting = Underway::start(move || {
        lock.lock().unwrap();
        held.send(lock.remaining().unwrap()).unwrap();
        let _ = told.recv();
        lock.unlock()
    });
    eventually(SOON, || notes.attempts() == before + asks && notes.under_way() == 0);
    guard.release().unwrap();
    assert!(holds.recv_timeout(SOON).unwrap() <= ms(3_000), "a short lease at first");
    (unlock, waiting)
}

#[test]
fn the_first_lease_of_a_hand_off_is_made_whole_at_once() {
    let server = Server::start();
    let (waiter, notes) = Notes::of(Client::builder(&server.url()));
    let guard = client(&server).lock("job").guard().unwrap();
    let (unlock, waiting) = handed_over(&waiter, &notes, "job", guard, FIRST_WAIT);
    // After a third of the first lease, and up to a tenth of a second brought forward, it would be
    // 0.8 s at the earliest.
    eventually(ms(700), || pttl(&server, "job") > 20_000);
    drop(unlock);
    waiting.result().unwrap();
}

#[test]
fn a_hold_of_less_than_ten_milliseconds_costs_no_extend_after_a_hand_off() {
    let server = Server::start();
    let clock = FakeClock::new();
    let (waiter, notes) = Notes::of(Client::builder(&server.url()).clock(clock.clone()));
    let holder = client(&server).lock("job");
    let (unlock, waiting) =
        handed_over(&waiter, &notes, "job", holder.guard().unwrap(), FIRST_WAIT);
    clock.advance(ms(9));
    thread::sleep(ms(50));
    drop(unlock);
    waiting.result().unwrap();
    clock.advance(ms(9));
    thread::sleep(ms(50));
    assert_eq!(notes.extends(), 0);
    let (unlock, waiting) = handed_over(&waiter, &notes, "job", holder.guard().unwrap(), 1);
    clock.advance(ms(11));
    eventually(SOON, || notes.extends() == 1);
    drop(unlock);
    waiting.result().unwrap();
}

#[test]
fn one_silent_extend_delays_no_other_renewal() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (client, notes) = Notes::of(Client::builder(&proxy.url()));
    let locks: Vec<_> =
        (0..8).map(|i| client.lock_with(&format!("job-{i}"), lease(ms(1_000))).unwrap()).collect();
    let elsewhere = Client::open(&server.url()).unwrap();
    let (silent, other) =
        (elsewhere.lock("silent").guard().unwrap(), elsewhere.lock("other").guard().unwrap());
    let is_extend = |command: &[Vec<u8>]| {
        command.get(2).is_some_and(|keys| keys == b"1")
            && command.get(3).is_some_and(|key| key == b"silent")
    };
    let rule = proxy.add(Rule::on("EVALSHA", Fault::HoldReply).when(is_extend).next(1));
    for lock in &locks {
        lock.lock().unwrap();
        thread::sleep(ms(40));
    }
    // A lease of thirty seconds, for whose extend there would be a second.
    let (unlock_silent, waiting_silent) =
        handed_over(&client, &notes, "silent", silent, FIRST_WAIT);
    let _held = rule.wait_held(SOON);
    let (unlock_other, waiting_other) = handed_over(&client, &notes, "other", other, 1);
    let until = Instant::now() + ms(1_300);
    while Instant::now() < until {
        for lock in &locks {
            assert!(lock.is_valid(), "{}", lock.name());
        }
        thread::sleep(ms(5));
    }
    assert!(pttl(&server, "other") > 20_000 && rule.fired() == 1);
    drop((unlock_silent, unlock_other));
    waiting_silent.result().unwrap();
    waiting_other.result().unwrap();
    locks.iter().for_each(|lock| lock.unlock().unwrap());
}

#[test]
fn a_slow_link_is_not_taken_for_a_silent_one() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (client, notes) = Notes::of(Client::builder(&proxy.url()));
    proxy.set_delay(ms(100), ms(100));
    let lock = client.lock_with("job", lease(ms(3_000))).unwrap();
    lock.lock().unwrap();
    eventually(SOON, || notes.extends() >= 1 && notes.under_way() == 0);
    let connections = proxy.accepted();
    eventually(SOON, || notes.extends() >= 3 && notes.under_way() == 0);
    assert!(lock.is_valid());
    assert!(
        proxy.accepted() <= connections + 1,
        "{} connections after {connections}",
        proxy.accepted()
    );
    lock.unlock().unwrap();
}

#[test]
fn an_extend_that_is_refused_at_once_is_not_repeated_at_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (client, notes) = Notes::of(Client::builder(&proxy.url()));
    let lock = client.lock_with("job", lease(ms(1_500))).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    lock.lock().unwrap();
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    assert_eq!(told.recv_timeout(SOON), Ok(distlock::LostReason::Expired));
    // The pauses become shorter towards the end.
    assert!((2..60).contains(&notes.extends()), "{} extends", notes.extends());
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn a_short_lease_is_kept_over_a_slow_link_with_a_password() {
    let server = Server::builder().password("secret").start();
    let proxy = Proxy::start(server.port());
    proxy.set_delay(ms(30), ms(30));
    let client = Client::open(&proxy.url_with("default", "secret")).unwrap();
    let lock = client.lock_with("job", lease(ms(1_000))).unwrap();
    lock.lock().unwrap();
    assert_valid_for(&lock, ms(2_200));
    lock.unlock().unwrap();
}

#[test]
fn one_silent_log_in_delays_no_other_renewal() {
    let (_server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let long = client.lock_with("long", lease(ms(6_000))).unwrap();
    let short = client.lock_with("short", lease(ms(1_500))).unwrap();
    client.ping().unwrap();
    long.lock().unwrap();
    // The next connection is renewal's: its log-in is never answered, all others are.
    let stuck = proxy.add(Rule::on("ROLE", Fault::HoldRequest).next(1));
    let _held = stuck.wait_held(SOON);
    short.lock().unwrap();
    let until = Instant::now() + ms(4_000);
    while Instant::now() < until {
        assert!(short.is_valid(), "one log-in without an answer cost another lease");
        thread::sleep(ms(5));
    }
    assert!(long.is_valid());
}
