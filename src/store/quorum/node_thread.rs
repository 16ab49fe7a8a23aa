//! One node of a quorum, and the one long-lived thread that talks to it (R17).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::undo_log::{Name, UndoLog, withdraw};
use crate::base::clock::Clock;
use crate::base::error::ErrorKind;
use crate::base::worker::{Stopped, Worker};
use crate::lease::store::{Gone, LeaseStore, StoreError};
use crate::store::server::node::Node;

/// About how many questions may wait for one node. Each is dropped at its deadline, so only a flood
/// of them gets this far.
const MOST_WAITING: usize = 4096;
/// How long each last undoing may take when the client is closed: a node that is up needs far less.
const LAST: Duration = Duration::from_millis(250);

/// One node, as its thread sees it.
pub(super) struct Member {
    pub(super) leases: Arc<dyn LeaseStore>,
    /// The server behind them; `None`: they are in memory.
    pub(super) server: Option<Arc<Node>>,
}

/// Where a node's answer is sent, with the node's index.
pub(super) type Tell<T> = Sender<(usize, Result<T, StoreError>)>;

/// Something to do on the node's thread.
pub(super) enum Job {
    /// A question. Dropped once its deadline has passed: nobody waits for the answer any more.
    Ask { deadline: Instant, order: Order, run: Box<Question> },
    /// Undo what these tokens have on the node. Never dropped: what has no answer goes into the
    /// undo log.
    Undo(Undo),
}

/// Leases to undo on one node.
pub(super) struct Undo {
    pub(super) names: Arc<[Name]>,
    /// Whether to ask the node even if the undo log says that it can hold none of them, because
    /// they are somebody else's.
    pub(super) foreign: bool,
    pub(super) deadline: Instant,
    pub(super) tell: (usize, Tell<Vec<Undone>>),
}

/// The result of undoing one lease on one node. `Ok(None)`: the lease is gone, but it is unknown
/// whether it was there until then, because an earlier command to undo it was not answered.
pub(super) type Undone = Result<Option<Gone>, StoreError>;

/// When a question's turn comes among those that wait for the node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// After everything that came before it: what undoes an attempt must not reach the node before
    /// the attempt.
    InTurn,
    /// Before everything else, so that no crowd of waiters delays a renewal (R9).
    First,
}

/// Asks, and says whether the node answered.
pub(super) type Question = dyn FnOnce(&Member, &mut UndoLog) -> bool + Send;

/// The handle of a node's thread. The thread holds nothing of the client, and ends when this is
/// dropped.
pub(super) struct NodeThread {
    worker: Worker<Job>,
    thread: Talker,
}

#[derive(Clone)]
struct Talker {
    member: Arc<Member>,
    waiting: Arc<AtomicUsize>,
    closing: Arc<AtomicBool>,
    clock: Clock,
    timeout: Duration,
}

impl NodeThread {
    /// The thread starts with the first question. `number` is the node's place in the list of URLs,
    /// from 1.
    pub(super) fn new(number: usize, member: Member, clock: Clock, timeout: Duration) -> Self {
        let thread = Talker {
            member: Arc::new(member),
            waiting: Arc::default(),
            closing: Arc::default(),
            clock,
            timeout,
        };
        Self { worker: Worker::new(format!("distlock-node-{number}")), thread }
    }

    pub(super) fn leases(&self) -> &dyn LeaseStore {
        &*self.thread.member.leases
    }

    /// Gives the thread a question, without waiting.
    pub(super) fn ask(&self, job: Job) -> Result<(), StoreError> {
        self.send(job).map_err(|(_, error)| error)
    }

    /// Makes the thread undo leases, without waiting for it. Once the thread was told to end, its
    /// undo log is gone: then the undoing is sent here, and only once.
    pub(super) fn undo(&self, undo: Undo) {
        if let Err((Job::Undo(undo), _)) = self.send(Job::Undo(undo)) {
            self.thread.undo(&Undo { foreign: true, ..undo }, &mut UndoLog::default());
        }
    }

    fn send(&self, job: Job) -> Result<(), (Job, StoreError)> {
        let thread = self.thread.clone();
        if let Err(error) = self.worker.start(move |work| thread.serve(work)) {
            let failed = StoreError::not_sent(
                ErrorKind::Unavailable,
                "no thread could be started for the node",
            );
            return Err((job, failed.because(error)));
        }
        let waiting = &self.thread.waiting;
        if waiting.load(Ordering::SeqCst) >= MOST_WAITING && is_in_turn(&job) {
            return Err((
                job,
                StoreError::not_sent(
                    ErrorKind::Unavailable,
                    "too many questions wait for the node",
                ),
            ));
        }
        waiting.fetch_add(1, Ordering::SeqCst);
        self.worker
            .send(job)
            .map_err(|job| (job, StoreError::not_sent(ErrorKind::Closed, "the client is closed")))
    }

    /// Lets the thread finish its undoings, as long as the node answers, and then end.
    pub(super) fn stop(&self) -> Stopped {
        self.thread.closing.store(true, Ordering::SeqCst);
        self.worker.stop()
    }
}

/// What waits for the node.
#[derive(Default)]
struct Waiting {
    first: VecDeque<Job>,
    in_turn: VecDeque<Job>,
}

impl Waiting {
    fn push(&mut self, job: Job) {
        match job {
            Job::Ask { order: Order::First, .. } => self.first.push_back(job),
            job => self.in_turn.push_back(job),
        }
    }

