//! The embedded store behind `memory://`: leases and rate limits in this process, for a first look
//! and for tests of programs that use the crate.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::memory_limit::Limits;
use crate::base::bell::{Bell, Fences, Grant};
use crate::base::clock::Clock;
use crate::base::error::{Error, ErrorKind};
use crate::base::locked;
use crate::base::options::LockOptions;
use crate::lease::key::Key;
use crate::lease::store::{
    Answer, Ask, End, Extend, Gone, Holder, InCondition, LeaseStore, Listening, Notify, Place,
    Release, StoreError, Withdraw, Within,
};
use crate::lease::token::Token;

/// By name, and by process: what a fork inherits may be locked by a thread that it does not have.
static NAMED: Mutex<Vec<(String, u32, Weak<Shelf>)>> = Mutex::new(Vec::new());

/// Leases of this process.
pub(super) struct Memory {
    shelf: Arc<Shelf>,
    pub(super) limits: Arc<Mutex<Limits>>,
    pub(super) clock: Clock,
}

/// What clients of the same name share.
type Shelf = Mutex<Contents>;

#[derive(Default)]
struct Contents {
    /// Locks that are held, or were until their lease ran out, or are waited for.
    locks: HashMap<Key, Entry>,
    /// Who listens.
    ears: HashMap<Token, Weak<Bell>>,
    /// The last fence given out, whatever the lock: growing for all means growing for each, and
    /// leaves nothing behind.
    last_fence: u64,
    /// Apart, so that a look through many limits delays no lock.
    limits: Arc<Mutex<Limits>>,
}

#[derive(Default)]
struct Entry {
    holder: Option<(Token, Instant)>,
    queue: VecDeque<Waiter>,
    /// Who waits in a condition, by its name.
    conditions: HashMap<String, VecDeque<Waiter>>,
    /// The notifications that are not used up, by the token of the notified waiter: it has not had
    /// the lock, and been heard of since.
    owed: HashMap<Token, Notified>,
    /// Who notified last, under which number, and how many.
    last_notification: Option<(Token, u64, u64)>,
    /// How many have begun to wait in conditions.
    arrivals: u64,
}

/// What a waiter was notified of.
struct Notified {
    condition: String,
    /// How many had begun to wait when it was given: it is not for later ones.
    given: u64,
}

struct Waiter {
    token: Token,
    attempt: u64,
    first_lease: Duration,
    fences: u32,
    /// Which it was of those that began to wait in conditions, from 1.
    arrival: u64,
}

impl Waiter {
    fn new(ask: &Ask<'_>, place: &dyn Place) -> Self {
        let first_lease = place.first_lease();
        Self {
            token: ask.token.clone(),
            attempt: ask.attempt,
            first_lease,
            fences: ask.fences,
            arrival: 0,
        }
    }
}

impl Memory {
    /// The store of this name; without one, a new store of its own.
    pub(super) fn open(name: &str, clock: Clock) -> Arc<Self> {
        let mut named = locked(&NAMED);
        named.retain(|(_, _, shelf)| shelf.strong_count() > 0);
        let process = std::process::id();
        let known = named
            .iter()
            .find(|(known, of, _)| known == name && *of == process)
            .and_then(|(_, _, shelf)| shelf.upgrade());
        let shelf = known.unwrap_or_else(|| {
            let shelf = Arc::default();
            if !name.is_empty() {
                named.push((name.to_owned(), process, Arc::downgrade(&shelf)));
            }
            shelf
        });
        let limits = Arc::clone(&locked(&shelf).limits);
        Arc::new(Self { shelf, limits, clock })
    }

