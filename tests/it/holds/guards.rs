//! Guards and `with`: they unlock when they end, also by a panic, and report what they find.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use distlock::{Client, DynLockGuard, LockGuard, LockOptions, RedisLock};
use log::Level;

use crate::helpers::{SOON, client, delete, error, is_free, memory};
use crate::logs;
use crate::support::Server;

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

/// Compiles only for a type that is not `Send`: a type that is `Send` has two functions `chosen`.
trait NotSend<A> {
    fn chosen() {}
}
impl<T: ?Sized> NotSend<()> for T {}
struct IsSend;
impl<T: ?Sized + Send> NotSend<IsSend> for T {}

#[test]
fn a_guard_is_not_send_and_everything_else_is() {
    <LockGuard as NotSend<_>>::chosen();
    fn moves<T: Send + Sync + Clone + 'static>() {}
    moves::<Client>();
    moves::<RedisLock>();
    moves::<distlock::Interrupt>();
    moves::<LockOptions>();
    moves::<distlock::Validity>();
    <DynLockGuard<'_> as NotSend<_>>::chosen();
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
