//! The checkers over keys that several may hold.

use super::check::{crowded, fence_regressions, overlaps};
use super::history::Record;
use super::progress::{longest_stuck, overtakers};
use super::witness::Inside;
use super::{clock, hold, model};

/// What a writer takes; a reader takes one.
const ALL: u64 = 9;

fn reads(owner: u64, granted: u64, released: u64, fence: u64) -> Record {
    Record { room: ALL, ..hold(owner, granted, released, fence) }
}

fn writes(owner: u64, granted: u64, released: u64, fence: u64) -> Record {
    Record { share: ALL, ..reads(owner, granted, released, fence) }
}

/// A hold of some of three permits.
fn takes(permits: u64, owner: u64, granted: u64, released: u64) -> Record {
    Record { share: permits, room: 3, ..hold(owner, granted, released, granted) }
}

#[test]
fn holds_that_there_is_room_for_do_not_overlap() {
    assert_eq!(overlaps(&[reads(1, 10, 50, 1), reads(2, 20, 60, 2)]).0.len(), 0);
    assert_eq!(overlaps(&[reads(1, 10, 50, 1), writes(2, 20, 60, 2)]).0.len(), 1);
    assert_eq!(overlaps(&[writes(1, 10, 50, 1), reads(2, 20, 60, 2)]).0.len(), 1);
    let three = [takes(1, 1, 10, 50), takes(1, 2, 20, 90), takes(1, 3, 30, 90)];
    assert_eq!(overlaps(&three).0.len(), 0);
    let fourth = |granted| [&three[..], &[takes(1, 4, granted, 95)]].concat();
    assert_eq!(overlaps(&fourth(40)).0.len(), 1);
    assert_eq!(overlaps(&fourth(50)).0.len(), 0);
    let (found, longest) = overlaps(&[takes(2, 1, 10, 30), takes(2, 2, 20, 90)]);
    assert_eq!((found.len(), longest), (1, 10));
}

#[test]
fn an_owner_that_gives_up_a_part_is_not_in_its_own_way() {
    let holds = [writes(1, 10, 20, 5), reads(1, 20, 40, 5), reads(2, 25, 50, 6)];
    assert_eq!(overlaps(&holds).0.len(), 0);
    assert_eq!(fence_regressions(&holds, false), 0);
    assert!(model::explains(&holds));
    let other_fence = [holds[0].clone(), reads(1, 20, 40, 3)];
    assert_eq!(fence_regressions(&other_fence, false), 1);
    assert!(!model::explains(&other_fence));
    let got_in = writes(3, 22, 24, 7);
    assert_eq!(overlaps(&[holds[0].clone(), holds[1].clone(), got_in]).0.len(), 1);
}

#[test]
fn fences_grow_from_one_to_the_next_that_could_not_be_beside_it() {
    let fences = |holds: &[Record]| fence_regressions(holds, false);
    // Readers may come and go in any order.
    assert_eq!(fences(&[reads(1, 10, 20, 7), reads(2, 30, 40, 6)]), 0);
    assert_eq!(fences(&[reads(1, 10, 20, 7), writes(2, 30, 40, 6)]), 1);
    assert_eq!(fences(&[writes(1, 10, 20, 7), reads(2, 30, 40, 6)]), 1);
    assert_eq!(
        fences(&[writes(1, 10, 20, 7), reads(2, 30, 40, 8), reads(3, 50, 60, 7)]),
        1,
        "a reader between them changes nothing"
    );
}

#[test]
fn a_key_is_stuck_while_there_is_room_for_all_that_wait() {
    let late = |hold: Record, called| Record { called, ..hold };
    let first = reads(1, 10, 100, 1);
    let second = late(reads(2, 80, 100, 2), 20);
    assert_eq!(longest_stuck(&[first.clone(), second.clone()], &[], 0, 200), 60);
    // The writer that waits as well may have been the first.
    let writer = late(writes(3, 101, 110, 3), 15);
    assert_eq!(longest_stuck(&[first.clone(), second.clone(), writer], &[], 0, 200), 1);
    // A writer that asks once and does not wait is in nobody's way.
    let once = Record { share: ALL, room: ALL, ended: 41, ..Record::call(9, 1, 4, 40, 1) };
    assert_eq!(longest_stuck(&[first.clone(), second.clone()], &[once], 0, 200), 60);
    // Another one that comes and is granted does not help it.
    let third = late(reads(3, 61, 100, 3), 60);
    let all = [first, third, second];
    assert_eq!(longest_stuck(&all, &[], 0, 200), 41 + 19);
}

#[test]
fn those_that_come_later_and_get_in_before_are_counted() {
    let called = |hold: Record, called| Record { called, ..hold };
    let holds = [
        called(takes(3, 1, 10, 20), 1),
        called(takes(1, 2, 21, 30), 6),
        called(takes(1, 3, 22, 30), 7),
        called(takes(3, 4, 31, 40), 5),
    ];
    assert!((overtakers(&holds) - 2.0 / 4.0).abs() < 1e-9);
    assert!(overtakers(&holds[..3]) < 1e-9);
}

#[test]
fn a_sample_of_a_shared_key_is_explained_by_who_fits() {
    let good =
        [reads(1, 10, 40, 1), reads(2, 20, 30, 2), writes(3, 50, 60, 3), reads(1, 70, 80, 4)];
    assert!(model::explains(&good));
    assert!(!model::explains(&[reads(1, 10, 40, 1), writes(3, 20, 30, 2)]));
    assert!(!model::explains(&[writes(1, 10, 20, 2), reads(2, 30, 40, 1)]));
    assert!(model::explains(&[takes(2, 1, 10, 50), takes(1, 2, 20, 60)]));
    assert!(!model::explains(&[takes(2, 1, 10, 50), takes(2, 2, 20, 60)]));
}

#[test]
fn the_witness_counts_those_inside_until_they_leave_or_their_leases_end() {
    let dir = tempfile::tempdir().unwrap();
    let soon = clock::now() + 10_000_000_000;
    let enters = |inside: &Inside, share: u64, valid_until: u64| {
        let mut record = Record { valid_until, ..takes(share, 1, 10, 20) };
        inside.enter(&mut record);
        record
    };
    let at = |process, thread| Inside::open(dir.path(), 1, process, thread);
    let (first, second) = (at(0, 1), at(0, 2));
    assert_eq!(enters(&first, 1, soon).inside, 1);
    let both = enters(&second, 1, soon);
    assert_eq!((both.inside, both.beside), (2, 0));
    let other = enters(&at(5, 1), 2, soon);
    assert_eq!((other.inside, other.beside), (4, 1));
    assert_eq!(crowded(&[both, other]), 1);
    first.leave();
    // Its lease ends while it is inside: a process that was killed.
    second.stay(&Record { valid_until: clock::now(), ..takes(1, 1, 10, 20) });
    let next = enters(&at(6, 1), 1, soon);
    assert_eq!((next.inside, next.beside), (3, 1));
    let over = enters(&at(7, 1), 1, clock::now());
    assert_eq!((over.inside, over.beside), (0, 0), "its own lease is over");
}
