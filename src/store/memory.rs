//! The embedded store behind `memory://`: leases and rate limits in this process, for a first look
//! and for tests of programs that use the crate.

mod record;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use crate::base::bell::Bell;
use crate::base::clock::Clock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::key::Key;
use crate::base::locked;
use crate::base::options::{Confirm, LockOptions};
use crate::base::store_error::StoreError;
use crate::base::within::Within;
use crate::lease::store::{
    Abilities, Answer, Ask, Extend, Gone, Held, InCondition, LeaseStore, Listening, Notify,
    Release, Withdraw,
};
use crate::lease::token::Token;
use crate::limiter::memory::MemoryLimits;
use crate::limiter::port::{Decision, LimitStore, Take, foreign};
use record::{Listeners, LockRecord, NET, Waiter};

/// By name and by process: a mutex that a fork inherits may be locked by a thread that is not in
/// the fork.
static NAMED: Mutex<Vec<(String, u32, Weak<Shelf>)>> = Mutex::new(Vec::new());

/// Leases of this process.
pub(super) struct Memory {
    shelf: Arc<Shelf>,
    clock: Clock,
}

/// What clients of the same name share.
type Shelf = Mutex<Contents>;

#[derive(Default)]
struct Contents {
    /// Locks that are held, or were until their lease ran out, or are waited for.
    locks: HashMap<Key, LockRecord>,
    /// The waiters that listen.
    ears: HashMap<Token, Weak<Bell>>,
    limits: MemoryLimits,
}

/// The name in a URL of a store in memory; `None`: the URL is of another kind.
pub(super) fn name_in(url: &str) -> Option<Result<&str>> {
    let name = url.strip_prefix("memory://")?;
    if name.contains(['?', '#']) {
        return Some(Err(Error::invalid("memory:// is followed by a name, without ? and #")));
    }
    Some(Ok(name))
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
        Arc::new(Self { shelf, clock })
    }

    /// Looks at one lock, as it is now: a lease that has run out is gone. An entry that nobody
    /// needs any more is removed.
    fn at<R>(
        &self,
        key: &Key,
        look: impl FnOnce(&mut LockRecord, &mut Listeners<'_>, Instant) -> R,
    ) -> R {
        let mut contents = locked(&self.shelf);
        let Contents { locks, ears, limits } = &mut *contents;
        let now = self.clock.now();
        let entry = locks.entry(key.clone()).or_default();
        entry.holder.take_if(|(_, until)| *until <= now);
        // On a server, a limiter of the same name has its counter here. To a lock that is somebody
        // else's value, with an end.
        let counter = limits.counter(key, now);
        let counter = counter.map(|(count, until)| (Token::new(count.to_string()), until));
        if counter.is_some() {
            entry.holder.clone_from(&counter);
        }
        let result = look(entry, &mut Listeners { ears }, now);
        if counter.is_some()
            && entry.holder.take_if(|holder| Some(&*holder) == counter.as_ref()).is_none()
        {
            limits.remove(key);
        }
        entry.conditions.retain(|_, line| !line.waiting.is_empty());
        if entry.holder.is_none() && entry.queue.is_empty() && entry.conditions.is_empty() {
            locks.remove(key);
        }
        result
    }
}

impl LimitStore for Memory {
    fn take(&self, take: &Take<'_>) -> Result<Decision, StoreError> {
        let mut contents = locked(&self.shelf);
        let now = self.clock.now();
        let holder = contents.locks.get(take.key).and_then(|entry| entry.holder.as_ref());
        if holder.is_some_and(|(_, until)| *until > now) {
            return Err(foreign());
        }
        contents.limits.take(take, now)
    }
}

