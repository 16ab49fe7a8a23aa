//! The cleaner: withdraws, in the background, what nobody waits for any more (R5, R11).

mod withdrawal;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::store::StoreError;
use super::token::Token;
use crate::base::backoff;
use crate::base::clock::Clock;
use crate::base::error::ErrorKind;
use crate::base::key::Key;
use crate::base::locked;
use crate::base::log;
use crate::base::worker::{Stopped, Worker};
use withdrawal::OpenWithdrawal;
pub(crate) use withdrawal::Withdrawal;

/// For how long all withdrawals of a token must have been answered before they end.
///
/// "Not ours" proves nothing while an unanswered attempt may still be in flight:
///
/// 1. we send an attempt; no answer; we close the connection;
/// 2. we withdraw over another connection: "not ours";
/// 3. the attempt arrives, is granted, and nobody knows.
///
/// When the connection is closed, our kernel drops what it has not delivered (the connection is
/// reset). So an attempt can arrive late only if it already waits at the server, which reads it
/// within moments of its next answer, or if a middle-box keeps it.
const SETTLE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(2_500);
/// How long the first try after the client was closed may take, even if the time is over: a server
/// that is up needs far less.
const LAST: Duration = Duration::from_millis(250);
/// The most withdrawals in one call. A call that fails is repeated as a whole.
const BULK: usize = 256;

/// Hands withdrawals to the cleaner's thread. Clones feed the same thread.
#[derive(Clone)]
pub(crate) struct Cleaner {
    worker: Arc<Worker<Wake>>,
    thread: CleanerThread,
}

/// Says that there is something new to do.
struct Wake;

#[derive(Clone)]
struct CleanerThread {
    shared: Arc<Shared>,
    clock: Clock,
    command_timeout: Duration,
}

#[derive(Default)]
struct Shared {
    state: Mutex<Todo>,
    /// Notified when a withdrawal has been tried, and when a value is not in use any more.
    changed: Condvar,
}

#[derive(Default)]
struct Todo {
    jobs: Vec<OpenWithdrawal>,
    last_number: u64,
    /// The callers' own values that acquisitions and leases use now. What an earlier use left
    /// behind waits for the end of this use.
    in_use: Vec<(Key, Token)>,
    /// Until when to go on trying, once the client is closed.
    closing: Option<Instant>,
    /// Set at the end of the thread: how many withdrawals had no answer.
    left: Option<usize>,
}

impl Todo {
    fn unanswered(&self) -> impl Iterator<Item = &Arc<Withdrawal>> {
        self.jobs.iter().filter(|job| job.answered_at.is_none()).map(|job| &job.what)
    }
}

/// The use of a caller's own value, until dropped.
pub(crate) struct InUse {
    cleaner: Cleaner,
    name: (Key, Token),
    /// Whether a command of an earlier use may still arrive at the store.
    pub(crate) left_behind: bool,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = locked(&self.cleaner.thread.shared.state);
        if let Some(at) = state.in_use.iter().position(|name| *name == self.name) {
            state.in_use.swap_remove(at);
        }
        drop(state);
        self.cleaner.thread.shared.changed.notify_all();
        let _ = self.cleaner.worker.send(Wake);
    }
}

impl Cleaner {
    pub(crate) fn new(clock: Clock, command_timeout: Duration) -> Self {
        let thread = CleanerThread { shared: Arc::default(), clock, command_timeout };
        Self { worker: Arc::new(Worker::new("distlock-cleaner")), thread }
    }

    /// Starts the thread. Called before a lease is requested: a thread that dies while it holds
    /// cannot start another thread.
    pub(crate) fn start(&self) -> io::Result<()> {
        if self.worker.has_started() {
            return Ok(());
        }
        let thread = self.thread.clone();
        self.worker.start(move |wake| thread.run(wake))
    }

    /// Withdraws soon, and again until nothing can be left. Once the client is closed: at once, on
    /// this thread, and only once.
    pub(crate) fn withdraw(&self, what: Withdrawal) {
        if let Err(what) = self.add(what) {
            let _ = what.try_once(self.thread.command_deadline());
        }
    }

    /// Withdraws at once, on this thread. `false`: no answer by the deadline; the background goes
    /// on.
    pub(crate) fn withdraw_now(&self, mut what: Withdrawal, deadline: Instant) -> bool {
        let Err(error) = what.try_once(deadline) else { return true };
        what.release_in_flight |= error.may_have_run;
        self.withdraw(what);
        false
    }