    fn pop(&mut self) -> Option<Job> {
        self.first.pop_front().or_else(|| self.in_turn.pop_front())
    }
}

/// Extends are never refused: a crowd of attempts must cost no held lock (R9).
fn is_in_turn(job: &Job) -> bool {
    matches!(job, Job::Ask { order: Order::InTurn, .. })
}

impl Talker {
    fn serve(&self, work: &Receiver<Job>) {
        let mut waiting = Waiting::default();
        let mut undo_log = UndoLog::default();
        loop {
            work.try_iter().for_each(|job| waiting.push(job));
            let Some(job) = waiting.pop() else {
                let received = match undo_log.next() {
                    None => work.recv().map_err(|_| RecvTimeoutError::Disconnected),
                    Some(next) => work.recv_timeout(self.clock.sleep_for(next)),
                };
                match received {
                    Ok(job) => waiting.push(job),
                    Err(RecvTimeoutError::Timeout) => {
                        undo_log.retry_due(&*self.member.leases, &self.clock, self.timeout)
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        undo_log.retry_last(
                            &*self.member.leases,
                            &self.clock,
                            self.timeout.min(LAST),
                        );
                        if let Some(server) = &self.member.server {
                            server.close();
                        }
                        return;
                    }
                }
                continue;
            };
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            let answered = self.run(job, &mut undo_log);
            work.try_iter().for_each(|job| waiting.push(job));
            // Even in a crowd of questions there is one short retry after each; but an extend goes
            // first (R9).
            if answered && waiting.first.is_empty() {
                undo_log.retry_due(&*self.member.leases, &self.clock, self.timeout);
            }
        }
    }

    /// Whether the node answered.
    fn run(&self, job: Job, undo_log: &mut UndoLog) -> bool {
        match job {
            Job::Ask { deadline, run, .. } => {
                self.clock.now() < deadline
                    && !self.closing.load(Ordering::SeqCst)
                    && run(&self.member, undo_log)
            }
            Job::Undo(undo) => self.undo(&undo, undo_log),
        }
    }

    fn undo(&self, undo: &Undo, undo_log: &mut UndoLog) -> bool {
        let (names, (index, tell)) = (&undo.names, &undo.tell);
        let mut told: Vec<Undone> = names.iter().map(|_| Ok(Some(Gone::NotOurs))).collect();
        // The node can hold nothing of the others: they were refused there, or never sent.
        let asked: Vec<usize> =
            (0..names.len()).filter(|i| undo.foreign || undo_log.may_hold(&names[*i])).collect();
        let mut answered = true;
        for (i, (answer, again)) in asked.iter().zip(self.withdraw(names, &asked, undo.deadline)) {
            let unclear = again || undo_log.undoes(&names[*i]);
            if again {
                undo_log.undoing_unanswered(&names[*i]);
            }
            undo_log.undone(&names[*i], &answer, self.clock.now());
            answered &= answer.is_ok();
            told[*i] = answer.map(|gone| (gone == Gone::Released || !unclear).then_some(gone));
        }
        let _ = tell.send((*index, Ok(told)));
        answered && !asked.is_empty()
    }

    /// Withdraws the names at the indices `which`. If an idle connection turned out to be closed,
    /// those that failed are withdrawn once more, at once. Each answer comes with whether it is the
    /// second.
    fn withdraw(
        &self,
        names: &[Name],
        which: &[usize],
        deadline: Instant,
    ) -> Vec<(Result<Gone, StoreError>, bool)> {
        let busy = || {
            Err(StoreError::not_sent(
                ErrorKind::Unavailable,
                "the node was busy with earlier questions",
            ))
        };
        if self.clock.now() >= deadline {
            return which.iter().map(|_| (busy(), false)).collect();
        }
        let ask = |which: &[usize]| {
            let names: Vec<Name> = which.iter().map(|i| names[*i].clone()).collect();
            withdraw(&*self.member.leases, &names, deadline)
        };
        let mut answers: Vec<_> = ask(which).into_iter().map(|answer| (answer, false)).collect();
        if answers.iter().any(|(answer, _)| answer.as_ref().is_err_and(|error| error.stale)) {
            let failed: Vec<usize> = (0..which.len()).filter(|i| answers[*i].0.is_err()).collect();
            let again: Vec<usize> = failed.iter().map(|i| which[*i]).collect();
            for (i, answer) in failed.into_iter().zip(ask(&again)) {
                answers[i] = (answer, true);
            }
        }
        answers
    }
}

/// Asks, and asks once more, at once, if an idle connection turned out to be closed. The question
/// is told whether it is the second.
pub(super) fn again_if_stale<T>(
    mut ask: impl FnMut(bool) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    match ask(false) {
        Err(error) if error.stale => ask(true),
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(order: Order) -> Job {
        Job::Ask { deadline: Instant::now(), order, run: Box::new(|_, _| true) }
    }

    fn drain(waiting: &mut Waiting) -> Vec<Order> {
        let order = |job| match job {
            Job::Ask { order, .. } => order,
            Job::Undo(_) => unreachable!("none is pushed"),
        };
        std::iter::from_fn(|| waiting.pop()).map(order).collect()
    }

    #[test]
    fn extends_pass_a_crowd() {
        use Order::{First, InTurn};
        let mut waiting = Waiting::default();
        [InTurn, InTurn, First].into_iter().for_each(|order| waiting.push(ask(order)));
        assert!(drain(&mut waiting) == [First, InTurn, InTurn]);
    }
}
