//! One lock in memory: who holds it, and who waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::base::bell::{Bell, Fences, Grant};
use crate::base::options::{Share, Side};
use crate::base::store_error::StoreError;
use crate::lease::store::{Ask, Extend, Gone, Held, Look, Place, State};
use crate::lease::token::Token;

#[derive(Default)]
pub(super) struct LockRecord {
    /// Who holds it, and until when: of several, the one whose lease ends first before the others.
    pub(super) holders: Vec<(Token, Instant)>,
    /// Whether the leases have shares.
    pub(super) has_shares: bool,
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

/// The share in a token, of leases that have shares or do not.
pub(super) fn share_in(token: &Token, has_shares: bool) -> Share {
    let share = Share::in_token(token.as_bytes()).filter(|_| has_shares);
    share.unwrap_or_default()
}

impl LockRecord {
    /// Whether nobody holds it, or waits for it.
    pub(super) fn is_unused(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && self.conditions.is_empty()
    }

    /// An error if some leases have shares and others have none.
    pub(super) fn check_shares(&self, has_shares: bool) -> Result<(), StoreError> {
        if self.has_shares == has_shares { Ok(()) } else { Err(StoreError::foreign()) }
    }

    /// An error if the leases are of another kind than those with this share.
    pub(super) fn check(&self, share: Share) -> Result<(), StoreError> {
        self.check_shares(!share.is_whole())?;
        let first = self.holders.first().map_or(share, |(holder, _)| self.share(holder));
        if first.is_of_one_kind_with(share) { Ok(()) } else { Err(StoreError::foreign()) }
    }

    fn share(&self, token: &Token) -> Share {
        share_in(token, self.has_shares)
    }

    pub(super) fn is_held_by(&self, token: &Token) -> bool {
        self.holders.iter().any(|(holder, _)| holder == token)
    }

    /// What a token takes, and of how many permits.
    fn permits(&self, token: &Token) -> (u32, u32) {
        match self.share(token) {
            Share::Permits { taken, of } => (taken, of),
            Share::Whole | Share::Side(_) => (1, 1),
        }
    }

    /// How many permits would be taken beyond those that there are, if this token were granted.
    fn missing(&self, token: &Token) -> u32 {
        let (wanted, of) = self.permits(token);
        let taken = self.holders.iter().map(|(holder, _)| self.permits(holder).0);
        taken.fold(wanted, u32::saturating_add).saturating_sub(of)
    }

    pub(super) fn fits(&self, token: &Token) -> bool {
        match self.share(token) {
            reader @ Share::Side(Side::Read) => {
                self.holders.iter().all(|(holder, _)| self.share(holder) == reader)
            }
            _ => self.missing(token) == 0,
        }
    }

    /// How long it takes until enough leases have ended for this token, and at least one has.
    pub(super) fn left(&self, token: &Token, now: Instant) -> Option<Duration> {
        let mut missing = self.missing(token);
        let enough = self.holders.iter().find(|(holder, _)| {
            missing = missing.saturating_sub(self.permits(holder).0);
            missing == 0
        });
        enough.map(|(_, until)| until.saturating_duration_since(now))
    }

    /// Makes the lease last until then, or as long as it lasts already.
    fn put(&mut self, token: &Token, until: Instant) {
        let known = self.holders.iter().position(|(holder, _)| holder == token);
        let until = known.map_or(until, |at| self.holders.remove(at).1.max(until));
        let at = self.holders.partition_point(|(_, end)| *end <= until);
        self.holders.insert(at, (token.clone(), until));
    }

    fn remove(&mut self, token: &Token) {
        self.holders.retain(|(holder, _)| holder != token);
    }

