//! The leases of a quorum: what each call asks the nodes, and what their answers amount to.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::again::Again;
use super::attempt::{Wanted, attempt};
use super::node_thread::{Order, Undone, again_if_stale};
use super::tally::{Tally, Undecided, holder};
use super::undo_log::Name;
use super::{Quorum, Round, Verdict};
use crate::base::bell::Bell;
use crate::base::error::{Error, ErrorKind};
use crate::base::key::Key;
use crate::base::locked;
use crate::base::options::{Confirm, LockOptions};
use crate::lease::store::{
    Abilities, Answer, Ask, Extend, Gone, Held, LeaseStore, Listening, Release, StoreError,
    Withdraw, Within,
};
use crate::lease::token::Token;
use crate::lease::validity::valid_until;

/// The most leases that are undone in one command to a node, so that extends can come between.
const TOGETHER: usize = 256;

/// How long the nodes have to grant a lease of this length: a fifth of it, so that four fifths are
/// left even then; but at least 50 ms, or half of a lease shorter than 100 ms. It matters only if
/// no majority answers: a slow node delays nobody.
fn time_to_grant(lease: Duration) -> Duration {
    (lease / 5).max(Duration::from_millis(50)).min(lease / 2)
}

impl Quorum {
    fn send_attempt(
        &self,
        ask: &Ask<'_>,
        deadline: Instant,
        given_up: &Arc<AtomicBool>,
    ) -> Result<Round<Answer>, StoreError> {
        let name = (ask.key.clone(), ask.token.clone());
        let (lease, contended, may_be_mine) = (ask.lease, ask.contended, ask.may_be_mine);
        let (given_up, clock) = (Arc::clone(given_up), self.clock.clone());
        self.ask(deadline, Order::InTurn, move |_, member, undo_log| {
            if given_up.load(Ordering::SeqCst) {
                return Err(StoreError::not_sent(
                    ErrorKind::Unavailable,
                    "the attempt was given up before the node was asked",
                ));
            }
            attempt(
                &name,
                member,
                undo_log,
                &clock,
                &Wanted { lease, contended, may_be_mine, deadline },
            )
        })
    }

    /// As `undo`, but waits until a majority has answered for each lease, or until the deadline.
    fn undo_everywhere(
        &self,
        names: Vec<Name>,
        foreign: bool,
        deadline: Instant,
    ) -> Result<Tally<Vec<Undone>>, StoreError> {
        let count = names.len();
        let round = self.undo(names, foreign, deadline)?;
        let is_gone =
            |tally: &Tally<Vec<Undone>>, i| tally.count_of(i, |_| true) >= tally.majority();
        Ok(self.collect(&round, |tally| {
            if (0..count).all(|i| is_gone(tally, i)) { Verdict::Decided } else { Verdict::Open }
        }))
    }
}

/// The result of undoing a lease. An error unless a majority has answered.
fn gone(tally: Tally<Option<Gone>>) -> Result<Gone, StoreError> {
    if tally.count(|_| true) < tally.majority() {
        return Err(tally.failure());
    }
    let released = tally.count(|gone| *gone == Some(Gone::Released)) > 0;
    Ok(if released { Gone::Released } else { Gone::NotOurs })
}

fn granted(answer: &Answer) -> bool {
    matches!(answer, Answer::Granted { .. })
}

/// How long until enough of the leases in the way have run out that a majority is free; `None`: not
/// known.
fn remaining(tally: &Tally<Answer>) -> Option<Duration> {
    let in_the_way = |answer: &Answer| match answer {
        Answer::Refused { remaining, .. } => Some(remaining.unwrap_or(Duration::MAX)),
        Answer::Granted { .. } => None,
    };
    let mut ends: Vec<_> = tally.said().filter_map(in_the_way).collect();
    ends.sort_unstable();
    let missing = tally.majority().saturating_sub(tally.count(granted));
    ends.get(missing.checked_sub(1)?).copied().filter(|end| *end != Duration::MAX)
}

/// What the nodes say about one lease: yes, no, or `None` while neither is certain.
fn yes_or_no<T>(tally: &Tally<T>, yes: usize, no: usize) -> Option<bool> {
    if yes >= tally.majority() {
        return Some(true);
    }
    (no >= tally.veto()).then_some(false)
}

/// For the failure of a question that never touched the node's lease.
fn unsent(error: StoreError) -> StoreError {
    StoreError { may_have_run: false, ..error }
}

/// Goes on until `decided`, but not for long once a majority has answered.
fn unless<T>(tally: &Tally<T>, decided: bool) -> Verdict {
    match decided {
        true => Verdict::Decided,
        false if tally.count(|_| true) >= tally.majority() => Verdict::Likely,
        false => Verdict::Open,
    }
}