    /// As `withdraw`, but neither blocks nor panics, so that a thread-local destructor may call it.
    /// After `close` it does nothing: closing released every hold.
    pub(crate) fn withdraw_later(&self, what: Withdrawal) {
        let _ = self.add(what);
    }

    fn add(&self, what: Withdrawal) -> Result<(), Withdrawal> {
        let mut state = locked(&self.thread.shared.state);
        if state.left.is_some() {
            return Err(what);
        }
        state.last_number += 1;
        let (number, now) = (state.last_number, self.thread.clock.now());
        let (release_in_flight, what) = (what.release_in_flight, Arc::new(what));
        state.jobs.push(OpenWithdrawal {
            number,
            what,
            since: now,
            next: now,
            pause: FIRST_PAUSE,
            answered_at: None,
            release_in_flight,
            running: false,
            tries: 0,
        });
        drop(state);
        let _ = self.worker.send(Wake);
        Ok(())
    }

    /// Begins to use a caller's own value, which may have been used before. A withdrawal of it
    /// never runs beside the new use:
    ///
    /// 1. hold 1 ends, and its value is withdrawn in the background, again and again, because an
    ///    attempt of it had no answer;
    /// 2. hold 2 begins, under the same value;
    /// 3. the next withdrawal deletes hold 2.
    ///
    /// So pending withdrawals of the value are dropped here: a late copy of an attempt changes
    /// nothing while hold 2 lasts, and hold 2 withdraws it in the end. Only a late copy of a
    /// *release* would delete hold 2: if one may be on its way, the use is refused.
    pub(crate) fn reuse(
        &self,
        key: &Key,
        token: &Token,
        deadline: Instant,
    ) -> Result<InUse, StoreError> {
        let refused = || {
            StoreError::not_sent(
                ErrorKind::Unavailable,
                "an earlier hold with the same value is still being undone",
            )
        };
        let name = (key.clone(), token.clone());
        let CleanerThread { shared, clock, .. } = &self.thread;
        let mut state = locked(&shared.state);
        while state.in_use.contains(&name)
            || state.jobs.iter().any(|job| job.running && job.is(key, token))
        {
            let left = clock.sleep_for(deadline);
            if left.is_zero() {
                return Err(refused());
            }
            state =
                shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.jobs.iter().any(|job| job.is(key, token) && job.release_in_flight) {
            return Err(refused());
        }
        let before = state.jobs.len();
        state.jobs.retain(|job| !job.is(key, token));
        let left_behind = state.jobs.len() < before;
        state.in_use.push(name.clone());
        Ok(InUse { cleaner: self.clone(), name, left_behind })
    }

    /// Lets the thread retry what has had no answer, until the deadline, and then end.
    pub(crate) fn close(&self, deadline: Instant) -> Stopped {
        locked(&self.thread.shared.state).closing.get_or_insert(deadline);
        self.worker.stop()
    }

    /// How many locks may still be held on the server, because their withdrawals have no answer.
    pub(crate) fn unanswered(&self) -> usize {
        let state = locked(&self.thread.shared.state);
        state.left.unwrap_or_else(|| state.unanswered().count())
    }
}

impl CleanerThread {
    fn command_deadline(&self) -> Instant {
        self.clock.now() + self.command_timeout
    }

    fn run(&self, wake: &Receiver<Wake>) {
        // After a panic: what was being tried then.
        locked(&self.shared.state).jobs.iter_mut().for_each(|job| job.running = false);
        loop {
            let now = self.clock.now();
            let (due, next) = self.take(|job| job.next <= now);
            if due.is_empty() {
                let closed = match next {
                    None => wake.recv().is_err(),
                    Some(next) => matches!(
                        wake.recv_timeout(self.clock.sleep_for(next)),
                        Err(RecvTimeoutError::Disconnected)
                    ),
                };
                if closed {
                    return self.drain();
                }
                continue;
            }
            self.withdraw(&due, self.command_deadline());
        }
    }

