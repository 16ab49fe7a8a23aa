//! Holds: they belong to threads. Guards, `with`, threads that end while they hold, and forked
//! children.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, exit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, Layout, Lock, LockGuard, LockOptions, RedisLock};
use fork::{Fork, WEXITSTATUS, WIFEXITED};
use log::Level;

use crate::helpers::{
    Elsewhere, SOON, Underway, client, delete, error, get, is_free, lease, memory, ms,
    on_another_thread,
};
use crate::logs;
use crate::support::{Mode, Proxy, Server, eventually, in_own_process, within};

#[test]
fn each_thread_counts_its_own_holds() {
    let lock = memory().lock("job");
    lock.lock().unwrap();
    lock.lock().unwrap();
    on_another_thread(|| {
        assert_eq!((lock.hold_count(), lock.is_held(), lock.is_valid()), (0, false, false));
        assert_eq!((lock.remaining(), lock.fence()), (None, None));
        assert!(!lock.try_lock(Duration::ZERO).unwrap());
    });
    assert_eq!(lock.hold_count(), 2);
    lock.unlock().unwrap();
    assert!(!is_free(&lock));
    lock.unlock().unwrap();
    assert!(is_free(&lock));
}

#[test]
fn one_thread_holds_many_locks_and_unlocks_them_in_any_order() {
    let client = memory();
    let locks: Vec<_> = (0..40).map(|i| client.lock(&format!("job-{i}"))).collect();
    for (i, lock) in locks.iter().enumerate() {
        (0..=i % 3).for_each(|_| lock.lock().unwrap());
    }
    for i in (0..40).map(|i| i * 7 % 40) {
        assert_eq!(locks[i].hold_count() as usize, i % 3 + 1);
        (0..=i % 3).for_each(|_| locks[i].unlock().unwrap());
        assert!(error(locks[i].unlock()).is_not_held());
    }
    drop(locks);
    assert_eq!(client.remembered(), (0, 0));
}

#[test]
fn a_hold_is_found_as_quickly_among_ten_thousand_as_alone() {
    let client = memory();
    let locks: Vec<_> = (0..10_000).map(|i| client.lock(&format!("job-{i}"))).collect();
    // The quickest of many: what the machine does meanwhile does not count.
    let quickest = || {
        let one = || {
            let begun = Instant::now();
            for lock in &locks[..8] {
                assert!(lock.is_valid());
                lock.lock().unwrap();
                lock.unlock().unwrap();
            }
            begun.elapsed()
        };
        (0..200).map(|_| one()).min().unwrap()
    };
    locks[..8].iter().for_each(|lock| lock.lock().unwrap());
    let alone = quickest();
    locks[8..].iter().for_each(|lock| lock.lock().unwrap());
    let among_many = quickest();
    assert!(among_many < alone * 10, "{among_many:?} instead of {alone:?}");
    locks.iter().for_each(|lock| lock.unlock().unwrap());
}

#[test]
fn unlock_by_a_stranger_changes_nothing() {
    let server = Server::start();
    let lock = client(&server).lock("job");
    let stranger = error(lock.unlock());
    assert!(stranger.is_not_held() && stranger.lock_name() == Some("job"));
    lock.lock().unwrap();
    let token = get(&server, "job");
    assert!(on_another_thread(|| error(lock.unlock())).is_not_held());
    assert!(on_another_thread(|| error(client(&server).lock("job").unlock())).is_not_held());
    assert_eq!((lock.hold_count(), get(&server, "job")), (1, token));
    lock.unlock().unwrap();
}

#[test]
fn a_hold_survives_the_handle_that_made_it() {
    let client = memory();
    client.lock("job").lock().unwrap();
    assert!(client.lock("job").is_held());
    assert!(!is_free(&client.lock("job")));
    client.lock("job").unlock().unwrap();
    assert!(is_free(&client.lock("job")));
}