    /// Looks at one lock, as it stands now: a lease that has run out is gone. An entry that nobody
    /// needs any more is removed.
    fn at<R>(&self, key: &Key, look: impl FnOnce(&mut Entry, &mut Shared<'_>, Instant) -> R) -> R {
        let mut contents = locked(&self.shelf);
        let Contents { locks, ears, last_fence, .. } = &mut *contents;
        let now = self.clock.now();
        let entry = locks.entry(key.clone()).or_default();
        entry.holder.take_if(|(_, until)| *until <= now);
        let result = look(entry, &mut Shared { ears, last_fence }, now);
        entry.conditions.retain(|_, waiting| !waiting.is_empty());
        if entry.holder.is_none() && entry.queue.is_empty() && entry.conditions.is_empty() {
            locks.remove(key);
        }
        result
    }
}

/// What the entries of a shelf have in common.
struct Shared<'a> {
    ears: &'a HashMap<Token, Weak<Bell>>,
    last_fence: &'a mut u64,
}

impl Shared<'_> {
    fn fences(&mut self, count: u32) -> Option<Fences> {
        (count > 0).then(|| {
            *self.last_fence += u64::from(count);
            Fences { last: *self.last_fence, count }
        })
    }

    fn ear(&self, token: &Token) -> Option<Arc<Bell>> {
        self.ears.get(token).and_then(Weak::upgrade)
    }
}

impl Entry {
    fn is_held_by(&self, token: &Token) -> bool {
        self.holder.as_ref().is_some_and(|(holder, _)| holder == token)
    }

    /// The whole lease for whoever asks, and never an earlier end than it has.
    fn grant(&mut self, ask: &Ask<'_>, now: Instant) {
        let until = self
            .holder
            .take()
            .filter(|(token, _)| token == ask.token)
            .map_or(now, |(_, until)| until);
        self.holder = Some((ask.token.clone(), until.max(now + ask.lease)));
    }

    /// Hands the lock, which is free, to the first waiter that listens.
    fn serve(&mut self, shared: &mut Shared<'_>, now: Instant) {
        self.holder = None;
        while let Some(next) = self.queue.pop_front() {
            if let Some(bell) = shared.ear(&next.token) {
                self.holder = Some((next.token, now + next.first_lease));
                bell.grant(Grant { attempt: next.attempt, fences: shared.fences(next.fences) });
                return;
            }
            self.pass_on(&next.token, shared);
        }
    }

    /// What a waiter was notified of passes on, if it does not come.
    fn pass_on(&mut self, gone: &Token, shared: &mut Shared<'_>) {
        if let Some(Notified { condition, given }) = self.owed.remove(gone) {
            self.move_on(&condition, 1, given, shared);
        }
    }

    /// The lock has heard of a waiter that has it: what it was notified of is used up.
    fn settle(&mut self, token: &Token) {
        self.owed.remove(token);
    }

    /// Moves the first waiters of a condition that listen to the lock's queue, of those that waited
    /// when the notification was given. Result: how many.
    fn move_on(&mut self, condition: &str, most: u32, given: u64, shared: &Shared<'_>) -> u64 {
        let mut moved = 0;
        let Some(waiting) = self.conditions.get_mut(condition) else { return 0 };
        while moved < u64::from(most)
            && waiting.front().is_some_and(|next| next.arrival <= given)
            && let Some(next) = waiting.pop_front()
        {
            if let Some(bell) = shared.ear(&next.token) {
                bell.ring();
                self.owed.insert(
                    next.token.clone(),
                    Notified { condition: condition.to_owned(), given },
                );
                self.queue.push_back(next);
                moved += 1;
            }
        }
        moved
    }

    /// Notifies, once under each number.
    fn notify(&mut self, what: &Notify<'_>, shared: &Shared<'_>) -> u64 {
        self.settle(what.token);
        if let Some((token, number, moved)) = &self.last_notification
            && token == what.token
            && *number >= what.number
        {
            return *moved;
        }
        let moved = self.move_on(what.condition, what.most, self.arrivals, shared);
        self.last_notification = Some((what.token.clone(), what.number, moved));
        moved
    }

    /// Leaves the queue, for good.
    fn leave(&mut self, token: &Token, shared: &mut Shared<'_>) {
        self.queue.retain(|waiter| waiter.token != *token);
        self.pass_on(token, shared);
    }

