//! Forked children: they hold nothing, leave what their parent holds alone, and wait for none of
//! its threads.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use distlock::{Client, RedisLock, Result as Outcome};

use super::forked;
use crate::helpers::{Elsewhere, SOON, Underway, client, get, lease, memory, ms};
use crate::support::{Mode, Proxy, Server, eventually, in_own_process};

fn check(step: u8, passed: bool) -> Result<(), u8> {
    if passed { Ok(()) } else { Err(step) }
}

#[test]
fn a_forked_child_leaves_its_parents_lock_and_connections_alone() {
    in_own_process(
        "holds::forks::a_forked_child_leaves_its_parents_lock_and_connections_alone",
        || {
            let server = Server::start();
            let proxy = Proxy::start(server.port());
            let client = Client::open(&proxy.url()).unwrap();
            let lock = client.lock("job");
            lock.lock().unwrap();
            let guard = client.lock("guarded").guard().unwrap();
            let both = client.rw_lock("both");
            both.write_lock().lock().unwrap();
            let token = get(&server, "job");
            let (requests, connections) = (proxy.requests(), proxy.accepted());
            let in_child = (guard, client.clone(), lock.clone());
            // The parent's copies stay in use. The child drops its own copies; in the process that
            // made them, each drop would do something.
            let in_child = RefCell::new(Some(in_child));
            forked(|| {
                let (guard, client, lock) = in_child.take().ok_or(1)?;
                check(2, lock.try_lock(Duration::ZERO).is_ok_and(|again| again))?;
                check(3, lock.unlock().is_ok())?;
                check(4, lock.unlock().is_err())?;
                check(5, !lock.is_held() && lock.unlock().is_err_and(|error| error.is_not_held()))?;
                check(6, guard.release().is_err())?;
                check(
                    7,
                    client.ping().is_err() && client.lock("new").try_lock(Duration::ZERO).is_err(),
                )?;
                check(8, client.stats().held == 0)?;
                check(9, both.read_lock().lock().is_err_and(|error| error.is_unsupported()))?;
                check(10, client.close(ms(100)).is_ok())?;
                drop((client, lock));
                Ok(())
            });
            assert_eq!(
                (proxy.requests(), proxy.accepted()),
                (requests, connections),
                "the child said something"
            );
            assert_eq!(get(&server, "job"), token);
            assert!(lock.is_valid() && lock.hold_count() == 1);
            lock.unlock().unwrap();
            lock.with(|_| client.ping().unwrap()).unwrap();
            assert!(get(&server, "guarded").is_some());
            drop(in_child);
            assert_eq!(get(&server, "guarded"), None);
            client.close(SOON).unwrap();
        },
    );
}

#[test]
fn a_forked_child_that_exits_while_its_parent_holds_releases_nothing() {
    in_own_process(
        "holds::forks::a_forked_child_that_exits_while_its_parent_holds_releases_nothing",
        || {
            let server = Server::start();
            let proxy = Proxy::start(server.port());
            let client = Client::open(&proxy.url()).unwrap();
            let lock = client.lock_with("job", lease(ms(3000))).unwrap();
            let told = mpsc::channel();
            lock.on_lost(move |_| told.0.send(()).unwrap());
            let _guard = lock.guard().unwrap();
            // exit() runs the destructors of this thread's locals in the child, and the parent's
            // holds are among them.
            forked(|| check(1, lock.is_held()));
            let token = get(&server, "job");
            // The parent's renewal goes on over its own connection.
            thread::sleep(ms(4500));
            assert!(lock.is_valid() && token.is_some() && get(&server, "job") == token);
            assert!(told.1.try_recv().is_err());
        },
    );
}

#[test]
fn a_forked_childs_own_client_works_and_is_refused_what_its_parent_holds() {
    in_own_process(
        "holds::forks::\
         a_forked_childs_own_client_works_and_is_refused_what_its_parent_holds",
        || {
            let server = Server::start();
            let url = server.url();
            let client = client(&server);
            let lock = client.lock("job");
            lock.lock().unwrap();
            let holder = Elsewhere::holds(&client.lock("other"));
            forked(|| {
                let own = Client::open(&url).map_err(|_| 1)?;
                check(2, own.lock("job").try_lock(ms(50)).is_ok_and(|locked| !locked))?;
                check(3, own.lock("other").try_lock(ms(50)).is_ok_and(|locked| !locked))?;
                let free = own.lock_with("free", lease(ms(3000))).map_err(|_| 4)?;
                let guard = free.guard().map_err(|_| 5)?;
                // Its renewal runs in a thread of the child.
                thread::sleep(ms(4500));
                check(6, guard.is_valid())?;
                check(7, guard.release().is_ok())?;
                check(8, own.close(SOON).is_ok())
            });
            assert!(lock.is_valid());
            lock.unlock().unwrap();
            holder.unlock().unwrap();
            assert_eq!(get(&server, "free"), None);
        },
    );
}

