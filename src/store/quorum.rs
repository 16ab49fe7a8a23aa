//! Redlock: one lease on a majority of independent nodes.
//!
//! The algorithm is the one that the Redis documentation describes on its page about distributed
//! locks (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>): the same
//! token under the same key on every node; a lease if more than half of them granted it while it
//! is still valid; otherwise nothing is left on any node.
//!
//! It departs from that page in three points: each attempt has a token of its own (R31); what a
//! node did not answer is withdrawn for as long as that takes (R32); and a held lease is given
//! again to nodes that lost it (R33).
//!
//! Each node has two threads, one of them for extends. A question goes to all nodes at once and
//! ends as soon as the answers decide it, so it takes as long as the slowest node of the fastest
//! majority. Later answers only change what is known of their node. Each thread asks one question
//! after another, so a withdrawal reaches its node after the attempt.

mod extends;
mod leases;
mod node_thread;
mod open;
mod tally;
mod traces;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use crate::base::clock::Clock;
use crate::base::error::ErrorKind;
use crate::base::key::Key;
use crate::base::locked;
use crate::base::store_error::StoreError;
use crate::base::worker::Stopped;
use crate::lease::token::Token;
use crate::limiter::port::{Decision, LimitStore, Take};
use node_thread::{Job, Lane, Member, NodeThread, ToWithdraw, Withdrawals, Withdrawn};
pub(crate) use open::Nodes;
use tally::Tally;
use traces::Traces;

/// Once a majority has answered without deciding, the others get twice the time elapsed so far,
/// and at least this.
const GRACE: Duration = Duration::from_millis(50);

/// Leases on a majority of nodes.
pub(crate) struct Quorum {
    node_threads: Vec<NodeThread>,
    /// The attempts that were granted, and those without an answer, until they are withdrawn.
    traces: Mutex<HashMap<(Key, Token), Arc<Traces>>>,
    clock: Clock,
    command_timeout: Duration,
}

/// A question that is on its way to all nodes.
struct Round<T> {
    answers: Receiver<(usize, Result<T, StoreError>)>,
    begun: Instant,
    deadline: Instant,
}

/// Whether to go on waiting for nodes.
enum Verdict {
    /// No further answer would change anything.
    Decided,
    /// A majority has answered. Its answers will do unless the others come soon.
    Likely,
    Open,
}

impl Quorum {
    fn new(members: Vec<Member>, clock: Clock, command_timeout: Duration) -> Self {
        let node_thread =
            |(number, member)| NodeThread::new(number, member, clock.clone(), command_timeout);
        let node_threads = (1..).zip(members).map(node_thread).collect();
        Self { node_threads, traces: Mutex::default(), clock, command_timeout }
    }