    /// Gives the lock, which is free or the asker's own, to the asker.
    fn take(&mut self, ask: &Ask<'_>, shared: &mut Shared<'_>, now: Instant) -> Option<Fences> {
        self.queue.retain(|waiter| waiter.token != *ask.token);
        self.grant(ask, now);
        shared.fences(ask.fences)
    }

    /// Whether nobody who listens is before the asker.
    fn is_next(&self, token: &Token, shared: &Shared<'_>) -> bool {
        self.queue
            .iter()
            .take_while(|waiter| waiter.token != *token)
            .all(|waiter| shared.ear(&waiter.token).is_none())
    }

    fn release(&mut self, token: &Token, shared: &mut Shared<'_>, now: Instant) -> Gone {
        if !self.is_held_by(token) {
            return Gone::NotOurs;
        }
        self.serve(shared, now);
        Gone::Released
    }

    /// Whether an end was moved.
    fn move_end(&mut self, lease: &Extend<'_>, end: End, now: Instant) -> bool {
        let Some((_, until)) = self.holder.as_mut().filter(|(token, _)| token == lease.token)
        else {
            return false;
        };
        if end == End::Exactly || *until < now + lease.lease {
            *until = now + lease.lease;
        }
        if lease.settles {
            self.settle(lease.token);
        }
        true
    }
}