#[test]
fn a_forked_child_waits_for_no_thread_of_its_parent() {
    in_own_process(
        "holds::forks::\
         a_forked_child_waits_for_no_thread_of_its_parent",
        || {
            let client = memory();
            let lock = client.lock("job");
            lock.lock().unwrap();
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                // These threads use the book of leases nearly all the time, and so at the moment of
                // many of the forks.
                for name in ["a", "b"] {
                    let (busy, done) = (client.lock(name), &done);
                    scope.spawn(move || {
                        while !done.load(Ordering::SeqCst) {
                            busy.with(|_| ()).unwrap();
                        }
                    });
                }
                let forks = catch_unwind(AssertUnwindSafe(|| {
                    for _ in 0..100 {
                        forked(|| check(1, lock.is_held()));
                        // Longer than a child is given, so that a child that waits is always found
                        // waiting.
                        forked(|| check(1, client.close(SOON * 3).is_ok()));
                        forked(|| {
                            check(1, lock.unlock().is_err_and(|error| error.is_unsupported()))
                        });
                    }
                }));
                done.store(true, Ordering::SeqCst);
                forks.unwrap();
            });
            lock.unlock().unwrap();
        },
    );
}

#[test]
fn a_forked_child_is_refused_at_once_though_a_thread_of_its_parent_has_the_turn() {
    in_own_process(
        "holds::forks::\
         a_forked_child_is_refused_at_once_though_a_thread_of_its_parent_has_the_turn",
        || {
            let server = Server::start();
            let client = client(&server);
            let (lock, held) = (client.lock("job"), client.lock("held"));
            held.lock().unwrap();
            let holder = Elsewhere::holds(&lock);
            // One more thread waits behind each holder: in the child's memory a lease could be
            // handed to it.
            let behind = ["job", "held"].map(|name| {
                let lock = client.lock(name);
                Underway::behind(&client, name, move || lock.lock().and_then(|()| lock.unlock()))
            });
            let unsupported =
                |result: distlock::Result<()>| result.is_err_and(|error| error.is_unsupported());
            for _ in 0..20 {
                forked(|| {
                    check(1, unsupported(lock.lock()))?;
                    check(2, unsupported(lock.try_lock(SOON).map(drop)))?;
                    check(3, unsupported(held.extend(SOON)))?;
                    check(4, unsupported(held.unlock()))?;
                    check(5, unsupported(client.lock("new").lock()))?;
                    check(6, unsupported(client.ping()) && unsupported(lock.is_locked().map(drop)))
                });
            }
            holder.unlock().unwrap();
            held.unlock().unwrap();
            behind.into_iter().for_each(|waiter| waiter.result().unwrap());
        },
    );
}

#[test]
fn a_forked_childs_own_client_connects_though_its_parent_was_connecting() {
    in_own_process(
        "holds::forks::a_forked_childs_own_client_connects_though_its_parent_was_connecting",
        || {
            let server = Server::start();
            let proxy = Proxy::start(server.port());
            let url = proxy.url();
            let parent = Client::open(&url).unwrap();
            // The pool's thread is idle from then on. What it locks while it starts belongs to
            // r2d2, and not to our client.
            parent.ping().unwrap();
            proxy.set_mode(Mode::Silent);
            proxy.cut_all();
            let accepted = proxy.accepted();
            let trying = Underway::start({
                let lock = parent.lock("job");
                move || lock.try_lock(ms(1_500))
            });
            eventually(SOON, || proxy.accepted() > accepted);
            // A new connection is answered from now on; the parent's is not.
            proxy.set_mode(Mode::Forward);
            forked(|| {
                let own = Client::open(&url).map_err(|_| 1)?;
                check(2, own.lock("child").try_lock(SOON).is_ok_and(|locked| locked))
            });
            let _ = trying.result();
        },
    );
}

#[test]
fn a_forked_childs_named_store_in_memory_is_its_own() {
    in_own_process("holds::forks::a_forked_childs_named_store_in_memory_is_its_own", || {
        let parent = Client::open("memory://shared").unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for name in ["a", "b"] {
                let (busy, done) = (parent.lock(name), &done);
                scope.spawn(move || {
                    while !done.load(Ordering::SeqCst) {
                        busy.with(|_| ()).unwrap();
                    }
                });
            }
            let forks = catch_unwind(AssertUnwindSafe(|| {
                for _ in 0..40 {
                    forked(|| {
                        let own = Client::open("memory://shared").map_err(|_| 1)?;
                        check(2, own.lock("child").try_lock(SOON).is_ok_and(|locked| locked))
                    });
                }
            }));
            done.store(true, Ordering::SeqCst);
            forks.unwrap();
        });
    });
}

