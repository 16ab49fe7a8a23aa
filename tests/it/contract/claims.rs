//! What every store promises to those who own a lock by a claim.

use std::thread;
use std::time::{Duration, Instant};

use distlock::Renewal;

use super::{LEASE, Place};
use crate::helpers::{Elsewhere, SOON, Underway, error, is_free, ms, on_another_thread};
use crate::support::{eventually, within};

pub(super) fn a_claim_excludes_holds_and_claims_of_every_client(place: &Place) {
    let (mine, theirs) = (place.client.lock("a"), place.other.lock("a"));
    let claim = mine.claim().unwrap();
    assert!(claim.is_valid() && claim.remaining() > Duration::ZERO);
    claim.ensure_valid().unwrap();
    for lock in [&mine, &theirs] {
        assert!(!lock.try_lock(Duration::ZERO).unwrap());
        assert!(lock.try_claim(Duration::ZERO).unwrap().is_none());
        assert!(within(ms(40)..SOON, || lock.try_claim(ms(40)).unwrap().is_none()));
    }
    assert!(theirs.is_locked().unwrap());
    claim.release().unwrap();
    let claim = theirs.try_claim(Duration::ZERO).unwrap().unwrap();
    assert!(!mine.try_lock(Duration::ZERO).unwrap());
    drop(claim);
    assert!(is_free(&mine) && !mine.is_locked().unwrap());
}

pub(super) fn whatever_thread_has_a_claim_releases_it(place: &Place) {
    let lock = place.client.lock("a");
    let claim = lock.claim().unwrap();
    on_another_thread(|| {
        claim.ensure_valid().unwrap();
        claim.release().unwrap();
    });
    assert!(is_free(&place.other.lock("a")));
    let claim = on_another_thread(|| lock.claim().unwrap());
    // The thread that took it has ended.
    claim.ensure_valid().unwrap();
    assert!(!is_free(&lock) && !is_free(&place.other.lock("a")));
    drop(claim);
    assert!(is_free(&place.other.lock("a")));
}

pub(super) fn a_claim_waits_behind_a_hold_and_a_hold_behind_a_claim(place: &Place) {
    let holder = Elsewhere::holds(&place.other.lock("a"));
    let lock = place.client.lock("a");
    let waiter = Underway::start(move || lock.claim().unwrap());
    thread::sleep(ms(60));
    assert!(!waiter.is_done());
    holder.unlock().unwrap();
    let claim = waiter.result();
    let other = place.other.lock("a");
    let waiter = Underway::start(move || other.lock().and_then(|()| other.unlock()));
    thread::sleep(ms(60));
    assert!(!waiter.is_done() && claim.is_valid());
    drop(claim);
    waiter.result().unwrap();
    assert!(is_free(&place.client.lock("a")));
}

pub(super) fn a_claim_is_renewed_and_extended(place: &Place) {
    let lock = place.client.lock_with("a", place.options.clone().lease(ms(3000))).unwrap();
    let claim = lock.claim().unwrap();
    let start = Instant::now();
    while start.elapsed() < ms(4500) {
        assert!(claim.is_valid() && !is_free(&place.other.lock("a")));
        thread::sleep(ms(20));
    }
    claim.extend(LEASE).unwrap();
    assert!(claim.remaining() > LEASE / 2);
    assert!(lock.inspect().unwrap().holders[0].remaining.unwrap() > LEASE / 2);
    claim.release().unwrap();
    assert!(is_free(&place.other.lock("a")));
}

pub(super) fn a_claim_that_was_lost_releases_nothing(place: &Place) {
    let options = place.options.clone().lease(ms(200)).renewal(Renewal::Never);
    let lock = place.client.lock_with("a", options).unwrap();
    let next = place.other.lock("a");
    let expired = lock.claim().unwrap();
    let claim = next.try_claim(SOON).unwrap().unwrap();
    assert!(!expired.is_valid() && expired.remaining() == Duration::ZERO);
    assert!(error(expired.ensure_valid()).is_lost() && error(expired.extend(LEASE)).is_lost());
    assert!(error(expired.release()).is_lost());
    assert!(claim.is_valid() && !is_free(&lock));
    assert!(lock.force_unlock().unwrap());
    // A node of a quorum that is asked late may still have granted it.
    eventually(SOON, || !lock.force_unlock().unwrap());
    let hold = place.client.lock("a").guard().unwrap();
    assert!(error(claim.release()).is_lost());
    assert!(hold.is_valid() && !is_free(&next));
}
