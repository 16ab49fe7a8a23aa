//! Holds: they belong to threads. Also guards, `with`, threads that end while they hold, and forked
//! children.

mod forks;
mod guards;
mod thread_ends;
mod told;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use distlock::{Layout, LockOptions};
use fork::{Fork, WEXITSTATUS, WIFEXITED};

use crate::helpers::{SOON, client, error, get, is_free, memory, ms, on_another_thread};
use crate::support::process::end_forked;
use crate::support::{Server, eventually};

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
    // The quickest of many: what else the machine does meanwhile does not count.
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

/// Runs `child` in a fork of this process, and returns its result: what went wrong, or nothing.
///
/// The child is a copy with one thread. It must not unwind into the test harness, or drop what the
/// parent owns.
pub fn forked(child: impl FnOnce() -> Result<(), u8>) {
    match fork::fork().unwrap() {
        Fork::Child => {
            let verdict = catch_unwind(AssertUnwindSafe(child)).unwrap_or(Err(255));
            end_forked(verdict.map_or_else(i32::from, |()| 0));
        }
        Fork::Parent(child) => {
            // A child that hangs would make the test hang, and outlive it. So it is killed after
            // some time.
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
    // Extend and release use the layout of the lease, whichever handle asks.
    other.extend(ms(60_000)).unwrap();
    other.unlock().unwrap();
    assert_eq!(get(&server, "job"), None);
    assert!(!plain.is_held());
}
