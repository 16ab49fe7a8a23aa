//! The leases of a quorum: what each call asks the nodes, and what their answers amount to.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::node_thread::{Lane, ToWithdraw, Withdrawn};
use super::tally::{Tally, Undecided, gone, granted, holder, remaining};
use super::traces::Traces;
use super::{Quorum, Round, Verdict};
use crate::base::bell::Bell;
use crate::base::error::{Error, ErrorKind};
use crate::base::key::Key;
use crate::base::options::{Confirm, LockOptions, Share};
use crate::base::store_error::StoreError;
use crate::base::within::Within;
use crate::lease::store::{
    Abilities, Answer, Ask, Extend, Gone, Held, LeaseStore, Listening, Look, Release, State,
    Withdraw,
};
use crate::lease::token::Token;

/// How long the nodes have to grant a lease of this length: a fifth of it, so that four fifths are
/// left even then; but at least 50 ms, or half of a lease shorter than 100 ms. It matters only if
/// no majority answers: a slow node delays nobody.
fn time_to_grant(lease: Duration) -> Duration {
    (lease / 5).max(Duration::from_millis(50)).min(lease / 2)
}

impl Quorum {
    /// Asks each node once. A connection that turns out to be closed is a missing reply, too: the
    /// node may have granted the lease, and its answer to a second question would be a refusal.
    fn send_attempt(
        &self,
        traces: &Arc<Traces>,
        lease: Duration,
        contended: bool,
        deadline: Instant,
    ) -> Round<Answer> {
        let (traces, clock) = (Arc::clone(traces), self.clock.clone());
        self.ask(deadline, Lane::Questions, move |node, member| {
            if traces.has_ended() {
                return Err(StoreError::not_sent(
                    ErrorKind::Unavailable,
                    "the attempt was given up before the node was asked",
                ));
            }
            let answer = member.leases.try_acquire(&attempt(&traces, lease, contended, deadline));
            traces.attempted(node, &answer, clock.now(), lease);
            answer
        })
    }

    /// Withdraws leases, and waits until a majority has answered for each, or until the deadline.
    fn withdraw_and_wait(
        &self,
        what: &Arc<[ToWithdraw]>,
        deadline: Instant,
    ) -> Tally<Vec<Withdrawn>> {
        let round = self.withdraw_everywhere(what, deadline);
        self.collect_until(&round, |tally| (0..what.len()).all(|i| tally.has_majority(i)))
    }
}

/// What a node is asked for. A key that exists is a refusal, whoever owns it: a node that has this
/// token already has it from elsewhere, because it is a replica, or a second name of a server
/// (R31).
pub(super) fn attempt(
    traces: &Traces,
    lease: Duration,
    contended: bool,
    deadline: Instant,
) -> Ask<'_> {
    Ask {
        key: &traces.key,
        token: &traces.token,
        attempt: 1,
        lease,
        fences: 0,
        place: None,
        contended,
        may_be_mine: false,
        deadline,
    }
}

/// For the failure of a question that never touched the node's lease.
fn unsent(error: StoreError) -> StoreError {
    StoreError { may_have_run: false, ..error }
}

impl Quorum {
    /// Asks each node who holds the lock.
    fn ask_who_holds(&self, key: &Key, deadline: Instant) -> Round<Option<Held>> {
        let key = key.clone();
        self.ask(deadline, Lane::Questions, move |_, member| {
            Ok(member.leases.inspect(&key, Look::Holders, deadline)?.held.pop())
        })
    }

    /// What the nodes have under this key; a majority has to answer.
    fn look(&self, key: &Key, deadline: Instant) -> Result<Tally<Option<Held>>, StoreError> {
        let round = self.ask_who_holds(key, deadline);
        let tally = self.collect(&round, |tally| {
            let is_enough = tally.count(|_| true) >= tally.majority();
            if is_enough { Verdict::Likely } else { Verdict::Open }
        });
        if tally.count(|_| true) < tally.majority() {
            Err(unsent(tally.failure()))
        } else {
            Ok(tally)
        }
    }
}

