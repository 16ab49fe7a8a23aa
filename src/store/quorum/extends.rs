//! Extending leases, and giving a lease again to nodes that miss it (R33).
//!
//! Without the re-grant a hold would end once a majority of the nodes has been away, one after the
//! other and each for longer than the lease, although a majority was up all the time. A rolling
//! upgrade would end every long hold that way.
//!
//! A re-grant must not bring back a lease that was taken away. Somebody may release the lock by
//! force meanwhile, or we may release it ourselves:
//!
//! 1. nodes 1 to 3 confirm an extend, node 4 denies it; all five are told to release the lease,
//!    and do;
//! 2. now the lease is given to node 4 again, and is an orphan there. If an operator releases the
//!    lock by force, but slowly, the nodes that the release has already reached deny the lease and
//!    could get it again: it could move from node to node ahead of the release, and live on.
//!
//! So a node is given the lease again only if
//! * it denied an extend that a majority confirmed, and the lease is still valid by that extend;
//! * by our clock, what it was last given had run out before that extend was sent: so the lease has
//!   run out there; or it was deleted at least a lease ago, and a holder that lost its majority
//!   that way knows by now;
//! * the hold has not ended: checked on the node's thread, which sends a withdrawal later;
//! * nobody else has it there (`NX`).
//!
//! The node's grant is not a vote. The node counts again when it confirms the next extend.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::leases::attempt;
use super::node_thread::{Job, Lane, Member};
use super::tally::Tally;
use super::traces::Traces;
use super::{Quorum, Round, Verdict};
use crate::base::clock::Clock;
use crate::base::key::Key;
use crate::base::locked;
use crate::base::store_error::StoreError;
use crate::base::within::Within;
use crate::lease::durations::valid_until;
use crate::lease::store::Extend;
use crate::lease::token::Token;

/// The most re-grants in one go, so that other questions can come between.
const TOGETHER: usize = 16;

/// One lease to extend, as the nodes' threads share it.
struct ToExtend {
    key: Key,
    token: Token,
    length: Duration,
    /// `None`: it was not granted here, or is withdrawn.
    traces: Option<Arc<Traces>>,
}

type Answers = Vec<Result<bool, StoreError>>;

impl ToExtend {
    fn ask(&self) -> Extend<'_> {
        let Self { key, token, length, .. } = self;
        Extend { key, token, lease: *length }
    }

    /// Gives the lease to one node, on its thread, if all of the conditions above are met. `false`:
    /// the node did not answer.
    fn re_grant(&self, (node, member): (usize, &Member), clock: &Clock, timeout: Duration) -> bool {
        let Some(traces) = &self.traces else { return true };
        let Some(sent) = traces.missing(node) else { return true };
        let (now, until) = (clock.now(), valid_until(sent, self.length));
        if now >= until || traces.has_ended() {
            return true;
        }
        let ask = attempt(traces, self.length, false, until.min(now + timeout));
        let answer = member.leases.try_acquire(&ask);
        traces.attempted(node, &answer, clock.now(), self.length);
        answer.is_ok()
    }
}

impl Quorum {
    fn to_extend(&self, lease: &Extend<'_>) -> ToExtend {
        let name = (lease.key.clone(), lease.token.clone());
        let traces = locked(&self.traces).get(&name).cloned();
        ToExtend { key: name.0, token: name.1, length: lease.lease, traces }
    }

