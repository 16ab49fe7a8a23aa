//! What every store promises to readers and writers of a read-write lock.

use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use distlock::{RedisLock, Renewal, Retry, RwLock};

use super::Place;
use crate::helpers::{Elsewhere, SOON, error, ms, on_another_thread};
use crate::support::{eventually, within};

/// The same lock, as two clients have it. A place that has none says so.
fn rw_locks(place: &Place) -> Option<[RwLock; 2]> {
    let options = place.options.clone();
    if !place.has_shares {
        let made = place.client.rw_lock("rw");
        let refused = [
            error(made.read()),
            error(made.write()),
            error(made.try_read(SOON)),
            error(made.read_lock().claim()),
            error(made.readers()),
            error(made.write_lock().is_locked()),
            error(made.write_lock().force_unlock()),
            error(made.write_lock().new_condition("c")),
            error(place.client.rw_lock_with("rw", options)),
        ];
        assert!(refused.iter().all(distlock::Error::is_unsupported), "{refused:?}");
        return None;
    }
    Some(
        [&place.client, &place.other]
            .map(|client| client.rw_lock_with("rw", options.clone()).unwrap()),
    )
}

/// What others of the same process and of another one would get now.
fn may_read(lock: &RwLock) -> bool {
    on_another_thread(|| lock.try_read(Duration::ZERO).unwrap().is_some())
}

fn may_write(lock: &RwLock) -> bool {
    on_another_thread(|| lock.try_write(Duration::ZERO).unwrap().is_some())
}

pub(super) fn many_read_or_one_writes(place: &Place) {
    let Some([mine, theirs]) = rw_locks(place) else { return };
    assert_eq!((mine.name(), mine.readers().unwrap()), ("rw", 0));
    let reading = mine.read().unwrap();
    assert!(reading.is_valid() && mine.read_lock().is_held() && !mine.write_lock().is_held());
    assert!(may_read(&mine) && may_read(&theirs) && !may_write(&mine) && !may_write(&theirs));
    let there = Elsewhere::holds(theirs.read_lock());
    for lock in [&mine, &theirs] {
        assert_eq!(lock.readers().unwrap(), 2);
        assert!(lock.read_lock().is_locked().unwrap() && !lock.write_lock().is_locked().unwrap());
    }
    reading.release().unwrap();
    assert!(!may_write(&mine) && !may_write(&theirs));
    assert!(within(ms(40)..SOON, || mine.try_write(ms(40)).unwrap().is_none()));
    there.unlock().unwrap();
    let writing = mine.write().unwrap();
    assert!(mine.write_lock().is_locked().unwrap() && !mine.read_lock().is_locked().unwrap());
    assert!(!may_read(&mine) && !may_read(&theirs) && !may_write(&mine) && !may_write(&theirs));
    assert!(within(ms(40)..SOON, || on_another_thread(|| {
        theirs.try_read(ms(40)).unwrap().is_none()
    })));
    drop(writing);
    assert!(may_read(&theirs) && may_write(&theirs));
}

pub(super) fn nobody_overtakes_a_waiting_writer_and_readers_behind_it_come_together(place: &Place) {
    let Some([mine, theirs]) = rw_locks(place) else { return };
    let reading = mine.read().unwrap();
    let writer = Elsewhere::locks(theirs.write_lock());
    if !place.wakes {
        // Nobody queues where nobody can be woken.
        drop(reading);
        writer.has_it();
        return writer.unlock().unwrap();
    }
    // Once it waits in the queue of the server, that is so for all processes.
    eventually(SOON, || !may_read(&theirs) && !may_read(&place.client.rw_lock("rw")));
    let behind = [&mine, &theirs].map(|lock| Elsewhere::locks(lock.read_lock()));
    reading.release().unwrap();
    writer.has_it();
    assert_eq!(mine.readers().unwrap(), 0);
    writer.unlock().unwrap();
    for reader in &behind {
        reader.has_it();
    }
    assert!(!may_write(&mine) && mine.readers().unwrap() == 2);
    for reader in behind {
        reader.unlock().unwrap();
    }
}

