//! The undo log of a node's thread: which of our leases its node may hold, and which of them have
//! to be undone.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::base::clock::Clock;
use crate::base::error::ErrorKind;
use crate::base::key::Key;
use crate::lease::store::{Gone, LeaseStore, StoreError, Withdraw};
use crate::lease::token::Token;

/// How long after the node's answer an undoing is repeated if a copy of an unanswered command may
/// still arrive (R5).
const SETTLE: Duration = Duration::from_secs(10);
/// The pauses between two tries of one undoing: the first one, which doubles up to the last one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long the node is left alone after a retry that it did not answer.
const SILENCE: Duration = Duration::from_millis(250);
/// The most entries that one retry sends.
const AT_ONCE: usize = 64;
/// A retry may take this long even if a short lease would leave it less time.
const SHORTEST_RETRY: Duration = Duration::from_millis(50);
/// With this many pending entries the node gets no further attempt, until some are undone or have
/// run out. No entry is dropped to make room for another: that would leave an orphan for a whole
/// lease. Only what the node may really hold is pending, so only a program that lost a node while
/// it held this many locks gets here.
const MOST: usize = 65_536;

/// A lock's lease.
pub(super) type Name = (Key, Token);

/// Our leases that the node may hold, by name. Only the node's own thread sees it.
///
/// The node cannot hold a lease that has no entry: the lease was never sent there, or was refused,
/// or was undone for good. Undoing such a lease asks nobody.
#[derive(Default)]
pub(super) struct UndoLog {
    entries: HashMap<Name, Entry>,
    /// The pending entries, by when they are due; the number separates entries of the same instant.
    due: BTreeMap<(Instant, u64), Name>,
    number: u64,
    /// No retry before this: the last one had no answer.
    silent_until: Option<Instant>,
    /// How many entries the next retry sends at most.
    at_once: usize,
    /// At this number of entries, those whose leases have run out are removed.
    tidy_at: usize,
}

struct Entry {
    lease: Duration,
    /// When what was granted or extended there has run out, if nothing arrives late.
    until: Instant,
    /// A copy of a command that makes or undoes the lease may still arrive.
    in_flight: bool,
    pending: Option<Pending>,
}

/// The lease is to be undone.
struct Pending {
    due: (Instant, u64),
    pause: Duration,
    answered_at: Option<Instant>,
}

impl Entry {
    fn new(now: Instant, lease: Duration) -> Self {
        Self { lease, until: now + lease, in_flight: false, pending: None }
    }

    /// Whether the lease has ended by itself, even if the server's clock is a little slow. What a
    /// late copy grants ends with its own lease, and the copy has arrived soon after the node
    /// answers again; until then this is unknown.
    fn is_over(&self, now: Instant) -> bool {
        let last = match &self.pending {
            Some(pending) if self.in_flight => pending
                .answered_at
                .map(|answered_at| self.until.max(answered_at + SETTLE + self.lease)),
            Some(_) => Some(self.until),
            None => Some(if self.in_flight { self.until + self.lease } else { self.until }),
        };
        last.is_some_and(|last| now >= last + SETTLE)
    }
}

impl UndoLog {
    /// Whether the node may hold the lease.
    pub(super) fn may_hold(&self, name: &Name) -> bool {
        self.entries.contains_key(name)
    }