#[test]
fn guards_of_one_lock_unlock_with_the_last_whatever_the_order() {
    let lock = memory().lock("job");
    for first_out in 0..3 {
        let mut guards: Vec<_> = (0..3).map(|_| lock.guard().unwrap()).collect();
        drop(guards.remove(first_out));
        assert_eq!(lock.hold_count(), 2);
        guards.pop().unwrap().release().unwrap();
        assert!(!is_free(&lock));
        drop(guards);
        assert!(is_free(&lock));
    }
}

#[test]
fn guards_of_several_locks_unlock_in_the_order_of_scopes() {
    let client = memory();
    let (a, b) = (client.lock("a"), client.lock("b"));
    {
        let _a = a.guard().unwrap();
        {
            let _b = b.try_guard(SOON).unwrap().unwrap();
            assert!(!is_free(&a) && !is_free(&b));
        }
        assert!(!is_free(&a) && is_free(&b));
    }
    assert!(is_free(&a));
}

#[test]
fn a_guard_fits_into_a_struct_and_keeps_everything_open() {
    struct Job {
        guard: LockGuard,
        steps: u32,
    }
    let mut job = {
        let client = Client::open("memory://holds-struct").unwrap();
        Job { guard: client.lock("job").guard().unwrap(), steps: 0 }
    };
    job.steps += 1;
    assert!(job.guard.is_valid() && job.guard.lock().name() == "job");
    let other = Client::open("memory://holds-struct").unwrap().lock("job");
    assert!(!other.try_lock(Duration::ZERO).unwrap());
    drop(job);
    assert!(other.try_lock(Duration::ZERO).unwrap());
}

#[test]
fn a_guard_that_finds_nothing_to_unlock_says_so_in_the_log() {
    logs::keep();
    let lock = memory().lock("holds-unlocked-by-hand");
    let guard = lock.guard().unwrap();
    lock.unlock().unwrap();
    drop(guard);
    assert_eq!(
        logs::lines(Level::Warn, &["holds-unlocked-by-hand", "nothing left to unlock"]).len(),
        1
    );
    let guard = lock.guard().unwrap();
    lock.unlock().unwrap();
    assert!(error(guard.release()).is_not_held());
    assert_eq!(logs::lines(Level::Warn, &["holds-unlocked-by-hand"]).len(), 1);
}

#[test]
fn a_guard_that_finds_a_loss_says_so_in_the_log() {
    logs::keep();
    let lock = memory().lock("holds-lost-guard");
    let guard = lock.guard().unwrap();
    assert!(lock.force_unlock().unwrap());
    drop(guard);
    assert_eq!(
        logs::lines(Level::Warn, &["holds-lost-guard", "lost", "guard was dropped"]).len(),
        1
    );
    assert!(!lock.is_held());
}

/// Compiles only for a type that is not `Send`: for one that is, there are two `chosen`s.
trait NotSend<A> {
    fn chosen() {}
}
impl<T: ?Sized> NotSend<()> for T {}
struct IsSend;
impl<T: ?Sized + Send> NotSend<IsSend> for T {}

#[test]
fn a_guard_stays_on_its_thread_and_everything_else_moves() {
    <LockGuard as NotSend<_>>::chosen();
    fn moves<T: Send + Sync + Clone + 'static>() {}
    moves::<Client>();
    moves::<RedisLock>();
    moves::<distlock::Interrupt>();
    moves::<LockOptions>();
    fn is_sent<T: Send + Sync + 'static>() {}
    is_sent::<distlock::Error>();
    is_sent::<distlock::Lost>();
}

#[test]
fn with_gives_the_value_back_and_unlocks() {
    let lock = memory().lock("job");
    let sum: u64 = lock
        .with(|guard| {
            assert!(guard.is_valid() && !is_free(&lock));
            lock.with(|_| [1, 2, 3].iter().sum()).unwrap()
        })
        .unwrap();
    assert_eq!(sum, 6);
    assert!(is_free(&lock));
}

