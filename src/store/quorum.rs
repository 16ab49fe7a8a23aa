//! Redlock: one lease on a majority of independent nodes.
//!
//! The algorithm is the one that the Redis documentation describes on its page about distributed
//! locks (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>): the same
//! token under the same key on every node; a lease if more than half of them granted it while it is
//! still valid; otherwise nothing is left on any node.
//!
//! Each node has one long-lived thread. A question goes to all of them at once and ends as soon as
//! the answers decide it, so it takes as long as the slowest node of the fastest majority. Later
//! answers are ignored. Each node gets its questions one after another, so an undoing reaches a
//! node after the attempt that it undoes.

mod again;
mod attempt;
mod identity;
mod leases;
mod node_thread;
mod open;
mod tally;
mod undo_log;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use super::server::node::Node;
use crate::base::clock::Clock;
use crate::base::error::ErrorKind;
use crate::base::locked;
use crate::base::worker::Stopped;
use crate::lease::store::StoreError;
use crate::limiter::port::{Decision, LimitStore, Take};
use node_thread::{Job, Member, NodeThread, Order, Undo, Undone, again_if_stale};
use tally::Tally;
use undo_log::{Name, UndoLog};

/// Once a majority has replied but disagrees, the other nodes have up to twice the time elapsed,
/// and at least this.
const GRACE: Duration = Duration::from_millis(50);

/// One grant by a majority: whether its undoing has begun.
type UndoingFlag = Arc<AtomicBool>;

/// Leases on a majority of nodes.
pub(crate) struct Quorum {
    node_threads: Vec<NodeThread>,
    /// The leases that were granted here, until they are undone.
    granted: Mutex<HashMap<Name, UndoingFlag>>,
    clock: Clock,
    command_timeout: Duration,
    process: u32,
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
        Self {
            node_threads,
            granted: Mutex::default(),
            clock,
            command_timeout,
            process: std::process::id(),
        }
    }

    /// A fork has its parent's sockets, but none of its threads (R11).
    fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Asks for a sign of life from a majority.
    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        let round = self.ask(deadline, Order::InTurn, move |_, member, _| {
            let ping = |server: &Arc<Node>| again_if_stale(|_| server.ping(deadline));
            member.server.as_ref().map_or(Ok(()), ping)
        })?;
        let alive = |tally: &Tally<()>| tally.count(|()| true) >= tally.majority();
        let tally = self
            .collect(&round, |tally| if alive(tally) { Verdict::Decided } else { Verdict::Open });
        if alive(&tally) { Ok(()) } else { Err(tally.failure()) }
    }

    /// Ends the threads. `false`: not all of them by `deadline`.
    pub(crate) fn close(&self, deadline: Instant) -> bool {
        let stopped: Vec<Stopped> = self.node_threads.iter().map(NodeThread::stop).collect();
        stopped.iter().filter(|thread| !thread.wait(deadline)).count() == 0
    }

    /// Asks all nodes at once.
    fn ask<T, F>(
        &self,
        deadline: Instant,
        order: Order,
        question: F,
    ) -> Result<Round<T>, StoreError>
    where
        T: Send + 'static,
        F: Fn(usize, &Member, &mut UndoLog) -> Result<T, StoreError> + Send + Sync + 'static,
    {
        self.usable()?;
        let begun = self.clock.now();
        let question = Arc::new(question);
        let (tell, answers) = bounded(self.node_threads.len());
        for (index, node_thread) in self.node_threads.iter().enumerate() {
            let (question, told) = (Arc::clone(&question), tell.clone());
            let run = Box::new(move |member: &Member, undo_log: &mut UndoLog| {
                let answer = question(index, member, undo_log);
                let answered = answer.is_ok();
                let _ = told.send((index, answer));
                answered
            });
            if let Err(error) = node_thread.ask(Job::Ask { deadline, order, run }) {
                let _ = tell.send((index, Err(error)));
            }
        }
        Ok(Round { answers, begun, deadline })
    }

    /// Makes all nodes undo what these tokens have there. Nodes that do not answer are asked again,
    /// for as long as it takes (R10). A node that can hold nothing of a token is not asked at all,
    /// unless the token is somebody else's.
    fn undo(
        &self,
        names: Vec<Name>,
        foreign: bool,
        deadline: Instant,
    ) -> Result<Round<Vec<Undone>>, StoreError> {
        self.usable()?;
        // Set before any node is told to undo the lease. Giving the lease again (R33) checks this
        // before it is sent, so it is skipped or comes before the undoing.
        let mut granted = locked(&self.granted);
        names
            .iter()
            .filter_map(|name| granted.remove(name))
            .for_each(|undone| undone.store(true, Ordering::SeqCst));
        drop(granted);
        Ok(self.send_undo(names, foreign, deadline))
    }

    /// Makes all nodes undo leases that a majority said are not ours any more: what the other nodes
    /// still have keeps everybody out, and nobody else will undo it. But only the grant of this
    /// `UndoingFlag` is undone, and not a later grant under a caller's own value:
    ///
    /// 1. an extend is on its way; 2. the holder releases the lease, and acquires it again under
    ///    the same value; 3. the extend is denied.
    ///
    /// Sent while `granted` is locked: so a release, and what is granted after it, comes later at
    /// every node.
    fn undo_lost(&self, lost: Vec<(Name, UndoingFlag)>) {
        let mut granted = locked(&self.granted);
        let mut names = Vec::new();
        for (name, grant) in lost {
            if granted.get(&name).is_some_and(|present| Arc::ptr_eq(present, &grant)) {
                granted.remove(&name);
                grant.store(true, Ordering::SeqCst);
                names.push(name);
            }
        }
        if !names.is_empty() {
            self.send_undo(names, false, self.clock.now() + self.command_timeout);
        }
    }

    fn send_undo(&self, names: Vec<Name>, foreign: bool, deadline: Instant) -> Round<Vec<Undone>> {
        let begun = self.clock.now();
        let (tell, answers) = bounded(self.node_threads.len());
        let names: Arc<[Name]> = names.into();
        for (index, node_thread) in self.node_threads.iter().enumerate() {
            node_thread.undo(Undo {
                names: Arc::clone(&names),
                foreign,
                deadline,
                tell: (index, tell.clone()),
            });
        }
        Round { answers, begun, deadline }
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

    fn usable(&self) -> Result<(), StoreError> {
        if self.is_forked() {
            let message =
                "the client belongs to the process that this one was forked from: make a new one";
            return Err(StoreError::not_sent(ErrorKind::Unsupported, message).permanent());
        }
        Ok(())
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
