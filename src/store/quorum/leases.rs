//! The leases of a quorum: what each call asks the nodes, and what their answers amount to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::tally::Tally;
use super::voter::{Attempt, Order, again_if_stale};
use super::{Quorum, Round, Verdict};
use crate::base::bell::Bell;
use crate::base::error::{Error, ErrorKind};
use crate::base::options::LockOptions;
use crate::lease::key::Key;
use crate::lease::store::{Answer, Ask, End, Extend, Gone, Holder, LeaseStore, Listening, StoreError, Withdraw, Within};
use crate::lease::token::Token;
use crate::lease::valid_until;

/// How long the nodes have to grant a lease of this length: a fifth of it, so that four fifths are left even then; at least 50 ms, if the lease has
/// as much twice. It matters only where no majority answers: a slow node delays nobody.
fn time_to_grant(lease: Duration) -> Duration {
    (lease / 5).max(Duration::from_millis(50)).min(lease / 2)
}

impl Quorum {
    fn send_attempt(&self, ask: &Ask<'_>, deadline: Instant, shared: &Arc<Attempt>) -> Result<Round<Answer>, StoreError> {
        let (key, token) = (ask.key.clone(), ask.token.clone());
        let (attempt, lease, contended, may_be_mine) = (ask.attempt, ask.lease, ask.contended, ask.may_be_mine);
        let shared = Arc::clone(shared);
        self.ask(deadline, Order::InTurn, move |node, member, ledger| {
            if shared.given_up.load(Ordering::SeqCst) {
                return Err(StoreError::not_sent(ErrorKind::Unavailable, "the attempt was given up before the node was asked"));
            }
            if ledger.undoes(&key, &token) {
                // Only with a caller's own value. A late copy of the undoing would delete what the node grants now, so it cannot vote.
                return Err(StoreError::not_sent(ErrorKind::Unavailable, "an earlier hold with the same value is still being undone"));
            }
            let (key, token) = (&key, &token);
            shared.set_left(node, true);
            let answer = again_if_stale(|again| {
                if again {
                    ledger.attempt_unanswered(key, token);
                }
                let may_be_mine = may_be_mine || again;
                member.leases.try_acquire(&Ask { key, token, attempt, lease, fences: 0, place: None, contended, may_be_mine, deadline })
            });
            if answer.as_ref().is_err_and(|error| error.may_have_run) {
                ledger.attempt_unanswered(key, token);
            }
            if matches!(answer, Ok(Answer::Refused { .. })) {
                shared.set_left(node, false);
            }
            answer
        })
    }
}

impl Quorum {
    fn undo_everywhere(&self, key: &Key, token: &Token, deadline: Instant) -> Result<Gone, StoreError> {
        let round = self.undo(key, token, deadline, None)?;
        let is_gone = |tally: &Tally<Gone>| tally.count(|_| true) >= tally.majority();
        let tally = self.collect(&round, |tally| if is_gone(tally) { Verdict::Decided } else { Verdict::Open });
        if !is_gone(&tally) {
            return Err(tally.failure());
        }
        let released = tally.count(|gone| *gone == Gone::Released) > 0;
        Ok(if released { Gone::Released } else { Gone::NotOurs })
    }
}

fn granted(answer: &Answer) -> bool {
    matches!(answer, Answer::Granted { .. })
}

/// When enough of the leases in the way have run out for a majority to be free; `None`: not known.
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

/// What the nodes say about one lease: yes, no, or not known as long as neither can be certain.
fn yes_or_no<T>(tally: &Tally<T>, yes: impl Fn(&T) -> bool, no: impl Fn(&T) -> bool) -> Option<bool> {
    if tally.count(yes) >= tally.majority() {
        return Some(true);
    }
    (tally.count(no) >= tally.veto()).then_some(false)
}

/// Goes on until `decided`; once a majority has answered, not for long.
fn unless<T>(tally: &Tally<T>, decided: bool) -> Verdict {
    match decided {
        true => Verdict::Decided,
        false if tally.count(|_| true) >= tally.majority() => Verdict::Likely,
        false => Verdict::Open,
    }
}

