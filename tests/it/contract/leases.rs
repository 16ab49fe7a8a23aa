//! What a store promises about a lease: who is granted it, how its end moves, and who releases it.

use std::time::Instant;

use distlock::testing::{Answer, Gone};

use super::{LEASE, Place, deadline, key};
use crate::helpers::{SOON, ms};
use crate::support::{eventually, within};

pub(super) fn nobody_has_it(place: &Place) {
    let a = key("a");
    assert_eq!(place.holder(&a), None);
    assert_eq!(place.release(&a, &place.token()), Gone::NotOurs);
    assert!(!place.store.force_release(&a, place.share, deadline()).unwrap());
}

pub(super) fn a_free_lock_is_granted(place: &Place) {
    let (a, mine) = (key("a"), place.token());
    let before = Instant::now();
    let Answer::Granted { asked_at, fences } = place.ask(&a, &mine, LEASE) else {
        panic!("refused")
    };
    assert!((before..=Instant::now()).contains(&asked_at), "validity counts from within the call");
    assert_eq!(fences, None);
    assert_eq!(place.holder(&a), Some(mine.text()));
    let remaining = place.remaining(&a).unwrap();
    assert!(remaining <= LEASE && remaining > LEASE - SOON, "{remaining:?}");
}

pub(super) fn a_held_lock_is_refused_with_the_rest_of_its_lease(place: &Place) {
    let (a, mine) = (key("a"), place.token());
    place.ask(&a, &mine, LEASE);
    let before = Instant::now();
    let Answer::Refused { asked_at, remaining: Some(remaining), .. } =
        place.ask(&a, &place.token(), LEASE * 2)
    else {
        panic!("granted")
    };
    assert!((before..=Instant::now()).contains(&asked_at));
    assert!(remaining <= LEASE && remaining > LEASE - SOON, "{remaining:?}");
    assert_eq!(place.holder(&a), Some(mine.text()));
}

pub(super) fn locks_of_different_names_have_nothing_to_do_with_each_other(place: &Place) {
    for name in ["x", "{x}", "x:", "{x}:", "x::", "a}b", "a{b", "ü\n \0"] {
        // The companions of that name are in another slot.
        if place.is_a_cluster && name == "a}b" {
            continue;
        }
        assert!(place.is_granted(&key(name), &place.token()), "{name:?}");
    }
}

pub(super) fn asking_again_with_the_same_token_makes_the_lease_whole(place: &Place) {
    let (a, mine) = (key("a"), place.token());
    place.ask(&a, &mine, LEASE / 2);
    assert!(place.remaining(&a).unwrap() <= LEASE / 2);
    if place.store.abilities().one_shot_tokens {
        return assert!(!place.is_granted(&a, &mine));
    }
    assert!(place.is_granted(&a, &mine));
    assert!(place.remaining(&a).unwrap() > LEASE - SOON);
    // One hold, not two: a single release frees it.
    assert_eq!(place.release(&a, &mine), Gone::Released);
    assert_eq!(place.holder(&a), None);
}

pub(super) fn the_same_token_is_refused_where_it_cannot_be_mine(place: &Place) {
    let (a, mine) = (key("a"), place.token());
    assert!(matches!(place.ask_with(&a, &mine, LEASE, 0, false), Answer::Granted { .. }));
    assert!(matches!(place.ask_with(&a, &mine, LEASE, 0, false), Answer::Refused { .. }));
}

pub(super) fn a_lease_runs_out_by_itself(place: &Place) {
    let (a, next) = (key("a"), place.token());
    // The nodes of a quorum have a fifth of a lease to grant it: on a loaded machine one attempt
    // may be too late.
    let granted = || matches!(place.ask(&a, &place.token(), ms(1000)), Answer::Granted { .. });
    eventually(SOON, granted);
    within(ms(700)..SOON, || eventually(SOON, || place.is_granted(&a, &next)));
}

pub(super) fn extend_compares_the_token(place: &Place) {
    let (a, mine) = (key("a"), place.token());
    place.ask(&a, &mine, LEASE);
    assert_eq!(place.extend(&[(&a, &place.token(), LEASE * 3)]), [false]);
    assert!(place.remaining(&a).unwrap() <= LEASE);
    assert_eq!(place.extend(&[(&a, &mine, LEASE * 3)]), [true]);
    place.lasts_longer_than(&a, LEASE * 2);
}

pub(super) fn extend_never_creates(place: &Place) {
    let (a, mine) = (key("a"), place.token());
    assert_eq!(place.extend(&[(&a, &mine, LEASE)]), [false]);
    place.ask(&a, &mine, LEASE);
    place.release(&a, &mine);
    assert_eq!(place.extend(&[(&a, &mine, LEASE)]), [false]);
    assert_eq!(place.holder(&a), None);
}

pub(super) fn extend_never_shortens(place: &Place) {
    let (a, mine) = (key("a"), place.token());
    place.ask(&a, &mine, LEASE);
    assert_eq!(place.extend(&[(&a, &mine, ms(100))]), [true]);
    assert!(place.remaining(&a).unwrap() > LEASE - SOON);
}