    pub(super) fn extend_everywhere(&self, leases: &[Extend<'_>], within: Within) -> Answers {
        let sent = self.clock.now();
        let wanted: Arc<[ToExtend]> = leases.iter().map(|lease| self.to_extend(lease)).collect();
        let round = self.send_extends(&wanted, sent, within);
        let votes = |tally: &Tally<Answers>, i: usize| {
            (tally.count_of(i, |ours| *ours), tally.count_of(i, |ours| !ours))
        };
        let all = 0..leases.len();
        let tally = self.collect(&round, |tally| {
            let is_final = |i| tally.is_final(votes(tally, i));
            if all.clone().all(is_final) {
                Verdict::Decided
            } else if all.clone().any(is_final) && all.clone().all(|i| tally.has_majority(i)) {
                // A lease about which the nodes disagree does not delay the others for long.
                Verdict::Likely
            } else {
                Verdict::Open
            }
        });
        let decided: Vec<Option<bool>> = all.map(|i| tally.yes_or_no(votes(&tally, i))).collect();
        self.send_re_grants(&wanted, sent, &decided);
        let lost = wanted.iter().zip(&decided).filter(|(_, decided)| **decided == Some(false));
        self.withdraw_lost(lost.map(|(lease, _)| lease));
        if let Some(decided) = decided.iter().copied().collect::<Option<Vec<bool>>>() {
            return decided.into_iter().map(Ok).collect();
        }
        let each = decided.into_iter().zip(tally.each(leases.len()));
        each.map(|(decided, tally)| decided.ok_or_else(|| tally.failure().maybe_run())).collect()
    }

    pub(super) fn extend_by_hand(
        &self,
        lease: &Extend<'_>,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let (sent, wanted) = (self.clock.now(), Arc::new(self.to_extend(lease)));
        let (asked, clock) = (Arc::clone(&wanted), self.clock.clone());
        // In turn: a node that is slow may not have had the attempt yet.
        let round = self.ask(deadline, Lane::Questions, move |node, member| {
            let answer = member.leases.extend_one(&asked.ask(), deadline);
            if let Some(traces) = &asked.traces {
                traces.extended(node, &answer, (sent, clock.now()), asked.length);
            }
            answer
        });
        let votes = |tally: &Tally<bool>| (tally.count(|ours| *ours), tally.count(|ours| !ours));
        let tally = self.collect_until(&round, |tally| tally.is_final(votes(tally)));
        let ours = tally.yes_or_no(votes(&tally));
        if ours == Some(false) {
            self.withdraw_lost([&*wanted].into_iter());
        }
        ours.ok_or_else(|| tally.failure())
    }

    fn send_extends(
        &self,
        wanted: &Arc<[ToExtend]>,
        sent: Instant,
        within: Within,
    ) -> Round<Answers> {
        let (wanted, clock) = (Arc::clone(wanted), self.clock.clone());
        self.ask(within.end(sent), Lane::Extends, move |node, member| {
            let leases: Vec<_> = wanted.iter().map(ToExtend::ask).collect();
            let answers = member.leases.extend(&leases, within);
            let now = clock.now();
            for (lease, answer) in wanted.iter().zip(&answers) {
                if let Some(traces) = &lease.traces {
                    traces.extended(node, answer, (sent, now), lease.length);
                }
            }
            Ok(answers)
        })
    }

    /// Gives the leases that a majority confirmed again to the nodes that miss them. Waits for
    /// nobody. A node that is slow to deny an extend has its turn after the next one.
    fn send_re_grants(&self, wanted: &Arc<[ToExtend]>, sent: Instant, decided: &[Option<bool>]) {
        let traces = |i: usize| wanted.get(i).and_then(|lease| lease.traces.as_ref());
        let confirmed: Vec<usize> =
            (0..decided.len()).filter(|i| decided[*i] == Some(true)).collect();
        confirmed.iter().filter_map(|i| traces(*i)).for_each(|traces| traces.confirmed(sent));
        // When the majority's confirmation is over for all of the leases.
        let deadline = sent + wanted.iter().map(|lease| lease.length).max().unwrap_or_default();
        for (node, node_thread) in self.node_threads.iter().enumerate() {
            let is_missing =
                |i: &usize| traces(*i).is_some_and(|traces| traces.missing(node).is_some());
            let which: Vec<usize> = confirmed.iter().copied().filter(is_missing).collect();
            for which in which.chunks(TOGETHER) {
                let (which, wanted) = (which.to_vec(), Arc::clone(wanted));
                let (clock, timeout) = (self.clock.clone(), self.command_timeout);
                let run = Box::new(move |member: &Member| {
                    let mut leases = which.iter().filter_map(|i| wanted.get(*i));
                    // The node is asked no more once it does not answer.
                    leases.all(|lease| lease.re_grant((node, member), &clock, timeout));
                });
                let lane = Lane::Questions;
                let _ = node_thread.ask(Job::Ask { deadline, lane, run });
            }
        }
    }

    /// Withdraws leases that a majority said are not ours any more: what the other nodes still
    /// have keeps everybody out, and nobody else will withdraw it.
    fn withdraw_lost<'a>(&self, lost: impl Iterator<Item = &'a ToExtend>) {
        // The others are being withdrawn already.
        let lost =
            lost.filter(|lease| lease.traces.as_ref().is_some_and(|traces| !traces.has_ended()));
        let what = self.targets(lost.map(|lease| (lease.key.clone(), lease.token.clone())));
        if !what.is_empty() {
            self.forget(what.iter());
            self.withdraw_everywhere(&what, self.clock.now() + self.command_timeout);
        }
    }
}
