//! Unit tests of tallies: what a majority, a minority and silence amount to.

use std::time::Instant;

use super::*;
use crate::lease::token::Token;

/// What this node said; `Ok(None)`: nothing yet.
fn of<T>(tally: &Tally<T>, node: usize) -> Result<Option<&T>, &StoreError> {
    tally.answers.get(node).and_then(Option::as_ref).map(Result::as_ref).transpose()
}

fn wrong_type() -> StoreError {
    StoreError::not_sent(ErrorKind::WrongType, "foreign data").permanent()
}

#[test]
fn two_majorities_always_share_a_node() {
    for nodes in 1..12 {
        let tally = Tally::<()>::new(nodes);
        assert!(2 * tally.majority() > nodes);
        assert_eq!(tally.majority() + tally.veto(), nodes + 1);
    }
}

#[test]
fn refusals_for_good_are_permanent_only_when_no_majority_is_left() {
    for refusing in 1..=3 {
        let mut tally = Tally::new(5);
        (0..5 - refusing).for_each(|node| tally.note(node, Ok(())));
        (5 - refusing..5).for_each(|node| tally.note(node, Err(wrong_type())));
        let failure = tally.failure();
        assert_eq!(failure.permanent, refusing == 3);
        assert_eq!(
            failure.kind,
            if refusing == 3 { ErrorKind::WrongType } else { ErrorKind::Unavailable }
        );
    }
}

#[test]
fn causes_are_told_by_node_and_a_missing_reply_may_have_run() {
    let mut tally = Tally::<()>::new(3);
    tally.note(1, Err(wrong_type()));
    tally.note(
        2,
        Err(StoreError::not_sent(ErrorKind::Unavailable, "down").because("connection refused")),
    );
    let failure = tally.failure();
    assert!(failure.may_have_run);
    let causes = failure.source.map(|source| source.to_string());
    assert_eq!(
        causes.as_deref(),
        Some("node 1: no answer so far; node 2: foreign data; node 3: down (connection refused)")
    );
}

#[test]
fn answers_failures_and_silence_are_counted_apart() {
    let mut tally = Tally::new(5);
    tally.note(0, Ok(7));
    tally.note(1, Ok(8));
    tally.note(2, Err(wrong_type()));
    tally.note(5, Ok(9));
    assert_eq!((tally.pending(), tally.silent()), (2, 3));
    assert_eq!(tally.said().copied().collect::<Vec<_>>(), [7, 8]);
    assert_eq!(tally.count(|said| *said == 7), 1);
    assert!(matches!(of(&tally, 1), Ok(Some(8))));
    assert!(matches!(of(&tally, 2), Err(error) if error.kind == ErrorKind::WrongType));
    assert!(matches!(of(&tally, 3), Ok(None)) && matches!(of(&tally, 9), Ok(None)));
}

#[test]
fn a_question_about_some_leases_has_a_tally_for_each() {
    let down = || StoreError::not_sent(ErrorKind::Unavailable, "down").maybe_run();
    let mut tally = Tally::new(3);
    tally.note(0, Ok(vec![Ok(true), Err(wrong_type())]));
    tally.note(1, Err(down().permanent()));
    assert_eq!(tally.count_of(0, |yes| *yes), 1);
    assert_eq!(tally.count_of(0, |yes| !*yes), 0);
    assert_eq!(tally.count_of(1, |_| true), 0);
    let each = tally.each(2);
    assert_eq!(each.len(), 2);
    assert!(matches!(of(&each[0], 0), Ok(Some(true))));
    assert!(matches!(of(&each[1], 0), Err(error) if error.kind == ErrorKind::WrongType));
    for lease in &each {
        let error = of(lease, 1).expect_err("the node failed");
        assert_eq!((error.kind, error.message.as_ref()), (ErrorKind::Unavailable, "down"));
        assert!(error.may_have_run && error.permanent);
        assert_eq!(lease.pending(), 1);
    }
}

#[test]
fn a_failure_may_have_run_where_a_node_said_so() {
    let failed = |error: StoreError| {
        let mut tally = Tally::<()>::new(1);
        tally.note(0, Err(error));
        tally.failure()
    };
    assert!(!failed(wrong_type()).may_have_run);
    assert!(failed(wrong_type().maybe_run()).may_have_run);
    let mut answered = Tally::new(3);
    answered.note(0, Ok(()));
    (1..3).for_each(|node| answered.note(node, Err(wrong_type())));
    let failure = answered.failure();
    assert!(failure.may_have_run, "the node that answered has it");
    let server = StoreError::not_sent(ErrorKind::Server, "no").permanent();
    let mut mixed = Tally::<()>::new(3);
    mixed.note(0, Err(server));
    (1..3).for_each(|node| mixed.note(node, Err(wrong_type())));
    assert_eq!(mixed.failure().kind, ErrorKind::WrongType, "what most of them said");
}

#[test]
fn votes_are_final_once_the_missing_answers_cannot_change_them() {
    let tally = |said: usize| {
        let mut tally = Tally::new(5);
        (0..said).for_each(|node| tally.note(node, Ok(())));
        tally
    };
    assert_eq!(tally(3).yes_or_no((3, 0)), Some(true));
    assert_eq!(tally(3).yes_or_no((0, 3)), Some(false));
    assert_eq!(tally(4).yes_or_no((2, 2)), None);
    assert!(tally(3).is_final((3, 0)) && tally(3).is_final((0, 3)));
    assert!(!tally(4).is_final((2, 1)) && !tally(4).is_final((1, 2)));
    // Three have failed: neither can come any more.
    assert!(tally(4).is_final((1, 0)) && tally(4).is_final((0, 1)) && tally(5).is_final((2, 2)));
    assert!(!tally(2).is_final((0, 0)));
}

