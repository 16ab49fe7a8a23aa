//! Closing a client, and dropping its last handle: what is held is released, who waits is woken,
//! and every thread ends.

use std::collections::HashSet;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, Lock, LostReason};

use crate::faults::{impatient, nothing_is_left, through_proxy};
use crate::helpers::{
    Busy, Elsewhere, SOON, Underway, client, error, get, keys, lease, memory, ms, put,
};
use crate::support::{
    Fault, Mode, Proxy, Rule, Server, eventually, in_own_process, thread_names, within,
};

/// Waits until no thread of this crate's own is left. The kernel tells of a thread for a moment
/// after it has said its last.
#[track_caller]
fn all_threads_end() {
    let limit = Instant::now() + ms(1000);
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
fn close_wakes_who_waits_with_unavailable() {
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
        assert!(error(ended).is_unavailable() && !held);
    }
    assert!(error(holder.unlock()).is_lost());
    assert_eq!(keys(&server), ["foreign"]);
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
            assert!(refused.is_unavailable(), "{refused}");
        }
        assert!(
            error(client.execute(|conn| redis::cmd("PING").query::<()>(conn))).is_unavailable()
        );
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
        client.lock_with("job", lease(ms(1200))).unwrap().guard().unwrap()
    };
    thread::sleep(ms(1800));
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
        // A clone inside its own client's callback: the last handle goes when the callback lets it
        // go.
        lock.on_lost(move |_| {
            let client = in_callback.lock().unwrap().take();
            if !by_drop && let Some(client) = &client {
                client.close(SOON).unwrap();
            }
            // Let the test drop its own first.
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
fn close_ends_in_time_when_the_server_is_silent_and_says_what_it_does_not_know() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock("job");
    lock.lock().unwrap();
    proxy.freeze();
    assert!(error(within(ms(150)..ms(1500), || client.close(ms(200)))).is_unknown());
    assert!(!lock.is_valid() && error(lock.unlock()).is_lost());
    proxy.thaw();
    eventually(SOON, || keys(&server).is_empty());
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
            assert!(worker.result().is_unavailable());
        }
        eventually(SOON, || keys(&server).is_empty());
    }
}

/// Three locks that are held when the server goes away.
fn three_held(client: &Client) -> Vec<distlock::RedisLock> {
    let locks: Vec<_> = (0..3).map(|i| client.lock(&format!("job-{i}"))).collect();
    locks.iter().for_each(|lock| lock.lock().unwrap());
    locks
}

#[test]
fn close_asks_again_until_the_server_is_back() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let held = three_held(&client);
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    let closing = Underway::start(move || client.close(SOON * 2));
    // Long enough for several tries, each of which is refused.
    thread::sleep(ms(700));
    assert!(!closing.is_done() && keys(&server).len() == 3);
    proxy.set_mode(Mode::Forward);
    closing.result().unwrap();
    assert_eq!(keys(&server), [""; 0]);
    held.iter().for_each(|lock| assert!(error(lock.unlock()).is_lost()));
}

#[test]
fn close_says_how_many_locks_may_still_be_held() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let _held = three_held(&client);
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    let left = error(within(ms(250)..ms(1500), || client.close(ms(300))));
    assert!(left.is_unknown() && left.to_string().contains(" 3 of the client's locks"), "{left}");
    assert_eq!(keys(&server).len(), 3);
}

#[test]
fn close_releases_thousands_of_locks_over_a_slow_line() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let locks: Vec<_> = (0..2_000).map(|i| client.lock(&format!("job-{i}"))).collect();
    locks.iter().for_each(|lock| lock.lock().unwrap());
    proxy.set_delay(ms(5), ms(5));
    // One after the other they would take 20 s.
    within(..SOON, || client.close(SOON)).unwrap();
    assert_eq!(keys(&server), [""; 0]);
}

#[test]
fn close_releases_what_a_wait_held_that_had_not_entered_its_condition() {
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
    // It tries to enter, and nobody is there.
    thread::sleep(ms(300));
    let closing = Underway::start(move || client.close(SOON));
    let (ended, valid) = waiting.result();
    assert!(error(ended).is_unavailable() && !valid);
    proxy.set_mode(Mode::Forward);
    closing.result().unwrap();
    nothing_is_left(&server);
}

#[test]
fn close_leaves_no_place_of_a_waiter_behind() {
    let (server, proxy) = through_proxy();
    put(&server, "job", "somebody", SOON * 6);
    for _ in 0..3 {
        proxy.set_delay(Duration::ZERO, Duration::ZERO);
        let client = Client::open(&proxy.url()).unwrap();
        let lock = client.lock("job");
        let waiter = Underway::start(move || lock.lock());
        eventually(SOON, || keys(&server).len() == 3);
        // Its withdrawal takes longer than anything else that close does.
        proxy.set_delay(ms(60), ms(60));
        client.close(SOON).unwrap();
        assert_eq!(keys(&server), ["job"], "its place is gone when close returns");
        assert!(error(waiter.result()).is_unavailable());
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
        lock.unlock()
    });
    is_locked.recv_timeout(SOON).unwrap();
    let held = proxy.add(Rule::on("EVALSHA", Fault::HoldReply).next(1));
    drop(go);
    let _held = held.wait_held(SOON);
    client.close(SOON).unwrap();
    assert!(unlocking.is_done(), "it ended first");
    unlocking.result().unwrap();
    assert_eq!(keys(&server), [""; 0]);
}

#[test]
fn close_counts_a_lock_once_whose_unlock_waits_for_a_connection() {
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
fn close_counts_a_lock_once_whose_wait_in_a_condition_has_no_answer() {
    let (_server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("job");
    let waiting = proxy.add(
        Rule::any(Fault::HoldReply)
            .when(|command| command.get(2).is_some_and(|keys| keys == b"6"))
            .next(1),
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

#[test]
fn a_second_close_says_what_the_first_came_to() {
    let (_server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    client.lock("job").lock().unwrap();
    proxy.freeze();
    let first = error(client.close(ms(200)));
    let second = error(within(..ms(100), || client.close(SOON)));
    assert!(first.is_unknown() && second.to_string() == first.to_string(), "{first}; {second}");
}

#[test]
fn close_of_a_quorum_is_ok_only_if_a_majority_confirmed() {
    for unlocked_before in [true, false] {
        let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
        let proxies: Vec<_> = servers.iter().map(|server| Proxy::start(server.port())).collect();
        // A node that was never asked for the lock has nothing to confirm: under load it may not be
        // asked in time, and then another client tries.
        let locked_everywhere = || {
            let builder = Client::redlock_builder(proxies.iter().map(Proxy::url));
            let client = builder.command_timeout(ms(300)).connect_timeout(ms(300)).build().unwrap();
            let lock = client.lock("job");
            if lock.try_lock(SOON).unwrap_or(false)
                && servers.iter().all(|server| keys(server) == ["job"])
            {
                return Some((client, lock));
            }
            let _ = client.close(SOON);
            None
        };
        let (client, lock) = (0..20).find_map(|_| locked_everywhere()).unwrap();
        proxies.iter().skip(1).for_each(Proxy::freeze);
        if unlocked_before {
            assert!(error(lock.unlock()).is_unknown());
        }
        let left = error(client.close(ms(900)));
        assert!(
            left.is_unknown() && left.to_string().contains(" 1 of the client's locks"),
            "{left}"
        );
    }
}
