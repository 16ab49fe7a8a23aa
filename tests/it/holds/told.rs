//! What a guard tells its holder, and a `Validity` the threads that work for it.

use std::thread;
use std::time::Duration;

use distlock::{Client, LockOptions, RedisLock, Validity};

use crate::helpers::{Underway, delete, error, get, lease, memory, ms};
use crate::loss::{HOUR, renewal_finds, timed};
use crate::support::Server;

fn fenced(client: &Client) -> RedisLock {
    client.lock_with("job", LockOptions::new().fenced()).unwrap()
}

#[track_caller]
fn is_over(validity: &Validity) {
    assert!(!validity.is_valid());
    assert_eq!(validity.remaining(), Duration::ZERO);
    assert!(error(validity.ensure_valid()).is_not_held());
}

#[test]
fn a_validity_speaks_of_one_hold_to_every_thread() {
    let lock = fenced(&memory());
    let guard = lock.guard().unwrap();
    let validity = guard.validity();
    let (fence, remaining) = thread::scope(|scope| {
        let looks = scope.spawn(|| {
            validity.ensure_valid().unwrap();
            assert!(validity.is_valid());
            (validity.fence(), validity.remaining())
        });
        looks.join().unwrap()
    });
    assert_eq!((fence, validity.fence_i64()), (guard.fence(), guard.fence_i64()));
    assert_eq!(fence.map(|fence| i64::try_from(fence).unwrap()), lock.fence_i64());
    assert!(fence.is_some() && remaining > ms(20_000));
    // A further hold of the same thread is part of the same hold.
    lock.lock().unwrap();
    lock.unlock().unwrap();
    assert!(validity.is_valid());
    guard.release().unwrap();
    is_over(&validity);
    let _next = lock.guard().unwrap();
    is_over(&validity);
}

#[test]
fn a_validity_that_is_made_after_a_loss_says_lost() {
    let lock = fenced(&memory());
    let guard = lock.guard().unwrap();
    lock.force_unlock().unwrap();
    assert!(error(guard.extend(HOUR)).is_lost());
    assert!(!guard.is_valid());
    let validity = guard.validity();
    assert!(!validity.is_valid() && validity.remaining().is_zero());
    assert!(error(validity.ensure_valid()).is_lost(), "this thread still holds it by count");
    assert!(error(guard.release()).is_lost());
}

#[test]
fn a_validity_ends_although_the_lease_passes_to_another_thread() {
    let client = memory();
    let lock = client.lock("job");
    let guard = lock.guard().unwrap();
    let validity = guard.validity();
    let (same, also) = (lock.clone(), validity.clone());
    let next = Underway::behind(&client, "job", move || {
        same.lock().unwrap();
        is_over(&also);
        same.unlock().unwrap();
    });
    guard.release().unwrap();
    is_over(&validity);
    next.result();
}

#[test]
fn a_validity_ends_with_the_thread_that_held() {
    let lock = memory().lock("job");
    let validity = thread::spawn(move || {
        lock.lock().unwrap();
        let guard = lock.guard().unwrap();
        let validity = guard.validity();
        drop(guard);
        assert!(validity.is_valid(), "held once more");
        validity
    });
    is_over(&validity.join().unwrap());
}

#[test]
fn a_wait_in_a_condition_ends_a_validity() {
    let lock = memory().lock("job");
    let guard = lock.guard().unwrap();
    let before = guard.validity();
    assert!(!lock.new_condition("c").unwrap().wait_timeout(ms(1)).unwrap());
    is_over(&before);
    assert!(guard.is_valid() && guard.validity().is_valid());
}

#[test]
fn a_validity_tells_the_loss_and_a_guard_stays_lost_once_it_has_told() {
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let mine = builder.build().unwrap();
    let lock = mine.lock_with("job", lease(HOUR)).unwrap();
    let guard = lock.guard().unwrap();
    let validity = guard.validity();
    delete(&server, "job");
    renewal_finds(&clock, || !validity.is_valid());
    assert!(error(validity.ensure_valid()).is_lost());
    assert_eq!(validity.remaining(), Duration::ZERO);
    assert!(!guard.is_valid());
    // Its thread unlocks by hand, and locks again: the guard has said that it is lost.
    assert!(error(lock.unlock()).is_lost());
    lock.lock().unwrap();
    assert!(lock.is_valid() && !guard.is_valid());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(error(guard.ensure_valid()).is_lost());
    assert!(error(guard.validity().ensure_valid()).is_lost(), "as the guard itself says");
    assert!(get(&server, "job").is_some());
    drop(guard);
}

/// An error of the program's own.
#[derive(Debug)]
enum Own {
    Work,
    Lock(distlock::Error),
}

impl From<distlock::Error> for Own {
    fn from(error: distlock::Error) -> Self {
        Self::Lock(error)
    }
}

#[test]
fn work_that_fails_keeps_its_own_error() {
    let lock = memory().lock("job");
    assert_eq!(lock.try_with(|_| Ok::<_, Own>(3)).unwrap(), 3);
    assert!(matches!(lock.try_with(|_| Err::<(), _>(Own::Work)), Err(Own::Work)));
    assert!(!lock.is_held());
    let lost = lock.try_with(|_| {
        lock.force_unlock()?;
        Ok::<_, Own>(())
    });
    assert!(matches!(lost, Err(Own::Lock(error)) if error.is_lost()));
    let failed = lock.try_with(|_| {
        lock.force_unlock()?;
        Err::<(), _>(Own::Work)
    });
    assert!(matches!(failed, Err(Own::Work)), "its own error comes first");
    let refused = memory().lock("").try_with(|_| Ok::<_, Own>(()));
    assert!(matches!(refused, Err(Own::Lock(error)) if error.is_invalid_input()));
}

#[test]
fn the_options_of_a_client_are_a_start_for_others() {
    let options = LockOptions::new().lease(HOUR).fenced();
    let client = Client::builder("memory://").lock_options(options.clone()).build().unwrap();
    assert_eq!(client.lock_options(), options);
    let other = client.lock_options().local_hand_offs(0);
    assert_eq!(other, options.local_hand_offs(0));
    client.lock_with("job", other).unwrap().with(|guard| assert!(guard.fence().is_some())).unwrap();
}