#[test]
fn with_drops_the_value_when_the_lease_was_lost() {
    struct Told<'a>(&'a RefCell<bool>);
    impl Drop for Told<'_> {
        fn drop(&mut self) {
            *self.0.borrow_mut() = true;
        }
    }
    let server = Server::start();
    let lock = client(&server).lock("job");
    let dropped = RefCell::new(false);
    let lost = lock.with(|_| {
        delete(&server, "job");
        Told(&dropped)
    });
    assert!(error(lost).is_lost());
    assert!(*dropped.borrow() && !lock.is_held());
}

#[test]
fn with_does_not_run_without_the_lock() {
    let lock = memory().lock("");
    assert!(error(lock.with(|_| panic!("not run"))).is_invalid_input());
}

#[test]
fn a_panic_unlocks_guards_and_with() {
    let lock = memory().lock("job");
    assert!(catch_unwind(AssertUnwindSafe(|| lock.with(|_| panic!("planned")))).is_err());
    assert!(!lock.is_held() && is_free(&lock));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = lock.guard().unwrap();
        panic!("planned")
    }));
    assert!(panicked.is_err());
    assert!(!lock.is_held() && is_free(&lock));
}

/// A thread locks and comes to its end without an unlock.
fn dies_holding(lock: &RedisLock, how: impl FnOnce() + Send + 'static) {
    let lock = lock.clone();
    let _ = thread::spawn(move || {
        lock.lock().unwrap();
        lock.lock().unwrap();
        how();
    })
    .join();
}

#[test]
fn what_a_thread_held_when_it_ended_is_released_at_once_and_said_in_the_log() {
    logs::keep();
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let ends: [(&str, fn()); 2] =
        [("holds-ended", || ()), ("holds-panicked", || panic!("planned"))];
    for (name, how) in ends {
        let lock = mine.lock(name);
        let told = mpsc::channel();
        lock.on_lost(move |_| told.0.send(()).unwrap());
        dies_holding(&lock, how);
        // Of thirty seconds.
        within(..ms(5000), || assert!(other.lock(name).try_lock(SOON).unwrap()));
        assert!(!lock.is_held() && error(lock.unlock()).is_not_held());
        assert_eq!(
            logs::lines(Level::Warn, &[name, "a thread ended while it held the lock"]).len(),
            1
        );
        assert!(told.1.try_recv().is_err(), "released, not lost");
        drop(lock);
    }
    eventually(SOON, || mine.remembered() == (0, 0));
}

#[test]
fn the_next_local_thread_does_not_wait_for_a_dead_one() {
    let client = memory();
    let lock = client.lock("job");
    let (go, wait) = mpsc::channel::<()>();
    let (held, holds) = mpsc::channel();
    let dying = {
        let lock = lock.clone();
        thread::spawn(move || {
            lock.lock().unwrap();
            held.send(()).unwrap();
            wait.recv().unwrap();
        })
    };
    holds.recv().unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let lock = lock.clone();
            Underway::behind(&client, "job", move || lock.lock().and_then(|()| lock.unlock()))
        })
        .collect();
    go.send(()).unwrap();
    dying.join().unwrap();
    waiters.into_iter().for_each(|waiter| waiter.result().unwrap());
}

#[test]
fn scoped_threads_leave_nothing_behind() {
    let client = memory();
    let lock = client.lock("job");
    thread::scope(|scope| {
        scope.spawn(|| lock.lock().unwrap());
    });
    within(..ms(5000), || lock.lock().unwrap());
    thread::scope(|scope| {
        let other = scope.spawn(|| lock.try_lock(ms(20)));
        assert!(!other.join().unwrap().unwrap());
    });
    lock.unlock().unwrap();
    drop(lock);
    eventually(SOON, || client.remembered() == (0, 0));
}

