//! The checkers of tests/faults: each reports nothing for a good history, and finds what is wrong
//! in a bad one.

#[allow(dead_code)]
#[path = "../faults/check.rs"]
mod check;
#[allow(dead_code)]
#[path = "../faults/clock.rs"]
mod clock;
#[allow(dead_code)]
#[path = "../faults/history.rs"]
mod history;
#[allow(dead_code)]
#[path = "../faults/model.rs"]
mod model;
#[allow(dead_code)]
#[path = "../faults/problems.rs"]
mod problems;
#[allow(dead_code)]
#[path = "../faults/progress.rs"]
mod progress;
mod shares;
#[allow(dead_code)]
#[path = "../faults/substance.rs"]
mod substance;
#[allow(dead_code)]
#[path = "../faults/witness.rs"]
mod witness;

use check::{
    false_releases, fence_regressions, is_created_again, longest_unnoticed, lost_updates, orphans,
    overlaps, stale_writes,
};
use history::{Outcome, Record};
use problems::{Class, is_open, reasons, remark, settle, verdict, verdict_of, word};
use progress::{idle, longest_run, longest_stuck, recovery, timing};
use substance::{Substance, windows};
use witness::Offer;

/// A hold of key 1 that was asked for at once, valid until 1000 after its grant, and released in
/// time.
fn hold(owner: u64, granted: u64, released: u64, fence: u64) -> Record {
    let call = Record::call(fence, 1, owner, granted - 1, 0);
    let (valid_until, ended, outcome) = (granted + 1000, released + 1, Outcome::Ok);
    Record { granted, valid_until, last_valid: released, released, ended, fence, outcome, ..call }
}

fn offer(hold: &Record, accepted: bool) -> Offer {
    Offer {
        at: 0,
        key: hold.key,
        fence: hold.fence,
        owner: hold.owner,
        number: hold.number,
        accepted,
    }
}

#[test]
fn holds_one_after_another_do_not_overlap() {
    let holds = [hold(1, 10, 20, 1), hold(2, 20, 30, 2), hold(1, 31, 40, 3)];
    assert_eq!(overlaps(&holds).0.len(), 0);
}

#[test]
fn two_owners_at_a_time_are_an_overlap() {
    let (found, longest) = overlaps(&[hold(1, 10, 50, 1), hold(2, 20, 30, 2)]);
    assert_eq!((found.len(), longest), (1, 10));
}

#[test]
fn a_long_hold_overlaps_with_more_than_its_neighbour() {
    let holds = [hold(1, 10, 100, 1), hold(1, 20, 30, 2), hold(2, 50, 60, 3)];
    assert_eq!(overlaps(&holds).0.len(), 1);
}

#[test]
fn other_keys_and_grants_after_the_validity_are_no_overlap() {
    let elsewhere = Record { key: 2, ..hold(2, 20, 30, 2) };
    let lost = Record { last_valid: 15, valid_until: 18, released: 90, ..hold(1, 10, 90, 1) };
    assert_eq!(overlaps(&[lost, elsewhere, hold(3, 20, 30, 3)]).0.len(), 0);
}

#[test]
fn a_hold_after_the_end_of_the_run_is_not_counted_as_a_gap_before_it() {
    let (first, later) = (hold(1, 10, 20, 1), Record { called: 15, ..hold(2, 60, 70, 2) });
    assert_eq!(longest_stuck(&[first.clone(), later.clone()], &[], 5, 50), 29);
    assert_eq!(
        longest_stuck(&[first, later, Record { called: 65, ..hold(1, 80, 90, 3) }], &[], 5, 50),
        29
    );
}

#[test]
fn an_overlap_lasts_until_one_holder_learns_of_it() {
    let told = Record { last_valid: 30, ..hold(1, 10, 600, 1) };
    let (found, longest) = overlaps(&[told, hold(2, 20, 500, 2)]);
    assert_eq!((found.len(), longest), (1, 10));
}

#[test]
fn a_killed_holder_keeps_its_lease() {
    let killed = Record {
        released: 0,
        ended: 0,
        last_valid: 10,
        outcome: Outcome::Open,
        ..hold(1, 10, 20, 1)
    };
    assert_eq!(overlaps(&[killed.clone(), hold(2, 500, 600, 2)]).0.len(), 1);
    assert_eq!(overlaps(&[killed, hold(2, 1010, 1100, 2)]).0.len(), 0);
}

#[test]
fn an_update_is_lost_when_two_valid_holders_wrote_the_same_value() {
    let wrote = |owner, granted, value| Record {
        wrote: value,
        ..hold(owner, granted, granted + 5, granted)
    };
    assert_eq!(lost_updates(&[wrote(1, 10, 1), wrote(2, 20, 2), wrote(1, 30, 3)]), 0);
    assert_eq!(lost_updates(&[wrote(1, 10, 1), wrote(2, 20, 2), wrote(1, 30, 2)]), 1);
    let late = Record { tainted: 25, ..hold(3, 5, 6, 5) };
    assert_eq!(lost_updates(&[late, wrote(1, 10, 1), wrote(2, 20, 2), wrote(1, 30, 2)]), 0);
}