    /// Asks for a sign of life from a majority.
    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        let round = self.ask(deadline, Lane::Questions, move |_, member| {
            member.server.as_ref().map_or(Ok(()), |server| server.ping(deadline))
        });
        let alive = |tally: &Tally<()>| tally.count(|()| true) >= tally.majority();
        let tally = self.collect_until(&round, alive);
        if alive(&tally) { Ok(()) } else { Err(tally.failure()) }
    }

    /// Ends the threads, and closes the connections. `false`: not all threads by `deadline`.
    pub(crate) fn close(&self, deadline: Instant) -> bool {
        let stopped: Vec<Stopped> = self.node_threads.iter().flat_map(NodeThread::stop).collect();
        let in_time = stopped.iter().filter(|thread| !thread.wait(deadline)).count() == 0;
        self.node_threads.iter().for_each(NodeThread::disconnect);
        in_time
    }

    /// Asks all nodes at once.
    fn ask<T, F>(&self, deadline: Instant, lane: Lane, question: F) -> Round<T>
    where
        T: Send + 'static,
        F: Fn(usize, &Member) -> Result<T, StoreError> + Send + Sync + 'static,
    {
        let begun = self.clock.now();
        let question = Arc::new(question);
        let (tell, answers) = bounded(self.node_threads.len());
        for (index, node_thread) in self.node_threads.iter().enumerate() {
            let (question, told) = (Arc::clone(&question), tell.clone());
            let run = Box::new(move |member: &Member| {
                let _ = told.send((index, question(index, member)));
            });
            if let Err(error) = node_thread.ask(Job::Ask { deadline, lane, run }) {
                let _ = tell.send((index, Err(error)));
            }
        }
        Round { answers, begun, deadline }
    }

    /// The caller will ask to withdraw it, sooner or later.
    fn remember(&self, traces: Arc<Traces>) {
        let name = (traces.key.clone(), traces.token.clone());
        locked(&self.traces).insert(name, traces);
    }

    /// The leases of these tokens, to be withdrawn.
    fn targets(&self, names: impl Iterator<Item = (Key, Token)>) -> Arc<[ToWithdraw]> {
        let traces = locked(&self.traces);
        names
            .map(|name| {
                let traces = traces.get(&name).cloned();
                ToWithdraw { key: name.0, token: name.1, traces }
            })
            .collect()
    }

    /// Withdraws leases from all nodes that may have them (R10). Each node is asked in turn, so a
    /// withdrawal reaches it after the attempt; what a node does not answer is repeated in the
    /// background.
    fn withdraw_everywhere(
        &self,
        what: &Arc<[ToWithdraw]>,
        deadline: Instant,
    ) -> Round<Vec<Withdrawn>> {
        // Before any node is asked: what has not been sent until now is never sent.
        what.iter().filter_map(|target| target.traces.as_ref()).for_each(|traces| traces.end());
        let begun = self.clock.now();
        let (tell, answers) = bounded(self.node_threads.len());
        for (index, node_thread) in self.node_threads.iter().enumerate() {
            node_thread.withdraw(Withdrawals {
                what: Arc::clone(what),
                deadline,
                tell: (index, tell.clone()),
            });
        }
        Round { answers, begun, deadline }
    }

    /// Nobody will ask again to withdraw these.
    fn forget<'a>(&self, what: impl Iterator<Item = &'a ToWithdraw>) {
        let mut traces = locked(&self.traces);
        what.for_each(|target| _ = traces.remove(&(target.key.clone(), target.token.clone())));
    }

    /// Collects answers until they decide the question, by this, or its time is over.
    fn collect_until<T>(
        &self,
        round: &Round<T>,
        is_decided: impl Fn(&Tally<T>) -> bool,
    ) -> Tally<T> {
        self.collect(
            round,
            |tally| {
                if is_decided(tally) { Verdict::Decided } else { Verdict::Open }
            },
        )
    }

    /// Collects answers until they decide the question or its time is over.
    fn collect<T>(
        &self,
        round: &Round<T>,
        mut judge: impl FnMut(&Tally<T>) -> Verdict,
    ) -> Tally<T> {
        let mut tally = Tally::new(self.node_threads.len());
        let mut until = round.deadline;
        let mut likely = false;
        while tally.pending() > 0 {
            match judge(&tally) {
                Verdict::Decided => break,
                Verdict::Likely if !likely => {
                    likely = true;
                    let now = self.clock.now();
                    until =
                        until.min(now + GRACE.max(now.saturating_duration_since(round.begun) * 2));
                }
                Verdict::Likely | Verdict::Open => {}
            }
            let Some((node, answer)) = self.next(round, until) else { break };
            tally.note(node, answer);
        }
        tally
    }

    fn next<T>(&self, round: &Round<T>, until: Instant) -> Option<(usize, Result<T, StoreError>)> {
        loop {
            match round.answers.recv_timeout(self.clock.sleep_for(until)) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Timeout) if self.clock.now() < until => {}
                Err(_) => return None,
            }
        }
    }
}

/// A quorum has no rate limits: each of its nodes would count, and no count would be the limit's.
pub(super) struct NoLimits;

impl LimitStore for NoLimits {
    fn take(&self, _take: &Take<'_>) -> Result<Decision, StoreError> {
        Err(StoreError::not_sent(
            ErrorKind::Unsupported,
            "a quorum has no rate limits: they need one server",
        )
        .permanent())
    }
}