/// Makes every call, in a forked child, that would talk to the server, on a lock that a thread of
/// the parent holds.
fn every_call_is_refused(client: &Client, held: &RedisLock) -> Result<(), u8> {
    fn is_unsupported<T>(result: Outcome<T>) -> bool {
        result.is_err_and(|error| error.is_unsupported())
    }
    let condition = held.new_condition("c").map_err(|_| 1)?;
    check(2, is_unsupported(condition.wait()))?;
    check(3, is_unsupported(condition.wait_timeout(SOON)))?;
    check(4, is_unsupported(condition.notify_one()) && is_unsupported(condition.notify_all()))?;
    check(5, held.hold_count() == 1 && held.is_valid())?;
    check(6, is_unsupported(held.inspect()))?;
    check(7, is_unsupported(held.force_unlock()))?;
    let mut called = false;
    let work = |conn: &mut dyn redis::ConnectionLike| {
        called = true;
        redis::cmd("PING").query::<()>(conn)
    };
    check(8, is_unsupported(client.execute(work)) && !called)?;
    let kept = Arc::new(());
    let in_callback = Arc::clone(&kept);
    held.on_lost(move |_| drop(Arc::clone(&in_callback)));
    check(9, Arc::strong_count(&kept) == 1)
}

#[test]
fn a_forked_child_is_refused_every_call_and_sends_nothing() {
    in_own_process("holds::forks::a_forked_child_is_refused_every_call_and_sends_nothing", || {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let client = Client::open(&proxy.url()).unwrap();
        let lock = client.lock("job");
        let told = mpsc::channel();
        lock.on_lost(move |_| told.0.send(()).unwrap());
        lock.lock().unwrap();
        let token = get(&server, "job");
        let (requests, connections) = (proxy.requests(), proxy.accepted());
        forked(|| every_call_is_refused(&client, &lock));
        let now = (proxy.requests(), proxy.accepted());
        assert_eq!(now, (requests, connections), "the child said something");
        assert_eq!(get(&server, "job"), token);
        // The parent's connections, callbacks and conditions are unchanged.
        client.execute(|conn| redis::cmd("PING").query::<()>(conn)).unwrap();
        assert!(!lock.new_condition("c").unwrap().wait_timeout(ms(50)).unwrap());
        assert!(lock.force_unlock().unwrap());
        assert!(lock.unlock().unwrap_err().is_lost());
        told.1.recv_timeout(SOON).unwrap();
        assert!(told.1.try_recv().is_err(), "once: it was added once");
    });
}

#[test]
fn a_forked_child_is_refused_every_call_at_once_whatever_its_parents_threads_are_doing() {
    in_own_process(
        "holds::forks::\
         a_forked_child_is_refused_every_call_at_once_whatever_its_parents_threads_are_doing",
        || {
            let server = Server::start();
            for client in [memory(), client(&server)] {
                let lock = client.lock("job");
                lock.lock().unwrap();
                let busy = ["a", "b"].map(|name| client.lock(name));
                let (done, callbacks) = (AtomicBool::new(false), AtomicU32::new(0));
                let holds = busy.each_ref().map(|lock| || lock.with(|_| ()).unwrap());
                // A store in memory has nothing to execute.
                let execute = || drop(client.execute(|_| Ok(())));
                let on_lost = || {
                    let left = |left: u32| left.checked_sub(1);
                    match callbacks.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) {
                        Ok(_) => lock.on_lost(|_| ()),
                        Err(_) => thread::yield_now(),
                    }
                };
                // Each of these keeps something locked, the pool or the list of callbacks, at the
                // moment of many of the forks.
                let work: [&(dyn Fn() + Sync); 4] = [&holds[0], &holds[1], &execute, &on_lost];
                thread::scope(|scope| {
                    for work in work {
                        let done = &done;
                        scope.spawn(move || {
                            while !done.load(Ordering::SeqCst) {
                                work();
                            }
                        });
                    }
                    let forks = catch_unwind(AssertUnwindSafe(|| {
                        for _ in 0..100 {
                            callbacks.store(20_000, Ordering::SeqCst);
                            forked(|| every_call_is_refused(&client, &lock));
                        }
                    }));
                    done.store(true, Ordering::SeqCst);
                    forks.unwrap();
                });
                lock.unlock().unwrap();
            }
        },
    );
}
