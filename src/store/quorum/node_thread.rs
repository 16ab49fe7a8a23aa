//! One node of a quorum, and the two threads that ask it (R17).
//!
//! Extends have a thread of their own, as they have a connection of their own: an attempt or a
//! withdrawal that is not answered delays none of them (R9). The other thread also comes back to
//! the withdrawals that the node did not answer.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::traces::Traces;
use crate::base::clock::Clock;
use crate::base::error::ErrorKind;
use crate::base::key::Key;
use crate::base::locked;
use crate::base::store_error::StoreError;
use crate::base::worker::{Stopped, Worker};
use crate::lease::cleaner::{Backlog, Withdrawal};
use crate::lease::store::{Gone, LeaseStore, Withdraw};
use crate::lease::token::Token;
use crate::server::node::Node;

/// About how many questions may wait for one node. Each is dropped at its deadline, so only a
/// flood of them gets this far.
const MOST_WAITING: usize = 4096;

/// One node, as its thread sees it.
pub(super) struct Member {
    pub(super) leases: Arc<dyn LeaseStore>,
    /// The server behind them; `None`: they are in memory.
    pub(super) server: Option<Arc<Node>>,
}

/// Where a node's answer is sent, with the node's index.
pub(super) type Tell<T> = Sender<(usize, Result<T, StoreError>)>;

/// Something to do on one of the node's threads.
pub(super) enum Job {
    /// A question. Dropped once its deadline has passed: nobody waits for the answer any more.
    Ask { deadline: Instant, lane: Lane, run: Box<Question> },
    /// Leases to withdraw. Never dropped: what has no answer goes to the backlog.
    Withdraw(Withdrawals),
}

/// Which of the node's threads a question goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Questions,
    Extends,
}

pub(super) type Question = dyn FnOnce(&Member) + Send;

/// Leases to withdraw from one node.
pub(super) struct Withdrawals {
    pub(super) what: Arc<[ToWithdraw]>,
    pub(super) deadline: Instant,
    pub(super) tell: (usize, Tell<Vec<Withdrawn>>),
}

/// One lease to withdraw.
#[derive(Clone)]
pub(super) struct ToWithdraw {
    pub(super) key: Key,
    pub(super) token: Token,
    /// `None`: the token is somebody else's, or has been withdrawn before. Every node is asked
    /// then, and only once.
    pub(super) traces: Option<Arc<Traces>>,
}

/// The result of withdrawing one lease from one node. `Ok(None)`: the lease is gone, but it is
/// unknown whether it was there until then, because an earlier withdrawal was not answered.
pub(super) type Withdrawn = Result<Option<Gone>, StoreError>;

/// The handle of a node's threads. They hold nothing of the client, and end when this is dropped.
pub(super) struct NodeThread {
    questions: Worker<Job>,
    extends: Worker<Job>,
    thread: Talker,
}

#[derive(Clone)]
struct Talker {
    member: Arc<Member>,
    /// What the questions' thread has to withdraw again.
    backlog: Backlog,
    /// How many questions wait.
    waiting: Arc<AtomicUsize>,
    closing: Arc<AtomicBool>,
    clock: Clock,
}

impl NodeThread {
    /// The threads start with the first question. `number` is the node's place in the list of URLs,
    /// from 1.
    pub(super) fn new(number: usize, member: Member, clock: Clock, timeout: Duration) -> Self {
        let thread = Talker {
            member: Arc::new(member),
            backlog: Backlog::new(clock.clone(), timeout),
            waiting: Arc::default(),
            closing: Arc::default(),
            clock,
        };
        Self {
            questions: Worker::new(format!("distlock-node-{number}")),
            extends: Worker::new(format!("distlock-hold-{number}")),
            thread,
        }
    }

    pub(super) fn leases(&self) -> &dyn LeaseStore {
        &*self.thread.member.leases
    }

    /// Gives the thread a question, without waiting.
    pub(super) fn ask(&self, job: Job) -> Result<(), StoreError> {
        self.send(job).map_err(|(_, error)| error)
    }

    /// Makes the thread withdraw leases, without waiting for it. Once the thread was told to end,
    /// this thread withdraws them: also what the node is not known to have, because the attempt may
    /// be under way.
    pub(super) fn withdraw(&self, withdrawals: Withdrawals) {
        if let Err((Job::Withdraw(late), _)) = self.send(Job::Withdraw(withdrawals)) {
            let what = late.what.iter().map(|target| ToWithdraw { traces: None, ..target.clone() });
            self.thread.withdraw(&Withdrawals { what: what.collect(), ..late });
        }
    }

    /// Starts both threads, unless they run: once a lease is held it may be too late for that.
    fn start(&self) -> io::Result<()> {
        if self.extends.has_started() {
            return Ok(());
        }
        let (asks, extends) = (self.thread.clone(), self.thread.clone());
        let waiting = Mutex::default();
        self.questions.start(move |work| asks.serve(work, &waiting))?;
        self.extends.start(move |work| work.iter().for_each(|job| extends.run(job)))
    }