    /// Takes the jobs of one store that `wanted` chooses. Also returns when the next job is due.
    fn take(
        &self,
        wanted: impl Fn(&OpenWithdrawal) -> bool,
    ) -> (Vec<(u64, Arc<Withdrawal>)>, Option<Instant>) {
        let mut state = locked(&self.shared.state);
        let Todo { jobs, in_use, .. } = &mut *state;
        let is_free = |job: &OpenWithdrawal| !in_use.iter().any(|(key, token)| job.is(key, token));
        let next = jobs.iter().filter(|job| is_free(job)).map(|job| job.next).min();
        let mut chosen: Vec<&mut OpenWithdrawal> =
            jobs.iter_mut().filter(|job| wanted(job) && is_free(job)).collect();
        // Jobs that fail again and again must not delay the others.
        chosen.sort_by_key(|job| job.tries);
        let mut taken: Vec<(u64, Arc<Withdrawal>)> = Vec::new();
        for job in chosen {
            let same_store =
                taken.first().is_none_or(|(_, first)| Arc::ptr_eq(&first.store, &job.what.store));
            if taken.len() < BULK && same_store {
                (job.running, job.tries) = (true, job.tries + 1);
                taken.push((job.number, Arc::clone(&job.what)));
            }
        }
        (taken, next)
    }

    /// Tries these withdrawals once. `false`: not all were answered.
    fn withdraw(&self, due: &[(u64, Arc<Withdrawal>)], deadline: Instant) -> bool {
        let Some((_, first)) = due.first() else { return true };
        for (_, what) in due.iter().filter(|(_, what)| what.abandoned.swap(false, Ordering::SeqCst))
        {
            log::warn!(
                "lock {:?}: a thread ended while it held the lock; it is released now",
                what.name
            );
        }
        let what: Vec<_> = due.iter().map(|(_, what)| what.as_withdraw()).collect();
        let mut answers = first.store.withdraw(&what, deadline).into_iter();
        let now = self.clock.now();
        let (mut answered, mut unanswered) = (true, Vec::new());
        let mut state = locked(&self.shared.state);
        for (number, what) in due {
            let Some(at) = state.jobs.iter().position(|job| job.number == *number) else {
                continue;
            };
            let Some(job) = state.jobs.get_mut(at) else { continue };
            job.running = false;
            let ended = match answers.next() {
                Some(Ok(_)) => {
                    job.answered_at.get_or_insert(now);
                    job.next = now + job.pause;
                    job.pause = (job.pause * 2).min(LONGEST_PAUSE);
                    job.is_settled(now)
                }
                Some(Err(error)) => {
                    answered = false;
                    unanswered.push((&what.name, error.message.clone()));
                    // The settling time begins again, even if nothing was sent: the server may
                    // have stopped again before it read the late copy.
                    job.answered_at = None;
                    job.release_in_flight |= error.may_have_run;
                    // Without the permission to withdraw, the job ends with the lease.
                    error.permanent && now.saturating_duration_since(job.since) >= what.lease
                }
                None => {
                    answered = false;
                    false
                }
            };
            if ended {
                state.jobs.swap_remove(at);
            }
        }
        if !answered {
            // A call without an answer delays the other jobs by its whole deadline: let them all
            // wait until the server is back.
            let again = now + backoff::outage_pause();
            let same_store =
                state.jobs.iter_mut().filter(|job| Arc::ptr_eq(&job.what.store, &first.store));
            same_store.for_each(|job| job.next = job.next.max(again));
        }
        drop(state);
        self.shared.changed.notify_all();
        for (name, message) in unanswered {
            log::debug!("lock {name:?}: no answer to a withdrawal: {message}");
        }
        answered
    }

    /// The client is being closed: tries each withdrawal without an answer until it has one, or
    /// until the time is over.
    fn drain(&self) {
        let until = locked(&self.shared.state).closing.unwrap_or_else(|| self.clock.now());
        let mut deadline = self.command_deadline().min(until.max(self.clock.now() + LAST));
        loop {
            let (due, _) = self.take(|job| job.answered_at.is_none() && !job.running);
            if due.is_empty() {
                break;
            }
            let answered = self.withdraw(&due, deadline);
            deadline = self.command_deadline().min(until);
            let left = self.clock.sleep_for(until);
            if left.is_zero() {
                break;
            }
            if !answered {
                std::thread::sleep(backoff::outage_pause().min(left));
            }
        }
        let mut state = locked(&self.shared.state);
        let left: Vec<_> = state.unanswered().cloned().collect();
        state.left = Some(left.len());
        // Each refers to its store, and the store to this cleaner: that would last for ever.
        let done = std::mem::take(&mut state.jobs);
        drop(state);
        drop(done);
        for what in left {
            log::warn!("lock {:?}: could not be withdrawn before the client ended", what.name);
        }
    }
}