impl LeaseStore for Quorum {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        // Before the first node is asked (R1).
        let asked_at = self.clock.now();
        let deadline = ask.deadline.min(asked_at + time_to_grant(ask.lease));
        let attempt = Attempt::new(self.voters.len());
        let spare = (!ask.may_be_mine).then_some(&attempt);
        let round = self.send_attempt(ask, deadline, &attempt)?;
        let give_up = || {
            // At once, so that nobody is kept out by what a minority granted; on every node, whatever it answered; and without waiting for any.
            if !attempt.given_up.swap(true, Ordering::SeqCst) {
                let _ = self.undo(ask.key, ask.token, self.clock.now() + self.command_timeout, spare);
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
                return if was_refused || answers + pending < majority { Verdict::Decided } else { Verdict::Open };
            }
            if was_refused { Verdict::Likely } else { Verdict::Open }
        });
        let grants = tally.count(granted);
        if grants >= tally.majority() {
            if self.clock.now() < valid_until(asked_at, ask.lease) {
                return Ok(Answer::Granted { asked_at, fences: None });
            }
            give_up();
            let late = "a majority of the nodes granted the lock so late that the lease had run out";
            return Err(StoreError::not_sent(ErrorKind::Unavailable, late).maybe_run());
        }
        let answers = tally.count(|_| true);
        if grants > 0 || tally.pending() > 0 || answers < self.voters.len() {
            give_up();
        }
        if answers > grants && answers >= tally.majority() {
            return Ok(Answer::Refused { asked_at, remaining: remaining(&tally), heard: false });
        }
        Err(tally.failure())
    }

    fn extend(&self, leases: &[Extend<'_>], within: Within) -> Vec<Result<bool, StoreError>> {
        let deadline = within.end(self.clock.now());
        let owned: Vec<_> = leases.iter().map(|lease| (lease.key.clone(), lease.token.clone(), lease.lease)).collect();
        let round = self.ask(deadline, Order::First, move |_, member, ledger| {
            let leases: Vec<_> = owned.iter().map(|(key, token, lease)| Extend { key, token, lease: *lease, settles: false }).collect();
            let mut answers = member.leases.extend(&leases, within);
            if answers.first().is_some_and(|answer| answer.as_ref().is_err_and(|error| error.stale)) {
                answers = member.leases.extend(&leases, within);
            }
            // A lease that may yet be shortened there by a late command cannot be counted on for the whole length.
            let count = |(lease, answer): (&Extend<'_>, Result<bool, StoreError>)| match answer {
                Ok(true) if ledger.may_be_shortened(lease.key, lease.token) => {
                    Err(StoreError::not_sent(ErrorKind::Unavailable, "an earlier end of the lease has not been answered there"))
                }
                answer => answer,
            };
            Ok(leases.iter().zip(answers).map(count).collect::<Vec<_>>())
        });
        let round = match round {
            Ok(round) => round,
            Err(error) => return leases.iter().map(|_| Err(StoreError::not_sent(error.kind, error.message.clone()))).collect(),
        };
        let decide = |tally: &Tally<Vec<Result<bool, StoreError>>>, i: usize| {
            let said =
                |word: bool| move |answers: &Vec<Result<bool, StoreError>>| matches!(answers.get(i), Some(Ok(said)) if *said == word);
            yes_or_no(tally, said(true), said(false))
        };
        let tally = self.collect(&round, |tally| {
            let decided = (0..leases.len()).all(|i| decide(tally, i).is_some());
            unless(tally, decided)
        });
        let unknown = || StoreError::not_sent(ErrorKind::Unavailable, "no majority of the nodes said whether it extended the lease");
        (0..leases.len()).map(|i| decide(&tally, i).ok_or_else(|| unknown().maybe_run())).collect()
    }

    fn end_in(&self, lease: &Extend<'_>, end: End, deadline: Instant) -> Result<bool, StoreError> {
        let (key, token, length) = (lease.key.clone(), lease.token.clone(), lease.lease);
        let round = self.ask(deadline, Order::Barrier, move |_, member, ledger| {
            let lease = Extend { key: &key, token: &token, lease: length, settles: false };
            let answer = again_if_stale(|_| member.leases.end_in(&lease, end, deadline));
            match &answer {
                Err(error) if error.may_have_run && end == End::Exactly => ledger.shortening_unanswered(&key, &token),
                Ok(true) if ledger.may_be_shortened(&key, &token) => {
                    return Err(StoreError::not_sent(ErrorKind::Unavailable, "an earlier end of the lease has not been answered there"));
                }
                _ => {}
            }
            answer
        })?;
        let decide = |tally: &Tally<bool>| yes_or_no(tally, |ours| *ours, |ours| !ours);
        let tally = self.collect(&round, |tally| unless(tally, decide(tally).is_some()));
        decide(&tally).ok_or_else(|| tally.failure().maybe_run())
    }

    /// `Released`: by a majority, or, if the others said nothing, by so many that a majority is free of it and none denied that it was ours.
    fn release(&self, key: &Key, token: &Token, _settles: bool, deadline: Instant) -> Result<Gone, StoreError> {
        let round = self.undo(key, token, deadline, None)?;
        let decide = |tally: &Tally<Gone>| yes_or_no(tally, |gone| *gone == Gone::Released, |gone| *gone == Gone::NotOurs);
        let tally = self.collect(&round, |tally| unless(tally, decide(tally).is_some()));
        match decide(&tally) {
            Some(true) => Ok(Gone::Released),
            Some(false) => Ok(Gone::NotOurs),
            None if tally.count(|_| true) >= tally.majority() => Ok(Gone::Released),
            None => Err(tally.failure()),
        }
    }

    fn withdraw(&self, what: &[Withdraw<'_>], deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        what.iter().map(|what| self.undo_everywhere(what.key, what.token, deadline)).collect()
    }
    fn listen(&self, _key: &Key, _token: &Token, _bell: &Arc<Bell>) -> Option<Listening> {
        None
    }

    fn queues(&self) -> bool {
        false
    }

    fn undoes_attempts(&self) -> bool {
        true
    }

    /// Whoever a majority names.
    fn inspect(&self, key: &Key, deadline: Instant) -> Result<Option<Holder>, StoreError> {
        let key = key.clone();
        let round = self.ask(deadline, Order::InTurn, move |_, member, _| again_if_stale(|_| member.leases.inspect(&key, deadline)))?;
        let tally = self.collect(&round, |tally| unless(tally, holder(tally).is_some()));
        holder(&tally).ok_or_else(|| tally.failure())
    }

    /// In two steps, so that a node that is late does not delete the lease of whoever came next: who holds it, and then the release of exactly those.
    fn force_release(&self, key: &Key, deadline: Instant) -> Result<bool, StoreError> {
        let asked = key.clone();
        let round = self.ask(deadline, Order::InTurn, move |_, member, _| again_if_stale(|_| member.leases.inspect(&asked, deadline)))?;
        let answered = |tally: &Tally<Option<Holder>>| tally.count(|_| true) >= tally.majority();
        let tally = self.collect(&round, |tally| unless(tally, false));
        if !answered(&tally) {
            return Err(StoreError { may_have_run: false, ..tally.failure() });
        }
        let mut tokens: Vec<&str> = tally.said().flatten().map(|holder| &*holder.token).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let mut released = false;
        for token in tokens {
            released |= self.undo_everywhere(key, &Token::new(token), deadline).map_err(StoreError::maybe_run)? == Gone::Released;
        }
        Ok(released)
    }

    fn supports(&self, options: &LockOptions) -> Result<(), Error> {
        if options.fenced {
            return Err(Error::unsupported("the counters of several nodes do not grow together: there are no fences on a quorum"));
        }
        self.voters.iter().try_for_each(|voter| voter.leases().supports(options))
    }
}

/// Who holds the lock on a majority of nodes; `Some(None)`: nobody; `None`: the nodes that answered cannot tell.
fn holder(tally: &Tally<Option<Holder>>) -> Option<Option<Holder>> {
    let holders: Vec<&Holder> = tally.said().flatten().collect();
    let votes = |holder: &Holder| holders.iter().filter(|other| other.token == holder.token).count();
    let most = holders.iter().max_by_key(|holder| votes(holder));
    let Some(most) = most.filter(|most| votes(most) >= tally.majority()) else {
        // Those that said nothing might all have it.
        let at_most = most.map_or(0, |most| votes(most)) + tally.silent();
        return (at_most < tally.majority()).then_some(None);
    };
    // Until so many nodes have forgotten it that the others are no majority.
    let mut ends: Vec<_> = holders.iter().filter(|holder| holder.token == most.token).map(|holder| holder.remaining).collect();
    ends.sort_unstable_by_key(|end| std::cmp::Reverse(end.unwrap_or(Duration::MAX)));
    Some(Some(Holder { token: most.token.clone(), remaining: ends.get(tally.majority() - 1).copied().flatten() }))
}
