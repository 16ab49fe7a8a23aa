//! The ledger of a node's thread: what its node may still have or do of ours, and has to be undone once it answers again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::base::clock::Clock;
use crate::lease::key::Key;
use crate::lease::store::{Gone, LeaseStore, StoreError, Withdraw};
use crate::lease::token::Token;

/// For how long after the node's first answer an undoing is repeated where a copy of an unanswered command may still arrive.
const SETTLE: Duration = Duration::from_secs(10);
/// The pauses between two tries, doubled from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(1000));
/// Of each kind at most so many are remembered; the oldest are forgotten first, and end with their leases.
const MOST: usize = 1024;

/// What a node owes us, or may yet do. Only its own thread sees it.
#[derive(Default)]
pub(super) struct Ledger {
    /// Attempts without an answer: copies of them may still arrive, also after they were undone (R5).
    unanswered: VecDeque<Name>,
    /// Leases whose end was moved to an earlier one, without an answer: a copy may still do it.
    shortened: VecDeque<Name>,
    debts: VecDeque<Debt>,
}

/// A lock's lease.
type Name = (Key, Token);

/// A lease to be undone on the node.
struct Debt {
    name: Name,
    next: Instant,
    pause: Duration,
    /// Whether a copy of an earlier command may still arrive.
    in_flight: bool,
    answered_at: Option<Instant>,
}

impl Debt {
    fn withdraw(&self) -> Withdraw<'_> {
        Withdraw::of(&self.name.0, &self.name.1)
    }
}

impl Ledger {
    /// An attempt had no answer.
    pub(super) fn attempt_unanswered(&mut self, key: &Key, token: &Token) {
        remember(&mut self.unanswered, key, token);
    }

    /// A move of a lease's end to an earlier one had no answer.
    pub(super) fn shortening_unanswered(&mut self, key: &Key, token: &Token) {
        remember(&mut self.shortened, key, token);
    }

    /// Whether the node's word that it extended the lease can be believed to last.
    pub(super) fn may_be_shortened(&self, key: &Key, token: &Token) -> bool {
        self.shortened.iter().any(|name| is(name, key, token))
    }

    /// Whether the lease is being undone. What the node grants under the same token meanwhile may be deleted by a late copy of that.
    pub(super) fn undoes(&self, key: &Key, token: &Token) -> bool {
        self.debts.iter().any(|debt| is(&debt.name, key, token))
    }

    /// The node was asked to undo a lease. Unless that is certain to be the end of it, it is tried again.
    pub(super) fn undone(&mut self, key: &Key, token: &Token, answer: &Result<Gone, StoreError>, now: Instant) {
        let before = self.unanswered.len();
        self.unanswered.retain(|name| !is(name, key, token));
        self.shortened.retain(|name| !is(name, key, token));
        let in_flight = before != self.unanswered.len() || answer.as_ref().is_err_and(|error| error.may_have_run);
        if let Some(debt) = self.debts.iter_mut().find(|debt| is(&debt.name, key, token)) {
            debt.in_flight |= in_flight;
            if answer.is_ok() {
                debt.answered_at.get_or_insert(now);
            }
            return;
        }
        let certain = match answer {
            Ok(_) => !in_flight,
            Err(error) => error.permanent,
        };
        if !certain {
            let answered_at = answer.is_ok().then_some(now);
            let name = (key.clone(), token.clone());
            bound(&mut self.debts);
            self.debts.push_back(Debt { name, next: now + PAUSES.0, pause: PAUSES.0, in_flight, answered_at });
        }
    }

    /// The node answered: what it owes is asked for at once.
    pub(super) fn node_answers(&mut self, now: Instant) {
        for debt in self.debts.iter_mut().filter(|debt| debt.answered_at.is_none()) {
            debt.next = debt.next.min(now);
            debt.pause = PAUSES.0;
        }
    }

    /// When to `pay` next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.debts.iter().map(|debt| debt.next).min()
    }

    /// Undoes what is due, until the node does not answer.
    pub(super) fn pay(&mut self, leases: &dyn LeaseStore, clock: &Clock, timeout: Duration) {
        for _ in 0..self.debts.len() {
            let Some(mut debt) = self.debts.pop_front() else { return };
            let now = clock.now();
            if debt.next > now {
                self.debts.push_back(debt);
                continue;
            }
            let answer = leases.withdraw_one(debt.withdraw(), now + timeout);
            let now = clock.now();
            debt.next = now + debt.pause;
            debt.pause = (debt.pause * 2).min(PAUSES.1);
            match answer {
                Ok(_) => {
                    let answered_at = *debt.answered_at.get_or_insert(now);
                    if debt.in_flight && now.saturating_duration_since(answered_at) < SETTLE {
                        self.debts.push_back(debt);
                    }
                }
                Err(error) if error.permanent => {}
                Err(error) => {
                    debt.in_flight |= error.may_have_run;
                    let next = debt.next;
                    self.debts.push_back(debt);
                    // Each would hold up the node's thread for as long: let them all wait for the node's return.
                    self.debts.iter_mut().for_each(|debt| debt.next = debt.next.max(next));
                    return;
                }
            }
        }
    }

    /// Tries once more what has had no answer, until the node does not answer.
    pub(super) fn pay_last(&mut self, leases: &dyn LeaseStore, clock: &Clock, timeout: Duration) {
        for debt in self.debts.drain(..).filter(|debt| debt.answered_at.is_none()) {
            if leases.withdraw_one(debt.withdraw(), clock.now() + timeout).is_err() {
                return;
            }
        }
    }
}

fn is(name: &Name, key: &Key, token: &Token) -> bool {
    name.1 == *token && name.0 == *key
}

fn remember(names: &mut VecDeque<Name>, key: &Key, token: &Token) {
    if !names.iter().any(|name| is(name, key, token)) {
        bound(names);
        names.push_back((key.clone(), token.clone()));
    }
}

fn bound<T>(list: &mut VecDeque<T>) {
    if list.len() >= MOST {
        list.pop_front();
    }
}