#[test]
fn fences_must_grow_from_hold_to_hold() {
    assert_eq!(fence_regressions(&[hold(1, 10, 20, 5), hold(2, 30, 40, 6)], false), 0);
    assert_eq!(fence_regressions(&[hold(1, 10, 20, 5), hold(2, 30, 40, 5)], false), 1);
    assert_eq!(
        fence_regressions(&[hold(1, 10, 20, 9), hold(2, 30, 40, 10), hold(1, 50, 60, 3)], true),
        1
    );
}

#[test]
fn a_grant_recorded_after_its_lease_ran_out_has_no_place_in_the_order() {
    let late = Record { valid_until: 25, last_valid: 20, ..hold(1, 60, 70, 1) };
    assert_eq!(fence_regressions(&[hold(2, 30, 40, 2), late.clone()], false), 0);
    assert_eq!(
        stale_writes(
            &[hold(2, 30, 40, 2), late.clone()],
            &[offer(&hold(2, 30, 40, 2), true), offer(&late, true)]
        ),
        (0, 0)
    );
}

#[test]
fn fences_of_overlapping_holds_have_no_order() {
    assert_eq!(
        fence_regressions(&[hold(1, 10, 50, 6), hold(2, 20, 30, 5), hold(3, 60, 70, 7)], false),
        0
    );
}

#[test]
fn a_lease_that_was_taken_away_may_be_passed_on_until_that_is_noticed() {
    let holds = [hold(1, 10, 20, 5), hold(10_001, 30, 40, 60), hold(2, 50, 60, 6)];
    assert_eq!(fence_regressions(&holds, false), 1);
    assert_eq!(fence_regressions(&holds, true), 0);
}

#[test]
fn a_resource_that_takes_an_old_write_after_a_newer_one_is_found() {
    let (old, new) = (hold(1, 10, 20, 1), hold(2, 30, 40, 2));
    let holds = [old.clone(), new.clone()];
    assert_eq!(stale_writes(&holds, &[offer(&old, true), offer(&new, true)]), (0, 0));
    assert_eq!(stale_writes(&holds, &[offer(&new, true), offer(&old, false)]), (1, 0));
    assert_eq!(stale_writes(&holds, &[offer(&new, true), offer(&old, true)]), (1, 1));
}

#[test]
fn a_key_is_stuck_while_somebody_waits_and_nobody_holds() {
    let waiting = Record { called: 20, ..hold(2, 60, 70, 2) };
    let holds = [hold(1, 10, 20, 1), waiting];
    assert_eq!(longest_stuck(&holds, &[], 0, 100), 39);
    let nobody_asked = Record { called: 59, ..holds[1].clone() };
    assert_eq!(longest_stuck(&[holds[0].clone(), nobody_asked], &[], 0, 100), 1);
    let refused = Record { ended: 95, ..Record::call(9, 1, 3, 75, 1) };
    assert_eq!(longest_stuck(&[hold(1, 10, 20, 1)], &[refused], 0, 100), 20);
}

#[test]
fn a_token_that_no_live_process_knows_is_an_orphan() {
    let holds = [hold(1, 100, 200, 1), hold(2, 300, 400, 2)];
    // A hold ends when its unlock is answered, which is one after its call.
    assert_eq!(orphans(&[(1, 110, 390)], &holds, (0, 1000), 10), [79]);
    assert_eq!(orphans(&[(1, 95, 210), (1, 295, 405)], &holds, (0, 1000), 10), [0_u64; 0]);
    assert_eq!(
        orphans(&[(2, 100, 200)], &holds, (150, 1000), 10),
        [50],
        "another key's holder is none of its own"
    );
}

#[test]
fn an_unlock_that_says_ok_after_another_grant_is_found() {
    let lost = Record { outcome: Outcome::Lost, ..hold(1, 10, 50, 1) };
    assert_eq!(false_releases(&[lost, hold(2, 20, 30, 2), hold(1, 60, 70, 3)]).len(), 0);
    assert_eq!(false_releases(&[hold(1, 10, 50, 1), hold(20_001, 20, 30, 3)]).len(), 1);
    assert_eq!(
        false_releases(&[hold(1, 10, 50, 9), hold(20_001, 20, 30, 3)]).len(),
        0,
        "that one's lease is older"
    );
    let passed_on = hold(2, 55, 60, 2);
    assert_eq!(
        false_releases(&[hold(1, 10, 50, 1), hold(20_001, 20, 30, 3), passed_on]).len(),
        0,
        "it did not ask the server"
    );
}