#[test]
fn many_threads_that_die_holding_leak_no_holds() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("job");
    for _ in 0..30 {
        dies_holding(&lock, || ());
    }
    within(..SOON, || assert!(lock.try_lock(SOON).unwrap()));
    lock.unlock().unwrap();
    drop(lock);
    eventually(SOON, || client.remembered() == (0, 0) && crate::helpers::keys(&server).is_empty());
}

#[test]
fn a_thread_that_is_ending_cannot_lock_and_leaves_nothing_held() {
    struct LocksWhenDropped(RefCell<Option<(RedisLock, mpsc::Sender<bool>)>>);
    impl Drop for LocksWhenDropped {
        fn drop(&mut self) {
            let (lock, told) = self.0.take().unwrap();
            let result = lock.try_lock(ms(500));
            told.send(matches!(&result, Err(error) if error.is_unsupported()) || result.is_ok())
                .unwrap();
            // Whatever it was told, a guard is the only honest way to be sure that nothing stays.
            let _ = lock.unlock();
        }
    }
    thread_local! {
        static LATE: LocksWhenDropped = const { LocksWhenDropped(RefCell::new(None)) };
    }
    let client = memory();
    let (told, said) = mpsc::channel();
    let lock = client.lock("job");
    let for_thread = lock.clone();
    thread::spawn(move || {
        // Registered before this crate's own thread-local, so destroyed after it.
        LATE.with(|late| *late.0.borrow_mut() = Some((for_thread.clone(), told)));
        for_thread.with(|_| ()).unwrap();
    })
    .join()
    .unwrap();
    assert!(said.recv_timeout(SOON).unwrap());
    within(..ms(5000), || assert!(lock.try_lock(SOON).unwrap()));
    lock.unlock().unwrap();
    drop(lock);
    eventually(SOON, || client.remembered() == (0, 0));
}

/// Runs `child` in a fork of this process, and gives its verdict back: what went wrong, or nothing.
///
/// The child is a copy with one thread. It must end by `exit`: unwinding into the test harness, or
/// dropping what the parent owns, would be wrong.
pub fn forked(child: impl FnOnce() -> Result<(), u8>) {
    match fork::fork().unwrap() {
        Fork::Child => {
            let verdict = catch_unwind(AssertUnwindSafe(child)).unwrap_or(Err(255));
            exit(verdict.map_or_else(i32::from, |()| 0));
        }
        Fork::Parent(child) => {
            // A child that hangs would hang the test, and outlive it: it is given time, and then
            // ended.
            let mut status = None;
            let ended = catch_unwind(AssertUnwindSafe(|| {
                eventually(SOON * 2, || {
                    status = fork::waitpid_nohang(child).unwrap();
                    status.is_some()
                });
            }));
            if ended.is_err() {
                Command::new("sh").args(["-c", &format!("kill -KILL {child}")]).status().unwrap();
            }
            let status = status.expect("the child hangs");
            assert!(WIFEXITED(status), "the child was killed: {status}");
            assert_eq!(WEXITSTATUS(status), 0, "the step of the child that failed (255: a panic)");
        }
    }
}

fn check(step: u8, passed: bool) -> Result<(), u8> {
    if passed { Ok(()) } else { Err(step) }
}

#[test]
fn a_forked_child_leaves_its_parents_lock_and_connections_alone() {
    in_own_process("holds::a_forked_child_leaves_its_parents_lock_and_connections_alone", || {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let client = Client::open(&proxy.url()).unwrap();
        let lock = client.lock("job");
        lock.lock().unwrap();
        let guard = client.lock("guarded").guard().unwrap();
        let token = get(&server, "job");
        let (requests, connections) = (proxy.requests(), proxy.accepted());
        let in_child = (guard, client.clone(), lock.clone());
        // The parent's copies go on; the child drops its own, each of which does something in the
        // process that made them.
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
            check(8, client.close(ms(100)).is_ok())?;
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
    });
}

