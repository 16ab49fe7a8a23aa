//! One lock in memory: who holds it, and who waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::base::bell::{Bell, Fences, Grant};
use crate::lease::store::{Ask, Extend, Gone, Place};
use crate::lease::token::Token;

#[derive(Default)]
pub(super) struct LockRecord {
    pub(super) holder: Option<(Token, Instant)>,
    pub(super) queue: VecDeque<Waiter>,
    /// The conditions that somebody waits in, by name.
    pub(super) conditions: HashMap<String, Line>,
    /// How many waiters have begun to wait in conditions.
    pub(super) arrivals: u64,
}

/// A notification is lost with a waiter whose client is closed after the lock was handed to it. So
/// one waiter of a condition wakes for no reason, this often.
pub(super) const NET: Duration = Duration::from_secs(10);

/// The waiters of a condition.
pub(super) struct Line {
    pub(super) waiting: VecDeque<Waiter>,
    /// When the next one wakes for no reason, if it asks.
    pub(super) next_wake: Instant,
}

/// The notification that moved a waiter to the queue.
pub(super) struct Notified {
    pub(super) condition: String,
    /// How many waiters had begun to wait when the notification was given: it is not for later
    /// ones.
    pub(super) given: u64,
}

pub(super) struct Waiter {
    pub(super) token: Token,
    pub(super) attempt: u64,
    pub(super) first_lease: Duration,
    pub(super) fences: u32,
    /// Its number among the waiters that began to wait in conditions, from 1.
    pub(super) arrival: u64,
    /// If it was notified, and is in the queue.
    pub(super) notified: Option<Notified>,
}

impl Waiter {
    pub(super) fn new(ask: &Ask<'_>, place: Place<'_>) -> Self {
        let first_lease = place.first_lease;
        Self {
            token: ask.token.clone(),
            attempt: ask.attempt,
            first_lease,
            fences: ask.fences,
            arrival: 0,
            notified: None,
        }
    }
}

/// The last fence given out in this process, for any lock of any store: one counter that grows for
/// all locks grows for each, also when a store of the same name is made again.
static LAST_FENCE: AtomicU64 = AtomicU64::new(0);

/// What the entries of a shelf have in common.
pub(super) struct Listeners<'a> {
    pub(super) ears: &'a HashMap<Token, Weak<Bell>>,
}

impl Listeners<'_> {
    pub(super) fn fences(&mut self, count: u32) -> Option<Fences> {
        (count > 0).then(|| {
            let last = LAST_FENCE.fetch_add(u64::from(count), Ordering::SeqCst);
            Fences { last: last + u64::from(count), count }
        })
    }

    pub(super) fn ear(&self, token: &Token) -> Option<Arc<Bell>> {
        self.ears.get(token).and_then(Weak::upgrade)
    }
}

impl LockRecord {
    pub(super) fn is_held_by(&self, token: &Token) -> bool {
        self.holder.as_ref().is_some_and(|(holder, _)| holder == token)
    }

    /// Grants the asker the whole lease, but never an earlier end than its lease already has.
    pub(super) fn grant(&mut self, ask: &Ask<'_>, now: Instant) {
        let until = self
            .holder
            .take()
            .filter(|(token, _)| token == ask.token)
            .map_or(now, |(_, until)| until);
        self.holder = Some((ask.token.clone(), until.max(now + ask.lease)));
    }

    /// Frees the lock, and hands it to the first waiter that listens.
    pub(super) fn serve(&mut self, listeners: &mut Listeners<'_>, now: Instant) {
        self.holder = None;
        while let Some(next) = self.queue.pop_front() {
            if let Some(bell) = listeners.ear(&next.token) {
                debug_assert!(self.queue.iter().all(|other| other.token != next.token), "twice");
                self.holder = Some((next.token, now + next.first_lease));
                bell.grant(Grant { attempt: next.attempt, fences: listeners.fences(next.fences) });
                return;
            }
            self.pass_on(next, listeners);
        }
    }

    /// Passes on the notification of a waiter that will not come, to one that waited when it was
    /// given.
    fn pass_on(&mut self, gone: Waiter, listeners: &Listeners<'_>) {
        if let Some(Notified { condition, given }) = gone.notified {
            self.notify(&condition, 1, given, listeners);
        }
    }

    /// Moves the first listening waiters of a condition to the lock's queue, but only those that
    /// already waited when the notification was given. Returns how many.
    pub(super) fn notify(
        &mut self,
        condition: &str,
        most: u32,
        given: u64,
        listeners: &Listeners<'_>,
    ) -> u64 {
        let mut moved = 0;
        let Some(Line { waiting, .. }) = self.conditions.get_mut(condition) else { return 0 };
        while moved < u64::from(most)
            && waiting.front().is_some_and(|next| next.arrival <= given)
            && let Some(mut next) = waiting.pop_front()
        {
            if let Some(bell) = listeners.ear(&next.token) {
                bell.ring();
                next.notified = Some(Notified { condition: condition.to_owned(), given });
                self.queue.push_back(next);
                moved += 1;
            }
        }
        moved
    }

    /// A new waiter, at the end of the line.
    pub(super) fn begin_to_wait(&mut self, condition: &str, mut waiter: Waiter, now: Instant) {
        self.arrivals += 1;
        waiter.arrival = self.arrivals;
        let new = || Line { waiting: VecDeque::new(), next_wake: now + NET };
        let line = self.conditions.entry(condition.to_owned()).or_insert_with(new);
        debug_assert!(line.waiting.iter().all(|other| other.token != waiter.token), "twice");
        line.waiting.push_back(waiter);
    }

    /// Leaves its condition or the queue, for good.
    pub(super) fn leave(&mut self, token: &Token, listeners: &Listeners<'_>) {
        for line in self.conditions.values_mut() {
            line.waiting.retain(|waiter| waiter.token != *token);
        }
        if let Some(at) = self.queue.iter().position(|waiter| waiter.token == *token)
            && let Some(gone) = self.queue.remove(at)
        {
            self.pass_on(gone, listeners);
        }
    }

    /// Gives the lock, which is free or the asker's own, to the asker.
    pub(super) fn take(
        &mut self,
        ask: &Ask<'_>,
        listeners: &mut Listeners<'_>,
        now: Instant,
    ) -> Option<Fences> {
        self.queue.retain(|waiter| waiter.token != *ask.token);
        self.grant(ask, now);
        listeners.fences(ask.fences)
    }

    /// Whether no listening waiter is before the asker.
    pub(super) fn is_next(&self, token: &Token, listeners: &Listeners<'_>) -> bool {
        self.queue
            .iter()
            .take_while(|waiter| waiter.token != *token)
            .all(|waiter| listeners.ear(&waiter.token).is_none())
    }

    pub(super) fn release(
        &mut self,
        token: &Token,
        listeners: &mut Listeners<'_>,
        now: Instant,
    ) -> Gone {
        if !self.is_held_by(token) {
            return Gone::NotOurs;
        }
        self.serve(listeners, now);
        Gone::Released
    }

    /// Extends a lease, and returns whether the lease is held by this token.
    pub(super) fn extend(&mut self, lease: &Extend<'_>, now: Instant) -> bool {
        let Some((_, until)) = self.holder.as_mut().filter(|(token, _)| token == lease.token)
        else {
            return false;
        };
        *until = (*until).max(now + lease.lease);
        true
    }
}