    fn send(&self, job: Job) -> Result<(), (Job, StoreError)> {
        let refused = |message| StoreError::not_sent(ErrorKind::Unavailable, message);
        if let Err(error) = self.start() {
            let failed = refused("no thread could be started for the node");
            return Err((job, failed.because(error)));
        }
        // A crowd of attempts must cost no held lock (R9): extends and withdrawals are never
        // refused.
        if is_question(&job) {
            if self.thread.waiting.load(Ordering::SeqCst) >= MOST_WAITING {
                return Err((job, refused("too many questions wait for the node")));
            }
            self.thread.waiting.fetch_add(1, Ordering::SeqCst);
        }
        let is_extend = matches!(job, Job::Ask { lane: Lane::Extends, .. });
        let worker = if is_extend { &self.extends } else { &self.questions };
        worker
            .send(job)
            .map_err(|job| (job, StoreError::not_sent(ErrorKind::Closed, "the client is closed")))
    }

    /// Lets the threads send the withdrawals that wait, try once more what had no answer, and end.
    pub(super) fn stop(&self) -> [Stopped; 2] {
        self.thread.closing.store(true, Ordering::SeqCst);
        [self.questions.stop(), self.extends.stop()]
    }

    /// Closes the connections.
    pub(super) fn disconnect(&self) {
        if let Some(server) = &self.thread.member.server {
            server.close();
        }
    }
}

fn is_question(job: &Job) -> bool {
    matches!(job, Job::Ask { lane: Lane::Questions, .. })
}

impl Talker {
    /// Withdrawals go first: nobody renews a lease that is being released, and a crowd of attempts
    /// must not let it run out (R9). What creates the same lease and waits behind them is not sent
    /// any more, because that lease has ended.
    fn serve(&self, work: &Receiver<Job>, questions: &Mutex<VecDeque<Job>>) {
        self.backlog.begin();
        loop {
            for job in work.try_iter() {
                match job {
                    Job::Withdraw(withdrawals) => self.withdraw(&withdrawals),
                    question => locked(questions).push_back(question),
                }
            }
            // Beside a crowd of questions there is one call of the backlog's after each.
            let next = self.backlog.work();
            let question = locked(questions).pop_front();
            let received = match (question, next) {
                (Some(question), _) => Ok(question),
                (None, None) => work.recv().map_err(|_| RecvTimeoutError::Disconnected),
                (None, Some(next)) => work.recv_timeout(self.clock.sleep_for(next)),
            };
            match received {
                Ok(job) => self.run(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.backlog.drain(),
            }
        }
    }

    fn run(&self, job: Job) {
        if is_question(&job) {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        match job {
            Job::Ask { deadline, run, .. } => {
                if self.clock.now() < deadline && !self.closing.load(Ordering::SeqCst) {
                    run(&self.member);
                }
            }
            Job::Withdraw(withdrawals) => self.withdraw(&withdrawals),
        }
    }

    fn withdraw(&self, withdrawals: &Withdrawals) {
        let Withdrawals { what, deadline, tell: (node, tell) } = withdrawals;
        let mut told: Vec<Withdrawn> = what.iter().map(|_| Ok(Some(Gone::NotOurs))).collect();
        // The node has nothing of the others: they were refused there, or never sent.
        let may_have =
            |i: &usize| what[*i].traces.as_ref().is_none_or(|traces| traces.left(*node).is_some());
        let asked: Vec<usize> = (0..what.len()).filter(may_have).collect();
        let answers = match asked.is_empty() {
            true => Vec::new(),
            false => self.ask_to_withdraw(what, &asked, *deadline),
        };
        for (i, (answer, again)) in asked.iter().zip(answers) {
            let ToWithdraw { key, token, traces } = &what[*i];
            if let Some(traces) = traces
                && let Some(left) = traces.left(*node)
                && traces.withdrawn(*node, answer.is_ok())
            {
                let _ = self.backlog.add(Withdrawal {
                    lease: self.clock.left(left.until),
                    in_flight: left.unanswered,
                    ..Withdrawal::stray(Arc::clone(&self.member.leases), key.clone(), token.clone())
                });
            }
            told[*i] = answer.map(|gone| (gone == Gone::Released || !again).then_some(gone));
        }
        let _ = tell.send((*node, Ok(told)));
    }

    /// Withdraws the leases at the indices `which`. If an idle connection turned out to be closed,
    /// those that failed are withdrawn once more, at once. Each answer comes with whether it is
    /// the second.
    fn ask_to_withdraw(
        &self,
        what: &[ToWithdraw],
        which: &[usize],
        deadline: Instant,
    ) -> Vec<(Result<Gone, StoreError>, bool)> {
        if self.clock.now() >= deadline {
            let message = "the node was busy with earlier questions";
            let busy = || Err(StoreError::not_sent(ErrorKind::Unavailable, message));
            return which.iter().map(|_| (busy(), false)).collect();
        }
        let ask = |which: &[usize]| {
            let what: Vec<_> =
                which.iter().map(|i| Withdraw::of(&what[*i].key, &what[*i].token)).collect();
            let mut answers = self.member.leases.withdraw(&what, deadline);
            answers.resize_with(what.len(), || {
                let message = "no answer to a withdrawal";
                Err(StoreError::not_sent(ErrorKind::Unavailable, message).maybe_run())
            });
            answers
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