impl LeaseStore for Quorum {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        // Before the first node is asked (R1).
        let asked_at = self.clock.now();
        let deadline = ask.deadline.min(asked_at + time_to_grant(ask.lease));
        let traces = Arc::new(Traces::new(ask.key, ask.token, self.node_threads.len()));
        let round = self.send_attempt(&traces, ask.lease, ask.contended, deadline);
        let give_up = || {
            // At once, so that what a minority granted keeps nobody out; on every node that may
            // have it; and without waiting for any node.
            if !traces.has_ended() {
                let (key, token) = (ask.key.clone(), ask.token.clone());
                let what = [ToWithdraw { key, token, traces: Some(Arc::clone(&traces)) }];
                self.withdraw_everywhere(&what.into(), self.clock.now() + self.command_timeout);
            }
        };
        let tally = self.collect(&round, |tally| {
            let (majority, pending) = (tally.majority(), tally.pending());
            let (grants, answers) = (tally.count(granted), tally.count(|_| true));
            let is_refused = answers > grants && answers >= majority;
            if grants >= majority {
                Verdict::Decided
            } else if grants + pending >= majority {
                if is_refused { Verdict::Likely } else { Verdict::Open }
            } else {
                let is_known = is_refused || answers + pending < majority;
                // Before that only what a node granted keeps anybody out. The nodes that were not
                // asked yet have to say whether somebody holds the lock.
                if is_known || grants > 0 {
                    give_up();
                }
                if is_known { Verdict::Decided } else { Verdict::Open }
            }
        });
        let grants = tally.count(granted);
        if grants >= tally.majority() {
            self.remember(traces);
            return Ok(Answer::Granted { asked_at, fences: None });
        }
        let answers = tally.count(|_| true);
        if grants > 0 || tally.pending() > 0 || answers < self.node_threads.len() {
            give_up();
        }
        if answers > grants && answers >= tally.majority() {
            return Ok(Answer::Refused { asked_at, remaining: remaining(&tally), heard: false });
        }
        let failure = tally.failure();
        if failure.may_have_run {
            self.remember(traces);
        }
        Err(failure)
    }

    fn extend(&self, leases: &[Extend<'_>], within: Within) -> Vec<Result<bool, StoreError>> {
        self.extend_everywhere(leases, within)
    }

    fn extend_one(&self, lease: &Extend<'_>, deadline: Instant) -> Result<bool, StoreError> {
        self.extend_by_hand(lease, deadline)
    }

    /// `Released`: a majority released it. `NotOurs`: so many nodes do not have it that the others
    /// are not a majority. Otherwise the result is unknown: nodes that do not answer may have it
    /// or have lost it (R12).
    fn release(&self, what: &Release<'_>, deadline: Instant) -> Result<Gone, StoreError> {
        what.check()?;
        let what = self.targets([(what.key.clone(), what.token.clone())].into_iter());
        let round = self.withdraw_everywhere(&what, deadline);
        let votes = |tally: &Tally<Vec<Withdrawn>>| {
            let said = |what| tally.count_of(0, |gone| *gone == Some(what));
            (said(Gone::Released), said(Gone::NotOurs))
        };
        let tally = self.collect_until(&round, |tally| tally.is_final(votes(tally)));
        let Some(released) = tally.yes_or_no(votes(&tally)) else {
            // Not to be repeated: the nodes that have released it would deny it, and that would
            // look like a release that has run after all.
            return Err(tally.each(1).remove(0).failure().maybe_run().permanent());
        };
        self.forget(what.iter());
        Ok(if released { Gone::Released } else { Gone::NotOurs })
    }

    fn withdraw(&self, what: &[Withdraw<'_>], deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        let names = what.iter().map(|what| (what.key.clone(), what.token.clone()));
        let targets = self.targets(names);
        let tally = self.withdraw_and_wait(&targets, deadline);
        let answers: Vec<_> = tally.each(what.len()).into_iter().map(gone).collect();
        let is_over = |answer: &Result<Gone, StoreError>| {
            answer.as_ref().err().is_none_or(|error| error.permanent)
        };
        let done = targets.iter().zip(&answers).filter(|(_, answer)| is_over(answer));
        self.forget(done.map(|(target, _)| target));
        answers
    }

    fn listen(&self, _key: &Key, _token: &Token, _bell: &Arc<Bell>) -> Option<Listening> {
        None
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            wakes: false,
            conditions: false,
            one_shot_tokens: true,
            confirm: Confirm::NOTHING,
            numbered_tokens: false,
        }
    }

    /// The holder that a majority names.
    fn inspect(&self, key: &Key, _look: Look, deadline: Instant) -> Result<State, StoreError> {
        let round = self.ask_who_holds(key, deadline);
        let tally = self.collect_until(&round, |tally| holder(tally).is_ok());
        let held = holder(&tally).map_err(|Undecided| tally.failure())?;
        Ok(State { held: held.into_iter().collect(), ..State::default() })
    }

    /// First asks who holds the lock, then releases exactly those leases: so a late node does not
    /// delete the lease of the next holder. Then asks again: a node that missed the lease may have
    /// been given it meanwhile (R33).
    ///
    /// The leases have to be released before those that were read run out: from then on a holder
    /// that still has a majority may give its lease again to nodes on which it was released, and so
    /// would keep the lock.
    fn force_release(
        &self,
        key: &Key,
        _share: &str,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let mut wanted: Option<HashSet<Token>> = None;
        loop {
            let read_at = self.clock.now();
            let tally = self.look(key, deadline).map_err(|error| match &wanted {
                Some(_) => error.maybe_run(),
                None => error,
            })?;
            let held = || tally.said().flatten();
            let mut tokens: HashSet<Token> = held().map(|held| held.token.clone()).collect();
            if let Some(wanted) = &wanted {
                let may_hold = |held: &Held| wanted.contains(&held.token);
                let is_held =
                    holder(&tally).map_or(true, |held| held.as_ref().is_some_and(may_hold));
                // A holder that got the lock meanwhile keeps it.
                tokens.retain(|token| is_held && wanted.contains(token));
            }
            if tokens.is_empty() {
                return Ok(wanted.is_some());
            }
            let shortest = held().filter_map(|held| held.remaining).min();
            let until = deadline.min(read_at + shortest.unwrap_or(self.command_timeout));
            // Without our own traces, if the lock is ours: what no majority confirms is not carried
            // out later.
            let target =
                |token: &Token| ToWithdraw { key: key.clone(), token: token.clone(), traces: None };
            let what: Arc<[ToWithdraw]> = tokens.iter().map(target).collect();
            // The others are attempts: one of them may become the next holder.
            let votes = |token: &&Token| held().filter(|held| held.token == **token).count();
            let may_hold = |token: &&Token| votes(token) + tally.silent() >= tally.majority();
            let holders: HashSet<Token> = tokens.iter().filter(may_hold).cloned().collect();
            wanted.get_or_insert(if holders.is_empty() { tokens } else { holders });
            let tally = self.withdraw_and_wait(&what, until);
            let late = until <= self.clock.now() && self.clock.now() < deadline;
            for withdrawn in tally.each(what.len()) {
                match gone(withdrawn) {
                    Ok(_) => {}
                    // Too late for what was read: reads again.
                    Err(_) if late => break,
                    Err(error) => return Err(error.maybe_run()),
                }
            }
        }
    }

    fn supports(&self, options: &LockOptions) -> Result<(), Error> {
        match options.share {
            Share::Whole => {}
            Share::Permits { .. } => {
                return Err(Error::unsupported(
                    "majorities of a quorum could grant more permits than there are: a semaphore \
                     needs one server or a cluster",
                ));
            }
            Share::Side(_) => {
                return Err(Error::unsupported(
                    "a quorum has no queue, and so no order among readers and writers: a \
                     read-write lock needs one server or a cluster",
                ));
            }
        }
        if options.fenced {
            return Err(Error::unsupported(
                "the counters of several nodes do not grow together: there are no fences on a \
                 quorum",
            ));
        }
        if options.has_at_least() {
            return Err(Error::unsupported(
                "a quorum cannot keep a lock after its unlock: at_least needs one server or a \
                 cluster",
            ));
        }
        if options.owner.is_some() {
            return Err(Error::unsupported(
                "each attempt on a quorum needs a token of its own, so a quorum takes no owner",
            ));
        }
        self.node_threads.iter().try_for_each(|node_thread| node_thread.leases().supports(options))
    }
}
