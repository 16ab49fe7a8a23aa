//! Pools of any size, and connections, scripts and replies that are lost at any moment: the work
//! goes on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, LockOptions, RedisLock};

use crate::faults::{impatient, nothing_is_left, pool_of, through_proxy, warm_up};
use crate::helpers::{SOON, close_connections, ms};
use crate::support::{Fault, Rule, Server, eventually, on_time};

#[test]
fn pool_of_one_serves_a_hundred_threads() {
    let server = Server::start();
    let clients = [
        Client::builder(&server.url()).pool_size(1).build().unwrap(),
        Client::builder(&server.url()).pool(pool_of(&server.url(), 1, false)).build().unwrap(),
    ];
    for client in clients {
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for n in 0..100 {
                let (client, inside, most) = (&client, &inside, &most);
                scope.spawn(move || {
                    let own = client.lock(&format!("own{n}"));
                    let shared = client.lock("shared");
                    for _ in 0..3 {
                        own.with(|_| ()).unwrap();
                        shared
                            .with(|_| {
                                most.fetch_max(
                                    inside.fetch_add(1, Ordering::SeqCst) + 1,
                                    Ordering::SeqCst,
                                );
                                inside.fetch_sub(1, Ordering::SeqCst);
                            })
                            .unwrap();
                    }
                });
            }
        });
        assert_eq!(most.load(Ordering::SeqCst), 1);
    }
    nothing_is_left(&server);
}

#[test]
fn large_pool_opens_its_connections_all_at_once() {
    let server = Server::start();
    let client = Client::builder(&server.url()).pool_size(100).build().unwrap();
    warm_up(&client, 100);
    thread::scope(|scope| {
        for n in 0..100 {
            let client = &client;
            scope.spawn(move || {
                assert!(client.lock(&n.to_string()).try_lock(Duration::ZERO).unwrap());
                client.lock(&n.to_string()).unlock().unwrap();
            });
        }
    });
}

/// Threads lock and unlock, each a lock of its own and one that all share, while `disturb` is
/// called again and again. Only errors for which `is_fine` is true may occur.
fn work_while(
    client: &Client,
    disturb: impl Fn(),
    is_fine: impl Fn(&RedisLock, &distlock::Error) -> bool + Sync,
) {
    let done = AtomicBool::new(false);
    let cycles = AtomicUsize::new(0);
    thread::scope(|scope| {
        for n in 0..4 {
            let (done, cycles, is_fine) = (&done, &cycles, &is_fine);
            let locks = [
                client.lock(&format!("own{n}")),
                client.lock("shared"),
                client.lock_with("fenced", LockOptions::new().fenced()).unwrap(),
            ];
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    for lock in &locks {
                        let cycle = lock.lock().and_then(|()| lock.unlock());
                        if let Err(error) = cycle {
                            assert!(is_fine(lock, &error), "{error:?}");
                        }
                        cycles.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        let start = Instant::now();
        // Only a few cycles, as every connection dies early, and the machine may be busy.
        let enough = || cycles.load(Ordering::SeqCst) > 10;
        let (mut before, mut pause) = (0, ms(4));
        while start.elapsed() < ms(1800) || !enough() && start.elapsed() < SOON {
            disturb();
            thread::sleep(pause);
            // On a slow machine no connection would ever live for as long as a command takes: what
            // lets no cycle end comes half as often.
            let now = cycles.load(Ordering::SeqCst);
            pause = if now > before { ms(4) } else { (pause * 2).min(ms(250)) };
            before = now;
        }
        done.store(true, Ordering::SeqCst);
    });
    assert!(cycles.load(Ordering::SeqCst) > 10, "{cycles:?}");
}

#[test]
fn scripts_may_be_flushed_at_any_moment() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let held = client.lock_with("held", LockOptions::new().lease(ms(2500))).unwrap();
    held.lock().unwrap();
    let flusher = std::cell::RefCell::new(server.connection());
    work_while(
        &client,
        || redis::cmd("SCRIPT").arg("FLUSH").exec(&mut *flusher.borrow_mut()).unwrap(),
        |_, _| false,
    );
    assert!(held.is_valid(), "renewal sends its scripts whole where it has to");
    held.unlock().unwrap();
}

#[test]
fn connections_may_be_killed_at_any_moment() {
    on_time(ms(100), || {
        let server = Server::start();
        let client = Client::open(&server.url()).unwrap();
        let held = client.lock_with("held", LockOptions::new().lease(ms(3000))).unwrap();
        held.lock().unwrap();
        let killer = std::cell::RefCell::new(server.connection());
        let kill = || close_connections(&mut killer.borrow_mut());
        work_while(&client, kill, |_, _| false);
        assert!(held.is_valid());
        held.unlock().unwrap();
        nothing_is_left_but_fences(&server);
    });
}

fn nothing_is_left_but_fences(server: &Server) {
    eventually(SOON, || crate::helpers::keys(server).iter().all(|key| key.ends_with(":fence")));
}

#[test]
fn connections_may_be_cut_at_any_moment() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let resets = AtomicBool::new(false);
    work_while(
        &client,
        || {
            proxy.set_resets(resets.fetch_xor(true, Ordering::SeqCst));
            proxy.cut_all();
        },
        |_, _| false,
    );
    nothing_is_left_but_fences(&server);
}

#[test]
fn one_lost_reply_in_ten_is_no_error_of_lock() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).command_timeout(ms(150)).build().unwrap();
    let count = AtomicUsize::new(0);
    let _lossy = proxy.add(
        Rule::any(Fault::SwallowReply)
            .when(move |_| count.fetch_add(1, Ordering::SeqCst) % 10 == 9),
    );
    // An unlock is unknown if the reply to its repetition was lost, too.
    work_while(&client, || (), |_, error| error.is_unknown());
    proxy.clear_rules();
    nothing_is_left_but_fences(&server);
}