    /// Whether the lease is being undone. A late copy of the undoing may delete what the node
    /// grants under the same token meanwhile.
    pub(super) fn undoes(&self, name: &Name) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.pending.is_some())
    }

    /// Whether there is room for one more pending entry.
    pub(super) fn has_room(&self) -> bool {
        self.due.len() < MOST
    }

    /// Whether all that the node was given of the lease had run out at `then`. Only our clock is
    /// used, so the node's own may be a little behind.
    pub(super) fn had_run_out(&self, name: &Name, then: Instant) -> bool {
        self.entries.get(name).is_none_or(|entry| entry.pending.is_none() && entry.until <= then)
    }

    /// The node said that it has the whole lease.
    pub(super) fn holds(&mut self, name: &Name, now: Instant, lease: Duration) {
        let entry = self.entry(name, now, lease);
        entry.lease = lease;
        entry.until = entry.until.max(now + lease);
    }

    /// An attempt had no answer: a copy of it may still arrive.
    pub(super) fn attempt_unanswered(&mut self, name: &Name, now: Instant, lease: Duration) {
        self.holds(name, now, lease);
        self.entry(name, now, lease).in_flight = true;
    }

    /// An extend had no answer: it may have run, or may run soon.
    pub(super) fn extend_unanswered(&mut self, name: &Name, now: Instant, lease: Duration) {
        if self.may_hold(name) {
            self.holds(name, now, lease);
        }
    }

    fn entry(&mut self, name: &Name, now: Instant, lease: Duration) -> &mut Entry {
        if self.entries.len() >= self.tidy_at {
            self.entries.retain(|_, entry| entry.pending.is_some() || !entry.is_over(now));
            self.tidy_at = (2 * self.entries.len()).max(1024);
        }
        self.entries.entry(name.clone()).or_insert_with(|| Entry::new(now, lease))
    }

    /// The command to undo the lease was sent over a connection that turned out to be closed: a
    /// copy of it may still arrive.
    pub(super) fn undoing_unanswered(&mut self, name: &Name) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.in_flight = true;
        }
    }

    /// The node was asked to undo a lease. Unless the lease is certainly gone for good, the node
    /// will be asked again.
    pub(super) fn undone(&mut self, name: &Name, answer: &Result<Gone, StoreError>, now: Instant) {
        let may_have_run = answer.as_ref().is_err_and(|error| error.may_have_run);
        if answer.is_ok() && self.entries.get(name).is_none_or(|entry| !entry.in_flight) {
            return self.forget(name);
        }
        let Some(entry) = self.entries.get_mut(name) else {
            // Somebody else's lease, which was to be released by force: only once. Later, its
            // holder may have extended it, or may hold the lock again under the same value.
            return;
        };
        let mut pending = entry.pending.take().unwrap_or(Pending {
            due: (now, 0),
            pause: PAUSES.0,
            answered_at: None,
        });
        self.due.remove(&pending.due);
        match answer {
            // A permanent error is an answer, and the undoing has not run: for example, a
            // permission is missing or the node's disk is full.
            Err(error) if !error.permanent => {
                entry.in_flight |= may_have_run;
                if may_have_run {
                    pending.answered_at = None;
                }
            }
            _ => {
                let answered_at = *pending.answered_at.get_or_insert(now);
                if answer.is_ok() && now.saturating_duration_since(answered_at) >= SETTLE {
                    self.entries.remove(name);
                    return;
                }
            }
        }
        self.number += 1;
        pending.due = (now + pending.pause, self.number);
        pending.pause = (pending.pause * 2).min(PAUSES.1);
        self.due.insert(pending.due, name.clone());
        entry.pending = Some(pending);
    }

    fn forget(&mut self, name: &Name) {
        if let Some(pending) = self.entries.remove(name).and_then(|entry| entry.pending) {
            self.due.remove(&pending.due);
        }
    }

    /// When to call `retry_due` next.
    pub(super) fn next(&self) -> Option<Instant> {
        let (due, _) = self.due.first_key_value()?.0;
        Some(self.silent_until.map_or(*due, |until| until.max(*due)))
    }

    /// Undoes some of what is due, for a short time, because an extend may come meanwhile (R9):
    /// half as long as an extend of the shortest lease that the node holds waits for its answer.
    ///
    /// A store may send them one after another, so how many are sent at once depends on how long
    /// the last ones took.
    pub(super) fn retry_due(&mut self, leases: &dyn LeaseStore, clock: &Clock, timeout: Duration) {
        let now = clock.now();
        if self.silent_until.is_some_and(|until| now < until) {
            return;
        }
        let names = self.take_due(now);
        if names.is_empty() {
            return;
        }
        let held = self
            .entries
            .values()
            .filter(|entry| entry.pending.is_none())
            .map(|entry| entry.lease)
            .min();
        let limit = held.map_or(timeout, |lease| (lease / 12).max(SHORTEST_RETRY).min(timeout));
        let answers = withdraw(leases, &names, now + limit);
        let after = clock.now();
        let silent =
            answers.iter().any(|answer| answer.as_ref().is_err_and(|error| !error.permanent));
        let quick = (after.saturating_duration_since(now)) * 4 <= limit;
        self.at_once = if silent || !quick { 1 } else { (self.at_once.max(1) * 2).min(AT_ONCE) };
        self.silent_until = silent.then(|| after + SILENCE);
        for (name, answer) in names.iter().zip(&answers) {
            self.undone(name, answer, after);
        }
    }

    /// What is due, except what has ended by itself.
    fn take_due(&mut self, now: Instant) -> Vec<Name> {
        let mut names = Vec::new();
        while names.len() < self.at_once.max(1)
            && let Some(first) = self.due.first_entry()
            && first.key().0 <= now
        {
            let name = first.remove();
            if self.entries.get(&name).is_some_and(|entry| entry.is_over(now)) {
                self.entries.remove(&name);
            } else {
                names.push(name);
            }
        }
        names
    }

    /// Tries each undoing without an answer once more; stops when the node does not answer.
    pub(super) fn retry_last(&mut self, leases: &dyn LeaseStore, clock: &Clock, timeout: Duration) {
        let unanswered = |name: &&Name| {
            let pending = self.entries.get(*name).and_then(|entry| entry.pending.as_ref());
            pending.is_some_and(|pending| pending.answered_at.is_none())
        };
        let names: Vec<Name> = self.due.values().filter(unanswered).cloned().collect();
        for names in names.chunks(AT_ONCE) {
            if withdraw(leases, names, clock.now() + timeout).iter().any(Result::is_err) {
                return;
            }
        }
    }
}

/// Withdraws these leases, with one answer for each.
pub(super) fn withdraw(
    leases: &dyn LeaseStore,
    names: &[Name],
    deadline: Instant,
) -> Vec<Result<Gone, StoreError>> {
    let what: Vec<_> = names.iter().map(|(key, token)| Withdraw::of(key, token)).collect();
    let mut answers = leases.withdraw(&what, deadline);
    answers.resize_with(names.len(), || {
        Err(StoreError::not_sent(ErrorKind::Unavailable, "no answer to a withdrawal").maybe_run())
    });
    answers
}