    /// Grants what fits to the first waiters that listen, but only to those before `asking`.
    pub(super) fn serve(
        &mut self,
        asking: Option<&Token>,
        listeners: &mut Listeners<'_>,
        now: Instant,
    ) {
        while let Some(next) = self.queue.front()
            && asking != Some(&next.token)
        {
            let bell = listeners.ear(&next.token);
            if bell.is_some() && !self.fits(&next.token) {
                return;
            }
            let Some(next) = self.queue.pop_front() else { return };
            debug_assert!(self.queue.iter().all(|other| other.token != next.token), "twice");
            match bell {
                Some(bell) => {
                    self.put(&next.token, now + next.first_lease);
                    let fences = listeners.fences(next.fences);
                    bell.grant(Grant { attempt: next.attempt, fences });
                }
                None => self.pass_on(next, listeners),
            }
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

    /// Gives the asker what it asks for: it fits, or is the asker's own. Others behind it may fit,
    /// too.
    pub(super) fn take(
        &mut self,
        ask: &Ask<'_>,
        listeners: &mut Listeners<'_>,
        now: Instant,
    ) -> Option<Fences> {
        self.queue.retain(|waiter| waiter.token != *ask.token);
        self.put(ask.token, now + ask.lease);
        let fences = listeners.fences(ask.fences);
        self.serve(None, listeners, now);
        fences
    }

    /// Serves those before the asker. Returns whether it is the asker's turn, and what it asks for
    /// fits.
    pub(super) fn serves(
        &mut self,
        token: &Token,
        listeners: &mut Listeners<'_>,
        now: Instant,
    ) -> bool {
        self.serve(Some(token), listeners, now);
        self.queue.front().is_none_or(|next| next.token == *token) && self.fits(token)
    }

    /// Ends a lease, if it is there, and with `keep` keeps the lock for that time. Then the first
    /// waiter is told to ask again, and so learns for how long.
    pub(super) fn release(
        &mut self,
        token: &Token,
        keep: Option<Duration>,
        listeners: &mut Listeners<'_>,
        now: Instant,
    ) -> Gone {
        let gone = if self.is_held_by(token) { Gone::Released } else { Gone::NotOurs };
        self.remove(token);
        let keep = keep.filter(|_| gone == Gone::Released);
        if let Some(time) = keep {
            self.put(&token.kept(), now + time);
        }
        self.serve(None, listeners, now);
        if keep.is_some()
            && let Some(bell) = self.queue.front().and_then(|first| listeners.ear(&first.token))
        {
            bell.ring();
        }
        gone
    }

    /// Ends all leases, but not those of the other side of a read-write lock. Returns whether there
    /// were any.
    pub(super) fn force(
        &mut self,
        share: Share,
        listeners: &mut Listeners<'_>,
        now: Instant,
    ) -> bool {
        let stays = |held: Share| match (held, share) {
            (Share::Side(held), Share::Side(wanted)) => held != wanted,
            _ => false,
        };
        let (before, all) = (self.holders.len(), std::mem::take(&mut self.holders));
        self.holders = all.into_iter().filter(|(token, _)| stays(self.share(token))).collect();
        let ended = self.holders.len() < before;
        if ended {
            self.serve(None, listeners, now);
        }
        ended
    }

    /// Exchanges the token of a lease for another (R28). `false`: the lease is not there.
    pub(super) fn exchange(
        &mut self,
        (from, to): (&Token, &Token),
        lease: Duration,
        listeners: &mut Listeners<'_>,
        now: Instant,
    ) -> bool {
        let is_ours = self.is_held_by(to) || self.is_held_by(from);
        if is_ours {
            self.remove(from);
            self.put(to, now + lease);
            self.serve(None, listeners, now);
        }
        is_ours
    }

    /// Who holds it, and who waits.
    pub(super) fn state(&self, look: Look, now: Instant) -> State {
        let held = |(token, until): &(Token, Instant)| Held {
            token: token.clone(),
            remaining: Some(until.saturating_duration_since(now)),
        };
        let held = self.holders.iter().map(held).collect();
        let Look::All { fenced } = look else { return State { held, ..State::default() } };
        let last = LAST_FENCE.load(Ordering::SeqCst);
        State {
            held,
            fence: (fenced && last > 0).then_some(last),
            waiting: self.queue.iter().map(|waiter| waiter.token.clone()).collect(),
        }
    }

    /// Extends a lease, and returns whether the lease is held by this token.
    pub(super) fn extend(&mut self, lease: &Extend<'_>, now: Instant) -> bool {
        let is_held = self.is_held_by(lease.token);
        if is_held {
            self.put(lease.token, now + lease.lease);
        }
        is_held
    }
}
