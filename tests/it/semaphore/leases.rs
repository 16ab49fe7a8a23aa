//! The lease of a permit: extended and renewed as a whole, told when it is lost, and kept if the
//! permit is leaked.

use std::mem;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{LostReason, Renewal, Validity};

use crate::faults::nothing_is_left;
use crate::helpers::{SOON, client, delete, error, lease, ms};
use crate::support::{Server, eventually, within};

/// So long that no stall of the machine ends it.
const LEASE: Duration = ms(1500);

#[test]
fn all_of_a_permit_lasts_as_long_as_it_was_extended_and_leaves_nothing() {
    let server = Server::start();
    let options = lease(LEASE).renewal(Renewal::Never);
    let semaphore = client(&server).semaphore_with("s", 4, options).unwrap();
    let permit = semaphore.acquire_many(3).unwrap();
    let others = client(&server).semaphore("s", 4);
    assert!(permit.remaining() <= LEASE);
    within(ms(2450)..SOON, || {
        permit.extend(ms(2500)).unwrap();
        assert!(permit.remaining() > LEASE && permit.remaining() <= ms(2500));
        eventually(SOON, || {
            let free = semaphore.available().unwrap();
            assert!(free == 1 || free == 4, "{free}");
            // That is counted by the token of the permit; this takes what is free of it.
            if let Some(two) = others.try_acquire_many(2, Duration::ZERO).unwrap() {
                assert!(!permit.is_valid());
                two.release().unwrap();
            }
            free == 4
        });
    });
    assert!(!permit.is_valid() && permit.remaining() == Duration::ZERO);
    assert_eq!(semaphore.holders().unwrap(), []);
    nothing_is_left(&server);
    assert!(error(permit.extend(SOON)).is_lost() && error(permit.release()).is_lost());
    assert_eq!(semaphore.available().unwrap(), 4);
    nothing_is_left(&server);
}

#[test]
fn permits_of_one_and_of_several_are_renewed_until_each_is_released() {
    let server = Server::start();
    let semaphore = client(&server).semaphore_with("s", 4, lease(LEASE)).unwrap();
    let (three, one) = (semaphore.acquire_many(3).unwrap(), semaphore.acquire().unwrap());
    let renewed = |free: u32| {
        let start = Instant::now();
        while start.elapsed() < LEASE + ms(500) {
            assert_eq!(semaphore.available().unwrap(), free);
            thread::sleep(ms(10));
        }
    };
    renewed(0);
    three.ensure_valid().unwrap();
    one.release().unwrap();
    renewed(1);
    three.release().unwrap();
    nothing_is_left(&server);
}

#[test]
fn a_lost_permit_is_not_taken_back_from_those_who_have_it_now() {
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let semaphore = mine.semaphore_with("s", 3, lease(LEASE)).unwrap();
    let (tell, told) = mpsc::channel();
    let own: Mutex<Option<Validity>> = Mutex::default();
    let own = std::sync::Arc::new(own);
    semaphore.on_lost({
        let own = std::sync::Arc::clone(&own);
        move |lost| {
            let is_valid = own.lock().unwrap().as_ref().map(Validity::is_valid);
            tell.send((lost.reason(), is_valid)).unwrap();
        }
    });
    let lost = semaphore.acquire_many(2).unwrap();
    *own.lock().unwrap() = Some(lost.validity());
    delete(&server, "s");
    // Others take all that there is before the renewal asks.
    let theirs = other.semaphore("s", 3);
    let [two, one] = [2, 1].map(|permits| theirs.acquire_many(permits).unwrap());
    // It is invalid before anybody is told.
    assert_eq!(told.recv_timeout(SOON), Ok((LostReason::Taken, Some(false))));
    assert!(!lost.is_valid() && !lost.validity().is_valid());
    let have = || theirs.holders().unwrap().iter().map(|holder| holder.permits).sum::<u32>();
    assert_eq!((theirs.holders().unwrap().len(), have()), (2, 3));
    assert!(semaphore.try_acquire(Duration::ZERO).unwrap().is_none());
    assert!(error(lost.release()).is_lost());
    assert_eq!((theirs.holders().unwrap().len(), have()), (2, 3));
    two.release().unwrap();
    one.release().unwrap();
    assert!(told.try_recv().is_err());
}

#[test]
fn a_leaked_permit_is_kept_until_its_client_is_closed() {
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let theirs = other.semaphore("s", 3);
    let semaphore = mine.semaphore_with("s", 3, lease(LEASE)).unwrap();
    mem::forget(semaphore.acquire_many(2).unwrap());
    drop(semaphore);
    let start = Instant::now();
    while start.elapsed() < LEASE + ms(500) {
        assert_eq!(theirs.available().unwrap(), 1);
        thread::sleep(ms(10));
    }
    mine.close(SOON).unwrap();
    assert_eq!(theirs.available().unwrap(), 3);
    nothing_is_left(&server);
}
