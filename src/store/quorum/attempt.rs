//! One attempt at one node.

use std::time::{Duration, Instant};

use super::node_thread::{Member, again_if_stale};
use super::undo_log::{Name, UndoLog};
use crate::base::clock::Clock;
use crate::base::error::ErrorKind;
use crate::lease::store::{Answer, Ask, StoreError};

/// What an attempt asks a node for.
pub(super) struct Wanted {
    pub(super) lease: Duration,
    pub(super) contended: bool,
    /// See [`Ask::may_be_mine`].
    pub(super) may_be_mine: bool,
    pub(super) deadline: Instant,
}

/// Asks one node for a lease, on its thread, and notes what it may hold then.
///
/// "Already mine" is believed only of a node that may hold the token by our own undo log: one that
/// was never asked for it has it from elsewhere, as a replica has, or a second name of a server,
/// and its word would be the vote of another (R31).
pub(super) fn attempt(
    name: &Name,
    member: &Member,
    undo_log: &mut UndoLog,
    clock: &Clock,
    wanted: &Wanted,
) -> Result<Answer, StoreError> {
    let Wanted { lease, contended, may_be_mine, deadline } = *wanted;
    if undo_log.undoes(name) {
        // Only with a caller's own value. A late copy of the undoing would delete what the node
        // grants now, so it cannot vote.
        return Err(StoreError::not_sent(
            ErrorKind::Unavailable,
            "an earlier hold with the same value is still being undone",
        ));
    }
    if !undo_log.has_room() {
        return Err(StoreError::not_sent(
            ErrorKind::Unavailable,
            "too many leases are still to be undone on the node",
        ));
    }
    let (key, token) = (&name.0, &name.1);
    let known = may_be_mine && undo_log.may_hold(name);
    let answer = again_if_stale(|again| {
        if again {
            undo_log.attempt_unanswered(name, clock.now(), lease);
        }
        let may_be_mine = known || again;
        member.leases.try_acquire(&Ask {
            key,
            token,
            attempt: 1,
            lease,
            fences: 0,
            place: None,
            contended,
            may_be_mine,
            deadline,
        })
    });
    match &answer {
        Ok(Answer::Granted { .. }) => undo_log.holds(name, clock.now(), lease),
        Err(error) if error.may_have_run => undo_log.attempt_unanswered(name, clock.now(), lease),
        _ => {}
    }
    answer
}

/// A lease that may yet be shortened there by a late command cannot be counted on for the whole
/// length.
pub(super) fn still_shortened(name: &Name, undo_log: &UndoLog) -> Result<(), StoreError> {
    match undo_log.may_be_shortened(name) {
        true => Err(StoreError::not_sent(
            ErrorKind::Unavailable,
            "an earlier end of the lease has not been answered there",
        )),
        false => Ok(()),
    }
}