#[test]
fn time_without_grants_is_idle_unless_no_grant_was_possible() {
    let holds = [hold(1, 10, 20, 1), hold(1, 30, 35, 2), hold(1, 190, 195, 3)];
    assert_eq!(idle(&holds, (0, 200), &[], 50), (2, 4));
    assert_eq!(idle(&holds, (0, 200), &[(60, 100)], 50), (1, 3));
}

#[test]
fn a_process_that_keeps_a_key_away_from_another_is_found() {
    let run = |from: u64| (from..from + 5).map(|at| hold(10_001, at * 10, at * 10 + 5, at));
    let waited = |since: u64| Record { called: since, ..hold(20_001, 500, 510, 50) };
    assert_eq!(longest_run(&run(10).chain([waited(0)]).collect::<Vec<_>>()), 5);
    assert_eq!(longest_run(&run(10).chain([waited(125)]).collect::<Vec<_>>()), 2);
    assert_eq!(longest_run(&run(10).chain(run(20)).collect::<Vec<_>>()), 0, "nobody else wants it");
}

#[test]
fn timed_calls_are_neither_late_nor_early() {
    let call = |ended, outcome| Record { ended, outcome, ..Record::call(1, 1, 1, 100, 51) };
    assert_eq!(timing(&[], &[call(155, Outcome::Refused)], 10), (0, 0, 0));
    assert_eq!(timing(&[], &[call(170, Outcome::Unavailable)], 10), (1, 20, 0));
    assert_eq!(timing(&[], &[call(120, Outcome::Refused)], 10), (0, 0, 1));
    assert_eq!(timing(&[], &[call(120, Outcome::Unavailable)], 10), (0, 0, 0));
}

#[test]
fn recovery_is_when_the_former_rate_is_reached_again() {
    let holds: Vec<Record> =
        (10..50).chain(80..100).map(|at| hold(1, at * 10, at * 10 + 5, at)).collect();
    let recovered = recovery(&holds, (100, 500), (600, 1000), 0.8, 50).unwrap();
    assert!((200..=260).contains(&recovered), "{recovered}");
    assert_eq!(recovery(&holds[..40], (100, 500), (600, 1000), 0.8, 50), None);
}

#[test]
fn a_holder_that_believes_for_too_long_that_it_holds_is_found() {
    let believes = Record { last_valid: 90, ..hold(1, 10, 95, 1) };
    assert_eq!(longest_unnoticed(std::slice::from_ref(&believes), &[(1, 30)]), 60);
    assert_eq!(longest_unnoticed(std::slice::from_ref(&believes), &[(2, 30), (1, 5), (1, 92)]), 0);
}

#[test]
fn a_deleted_lock_comes_back_only_by_an_acquisition_that_was_under_way() {
    let (deleted, seen) = (100, 200);
    let again =
        |holds: &[Record], calls: &[Record]| is_created_again(holds, calls, 1, (deleted, seen));
    let granted_at = |called: u64, granted: u64| Record { called, ..hold(1, granted, 300, 1) };
    assert!(again(&[], &[]));
    assert!(again(&[granted_at(40, 50)], &[]), "it was held: its renewal has created it");
    assert!(again(&[granted_at(110, 150)], &[]), "an acquisition of its own, with its own token");
    assert!(again(&[granted_at(40, 250)], &[]), "of somebody who came later");
    assert!(!again(&[granted_at(40, 150)], &[]));
    let call = |outcome| Record { ended: 150, outcome, ..Record::call(1, 1, 1, 40, 0) };
    assert!(again(&[], &[call(Outcome::Refused)]));
    assert!(!again(&[], &[call(Outcome::Unavailable)]));
    assert!(again(&[], &[Record { ended: 90, ..call(Outcome::Unavailable) }]));
}

#[test]
fn the_model_explains_a_good_history() {
    let lost =
        Record { outcome: Outcome::Lost, last_valid: 35, valid_until: 40, ..hold(2, 30, 60, 2) };
    assert!(model::explains(&[hold(1, 10, 20, 1), lost, hold(3, 50, 55, 3), hold(1, 70, 80, 4)]));
}

#[test]
fn the_model_does_not_explain_two_holders_or_an_old_fence() {
    assert!(!model::explains(&[hold(1, 10, 50, 1), hold(2, 20, 30, 2)]));
    assert!(!model::explains(&[hold(1, 10, 20, 2), hold(2, 30, 40, 1)]));
    let lost = Record {
        outcome: Outcome::Lost,
        last_valid: 35,
        valid_until: 60,
        released: 70,
        ended: 71,
        ..hold(2, 30, 70, 1)
    };
    assert!(!model::explains(&[lost, hold(3, 50, 55, 2)]));
}