#[test]
fn a_forked_child_that_exits_while_its_parent_holds_releases_nothing() {
    in_own_process(
        "holds::a_forked_child_that_exits_while_its_parent_holds_releases_nothing",
        || {
            let server = Server::start();
            let proxy = Proxy::start(server.port());
            let client = Client::open(&proxy.url()).unwrap();
            let lock = client.lock_with("job", lease(ms(1200))).unwrap();
            let told = mpsc::channel();
            lock.on_lost(move |_| told.0.send(()).unwrap());
            let _guard = lock.guard().unwrap();
            // exit() runs the destructors of this thread's locals in the child: the parent's holds
            // are there.
            forked(|| check(1, lock.is_held()));
            let token = get(&server, "job");
            // The parent's renewal goes on over its own connection.
            thread::sleep(ms(2000));
            assert!(lock.is_valid() && token.is_some() && get(&server, "job") == token);
            assert!(told.1.try_recv().is_err());
        },
    );
}

#[test]
fn a_client_that_a_forked_child_makes_works_and_is_refused_what_its_parent_holds() {
    in_own_process(
        "holds::a_client_that_a_forked_child_makes_works_and_is_refused_what_its_parent_holds",
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
                let free = own.lock_with("free", lease(ms(1200))).map_err(|_| 4)?;
                let guard = free.guard().map_err(|_| 5)?;
                // Its renewal runs on a thread of the child.
                thread::sleep(ms(2000));
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
fn a_forked_child_waits_for_nothing_that_another_thread_of_its_parent_was_doing() {
    in_own_process(
        "holds::a_forked_child_waits_for_nothing_that_another_thread_of_its_parent_was_doing",
        || {
            let client = memory();
            let lock = client.lock("job");
            lock.lock().unwrap();
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                // They are in the book of leases nearly all the time, and so at the moment of many
                // a fork.
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
                        // With more time than a child is given, so that a child which waits is
                        // always found waiting.
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
        "holds::a_forked_child_is_refused_at_once_though_a_thread_of_its_parent_has_the_turn",
        || {
            let server = Server::start();
            let client = client(&server);
            let (lock, held) = (client.lock("job"), client.lock("held"));
            held.lock().unwrap();
            let holder = Elsewhere::holds(&lock);
            // One more waits behind each: a lease could be handed to it, in the memory of the
            // child.
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
fn a_handle_with_other_options_unlocks_and_does_nothing_else() {
    let server = Server::start();
    let client = client(&server);
    let plain = client.lock_with("job", LockOptions::new().fenced()).unwrap();
    let other = client.lock_with("job", LockOptions::new().layout(Layout::Redisson)).unwrap();
    let unfenced = client.lock("job");
    plain.lock().unwrap();
    assert!(error(other.lock()).is_conflict());
    assert!(error(unfenced.new_condition("ready").unwrap().wait()).is_conflict());
    assert!(error(unfenced.new_condition("ready").unwrap().notify_one()).is_conflict());
    assert!(plain.is_valid() && plain.hold_count() == 1);
    // The lease's own layout is what is extended and released, whoever asks for it.
    other.extend(ms(60_000)).unwrap();
    other.unlock().unwrap();
    assert_eq!(get(&server, "job"), None);
    assert!(!plain.is_held());
}

#[test]
fn a_forked_childs_own_client_connects_though_its_parent_was_connecting() {
    in_own_process(
        "holds::a_forked_childs_own_client_connects_though_its_parent_was_connecting",
        || {
            let server = Server::start();
            let proxy = Proxy::start(server.port());
            let url = proxy.url();
            let parent = Client::open(&url).unwrap();
            // The thread of its pool stands still from then on: what that locks while it starts is
            // r2d2's, and no client's of ours.
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
    in_own_process("holds::a_forked_childs_named_store_in_memory_is_its_own", || {
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
