//! Closing a client, and dropping its last handle: what is held is released, waiters are woken, and
//! every thread ends.

mod calls;
mod outages;

use std::collections::HashSet;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, LostReason};

use crate::faults::through_proxy;
use crate::helpers::{Elsewhere, SOON, client, error, get, keys, lease, memory, ms};
use crate::support::{Server, eventually, in_own_process, thread_names, within};

/// Waits until no thread of this crate's own is left. The kernel still lists a thread for a moment
/// after its end.
#[track_caller]
fn all_threads_end() {
    let limit = Instant::now() + SOON;
    while !own_threads().is_empty() {
        assert!(Instant::now() < limit, "still there: {:?}", own_threads());
        thread::sleep(ms(1));
    }
}

/// This crate's own threads, by name.
fn own_threads() -> Vec<String> {
    thread_names().into_iter().filter(|name| name.starts_with("distlock")).collect()
}

#[test]
fn close_releases_what_is_held_and_tells_the_holders() {
    let server = Server::start();
    let client = client(&server);
    let (told, lost) = mpsc::channel();
    let locks: Vec<_> = (0..20).map(|i| client.lock(&format!("job-{i}"))).collect();
    for lock in &locks {
        let told = told.clone();
        lock.on_lost(move |lost| told.send((lost.name().to_owned(), lost.reason())).unwrap());
        lock.lock().unwrap();
    }
    let elsewhere = Elsewhere::holds(&client.lock("elsewhere"));
    client.close(SOON).unwrap();
    assert_eq!(keys(&server), [""; 0]);
    let told: Vec<_> = lost.try_iter().collect();
    assert!(told.iter().all(|(_, reason)| *reason == LostReason::Closed));
    let names: HashSet<_> = told.iter().map(|(name, _)| name).collect();
    assert_eq!((told.len(), names.len()), (20, 20), "each is told once, and before close returns");
    for lock in &locks {
        assert!(lock.is_held() && !lock.is_valid());
        assert!(error(lock.unlock()).is_lost());
        assert!(error(lock.unlock()).is_not_held());
    }
    assert!(error(elsewhere.unlock()).is_lost());
}

#[test]
fn a_closed_client_refuses_every_call_that_needs_it() {
    for client in [client(&Server::start()), memory()] {
        let lock = client.lock("job");
        client.close(SOON).unwrap();
        client.close(Duration::ZERO).unwrap();
        for refused in [
            client.ping(),
            lock.lock(),
            lock.try_lock(Duration::ZERO).map(drop),
            lock.try_lock(SOON).map(drop),
            lock.guard().map(drop),
            client.lock("other").lock(),
            client.clone().lock("other").lock(),
            lock.is_locked().map(drop),
            lock.force_unlock().map(drop),
        ] {
            let refused = error(refused);
            assert!(refused.is_closed(), "{refused}");
        }
        assert!(error(client.execute(|conn| redis::cmd("PING").query::<()>(conn))).is_closed());
        assert!(error(lock.unlock()).is_not_held());
    }
}

#[test]
fn no_thread_runs_before_the_first_lock_and_none_after_close() {
    in_own_process("close::no_thread_runs_before_the_first_lock_and_none_after_close", || {
        let server = Server::start();
        for client in [client(&server), memory()] {
            let lock = client.lock_with("job", lease(ms(300))).unwrap();
            assert!(error(lock.unlock()).is_not_held());
            assert_eq!(own_threads(), [""; 0]);
            let (told, lost) = mpsc::channel();
            lock.on_lost(move |_| told.send(()).unwrap());
            lock.lock().unwrap();
            assert!(lock.force_unlock().unwrap());
            lost.recv_timeout(SOON).unwrap();
            let threads = own_threads();
            assert!((2..=4).contains(&threads.len()), "{threads:?}");
            client.close(SOON).unwrap();
            all_threads_end();
            assert!(error(lock.unlock()).is_lost());
            assert_eq!(own_threads(), [""; 0]);
        }
    });
}

