//! The cleaner: withdraws, in the background, what nobody waits for any more (R5, R11).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::Limits;
use super::backoff;
use super::key::Key;
use super::store::{LeaseStore, Withdraw};
use super::token::Token;
use super::worker::{Stopped, Worker};
use crate::base::clock::Clock;

/// For how long after the first answer a withdrawal is repeated.
///
/// "Not ours" proves nothing while an unanswered attempt may still be in flight:
///
/// 1. we send an attempt; no answer; we close the connection;
/// 2. we withdraw over another connection: "not ours";
/// 3. the attempt arrives, is granted, and nobody knows.
///
/// Our own kernel forgets what it has not delivered when the connection is closed (it is reset), so what can arrive late is
/// what already waits at the server, which is read within moments of the server's next answer, or what a middle-box keeps.
const SETTLE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(2_500);

/// Something to withdraw.
pub(crate) struct Withdrawal {
    pub(crate) store: Arc<dyn LeaseStore>,
    pub(crate) name: Arc<str>,
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) lease: Duration,
    /// The condition that it may have entered.
    pub(crate) condition: Option<Arc<str>>,
    /// Whether a copy of an unanswered attempt may arrive after the withdrawal.
    pub(crate) in_flight: bool,
    /// Whether its thread ended while it held the lock (R11).
    pub(crate) abandoned: bool,
}

/// Hands withdrawals to the cleaner's thread. Clones feed the same thread.
#[derive(Clone)]
pub(crate) struct Cleaner {
    worker: Arc<Worker<Withdrawal>>,
    clock: Clock,
    limits: Limits,
}

struct Job {
    what: Withdrawal,
    since: Instant,
    next: Instant,
    pause: Duration,
    answered_at: Option<Instant>,
}

impl Cleaner {
    pub(crate) fn new(clock: Clock, limits: Limits) -> Self {
        Self { worker: Arc::new(Worker::new("distlock-cleaner")), clock, limits }
    }

    /// Starts the thread. Before a lease is asked for: a thread that dies while it holds cannot start another.
    pub(crate) fn start(&self) -> io::Result<()> {
        let thread = Thread { clock: self.clock.clone(), limits: self.limits };
        self.worker.start(move |work| thread.run(work))
    }

    /// Withdraws soon, and again until nothing can be left. Once the client is closed: at once, on this thread, and only once.
    pub(crate) fn withdraw(&self, what: Withdrawal) {
        if let Err(what) = self.worker.send(what) {
            let _ = what.try_once(self.clock.now() + self.limits.command_timeout);
        }
    }

    /// Withdraws at once, on this thread; what is not answered by the deadline is left to the background.
    pub(crate) fn withdraw_now(&self, what: Withdrawal, deadline: Instant) {
        if what.try_once(deadline).is_err() {
            self.withdraw(what);
        }
    }

    /// As `withdraw`, but neither blocks nor panics, so that a thread-local destructor may call it. After `stop` it does nothing: closing released every hold.
    pub(crate) fn withdraw_later(&self, what: Withdrawal) {
        let _ = self.worker.send(what);
    }

    /// Lets the thread try once more each thing that it has had no answer for, and end.
    pub(crate) fn stop(&self) -> Stopped {
        self.worker.stop()
    }
}

struct Thread {
    clock: Clock,
    limits: Limits,
}

impl Thread {
    fn run(&self, work: &Receiver<Withdrawal>) {
        let mut jobs: VecDeque<Job> = VecDeque::new();
        loop {
            let next = jobs.iter().map(|job| job.next).min();
            let received = match next {
                None => work.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(next) => work.recv_timeout(self.clock.sleep_for(next)),
            };
            match received {
                Ok(what) => {
                    if what.abandoned {
                        log::warn!("lock {:?}: a thread ended while it held the lock; it is released now", what.name);
                    }
                    let now = self.clock.now();
                    jobs.push_back(Job { what, since: now, next: now, pause: FIRST_PAUSE, answered_at: None });
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.drain(jobs),
            }
            self.round(&mut jobs);
        }
    }

    /// Tries each job whose time has come, once.
    fn round(&self, jobs: &mut VecDeque<Job>) {
        for _ in 0..jobs.len() {
            let Some(mut job) = jobs.pop_front() else { return };
            let now = self.clock.now();
            if job.next > now {
                jobs.push_back(job);
                continue;
            }
            let answer = job.what.try_once(now + self.limits.command_timeout);
            let now = self.clock.now();
            match answer {
                Ok(()) => {
                    let answered_at = *job.answered_at.get_or_insert(now);
                    if !job.what.in_flight || now.saturating_duration_since(answered_at) >= SETTLE {
                        continue;
                    }
                    job.next = now + job.pause;
                    job.pause = (job.pause * 2).min(LONGEST_PAUSE);
                    jobs.push_back(job);
                }
                // What cannot be withdrawn for lack of a permission ends with its lease.
                Err(true) if now.saturating_duration_since(job.since) >= job.what.lease => {}
                Err(_) => {
                    let again = now + backoff::outage_pause();
                    job.next = again;
                    jobs.push_back(job);
                    // One that is not answered holds up the others for its whole deadline: let them all wait for the server's return.
                    for job in jobs.iter_mut() {
                        job.next = job.next.max(again);
                    }
                    return;
                }
            }
        }
    }

    /// The client is being closed: whatever has not been answered once is tried once more, until one is not answered.
    fn drain(&self, jobs: VecDeque<Job>) {
        for job in jobs.into_iter().filter(|job| job.answered_at.is_none()) {
            if job.what.try_once(self.clock.now() + self.limits.command_timeout).is_err() {
                log::warn!("lock {:?}: could not be withdrawn before the client ended", job.what.name);
                return;
            }
        }
    }
}

impl Withdrawal {
    /// A grant that came back for a token that nobody knows any more.
    pub(crate) fn stray(store: Arc<dyn LeaseStore>, key: Key, token: Token) -> Self {
        let name = key.as_str().into();
        Self { store, name, key, token, lease: Duration::ZERO, condition: None, in_flight: false, abandoned: false }
    }

    /// `Err`: no answer, and whether that is permanent.
    fn try_once(&self, deadline: Instant) -> Result<(), bool> {
        let what = Withdraw { key: &self.key, token: &self.token, condition: self.condition.as_deref() };
        match self.store.withdraw_one(what, deadline) {
            Ok(_) => Ok(()),
            Err(error) => {
                log::debug!("lock {:?}: no answer to a withdrawal: {}", self.name, error.message);
                Err(error.permanent)
            }
        }
    }
}
