//! The cleaner's backlog: the withdrawals that it has to make, and when it makes the next.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::withdrawal::{OpenWithdrawal, Withdrawal};
use crate::base::clock::Clock;
use crate::base::key::Key;
use crate::base::{backoff, locked, log};
use crate::lease::token::Token;

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
pub(super) const SETTLE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(2_500);
/// How long the first try after the client was closed may take, even if the time is over: a server
/// that is up needs far less.
const LAST: Duration = Duration::from_millis(250);
/// The most withdrawals in one call. A call that fails is repeated as a whole.
const BULK: usize = 256;

/// The withdrawals of one shard, and the thread that comes back to them. Clones share them.
#[derive(Clone)]
pub(crate) struct Backlog {
    /// What the backlogs of all shards have in common.
    pub(super) shared: Arc<BacklogState>,
    pub(super) clock: Clock,
    command_timeout: Duration,
    shard: u16,
}

#[derive(Default)]
pub(super) struct BacklogState {
    pub(super) state: Mutex<Todo>,
    /// Notified when a withdrawal has been tried, and when a value is not in use any more.
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct Todo {
    pub(super) jobs: Vec<OpenWithdrawal>,
    last_number: u64,
    /// The callers' own values that acquisitions and leases use now. What an earlier use left
    /// behind waits for the end of this use.
    pub(super) in_use: Vec<(Key, Token)>,
    /// Until when to go on trying, once the client is closed.
    pub(super) closing: Option<Instant>,
    /// The shards whose threads have ended.
    ended: Vec<u16>,
    /// How many withdrawals had no answer when their threads ended.
    left: usize,
}

impl Todo {
    /// How many withdrawals have had no answer.
    pub(super) fn unanswered(&self) -> usize {
        self.left + self.jobs.iter().filter(|job| job.answered_at.is_none()).count()
    }
}

impl Backlog {
    pub(crate) fn new(clock: Clock, command_timeout: Duration) -> Self {
        Self { shared: Arc::default(), clock, command_timeout, shard: 0 }
    }

    /// The backlog of another shard.
    pub(super) fn of_shard(&self, shard: u16) -> Self {
        Self { shard, ..self.clone() }
    }

    pub(super) fn command_deadline(&self) -> Instant {
        self.clock.now() + self.command_timeout
    }

    /// `Err`: the backlog is closed.
    pub(crate) fn add(&self, what: Withdrawal) -> Result<(), Withdrawal> {
        let mut state = locked(&self.shared.state);
        if state.ended.contains(&self.shard) {
            return Err(what);
        }
        state.last_number += 1;
        let (number, now) = (state.last_number, self.clock.now());
        let (release_in_flight, what) = (what.release_in_flight, Arc::new(what));
        state.jobs.push(OpenWithdrawal {
            number,
            shard: self.shard,
            what,
            since: now,
            next: now,
            pause: FIRST_PAUSE,
            answered_at: None,
            release_in_flight,
            running: false,
            tries: 0,
        });
        Ok(())
    }

    /// Called when the thread begins, and when it begins again after a panic: what it was trying
    /// then is tried again.
    pub(crate) fn begin(&self) {
        let mut state = locked(&self.shared.state);
        let jobs = state.jobs.iter_mut().filter(|job| job.shard == self.shard);
        jobs.for_each(|job| job.running = false);
    }

    /// Tries some of what is due, in one call to its store. Returns when to come back.
    pub(crate) fn work(&self) -> Option<Instant> {
        let now = self.clock.now();
        let (due, next) = self.take(|job| job.next <= now);
        if due.is_empty() {
            return next;
        }
        self.withdraw(&due, self.command_deadline());
        Some(now)
    }

    /// Takes the jobs of one store that `wanted` chooses, all of this shard. Also returns when the
    /// shard's next job is due.
    fn take(
        &self,
        wanted: impl Fn(&OpenWithdrawal) -> bool,
    ) -> (Vec<(u64, Arc<Withdrawal>)>, Option<Instant>) {
        let mut state = locked(&self.shared.state);
        let Todo { jobs, in_use, .. } = &mut *state;
        let is_free = |job: &OpenWithdrawal| {
            job.shard == self.shard && !in_use.iter().any(|(key, token)| job.is(key, token))
        };
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
                debug_assert!(!job.running, "one thread tries");
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
                "{}: a thread ended while it held the lock; it is released now",
                what.subject
            );
        }
        let asked_at = self.clock.now();
        let what: Vec<_> = due.iter().map(|(_, what)| what.as_withdraw(asked_at)).collect();
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
                    unanswered.push((&what.subject, error.message.clone()));
                    // The settling time begins again, even if nothing was sent: the server may
                    // have stopped again before it read the late copy.
                    job.answered_at = None;
                    job.release_in_flight |= error.may_have_run;
                    // Without the permission to withdraw, the job ends with the lease.
                    error.permanent && now.saturating_duration_since(job.since) >= what.lease
                }
                None => {
                    answered = false;
                    job.answered_at = None;
                    false
                }
            };
            if ended {
                state.jobs.swap_remove(at);
            }
        }
        if !answered {
            // A call without an answer delays the shard's other jobs by its whole deadline: let
            // them all wait until the server is back.
            let again = now + backoff::outage_pause();
            let of_server = state.jobs.iter_mut().filter(|job| {
                job.shard == self.shard && Arc::ptr_eq(&job.what.store, &first.store)
            });
            of_server.for_each(|job| job.next = job.next.max(again));
        }
        drop(state);
        self.shared.changed.notify_all();
        for (subject, message) in unanswered {
            log::debug!("{subject}: no answer to a withdrawal: {message}");
        }
        answered
    }

    /// The client is being closed: tries each withdrawal without an answer until it has one, or
    /// until the time is over.
    pub(crate) fn drain(&self) {
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
        // Each refers to its store, and the store to this backlog: that would last for ever.
        let done: Vec<_> = state.jobs.extract_if(.., |job| job.shard == self.shard).collect();
        let left: Vec<_> = done.iter().filter(|job| job.answered_at.is_none()).collect();
        state.left += left.len();
        state.ended.push(self.shard);
        drop(state);
        for OpenWithdrawal { what, .. } in left {
            log::warn!("{}: could not be withdrawn before the client ended", what.subject);
        }
    }
}