impl Quorum {
    /// The tokens of the leases that the nodes have, and how long the shortest of these leases
    /// lasts; a majority has to answer.
    fn holders(&self, key: &Key, deadline: Instant) -> Result<(Vec<Token>, Duration), StoreError> {
        let asked = key.clone();
        let round = self.ask(deadline, Order::InTurn, move |_, member, _| {
            again_if_stale(|_| member.leases.inspect(&asked, deadline))
        })?;
        let tally = self.collect(&round, |tally| unless(tally, false));
        if tally.count(|_| true) < tally.majority() {
            return Err(unsent(tally.failure()));
        }
        let tokens: HashSet<Token> =
            tally.said().flatten().map(|held| held.token.clone()).collect();
        let shortest = tally.said().flatten().filter_map(|held| held.remaining).min();
        Ok((tokens.into_iter().collect(), shortest.unwrap_or(self.command_timeout)))
    }
}

impl LeaseStore for Quorum {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        // Before the first node is asked (R1).
        let asked_at = self.clock.now();
        let deadline = ask.deadline.min(asked_at + time_to_grant(ask.lease));
        let given_up = Arc::default();
        let round = self.send_attempt(ask, deadline, &given_up)?;
        let name = || (ask.key.clone(), ask.token.clone());
        let give_up = || {
            // At once, so that what a minority granted keeps nobody out; on every node that may
            // hold it; and without waiting for any node.
            if !given_up.swap(true, Ordering::SeqCst) {
                let _ = self.undo(vec![name()], false, self.clock.now() + self.command_timeout);
            }
        };
        let tally = self.collect(&round, |tally| {
            let (majority, pending) = (tally.majority(), tally.pending());
            let grants = tally.count(granted);
            let answers = tally.count(|_| true);
            if grants >= majority {
                return Verdict::Decided;
            }
            let was_refused = answers > grants && answers >= majority;
            if grants + pending < majority {
                give_up();
                return if was_refused || answers + pending < majority {
                    Verdict::Decided
                } else {
                    Verdict::Open
                };
            }
            if was_refused { Verdict::Likely } else { Verdict::Open }
        });
        let grants = tally.count(granted);
        if grants >= tally.majority() {
            if self.clock.now() < valid_until(asked_at, ask.lease) {
                locked(&self.granted).insert(name(), Arc::default());
                return Ok(Answer::Granted { asked_at, fences: None });
            }
            give_up();
            let late =
                "a majority of the nodes granted the lock so late that the lease had run out";
            return Err(StoreError::not_sent(ErrorKind::Unavailable, late).maybe_run());
        }
        let answers = tally.count(|_| true);
        if grants > 0 || tally.pending() > 0 || answers < self.node_threads.len() {
            give_up();
        }
        if answers > grants && answers >= tally.majority() {
            return Ok(Answer::Refused { asked_at, remaining: remaining(&tally), heard: false });
        }
        Err(tally.failure())
    }

    fn extend(&self, leases: &[Extend<'_>], within: Within) -> Vec<Result<bool, StoreError>> {
        let names: Vec<_> =
            leases.iter().map(|lease| (lease.key.clone(), lease.token.clone())).collect();
        let again = Again::new(leases, &names, &locked(&self.granted), self.clock.now());
        let round = match self.send_extends(&again, within) {
            Ok(round) => round,
            Err(error) => {
                return leases
                    .iter()
                    .map(|_| Err(StoreError::not_sent(error.kind, error.message.clone())))
                    .collect();
            }
        };
        let decide = |tally: &Tally<Vec<Result<bool, StoreError>>>, i: usize| {
            yes_or_no(tally, tally.count_of(i, |ours| *ours), tally.count_of(i, |ours| !ours))
        };
        let tally = self.collect(&round, |tally| {
            let decided = (0..leases.len()).all(|i| decide(tally, i).is_some());
            unless(tally, decided)
        });
        let unknown = || {
            StoreError::not_sent(
                ErrorKind::Unavailable,
                "no majority of the nodes answered the extend",
            )
        };
        let decided: Vec<Option<bool>> = (0..leases.len()).map(|i| decide(&tally, i)).collect();
        self.give_again(&again, &tally, &decided);
        let lost = names.into_iter().enumerate().filter(|(i, _)| decided[*i] == Some(false));
        self.undo_lost(lost.filter_map(|(i, name)| Some((name, again.grant(i)?))).collect());
        decided.into_iter().map(|decided| decided.ok_or_else(|| unknown().maybe_run())).collect()
    }

    fn extend_one(&self, lease: &Extend<'_>, deadline: Instant) -> Result<bool, StoreError> {
        let (name, length) = ((lease.key.clone(), lease.token.clone()), lease.lease);
        let grant = locked(&self.granted).get(&name).cloned();
        let (asked, clock) = (name.clone(), self.clock.clone());
        // In turn: a node that is slow may not have had the attempt yet.
        let round = self.ask(deadline, Order::InTurn, move |_, member, undo_log| {
            let name = &asked;
            let lease = Extend { key: &name.0, token: &name.1, lease: length, settles: false };
            let answer = again_if_stale(|_| member.leases.extend_one(&lease, deadline));
            match &answer {
                Err(error) if error.may_have_run => {
                    undo_log.extend_unanswered(name, clock.now(), length)
                }
                Ok(true) => undo_log.holds(name, clock.now(), length),
                _ => {}
            }
            answer
        })?;
        let decide = |tally: &Tally<bool>| {
            yes_or_no(tally, tally.count(|ours| *ours), tally.count(|ours| !ours))
        };
        let tally = self.collect(&round, |tally| unless(tally, decide(tally).is_some()));
        let ours = decide(&tally);
        if ours == Some(false) {
            self.undo_lost(grant.map(|grant| (name, grant)).into_iter().collect());
        }
        ours.ok_or_else(|| tally.failure())
    }

    /// `Released`: a majority released it. `NotOurs`: so many nodes do not have it that the others
    /// are not a majority. Otherwise the result is unknown: nodes that do not answer may have it or
    /// have lost it (R12).
    fn release(&self, what: &Release<'_>, deadline: Instant) -> Result<Gone, StoreError> {
        what.check()?;
        let round = self.undo(vec![(what.key.clone(), what.token.clone())], false, deadline)?;
        let said = |tally: &Tally<Vec<Undone>>, what| tally.count_of(0, |gone| *gone == Some(what));
        let decide = |tally: &Tally<Vec<Undone>>| {
            yes_or_no(tally, said(tally, Gone::Released), said(tally, Gone::NotOurs))
        };
        let answers = |tally: &Tally<Vec<Undone>>| tally.count_of(0, |_| true) >= tally.majority();
        let tally = self.collect(&round, |tally| match decide(tally) {
            Some(_) => Verdict::Decided,
            None if answers(tally) => Verdict::Likely,
            None => Verdict::Open,
        });
        match decide(&tally) {
            Some(true) => Ok(Gone::Released),
            Some(false) => Ok(Gone::NotOurs),
            None => Err(tally.each(1).remove(0).failure().maybe_run()),
        }
    }

    fn withdraw(&self, what: &[Withdraw<'_>], deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        let mut answers = Vec::with_capacity(what.len());
        for what in what.chunks(TOGETHER) {
            let names = what.iter().map(|what| (what.key.clone(), what.token.clone())).collect();
            match self.undo_everywhere(names, false, deadline) {
                Ok(tally) => answers.extend(tally.each(what.len()).into_iter().map(gone)),
                Err(error) => answers.extend(
                    what.iter()
                        .map(|_| Err(StoreError::not_sent(error.kind, error.message.clone()))),
                ),
            }
        }
        answers
    }

    fn listen(&self, _key: &Key, _token: &Token, _bell: &Arc<Bell>) -> Option<Listening> {
        None
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            wakes: false,
            conditions: false,
            undoes_attempts: true,
            confirm: Confirm::NOTHING,
            numbered_tokens: false,
        }
    }

    /// The holder that a majority names.
    fn inspect(&self, key: &Key, deadline: Instant) -> Result<Option<Held>, StoreError> {
        let key = key.clone();
        let round = self.ask(deadline, Order::InTurn, move |_, member, _| {
            again_if_stale(|_| member.leases.inspect(&key, deadline))
        })?;
        let tally = self.collect(&round, |tally| unless(tally, holder(tally).is_ok()));
        holder(&tally).map_err(|Undecided| tally.failure())
    }

    /// In two steps: first asks who holds the lock, then releases exactly those leases. So a late
    /// node does not delete the lease of the next holder.
    ///
    /// The second step has to be done before the leases that were read run out: from then on a
    /// holder that still has a majority may give its lease again to nodes on which it was released
    /// (R33), and so would keep the lock.
    fn force_release(&self, key: &Key, deadline: Instant) -> Result<bool, StoreError> {
        let mut released = false;
        loop {
            let read_at = self.clock.now();
            let (tokens, shortest) = self.holders(key, deadline)?;
            if tokens.is_empty() {
                return Ok(released);
            }
            let until = deadline.min(read_at + shortest);
            let names: Vec<Name> = tokens.into_iter().map(|token| (key.clone(), token)).collect();
            let count = names.len();
            let tally = self.undo_everywhere(names, true, until).map_err(StoreError::maybe_run)?;
            released |=
                (0..count).any(|i| tally.count_of(i, |gone| *gone == Some(Gone::Released)) > 0);
            let undone: Result<Vec<Gone>, StoreError> =
                tally.each(count).into_iter().map(gone).collect();
            let now = self.clock.now();
            match undone {
                Ok(_) => return Ok(released),
                // Too late for what was read: read again.
                Err(_) if until <= now && now < deadline => {}
                Err(error) => return Err(error.maybe_run()),
            }
        }
    }

    fn supports(&self, options: &LockOptions) -> Result<(), Error> {
        if options.fenced {
            return Err(Error::unsupported(
                "the counters of several nodes do not grow together: there are no fences on a \
                 quorum",
            ));
        }
        self.node_threads.iter().try_for_each(|node_thread| node_thread.leases().supports(options))
    }
}
