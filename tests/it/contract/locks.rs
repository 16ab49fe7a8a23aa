//! What every store promises to those who use it through a client's locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::Renewal;

use super::{LEASE, Place};
use crate::helpers::{Elsewhere, SOON, error, is_free, ms, on_another_thread};
use crate::support::{eventually, within};

pub(super) fn lock_holds_until_it_is_unlocked_as_often(place: &Place) {
    let lock = place.client.lock("a");
    lock.lock().unwrap();
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    lock.lock().unwrap();
    assert_eq!((lock.hold_count(), lock.is_held(), lock.is_valid()), (3, true, true));
    for left in [2, 1, 0] {
        assert!(lock.is_locked().unwrap());
        lock.unlock().unwrap();
        assert_eq!(lock.hold_count(), left);
    }
    assert!(!lock.is_locked().unwrap() && !lock.is_held());
    assert!(error(lock.unlock()).is_not_held());
}

pub(super) fn two_clients_exclude_each_other(place: &Place) {
    let (mine, theirs) = (place.client.lock("a"), place.other.lock("a"));
    mine.lock().unwrap();
    assert!(!theirs.try_lock(Duration::ZERO).unwrap());
    assert!(!within(ms(40)..SOON, || theirs.try_lock(ms(40)).unwrap()));
    assert!(error(theirs.unlock()).is_not_held());
    mine.unlock().unwrap();
    assert!(theirs.try_lock(Duration::ZERO).unwrap());
    assert!(!mine.try_lock(Duration::ZERO).unwrap());
    theirs.unlock().unwrap();
}

pub(super) fn a_waiting_client_gets_the_lock_when_it_is_released(place: &Place) {
    let holder = Elsewhere::holds(&place.other.lock("a"));
    let lock = place.client.lock("a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().and_then(|()| lock.unlock()));
        thread::sleep(ms(60));
        assert!(!waiter.is_finished());
        holder.unlock().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert!(is_free(&lock));
}

pub(super) fn guards_unlock_when_they_are_dropped(place: &Place) {
    let lock = place.client.lock("a");
    let guard = lock.guard().unwrap();
    assert!(guard.is_valid() && guard.remaining() > Duration::ZERO);
    guard.ensure_valid().unwrap();
    assert!(place.other.lock("a").try_guard(Duration::ZERO).unwrap().is_none());
    drop(guard);
    let guard = place.other.lock("a").try_guard(Duration::ZERO).unwrap().unwrap();
    assert!(lock.try_guard(ms(30)).unwrap().is_none());
    guard.release().unwrap();
    assert_eq!(lock.with(|guard| guard.is_valid()).ok(), Some(true));
    assert!(!lock.is_locked().unwrap());
}

pub(super) fn the_holder_extends(place: &Place) {
    let options = place.options.clone().lease(LEASE).renewal(Renewal::Never);
    let lock = place.client.lock_with("a", options).unwrap();
    lock.lock().unwrap();
    lock.extend(LEASE * 3).unwrap();
    assert!(lock.remaining().unwrap() > LEASE * 2);
    assert!(lock.inspect().unwrap().holders[0].remaining.unwrap() > LEASE * 2);
    lock.extend(LEASE).unwrap();
    assert!(lock.remaining().unwrap() > LEASE * 2, "it never shortens");
    assert!(lock.inspect().unwrap().holders[0].remaining.unwrap() > LEASE * 2);
    lock.unlock().unwrap();
    assert!(error(lock.extend(LEASE)).is_not_held());
}

pub(super) fn force_unlock_lets_the_next_in_and_the_holder_learns_of_it(place: &Place) {
    let lock = place.client.lock("a");
    lock.lock().unwrap();
    assert!(place.other.lock("a").force_unlock().unwrap());
    // A node of a quorum that is asked late may still have granted it to the holder.
    eventually(SOON, || !place.other.lock("a").force_unlock().unwrap());
    let guard = place.other.lock("a").guard().unwrap();
    assert!(error(lock.unlock()).is_lost());
    assert!(error(lock.unlock()).is_not_held());
    guard.release().unwrap();
}

pub(super) fn a_lease_is_renewed_until_it_is_unlocked(place: &Place) {
    let lock = place.client.lock_with("a", place.options.clone().lease(ms(3000))).unwrap();
    lock.lock().unwrap();
    let start = Instant::now();
    while start.elapsed() < ms(4500) {
        assert!(lock.is_valid());
        assert!(!on_another_thread(|| place.other.lock("a").try_lock(Duration::ZERO).unwrap()));
        thread::sleep(ms(20));
    }
    lock.unlock().unwrap();
    assert!(is_free(&place.other.lock("a")));
}

pub(super) fn a_lease_that_is_not_renewed_runs_out(place: &Place) {
    let lock = place
        .client
        .lock_with("a", place.options.clone().lease(ms(200)).renewal(Renewal::Never))
        .unwrap();
    let next = place.other.lock("a");
    within(ms(190)..SOON, || {
        lock.lock().unwrap();
        assert!(next.try_lock(SOON).unwrap());
    });
    assert!(!lock.is_valid() && lock.is_held());
    assert!(error(lock.unlock()).is_lost());
    next.unlock().unwrap();
}

pub(super) fn threads_of_two_clients_never_hold_it_at_once(place: &Place) {
    let locks = [place.client.lock("a"), place.other.lock("a")];
    let inside = AtomicU64::new(0);
    let entered = AtomicU64::new(0);
    thread::scope(|scope| {
        for lock in &locks {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..8 {
                        let guard = lock.guard().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                        thread::yield_now();
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        entered.fetch_add(1, Ordering::SeqCst);
                        guard.release().unwrap();
                    }
                });
            }
        }
    });
    assert_eq!(entered.into_inner(), 48);
    assert!(!locks[0].is_locked().unwrap());
}