pub(super) fn who_writes_may_read_and_reads_on_after_that(place: &Place) {
    let Some([mine, theirs]) = rw_locks(place) else { return };
    let writing = mine.write().unwrap();
    let reading = mine.read().unwrap();
    let again = mine.read().unwrap();
    assert!(mine.read_lock().hold_count() == 2 && mine.write_lock().hold_count() == 1);
    assert!(!may_read(&mine) && !may_read(&theirs));
    // Reading ends first: nothing changes for others.
    again.release().unwrap();
    reading.release().unwrap();
    assert!(writing.is_valid() && !may_read(&mine) && !may_read(&theirs));
    // Writing ends first: others may read.
    let reading = mine.read().unwrap();
    writing.release().unwrap();
    assert!(reading.is_valid() && !mine.write_lock().is_held() && mine.readers().unwrap() == 1);
    assert!(may_read(&mine) && may_read(&theirs) && !may_write(&mine) && !may_write(&theirs));
    reading.extend(SOON * 6).unwrap();
    assert_eq!(error(mine.write()).kind(), distlock::ErrorKind::Conflict);
    reading.release().unwrap();
    assert!(may_write(&mine) && may_write(&theirs));
}

pub(super) fn a_downgrade_lets_waiting_readers_in_and_no_writer(place: &Place) {
    if rw_locks(place).is_none() {
        return;
    }
    // Whoever can be woken does not ask by itself.
    let pause = if place.wakes { SOON * 6 } else { ms(50) };
    let options = place.options.clone().lease(SOON * 60).retry(Retry::fixed(pause));
    let [mine, theirs] = [&place.client, &place.other]
        .map(|client| client.rw_lock_with("rw", options.clone()).unwrap());
    let writing = mine.write().unwrap();
    let readers = [&mine, &theirs, &theirs].map(|lock| Elsewhere::locks(lock.read_lock()));
    eventually(SOON, || {
        let waiting = [&place.client, &place.other].map(|client| client.waiting_at_rw_lock("rw"));
        waiting == [1, 1]
    });
    let reading = mine.downgrade(writing).unwrap();
    for reader in &readers {
        reader.has_it();
    }
    assert!(reading.is_valid() && !may_write(&mine) && !may_write(&theirs));
    reading.release().unwrap();
    assert!(!may_write(&mine) && !may_write(&theirs));
    for reader in readers {
        reader.unlock().unwrap();
    }
    assert!(may_write(&mine));
    // What cannot be downgraded.
    let (writing, again) = (mine.write().unwrap(), mine.write().unwrap());
    assert_eq!(error(mine.downgrade(again)).kind(), distlock::ErrorKind::Conflict);
    let reading = mine.read().unwrap();
    assert!(error(mine.downgrade(reading)).is_invalid_input() && !mine.read_lock().is_held());
    assert!(writing.is_valid());
    // The hold of a guard that is refused ends.
    assert!(error(theirs.downgrade(writing)).is_invalid_input());
    assert!(!mine.write_lock().is_held());
    // By hand it is the same; then the guard has nothing left.
    let writing = mine.write().unwrap();
    mine.read_lock().lock().unwrap();
    mine.write_lock().unlock().unwrap();
    assert!(may_read(&theirs) && !may_write(&theirs));
    assert!(error(mine.downgrade(writing)).is_not_held());
    mine.read_lock().unlock().unwrap();
    assert!(may_write(&mine) && may_write(&theirs));
}

pub(super) fn who_reads_cannot_lock_the_write_side(place: &Place) {
    let Some([mine, theirs]) = rw_locks(place) else { return };
    let reading = mine.read().unwrap();
    let (read, write) = (mine.read_lock(), mine.write_lock());
    let refused = [
        error(mine.write()),
        error(mine.try_write(SOON)),
        error(write.claim()),
        error(read.claim()),
        error(place.client.rw_lock("rw").write()),
    ];
    assert!(
        refused.iter().all(|error| error.kind() == distlock::ErrorKind::Conflict),
        "{refused:?}"
    );
    assert!(reading.is_valid() && !write.is_held() && may_read(&theirs));
    reading.release().unwrap();
    let writing = mine.write().unwrap();
    assert_eq!(error(read.claim()).kind(), distlock::ErrorKind::Conflict);
    writing.release().unwrap();
    assert!(may_write(&theirs));
}