impl LeaseStore for Memory {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        let asked_at = self.clock.now();
        // Before the shelf is locked: listening locks it, too.
        let listens = ask.place.and_then(|place| place.address()).is_some();
        self.at(ask.key, |entry, shared, now| {
            let mine = ask.may_be_mine && entry.is_held_by(ask.token);
            if entry.holder.is_none() && !entry.is_next(ask.token, shared) {
                entry.serve(shared, now);
            } else if mine || entry.holder.is_none() {
                return Ok(Answer::Granted { asked_at, fences: entry.take(ask, shared, now) });
            }
            if let Some(place) = ask.place.filter(|_| listens) {
                let waiter = Waiter::new(ask, place);
                match entry.queue.iter_mut().find(|waiting| waiting.token == waiter.token) {
                    Some(waiting) => waiting.attempt = waiter.attempt,
                    None => entry.queue.push_back(waiter),
                }
            }
            let remaining =
                entry.holder.as_ref().map(|(_, until)| until.saturating_duration_since(now));
            Ok(Answer::Refused { asked_at, remaining, heard: true })
        })
    }

    fn extend(&self, leases: &[Extend<'_>], _within: Within) -> Vec<Result<bool, StoreError>> {
        leases
            .iter()
            .map(|lease| {
                Ok(self.at(lease.key, |entry, _, now| entry.move_end(lease, End::NotBefore, now)))
            })
            .collect()
    }

    fn end_in(&self, lease: &Extend<'_>, end: End, _deadline: Instant) -> Result<bool, StoreError> {
        Ok(self.at(lease.key, |entry, _, now| entry.move_end(lease, end, now)))
    }

    fn release(&self, what: &Release<'_>, _deadline: Instant) -> Result<Gone, StoreError> {
        what.check()?;
        Ok(self.at(what.key, |entry, shared, now| {
            if what.settles && entry.is_held_by(what.token) {
                entry.settle(what.token);
            }
            entry.release(what.token, shared, now)
        }))
    }

    fn withdraw(&self, what: &[Withdraw<'_>], _deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        let one = |what: &Withdraw<'_>| {
            self.at(what.key, |entry, shared, now| {
                if let Some(waiting) =
                    what.condition.and_then(|condition| entry.conditions.get_mut(condition))
                {
                    waiting.retain(|waiter| waiter.token != *what.token);
                }
                entry.leave(what.token, shared);
                entry.release(what.token, shared, now)
            })
        };
        what.iter().map(|what| Ok(one(what))).collect()
    }

    fn listen(&self, _key: &Key, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        locked(&self.shelf).ears.insert(token.clone(), Arc::downgrade(bell));
        let ear = Ear { shelf: Arc::clone(&self.shelf), token: token.clone() };
        Some(Listening { address: "memory".into(), queues: true, until_dropped: Box::new(ear) })
    }

    fn queues(&self) -> bool {
        true
    }

    fn has_conditions(&self) -> bool {
        true
    }

    fn wait_in(
        &self,
        ask: &Ask<'_>,
        condition: &str,
        release: Option<&Release<'_>>,
        leave: bool,
    ) -> Result<InCondition, StoreError> {
        let asked_at = self.clock.now();
        let Some(place) = ask.place.filter(|place| place.address().is_some()) else {
            return Err(StoreError::not_sent(
                ErrorKind::Unavailable,
                "nothing can be heard here, and a wait must hear",
            ));
        };
        release.map_or(Ok(()), Release::check)?;
        let mut waiter = Waiter::new(ask, place);
        self.at(ask.key, |entry, shared, now| {
            if entry.is_held_by(ask.token) {
                return Ok(InCondition::Granted { asked_at, fences: entry.take(ask, shared, now) });
            }
            if entry.owed.contains_key(ask.token)
                && !entry.queue.iter().any(|queued| queued.token == *ask.token)
            {
                // It was handed the lock, and that ran out before it heard of it. It was notified
                // all the same.
                entry.queue.push_back(Waiter::new(ask, place));
            }
            if let Some(queued) = entry.queue.iter_mut().find(|queued| queued.token == *ask.token) {
                queued.attempt = ask.attempt;
                if entry.holder.is_none() {
                    if entry.is_next(ask.token, shared) {
                        return Ok(InCondition::Granted {
                            asked_at,
                            fences: entry.take(ask, shared, now),
                        });
                    }
                    entry.serve(shared, now);
                }
                let remaining =
                    entry.holder.as_ref().map(|(_, until)| until.saturating_duration_since(now));
                return Ok(InCondition::Notified { asked_at, remaining, heard: true });
            }
            let waiting = entry.conditions.entry(condition.to_owned()).or_default();
            if let Some(at) = waiting.iter().position(|waiting| waiting.token == *ask.token) {
                if leave {
                    waiting.remove(at);
                    return Ok(InCondition::Gone);
                }
                waiting[at].attempt = ask.attempt;
                return Ok(InCondition::Waiting { asked_at });
            }
            let Some(release) = release.map(|release| release.token) else {
                return Ok(InCondition::Gone);
            };
            if !entry.is_held_by(release) {
                return Ok(InCondition::NotOurs);
            }
            entry.settle(release);
            if !leave {
                entry.arrivals += 1;
                waiter.arrival = entry.arrivals;
                entry.conditions.entry(condition.to_owned()).or_default().push_back(waiter);
            }
            entry.serve(shared, now);
            Ok(if leave { InCondition::Gone } else { InCondition::Waiting { asked_at } })
        })
    }

    fn notify(&self, what: &Notify<'_>, _deadline: Instant) -> Result<Option<u64>, StoreError> {
        Ok(self.at(what.key, |entry, shared, _| {
            entry.is_held_by(what.token).then(|| entry.notify(what, shared))
        }))
    }

    fn inspect(&self, key: &Key, _deadline: Instant) -> Result<Option<Holder>, StoreError> {
        Ok(self.at(key, |entry, _, now| {
            entry.holder.as_ref().map(|(token, until)| Holder {
                token: token.as_str().to_owned(),
                remaining: Some(until.saturating_duration_since(now)),
            })
        }))
    }

    fn force_release(&self, key: &Key, _deadline: Instant) -> Result<bool, StoreError> {
        Ok(self.at(key, |entry, shared, now| {
            let held = entry.holder.is_some();
            if held {
                entry.serve(shared, now);
            }
            held
        }))
    }

    fn supports(&self, _options: &LockOptions) -> Result<(), Error> {
        Ok(())
    }
}

/// A waiter's entry among those who listen.
struct Ear {
    shelf: Arc<Shelf>,
    token: Token,
}

impl Drop for Ear {
    fn drop(&mut self) {
        locked(&self.shelf).ears.remove(&self.token);
    }
}
