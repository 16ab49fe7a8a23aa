//! The embedded store behind `memory://`: leases and rate limits in this process, for a first look
//! and for tests of programs that use the crate.

mod record;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::base::bell::Bell;
use crate::base::clock::Clock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::key::Key;
use crate::base::locked;
use crate::base::options::{Confirm, LockOptions};
use crate::base::store_error::StoreError;
use crate::base::within::Within;
use crate::lease::store::{
    Abilities, Answer, Ask, Extend, Gone, InCondition, LeaseStore, Listening, Look, Notify,
    Release, State, Withdraw,
};
use crate::lease::token::Token;
use crate::limiter::memory::MemoryLimits;
use crate::limiter::port::{Decision, LimitStore, Take, foreign};
use record::{Listeners, LockRecord, NET, Waiter, share_in};

/// By name and by process: a mutex that a fork inherits may be locked by a thread that is not in
/// the fork.
static NAMED: Mutex<Vec<(String, u32, Weak<Shelf>)>> = Mutex::new(Vec::new());

/// Leases of this process.
pub(super) struct Memory {
    shelf: Arc<Shelf>,
    clock: Clock,
    /// Whether these leases have shares.
    has_shares: bool,
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
    pub(super) fn open(name: &str, clock: Clock) -> Self {
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
        Self { shelf, clock, has_shares: false }
    }

    /// The leases of the same store, with shares or without.
    pub(super) fn leases(&self, has_shares: bool) -> Self {
        Self { shelf: Arc::clone(&self.shelf), clock: self.clock.clone(), has_shares }
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
        entry.holders.retain(|(_, until)| *until > now);
        if entry.is_unused() {
            entry.has_shares = self.has_shares;
        }
        // On a server, a limiter of the same name has its counter here. To a lock that is somebody
        // else's value, with an end.
        let counter = limits.counter(key, now);
        let counter = counter.map(|(count, until)| (Token::new(count.to_string()), until));
        if let Some(counter) = &counter {
            entry.has_shares = false;
            entry.holders = vec![counter.clone()];
        }
        let result = look(entry, &mut Listeners { ears }, now);
        if let Some(counter) = &counter {
            let is_there = entry.holders.contains(counter);
            entry.holders.retain(|holder| holder != counter);
            if !is_there {
                limits.remove(key);
            }
        }
        entry.conditions.retain(|_, line| !line.waiting.is_empty());
        if entry.is_unused() {
            locks.remove(key);
        }
        result
    }
}

impl LimitStore for Memory {
    fn take(&self, take: &Take<'_>) -> Result<Decision, StoreError> {
        let mut contents = locked(&self.shelf);
        let now = self.clock.now();
        let is_held = |entry: &LockRecord| entry.holders.iter().any(|(_, until)| *until > now);
        if contents.locks.get(take.key).is_some_and(is_held) {
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
            entry.check(share_in(ask.token, self.has_shares))?;
            let mine = ask.may_be_mine && entry.is_held_by(ask.token);
            if mine || entry.serves(ask.token, listeners, now) {
                return Ok(Answer::Granted { asked_at, fences: entry.take(ask, listeners, now) });
            }
            if let Some(place) = ask.place.filter(|_| listens) {
                let waiter = Waiter::new(ask, place);
                match entry.queue.iter_mut().find(|waiting| waiting.token == waiter.token) {
                    Some(waiting) => waiting.attempt = waiter.attempt,
                    None => entry.queue.push_back(waiter),
                }
            }
            let remaining = entry.left(ask.token, now);
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
        let Release { key, token, keep, .. } = *what;
        Ok(self.at(key, |entry, listeners, now| entry.release(token, keep, listeners, now)))
    }

    fn withdraw(&self, what: &[Withdraw<'_>], _deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        let one = |what: &Withdraw<'_>| {
            self.at(what.key, |entry, listeners, now| {
                entry.leave(what.token, listeners);
                entry.release(what.token, what.keep, listeners, now)
            })
        };
        what.iter().map(|what| Ok(one(what))).collect()
    }

    fn exchange(
        &self,
        what: &Release<'_>,
        token: &Token,
        lease: Duration,
        _deadline: Instant,
    ) -> Result<bool, StoreError> {
        what.check()?;
        let tokens = (what.token, token);
        Ok(self.at(what.key, |entry, listeners, now| entry.exchange(tokens, lease, listeners, now)))
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
                if entry.serves(ask.token, listeners, now) {
                    return Ok(InCondition::Granted {
                        asked_at,
                        fences: entry.take(ask, listeners, now),
                    });
                }
                let remaining = entry.left(ask.token, now);
                return Ok(InCondition::Notified { asked_at, remaining, heard: true });
            }
            let Some(release) = release.map(|release| release.token) else {
                return Ok(InCondition::Nowhere);
            };
            if !entry.is_held_by(release) {
                return Ok(InCondition::NotOurs);
            }
            entry.begin_to_wait(condition, Waiter::new(ask, place), now);
            entry.release(release, None, listeners, now);
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

    fn inspect(&self, key: &Key, look: Look, _deadline: Instant) -> Result<State, StoreError> {
        self.at(key, |entry, _, now| {
            entry.check_shares(self.has_shares)?;
            Ok(entry.state(look, now))
        })
    }

    fn force_release(&self, key: &Key, share: &str, _: Instant) -> Result<bool, StoreError> {
        let share = share_in(&Token::new(share), self.has_shares);
        self.at(key, |entry, listeners, now| {
            entry.check(share)?;
            Ok(entry.force(share, listeners, now))
        })
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
