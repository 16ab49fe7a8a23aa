//! Many leases and busy pools: one thread renews them all, and nothing else that the client does
//! delays it.

use std::collections::HashSet;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::FakeClock;
use distlock::{Client, LockGuard, RedisLock};

use super::assert_renewed;
use crate::helpers::{Asked, Busy, Notes, SOON, client, delete, lease, ms, put};
use crate::support::{Server, eventually, in_own_process, thread_names, within};

#[test]
fn one_thread_renews_all_leases_of_a_client() {
    in_own_process("renewal::load::one_thread_renews_all_leases_of_a_client", || {
        let server = Server::start();
        let client = client(&server);
        let locks: Vec<_> = (0..60)
            .map(|i| client.lock_with(&format!("job-{i}"), lease(ms(3_000))).unwrap())
            .collect();
        locks.iter().for_each(|lock| lock.lock().unwrap());
        assert_renewed(&locks, 2);
        let names = thread_names();
        let own: Vec<_> = names.iter().filter(|name| name.starts_with("distlock")).collect();
        assert_eq!(
            own.iter().filter(|name| name.starts_with("distlock-renew")).count(),
            1,
            "{own:?}"
        );
        assert!(own.len() <= 4, "{own:?}");
        // There is no connection for each lease: only the pool's connection, and renewal's own.
        assert!(server.client_count() <= 3, "{}", server.client_count());
        locks.iter().for_each(|lock| lock.unlock().unwrap());
    });
}

/// For how long the only connection is in use: for longer than the lease.
const IN_USE: Duration = ms(3_000);

/// A lock that is held, by a client whose only connection is in use from this moment on.
fn held_beside_an_exhausted_pool(server: &Server) -> (RedisLock, Instant) {
    const LEASE: Duration = ms(2_000);
    let client = Client::builder(&server.url()).pool_size(1).command_timeout(SOON).build().unwrap();
    let lock = client.lock_with("job", lease(LEASE)).unwrap();
    lock.lock().unwrap();
    let busy = Busy::connection_of(&client);
    let since = Instant::now();
    busy.for_another(IN_USE);
    (lock, since)
}

#[test]
fn an_exhausted_pool_does_not_delay_renewal() {
    let server = Server::start();
    let (lock, _) = held_beside_an_exhausted_pool(&server);
    assert_renewed(std::slice::from_ref(&lock), 2);
    lock.unlock().unwrap();
}

#[test]
fn a_lease_is_renewed_while_its_release_waits_for_a_connection() {
    let server = Server::start();
    let (lock, since) = held_beside_an_exhausted_pool(&server);
    within(..SOON, || lock.unlock()).unwrap();
    assert!(since.elapsed() >= IN_USE, "{:?}", since.elapsed());
}

#[test]
fn a_lease_is_renewed_while_a_wait_in_a_condition_waits_for_a_connection() {
    let server = Server::start();
    let (lock, since) = held_beside_an_exhausted_pool(&server);
    let condition = lock.new_condition("c").unwrap();
    let notified = within(..SOON, || condition.wait_timeout(ms(1)));
    assert!(!notified.unwrap());
    assert!(since.elapsed() >= IN_USE, "{:?}", since.elapsed());
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
        // Each round is a third of the lease; together they are more than a whole lease.
        for round in 1..=4 {
            // The clock stands still until the last answer of the previous round has been noted.
            eventually(SOON, || notes.under_way() == 0);
            thread::sleep(ms(50));
            clock.advance(ms(3_500));
            let (mut seen, mut since) = (0, Instant::now());
            eventually(SOON * 3, || {
                let now = extended();
                if now != seen {
                    (seen, since) = (now, Instant::now());
                } else if since.elapsed() > ms(2_000) {
                    // On a machine that was paused it had not been noted yet, so those leases are
                    // due a little later.
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
        (0..30).map(|i| client.lock_with(&format!("job-{i}"), lease(ms(3_000))).unwrap()).collect();
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
    let is_lost = |i: usize| [0, 3, 6].contains(&(i % 10));
    let kept = locks.iter().enumerate().filter(|(i, _)| !is_lost(*i));
    assert_renewed(&kept.map(|(_, lock)| lock.clone()).collect::<Vec<_>>(), 2);
    for (i, lock) in locks.iter().enumerate() {
        let lost = is_lost(i);
        assert_eq!(lock.is_valid(), !lost, "{}", lock.name());
        assert_eq!(lock.unlock().is_err(), lost);
    }
}