fn held(token: &str, seconds: Option<u64>) -> Option<Held> {
    Some(Held { token: Token::new(token), remaining: seconds.map(Duration::from_secs) })
}

/// Who holds the lock, and for how many seconds, by what these of five nodes say.
fn holder_of(said: &[Option<Held>]) -> Result<Option<(String, Option<u64>)>, Undecided> {
    let mut tally = Tally::new(5);
    for (node, said) in said.iter().enumerate() {
        let said = said.as_ref().map(|held| Held { token: held.token.clone(), ..*held });
        tally.note(node, Ok(said));
    }
    let holder = holder(&tally)?;
    Ok(holder.map(|held| {
        let remaining = held.remaining.map(|left| left.as_secs());
        (held.token.text(), remaining)
    }))
}

#[test]
fn a_majority_names_the_holder_for_as_long_as_a_majority_has_it() {
    let (a, b) = (|left| held("a", Some(left)), held("b", Some(99)));
    let all = [a(10), a(30), a(20), b, None];
    assert_eq!(holder_of(&all), Ok(Some(("a".into(), Some(10)))));
    let more = [a(10), a(30), a(20), a(40), None];
    assert_eq!(holder_of(&more), Ok(Some(("a".into(), Some(20)))));
    let for_ever = [held("a", None), a(30), held("a", None), a(5)];
    assert_eq!(holder_of(&for_ever), Ok(Some(("a".into(), Some(30)))));
    let only = [held("a", None), held("a", None), held("a", None)];
    assert_eq!(holder_of(&only), Ok(Some(("a".into(), None))));
}

#[test]
fn nobody_holds_it_only_if_the_silent_nodes_could_not_change_that() {
    let a = || held("a", Some(10));
    assert_eq!(holder_of(&[None, None, None]), Ok(None));
    assert_eq!(holder_of(&[None, None]), Err(Undecided));
    assert_eq!(holder_of(&[a(), None, None, None]), Ok(None));
    assert_eq!(holder_of(&[a(), None, None]), Err(Undecided));
    assert_eq!(holder_of(&[a(), a(), held("b", Some(9)), None]), Err(Undecided));
    assert_eq!(holder_of(&[a(), a(), held("b", Some(9)), None, None]), Ok(None));
}

#[test]
fn a_lease_is_gone_once_a_majority_has_answered_and_was_released_if_one_node_had_it() {
    let down = || StoreError::not_sent(ErrorKind::Unavailable, "down");
    let tally = |said: &[Option<Gone>]| {
        let mut tally = Tally::new(5);
        said.iter().enumerate().for_each(|(node, said)| tally.note(node, Ok(*said)));
        tally.note(4, Err(down()));
        tally
    };
    let (here, not_here) = (Some(Gone::Released), Some(Gone::NotOurs));
    assert_eq!(gone(tally(&[not_here, here, None])).expect("a majority"), Gone::Released);
    assert_eq!(gone(tally(&[not_here, not_here, None])).expect("a majority"), Gone::NotOurs);
    assert!(gone(tally(&[here, here])).is_err());
    let mut of_two = Tally::new(3);
    of_two.note(0, Ok(vec![Ok(true), Err(down())]));
    of_two.note(1, Ok(vec![Ok(false), Ok(true)]));
    assert!(of_two.has_majority(0) && !of_two.has_majority(1));
}

#[test]
fn a_majority_is_free_once_enough_of_the_leases_in_the_way_have_run_out() {
    let asked_at = Instant::now();
    let refused = |seconds: Option<u64>| {
        let remaining = seconds.map(Duration::from_secs);
        Answer::Refused { asked_at, remaining, heard: false }
    };
    let grant = || Answer::Granted { asked_at, fences: None };
    assert!(granted(&grant()) && !granted(&refused(None)));
    let free_in = |said: Vec<Answer>| {
        let mut tally = Tally::new(5);
        said.into_iter().enumerate().for_each(|(node, said)| tally.note(node, Ok(said)));
        remaining(&tally).map(|left| left.as_secs())
    };
    let all = [Some(30), Some(10), Some(20), Some(40), Some(50)];
    assert_eq!(free_in(all.map(refused).into()), Some(30));
    assert_eq!(free_in(vec![grant(), refused(Some(30)), refused(Some(10)), grant()]), Some(10));
    assert_eq!(free_in(vec![grant(), refused(None), refused(Some(9))]), None);
    assert_eq!(free_in(vec![refused(Some(9))]), None, "too few have answered");
    assert_eq!(free_in(vec![grant(), grant(), grant()]), None, "nothing is in the way");
}

#[test]
fn a_failure_is_stale_if_one_node_said_so() {
    let down = || StoreError::not_sent(ErrorKind::Unavailable, "down");
    let failed = |stale: [bool; 2]| {
        let mut tally = Tally::<()>::new(3);
        for (node, stale) in stale.into_iter().enumerate() {
            tally.note(node, Err(StoreError { stale, ..down() }));
        }
        tally.failure().stale
    };
    assert!(failed([true, false]) && failed([false, true]));
    assert!(!failed([false, false]));
}
