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

/// Asks one node for a lease, on its thread, and notes what the node may hold then.
///
/// "Already mine" is believed only if the node may hold the token by our own undo log. A node that
/// was never asked for the token has it from elsewhere, because it is a replica or a second name of
/// a server: its vote would be another node's (R31).
pub(super) fn attempt(
    name: &Name,
    member: &Member,
    undo_log: &mut UndoLog,
    clock: &Clock,
    wanted: &Wanted,
) -> Result<Answer, StoreError> {
    let Wanted { lease, contended, may_be_mine, deadline } = *wanted;
    if undo_log.undoes(name) {
        // This happens only with a caller's own value. A late copy of the undoing would delete what
        // the node grants now, so the node cannot vote.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::key::Key;
    use crate::lease::store::Gone;
    use crate::lease::token::Token;
    use crate::store::memory::Memory;

    const LEASE: Duration = Duration::from_secs(30);

    fn name(number: u32) -> Name {
        (Key::new(number.to_string()), Token::new("t"))
    }

    #[test]
    fn a_node_that_has_too_much_to_undo_is_asked_for_nothing_more_until_some_is_undone() {
        let clock = Clock::default();
        let member = Member { leases: Memory::open("", clock.clone()), server: None };
        let (mut undo_log, now) = (UndoLog::default(), clock.now());
        let is_not_undone = |undo_log: &mut UndoLog, number| {
            undo_log.holds(&name(number), now, LEASE);
            let failed = Err(StoreError::not_sent(ErrorKind::Unavailable, "refused"));
            undo_log.undone(&name(number), &failed, now);
        };
        let ask = |undo_log: &mut UndoLog| {
            let deadline = clock.now() + LEASE;
            let (contended, may_be_mine) = (false, true);
            let wanted = Wanted { lease: LEASE, contended, may_be_mine, deadline };
            attempt(&name(u32::MAX), &member, undo_log, &clock, &wanted)
        };
        let mut count = 0;
        while undo_log.has_room() && count < 100_000 {
            is_not_undone(&mut undo_log, count);
            count += 1;
        }
        let refused = ask(&mut undo_log).expect_err("no room");
        assert_eq!(refused.message, "too many leases are still to be undone on the node");
        assert!(!refused.may_have_run && !undo_log.may_hold(&name(u32::MAX)));
        // What the node held before has its entry all the same, and no entry is dropped for it.
        is_not_undone(&mut undo_log, count);
        assert!((0..=count).all(|number| undo_log.undoes(&name(number))));
        for number in [0, 1] {
            undo_log.undone(&name(number), &Ok(Gone::NotOurs), now);
        }
        assert!(matches!(ask(&mut undo_log), Ok(Answer::Granted { .. })));
    }
}