#[test]
fn dropping_the_last_handle_closes() {
    in_own_process("close::dropping_the_last_handle_closes", || {
        let server = Server::start();
        let client = client(&server);
        let clone = client.clone();
        let lock = client.lock("job");
        client.lock("other").lock().unwrap();
        drop(client);
        drop(clone);
        // A lock is a handle, too.
        lock.lock().unwrap();
        assert_eq!(keys(&server), ["job", "other"]);
        assert!(!own_threads().is_empty());
        within(..ms(5000), || drop(lock));
        assert_eq!(keys(&server), [""; 0]);
        all_threads_end();
        eventually(SOON, || server.client_count() == 0);
    });
}

#[test]
fn a_guard_keeps_its_client_open() {
    let server = Server::start();
    let guard = {
        let client = client(&server);
        client.lock_with("job", lease(ms(3000))).unwrap().guard().unwrap()
    };
    thread::sleep(ms(4500));
    guard.ensure_valid().unwrap();
    assert!(get(&server, "job").is_some());
    guard.release().unwrap();
    eventually(SOON, || server.client_count() == 0 && keys(&server).is_empty());
}

#[test]
fn closing_inside_a_callback_does_not_wait_for_itself() {
    let server = Server::start();
    for by_drop in [false, true] {
        let client = client(&server);
        let lock = client.lock("job");
        let (done, closed) = mpsc::channel();
        let in_callback = std::sync::Mutex::new(Some(client.clone()));
        // A clone inside its own client's callback: the last handle is dropped by the callback.
        lock.on_lost(move |_| {
            let client = in_callback.lock().unwrap().take();
            if !by_drop && let Some(client) = &client {
                client.close(SOON).unwrap();
            }
            // Time for the test to drop its own handle first.
            thread::sleep(ms(50));
            drop(client);
            done.send(()).unwrap();
        });
        lock.lock().unwrap();
        assert!(lock.force_unlock().unwrap());
        assert!(error(lock.unlock()).is_lost());
        drop((lock, client));
        closed.recv_timeout(SOON).unwrap();
        eventually(SOON, || server.client_count() == 0);
    }
}

#[test]
fn close_releases_thousands_of_locks_over_a_slow_line() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let locks: Vec<_> = (0..2_000).map(|i| client.lock(&format!("job-{i}"))).collect();
    locks.iter().for_each(|lock| lock.lock().unwrap());
    proxy.set_delay(ms(5), ms(5));
    // Released one after another, they would take 20 s.
    within(..SOON, || client.close(SOON)).unwrap();
    assert_eq!(keys(&server), [""; 0]);
}

#[test]
fn close_releases_what_it_can_beside_many_that_are_refused() {
    const REFUSED: usize = 300;
    let (server, proxy) = through_proxy();
    let mut operator = server.connection();
    let mut user = |rule: &str| {
        redis::cmd("ACL")
            .arg("SETUSER")
            .arg(rule.split(' ').collect::<Vec<_>>())
            .exec(&mut operator)
            .unwrap()
    };
    user("u on >password +@all allkeys &*");
    let client = Client::open(&proxy.url_with("u", "password")).unwrap();
    let refused: Vec<_> = (0..REFUSED).map(|i| client.lock(&format!("refused-{i}"))).collect();
    refused.iter().for_each(|lock| lock.lock().unwrap());
    user("u resetkeys ~ok* ~{ok*");
    client.lock("ok").lock().unwrap();
    // These come first, and there are more of them than fit into one command.
    refused.iter().for_each(|lock| assert!(error(lock.unlock()).is_unknown()));
    // The cleaner is in the middle of a command.
    proxy.set_delay(ms(0), ms(400));
    thread::sleep(ms(300));
    let left = error(client.close(ms(6_000)));
    assert!(
        left.to_string().contains(&format!(" {REFUSED} of")) && get(&server, "ok").is_none(),
        "{left}"
    );
}