impl LeaseStore for Memory {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        let asked_at = self.clock.now();
        // Before the shelf is locked: listening locks it, too.
        let listens = ask.place.and_then(|place| (place.listen)()).is_some();
        self.at(ask.key, |entry, listeners, now| {
            let mine = ask.may_be_mine && entry.is_held_by(ask.token);
            if entry.holder.is_none() && !entry.is_next(ask.token, listeners) {
                entry.serve(listeners, now);
            } else if mine || entry.holder.is_none() {
                return Ok(Answer::Granted { asked_at, fences: entry.take(ask, listeners, now) });
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
            .map(|lease| Ok(self.at(lease.key, |entry, _, now| entry.extend(lease, now))))
            .collect()
    }

    fn extend_one(&self, lease: &Extend<'_>, _deadline: Instant) -> Result<bool, StoreError> {
        Ok(self.at(lease.key, |entry, _, now| entry.extend(lease, now)))
    }

    fn release(&self, what: &Release<'_>, _deadline: Instant) -> Result<Gone, StoreError> {
        what.check()?;
        Ok(self.at(what.key, |entry, listeners, now| entry.release(what.token, listeners, now)))
    }

    fn withdraw(&self, what: &[Withdraw<'_>], _deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        let one = |what: &Withdraw<'_>| {
            self.at(what.key, |entry, listeners, now| {
                entry.leave(what.token, listeners);
                entry.release(what.token, listeners, now)
            })
        };
        what.iter().map(|what| Ok(one(what))).collect()
    }

    fn listen(&self, _key: &Key, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        locked(&self.shelf).ears.insert(token.clone(), Arc::downgrade(bell));
        let ear = ListenerEntry { shelf: Arc::clone(&self.shelf), token: token.clone() };
        Some(Listening { address: "memory".into(), queues: true, until_dropped: Box::new(ear) })
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            wakes: true,
            conditions: true,
            one_shot_tokens: false,
            confirm: Confirm::NOTHING,
            numbered_tokens: false,
        }
    }

    fn wait_in(
        &self,
        ask: &Ask<'_>,
        condition: &str,
        release: Option<&Release<'_>>,
        leave: bool,
    ) -> Result<InCondition, StoreError> {
        let asked_at = self.clock.now();
        let Some(place) = ask.place.filter(|place| (place.listen)().is_some()) else {
            return Err(StoreError::not_sent(
                ErrorKind::Unavailable,
                "conditions need wake-ups, and this client cannot receive any",
            ));
        };
        release.map_or(Ok(()), Release::check)?;
        self.at(ask.key, |entry, listeners, now| {
            if entry.is_held_by(ask.token) {
                return Ok(InCondition::Granted {
                    asked_at,
                    fences: entry.take(ask, listeners, now),
                });
            }
            if let Some(line) = entry.conditions.get_mut(condition)
                && let Some(at) = line.waiting.iter().position(|waiter| waiter.token == *ask.token)
            {
                if leave {
                    line.waiting.remove(at);
                    return Ok(InCondition::Left);
                }
                if now < line.next_wake {
                    line.waiting[at].attempt = ask.attempt;
                    return Ok(InCondition::Waiting { asked_at });
                }
                line.next_wake = now + NET;
                entry.queue.extend(line.waiting.remove(at));
            }
            if let Some(queued) = entry.queue.iter_mut().find(|queued| queued.token == *ask.token) {
                queued.attempt = ask.attempt;
                if entry.holder.is_none() {
                    if entry.is_next(ask.token, listeners) {
                        return Ok(InCondition::Granted {
                            asked_at,
                            fences: entry.take(ask, listeners, now),
                        });
                    }
                    entry.serve(listeners, now);
                }
                let remaining =
                    entry.holder.as_ref().map(|(_, until)| until.saturating_duration_since(now));
                return Ok(InCondition::Notified { asked_at, remaining, heard: true });
            }
            let Some(release) = release.map(|release| release.token) else {
                return Ok(InCondition::Nowhere);
            };
            if !entry.is_held_by(release) {
                return Ok(InCondition::NotOurs);
            }
            entry.begin_to_wait(condition, Waiter::new(ask, place), now);
            entry.serve(listeners, now);
            Ok(InCondition::Waiting { asked_at })
        })
    }

    fn notify(&self, what: &Notify<'_>, _deadline: Instant) -> Result<Option<u64>, StoreError> {
        Ok(self.at(what.key, |entry, listeners, _| {
            entry
                .is_held_by(what.token)
                .then(|| entry.notify(what.condition, what.most, entry.arrivals, listeners))
        }))
    }

    fn inspect(&self, key: &Key, _deadline: Instant) -> Result<Option<Held>, StoreError> {
        Ok(self.at(key, |entry, _, now| {
            entry.holder.as_ref().map(|(token, until)| Held {
                token: token.clone(),
                remaining: Some(until.saturating_duration_since(now)),
            })
        }))
    }

    fn force_release(&self, key: &Key, _deadline: Instant) -> Result<bool, StoreError> {
        Ok(self.at(key, |entry, listeners, now| {
            let held = entry.holder.is_some();
            if held {
                entry.serve(listeners, now);
            }
            held
        }))
    }

    fn supports(&self, _options: &LockOptions) -> Result<(), Error> {
        Ok(())
    }
}

/// A waiter that listens. Ends that when dropped.
struct ListenerEntry {
    shelf: Arc<Shelf>,
    token: Token,
}

impl Drop for ListenerEntry {
    fn drop(&mut self) {
        locked(&self.shelf).ears.remove(&self.token);
    }
}