pub(super) fn a_forced_unlock_of_one_side_leaves_the_other_alone(place: &Place) {
    let Some([mine, theirs]) = rw_locks(place) else { return };
    let reading = mine.read().unwrap();
    assert!(!theirs.write_lock().force_unlock().unwrap());
    reading.extend(SOON * 6).unwrap();
    let there = Elsewhere::holds(theirs.read_lock());
    assert!(theirs.read_lock().force_unlock().unwrap());
    assert!(!theirs.read_lock().force_unlock().unwrap() && mine.readers().unwrap() == 0);
    assert!(error(reading.release()).is_lost());
    assert!(error(there.unlock()).is_lost());
    let writing = mine.write().unwrap();
    assert!(!theirs.read_lock().force_unlock().unwrap());
    writing.extend(SOON * 6).unwrap();
    assert!(theirs.write_lock().force_unlock().unwrap());
    assert!(error(writing.release()).is_lost() && may_read(&theirs));
}

pub(super) fn fences_of_both_sides_grow_together(place: &Place) {
    if rw_locks(place).is_none() {
        return;
    }
    let locks = [&place.client, &place.other]
        .map(|client| client.rw_lock_with("rw", place.options.clone().fenced()).unwrap());
    let mut last = 0;
    for _ in 0..3 {
        for lock in &locks {
            let reading = lock.read().unwrap();
            let first = reading.fence().unwrap();
            // A thread that joins has a fence of its own.
            let second = on_another_thread(|| lock.read().unwrap().fence().unwrap());
            assert!(last < first && first < second, "{last}, {first}, {second}");
            assert_eq!(reading.fence(), Some(first));
            drop(reading);
            let writing = lock.write().unwrap();
            last = writing.fence().unwrap();
            assert!(second < last, "{second}, {last}");
            let reading = lock.downgrade(writing).unwrap();
            assert_eq!(reading.fence(), Some(last));
            last = on_another_thread(|| lock.read().unwrap().fence().unwrap()).max(last);
        }
    }
}

pub(super) fn a_lock_a_semaphore_and_a_read_write_lock_of_one_name_are_refused(place: &Place) {
    let Some([mine, theirs]) = rw_locks(place) else { return };
    let (lock, semaphore) = (place.other.lock("rw"), place.other.semaphore("rw", 3));
    for side in [mine.read_lock(), mine.write_lock()] {
        let guard = side.guard().unwrap();
        assert!(error(lock.try_lock(Duration::ZERO)).is_wrong_type());
        assert!(error(semaphore.try_acquire(Duration::ZERO)).is_wrong_type());
        assert!(error(lock.force_unlock()).is_wrong_type());
        assert!(error(semaphore.holders()).is_wrong_type());
        guard.release().unwrap();
    }
    let held = lock.guard().unwrap();
    assert!(error(mine.try_read(Duration::ZERO)).is_wrong_type());
    assert!(error(mine.readers()).is_wrong_type());
    held.release().unwrap();
    let permit = semaphore.acquire().unwrap();
    for side in [mine.read_lock(), theirs.write_lock()] {
        assert!(error(side.try_lock(Duration::ZERO)).is_wrong_type());
        assert!(error(side.is_locked()).is_wrong_type());
        assert!(error(side.force_unlock()).is_wrong_type());
    }
    permit.release().unwrap();
    assert!(may_write(&mine));
}

pub(super) fn a_lease_of_either_side_is_renewed_and_one_that_is_not_runs_out(place: &Place) {
    if rw_locks(place).is_none() {
        return;
    }
    let short = place.options.clone().lease(ms(1_500));
    let [renewed, left] = [short.clone(), short.renewal(Renewal::Never)]
        .map(|options| place.client.rw_lock_with("rw", options).unwrap());
    for side in [RwLock::read_lock, RwLock::write_lock] {
        let guard = side(&renewed).guard().unwrap();
        thread::sleep(ms(2_500));
        assert!(guard.is_valid() && !may_write(&place.other.rw_lock("rw")));
        guard.release().unwrap();
        let guard = side(&left).guard().unwrap();
        eventually(SOON * 3, || may_write(&place.other.rw_lock("rw")));
        assert!(error(guard.release()).is_lost());
    }
}