pub(super) fn extend_answers_for_each_lease_by_itself(place: &Place) {
    let names: Vec<_> = (0..300).map(|i| (key(&format!("bulk-{i}")), place.token())).collect();
    for (key, token) in &names {
        place.ask(key, token, LEASE);
    }
    let stranger = place.token();
    // Every third lease is somebody else's, or was deleted.
    let asked: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(i, (key, token))| match i % 6 {
            0 => (key, &stranger, LEASE * 3),
            3 => {
                place.release(key, token);
                (key, token, LEASE * 3)
            }
            _ => (key, token, LEASE * 3),
        })
        .collect();
    let expected: Vec<_> = (0..300).map(|i| i % 3 != 0).collect();
    assert_eq!(place.extend(&asked), expected);
    place.lasts_longer_than(&names[1].0, LEASE * 2);
    assert!(place.remaining(&names[0].0).unwrap() <= LEASE);
    assert!(place.extend(&[]).is_empty());
}

pub(super) fn an_extend_of_one_lease_never_shortens(place: &Place) {
    let (a, mine) = (key("a"), place.token());
    place.ask(&a, &mine, LEASE);
    assert!(place.extend_one(&a, &mine, LEASE * 3));
    place.lasts_longer_than(&a, LEASE * 2);
    assert!(place.extend_one(&a, &mine, LEASE));
    place.lasts_longer_than(&a, LEASE * 2);
}

pub(super) fn only_the_owner_extends_one_lease(place: &Place) {
    let (a, mine) = (key("a"), place.token());
    assert!(!place.extend_one(&a, &mine, LEASE));
    assert_eq!(place.holder(&a), None, "never creates");
    place.ask(&a, &mine, LEASE);
    assert!(!place.extend_one(&a, &place.token(), LEASE * 3));
    assert!(place.remaining(&a).unwrap() <= LEASE);
}

pub(super) fn release_by_an_old_owner_leaves_the_new_owner_alone(place: &Place) {
    let (a, old, new) = (key("a"), place.token(), place.token());
    place.ask(&a, &old, LEASE);
    assert_eq!(place.release(&a, &old), Gone::Released);
    assert_eq!(place.release(&a, &old), Gone::NotOurs);
    assert!(place.is_granted(&a, &new));
    assert_eq!(place.release(&a, &old), Gone::NotOurs);
    assert_eq!(place.holder(&a), Some(new.text()));
    assert_eq!(place.release(&a, &new), Gone::Released);
    assert_eq!(place.holder(&a), None);
}

pub(super) fn withdraw_may_be_repeated_and_removes_only_what_is_ours(place: &Place) {
    let (a, mine, other) = (key("a"), place.token(), place.token());
    assert_eq!(place.withdraw(&a, &mine), Gone::NotOurs);
    place.ask(&a, &mine, LEASE);
    assert_eq!(place.withdraw(&a, &mine), Gone::Released);
    assert_eq!(place.withdraw(&a, &mine), Gone::NotOurs);
    place.ask(&a, &other, LEASE);
    assert_eq!(place.withdraw(&a, &mine), Gone::NotOurs);
    assert_eq!(place.holder(&a), Some(other.text()));
}

pub(super) fn force_release_frees_it_whoever_has_it(place: &Place) {
    let (a, mine) = (key("a"), place.token());
    place.ask(&a, &mine, LEASE);
    assert!(place.store.force_release(&a, place.share, deadline()).unwrap());
    if place.store.abilities().one_shot_tokens {
        // A node of a quorum that is late may still have it.
        eventually(SOON, || !place.store.force_release(&a, place.share, deadline()).unwrap());
    }
    assert!(!place.store.force_release(&a, place.share, deadline()).unwrap());
    assert_eq!(place.holder(&a), None);
    assert_eq!(place.release(&a, &mine), Gone::NotOurs);
    assert!(place.is_granted(&a, &place.token()));
}

pub(super) fn fences_grow_with_every_token(place: &Place) {
    let fenced = place.options.clone().fenced();
    if let Err(error) = place.store.supports(&fenced) {
        assert!(error.is_unsupported());
        assert!(place.client.lock_with("a", fenced).unwrap_err().is_unsupported());
        return;
    }
    let a = key("a");
    let mut last = 0;
    for block in [1, 5, 17, 1, 1] {
        let mine = place.token();
        let fence = place.fence(&a, &mine, block);
        assert!(fence >= last + u64::from(block), "{fence} after {last}, with a block of {block}");
        last = fence;
        place.release(&a, &mine);
    }
    assert!(last < 1 << 53, "{last} is no exact number in Lua");
}

pub(super) fn a_repeated_attempt_reserves_fences_that_grow(place: &Place) {
    if place.store.supports(&place.options.clone().fenced()).is_err() {
        return fences_grow_with_every_token(place);
    }
    let (a, mine) = (key("a"), place.token());
    let first = place.fence(&a, &mine, 4);
    assert!(
        place.fence(&a, &mine, 4) >= first + 4,
        "nobody knows whether the first block was used"
    );
}