fn problem(class: Class) -> (Class, String) {
    (class, format!("{class:?}"))
}

#[test]
fn a_verdict_is_that_of_the_worst_problem() {
    let of = |classes: &[Class]| {
        word(verdict(&classes.iter().map(|class| problem(*class)).collect::<Vec<_>>()))
    };
    assert_eq!(of(&[]), "green");
    assert_eq!(of(&[Class::Little, Class::Little]), "inconclusive");
    assert_eq!(of(&[Class::Late, Class::Little]), "late");
    assert_eq!(of(&[Class::Little, Class::Red, Class::Late]), "red");
}

/// A row's line with this verdict, and with each of these problems among its remarks.
fn line(verdict: Option<Class>, problems: &[Class]) -> String {
    let remarks: Vec<String> = std::iter::once("21 lost".to_owned())
        .chain(problems.iter().map(|class| remark(&problem(*class))))
        .collect();
    format!("| 7 | N | a fault | 1 | {} | {} |", remarks.join("; "), word(verdict))
}

#[test]
fn a_line_tells_its_verdict_and_the_reasons() {
    let late = line(Some(Class::Late), &[Class::Late, Class::Little]);
    assert_eq!(verdict_of(&late), Some(Class::Late));
    assert_eq!(reasons(&late), "late: Late; inconclusive: Little");
    assert_eq!(verdict_of(&line(None, &[])), None);
    assert_eq!(verdict_of("| 7 | N | a line that was cut"), Some(Class::Red));
    assert_eq!(reasons(&line(None, &[])), "");
}

/// What comes of a row whose tries end like this: its last line, how the tries ended, and by how
/// many seeds the repetitions went on.
fn settled(ends: &[Option<Class>]) -> (String, String, Vec<u64>) {
    let mut tries = ends.iter().map(|end| line(*end, &Vec::from_iter(*end)));
    let (first, mut seeds) = (tries.next().unwrap(), Vec::new());
    let (last, how) = settle(first, |before, seed| {
        assert!(is_open(before));
        seeds.push(seed);
        tries.next().expect("a row that is settled does not run again")
    });
    assert_eq!(tries.next(), None, "it was to run again");
    (last, how, seeds)
}

#[test]
fn a_row_that_was_late_or_showed_too_little_is_green_when_a_repetition_is() {
    let (last, how, seeds) = settled(&[Some(Class::Late), None]);
    assert_eq!((last, how.as_str(), seeds), (line(None, &[]), "late, green", vec![0]));
    let (last, how, seeds) = settled(&[Some(Class::Little), Some(Class::Late), None]);
    assert_eq!(
        (last, how.as_str(), seeds),
        (line(None, &[]), "inconclusive, late, green", vec![0, 1])
    );
}

#[test]
fn a_row_that_is_never_green_is_red() {
    let (last, how, _) = settled(&[Some(Class::Late); 3]);
    assert_eq!(how, "late three times");
    assert_eq!(
        last, "| 7 | N | a fault | 1 | 21 lost; late: Late; late three times | red |",
        "what the last try found is still there"
    );
    let (last, how, _) = settled(&[Some(Class::Little), Some(Class::Late), Some(Class::Little)]);
    assert_eq!(
        (verdict_of(&last), how.as_str()),
        (Some(Class::Red), "inconclusive, late, inconclusive")
    );
}

#[test]
fn a_broken_promise_is_red_at_once_and_never_tried_again() {
    assert!(!is_open(&line(Some(Class::Red), &[Class::Red, Class::Late])));
    let (last, how, seeds) = settled(&[Some(Class::Red)]);
    assert_eq!((verdict_of(&last), how.as_str(), seeds), (Some(Class::Red), "red", vec![]));
    let (last, how, seeds) = settled(&[Some(Class::Late), Some(Class::Red)]);
    assert_eq!((verdict_of(&last), how.as_str(), seeds), (Some(Class::Red), "late, red", vec![0]));
}

#[test]
fn a_row_has_shown_what_its_history_has_under_the_fault() {
    let lost = Record { outcome: Outcome::Lost, renewed: 3, ..hold(1, 10, 20, 1) };
    let waited = Record { called: 26, ..hold(1, 30, 35, 3) };
    let holds = [lost, hold(1, 21, 25, 2), waited, hold(1, 90, 95, 4)];
    let under = windows(&[(5, 40), (20, 40)], &[(28, 33)]);
    let shown = Substance::of(2, (&holds, &[]), (20, 100), &under);
    assert_eq!((shown.faults, shown.holds, shown.under_fault), (2, 3, 2));
    assert_eq!((shown.renewals, shown.losses, shown.waits), (3, 1, 1));
    let least = Substance { under_fault: 3, waits: 1, ..shown };
    assert_eq!(least.missing(&shown), ["only 2 of 3 holds under the fault"]);
}