pub(super) fn no_thread_of_two_clients_reads_beside_a_writer(place: &Place) {
    let Some(locks) = rw_locks(place) else { return };
    // How many read; -1: one writes.
    let inside = AtomicI32::new(0);
    thread::scope(|scope| {
        for number in 0..8 {
            let (lock, inside) = (&locks[number % 2], &inside);
            scope.spawn(move || {
                for round in 0..12 {
                    if (number / 2 + round) % 3 == 0 {
                        let writing = lock.write().unwrap();
                        assert_eq!(inside.swap(-1, Ordering::SeqCst), 0);
                        thread::sleep(ms(1));
                        if round % 2 == 0 {
                            assert_eq!(inside.swap(0, Ordering::SeqCst), -1);
                            writing.release().unwrap();
                            continue;
                        }
                        assert_eq!(inside.swap(1, Ordering::SeqCst), -1);
                        let reading = lock.downgrade(writing).unwrap();
                        assert!(inside.fetch_sub(1, Ordering::SeqCst) > 0);
                        reading.release().unwrap();
                    } else {
                        let reading = lock.read().unwrap();
                        assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0);
                        thread::sleep(ms(1));
                        assert!(inside.fetch_sub(1, Ordering::SeqCst) > 0);
                        reading.release().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(inside.load(Ordering::SeqCst), 0);
    assert!(may_write(&locks[0]) && may_write(&locks[1]));
}

/// How often a thread holds each side.
#[derive(Clone, Copy, Debug, Default)]
struct Holds {
    reads: u32,
    writes: u32,
}

impl Holds {
    /// Locks or unlocks a side, and compares what the lock says to that.
    fn step(&mut self, rw: &RwLock, step: u8) {
        let locks = |side: &RedisLock, tries: bool| {
            if tries {
                side.try_lock(Duration::ZERO).map(|locked| assert!(locked))
            } else {
                side.lock()
            }
        };
        let unlocks = |side: &RedisLock, holds: &mut u32| match holds.checked_sub(1) {
            Some(left) => side.unlock().map(|()| *holds = left).unwrap(),
            None => assert!(error(side.unlock()).is_not_held()),
        };
        match step {
            0 | 1 => locks(rw.read_lock(), step == 1).map(|()| self.reads += 1).unwrap(),
            2 | 3 if self.writes == 0 && self.reads > 0 => {
                assert!(error(locks(rw.write_lock(), step == 3)).is_conflict());
            }
            2 | 3 => locks(rw.write_lock(), step == 3).map(|()| self.writes += 1).unwrap(),
            4 | 5 => unlocks(rw.read_lock(), &mut self.reads),
            _ => unlocks(rw.write_lock(), &mut self.writes),
        }
    }

    /// What this thread is told, and what others of this process and of another one would get.
    fn are_as_said(self, [mine, theirs]: [&RwLock; 2]) {
        let (read, write) = (mine.read_lock(), mine.write_lock());
        assert_eq!((read.hold_count(), write.hold_count()), (self.reads, self.writes));
        assert_eq!((read.is_valid(), write.is_valid()), (self.reads > 0, self.writes > 0));
        let (writes, reads) = (self.writes > 0, self.writes == 0 && self.reads > 0);
        assert_eq!(theirs.write_lock().is_locked().unwrap(), writes, "{self:?}");
        assert_eq!(theirs.readers().unwrap(), u32::from(reads), "{self:?}");
        for lock in [mine, theirs] {
            assert_eq!(may_read(lock), !writes, "{self:?}");
            assert_eq!(may_write(lock), !writes && !reads, "{self:?}");
        }
    }
}

pub(super) fn a_thread_locks_and_unlocks_both_sides_in_any_order_as_in_java(place: &Place) {
    let Some([mine, theirs]) = rw_locks(place) else { return };
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..4 {
        let mut holds = Holds::default();
        for _ in 0..30 {
            holds.step(&mine, random.u8(..8));
            holds.are_as_said([&mine, &theirs]);
        }
        (0..holds.writes).for_each(|_| mine.write_lock().unlock().unwrap());
        (0..holds.reads).for_each(|_| mine.read_lock().unlock().unwrap());
        Holds::default().are_as_said([&mine, &theirs]);
    }
    // No lease is renewed any more.
    eventually(SOON, || place.client.remembered().1 == 0);
}
