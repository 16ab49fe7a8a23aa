//! A lease that was granted: its validity, its fences, and how it ends.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::cleaner::{Cleaner, InUse, Withdrawal};
use super::ended::Ended;
use super::lost::{Lost, LostReason};
use super::store::{LeaseStore, Listening};
use super::token::Token;
use super::validity::valid_until;
use crate::base::bell::Fences;
use crate::base::clock::Clock;
use crate::base::key::Key;
use crate::base::locked;
use crate::base::options::Renewal as Renew;

/// The lock for which a lease was granted.
pub(crate) trait Keeper: Send + Sync {
    /// The lock's name.
    fn name(&self) -> &Arc<str>;
    /// The lease was lost or given up: threads behind its holder need not wait for the holder. Does
    /// not block.
    fn over(&self, lease: &Arc<Lease>);
    /// A lease was lost. Called once, on the thread that found out; does not block.
    fn lost(&self, lost: &Lost);
}

/// A lease that was granted: who owns what, until when.
pub(crate) struct Lease {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) store: Arc<dyn LeaseStore>,
    pub(crate) keeper: Arc<dyn Keeper>,
    pub(crate) length: Duration,
    clock: Clock,
    /// What `until` counts from.
    pub(super) origin: Instant,
    /// Nanoseconds from `origin` to the end of the validity; [`OVER`] once it has ended, for good.
    until: AtomicU64,
    /// Why it is over; the first reason stays.
    reason: AtomicUsize,
    /// Whether the lease has ended, in any way. Until then a release that the server confirms
    /// counts as a release, even if the validity is over.
    ended: AtomicBool,
    /// Whether an attempt of this acquisition is still unanswered, so that a copy of it may run
    /// after the release (R5).
    unsettled: bool,
    /// How many milliseconds an extend may have made it last, at most.
    longest: AtomicU64,
    /// Whether the token is the caller's own value.
    reuses_value: bool,
    /// The fence of the present holder; a hand-off moves to the next one. 0 if the lock has no
    /// fences.
    next_fence: AtomicU64,
    /// How often in a row it may still pass to another thread of this process.
    hand_offs: AtomicU64,
    /// The use of the caller's own value, until the lease ends.
    in_use: Mutex<Option<InUse>>,
    /// The listening of the wait before the grant, so that a late wake-up still finds a listener.
    listening: OnceLock<Listening>,
    /// How many times renewal may still move the end; `u32::MAX`: no limit. Kept here, because a
    /// wait takes the lease out of the book for a while.
    pub(super) extends_left: AtomicU32,
    /// Its entry in the renewal's book.
    pub(super) entry: AtomicUsize,
}

const OVER: u64 = 0;

/// What a grant says about the lease that it made.
pub(crate) struct Terms {
    pub(crate) asked_at: Instant,
    /// How long it lasts now.
    pub(crate) granted: Duration,
    /// How long renewal makes it last.
    pub(crate) length: Duration,
    pub(crate) renew: Renew,
    /// The fences reserved for it.
    pub(crate) fences: Option<Fences>,
    pub(crate) hand_offs: u32,
    pub(crate) unsettled: bool,
    pub(crate) in_use: Option<InUse>,
}

impl Lease {
    pub(crate) fn new(
        key: Key,
        token: Token,
        store: Arc<dyn LeaseStore>,
        keeper: Arc<dyn Keeper>,
        clock: Clock,
        terms: Terms,
    ) -> Self {
        let origin = terms.asked_at;
        let lease = Self {
            key,
            token,
            store,
            keeper,
            length: terms.length,
            clock,
            origin,
            until: AtomicU64::new(OVER),
            reason: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            unsettled: terms.unsettled,
            longest: AtomicU64::new(0),
            reuses_value: terms.in_use.is_some(),
            // The first holder gets the first fence of the block.
            next_fence: AtomicU64::new(terms.fences.map_or(0, |fences| {
                fences.last.saturating_sub(u64::from(fences.count.saturating_sub(1))).max(1)
            })),
            // One fence for each hand-off, and the server may have reserved fewer than were asked
            // for (R16).
            hand_offs: AtomicU64::new(u64::from(terms.fences.map_or(terms.hand_offs, |fences| {
                terms.hand_offs.min(fences.count.saturating_sub(1))
            }))),
            in_use: Mutex::new(terms.in_use),
            listening: OnceLock::new(),
            extends_left: AtomicU32::new(match terms.renew {
                Renew::UntilUnlock => u32::MAX,
                Renew::Never => 0,
                Renew::AtMost(n) => n,
            }),
            entry: AtomicUsize::new(0),
        };
        lease
            .until
            .store(lease.stamp(valid_until(terms.asked_at, terms.granted)), Ordering::SeqCst);
        lease
    }

    fn stamp(&self, instant: Instant) -> u64 {
        let nanos = instant.saturating_duration_since(self.origin).as_nanos();
        u64::try_from(nanos).unwrap_or(u64::MAX).max(OVER + 1)
    }

    /// The end of the validity; `None` once it is over.
    pub(crate) fn valid_until(&self) -> Option<Instant> {
        let until = self.until.load(Ordering::SeqCst);
        (until != OVER).then(|| self.origin + Duration::from_nanos(until))
    }

    /// Whether this process's own monotonic clock says that the lease has not run out. Once
    /// `false`, always `false`.
    pub(crate) fn is_valid(&self) -> bool {
        loop {
            let until = self.until.load(Ordering::SeqCst);
            if until == OVER {
                return false;
            }
            if self.stamp(self.clock.now()) < until {
                return true;
            }
            // Run out. Renewal may move the end at this very moment: the first of the two decides,
            // and a validity that was seen to end stays ended.
            if self.until.compare_exchange(until, OVER, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            {
                self.set_reason(LostReason::Expired);
                return false;
            }
        }
    }

    /// Whether the validity has been seen to end. Does not look at the clock.
    pub(crate) fn is_over(&self) -> bool {
        self.until.load(Ordering::SeqCst) == OVER
    }

    /// How long the lease is still valid; zero once it is over.
    pub(crate) fn remaining(&self) -> Duration {
        match self.valid_until() {
            Some(until) if self.is_valid() => self.clock.left(until),
            _ => Duration::ZERO,
        }
    }

    /// Moves the end of the validity to a later one, after the server confirmed an extend that was
    /// asked for at `asked_at`. `false`: the validity was over before.
    pub(crate) fn extended(&self, asked_at: Instant, length: Duration) -> bool {
        let new = self.stamp(valid_until(asked_at, length));
        if self.is_valid() {
            let later = |old| (old != OVER && old < new).then_some(new);
            let _ = self.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
        }
        self.is_valid()
    }

    /// Called before an extend by hand is sent: the lease may last for so long then, whatever the
    /// answer.
    pub(crate) fn may_last(&self, length: Duration) {
        let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        self.longest.fetch_max(millis, Ordering::SeqCst);
    }

    /// Ends the validity.
    fn end(&self, reason: LostReason) {
        self.until.store(OVER, Ordering::SeqCst);
        self.set_reason(reason);
    }

    fn set_reason(&self, reason: LostReason) {
        let _ = self.reason.compare_exchange(0, reason.code(), Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Ends the lease. Only the first call counts. `false`: it had ended before.
    ///
    /// What may be left on the server is handed to the cleaner first, so that the cleaner knows it
    /// before another thread gets the turn.
    pub(super) fn finish(self: &Arc<Self>, cleaner: &Cleaner, how: Ended) -> bool {
        self.end(if let Ended::Lost(reason) = how { reason } else { LostReason::Expired });
        if self.ended.swap(true, Ordering::SeqCst) {
            return false;
        }
        // A late copy of a release finds nothing under a fresh token, but it finds the next hold
        // under a caller's own value (R38).
        let release_in_flight = matches!(
            how,
            Ended::Released { copy_in_flight: true } | Ended::GivenUp { release_sent: true }
        );
        let may_be_left = match how {
            Ended::Released { .. } | Ended::Lost(LostReason::Taken) => {
                self.unsettled || (self.reuses_value && release_in_flight)
            }
            _ => true,
        };
        if may_be_left {
            let abandoned = how == Ended::Abandoned;
            let what =
                Withdrawal { abandoned: abandoned.into(), release_in_flight, ..self.withdrawal() };
            match how {
                Ended::Abandoned => cleaner.withdraw_later(what),
                _ => cleaner.withdraw(what),
            }
        }
        drop(locked(&self.in_use).take());
        if matches!(how, Ended::Lost(_) | Ended::GivenUp { .. }) {
            self.keeper.over(self);
        }
        if let Ended::Lost(_) = how {
            let reason = LostReason::from_code(self.reason.load(Ordering::SeqCst));
            self.keeper.lost(&Lost::new(self.keeper.name(), self.held_fence(), reason));
        }
        true
    }

    /// Whether it has ended, in whatever way.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// The fence of the thread that has the lease now.
    pub(crate) fn held_fence(&self) -> Option<u64> {
        let fence = self.next_fence.load(Ordering::SeqCst);
        (fence != 0).then_some(fence)
    }

    /// Uses up one local hand-off of the lease, and moves to the next fence of the block. `false`:
    /// none is left.
    pub(crate) fn take_hand_off(&self) -> bool {
        let left = self.hand_offs.load(Ordering::SeqCst);
        // A lease that was extended beyond its length is not passed on: if this process dies, the
        // lock shall be free within one lease.
        if left == 0 || self.remaining() > self.length {
            return false;
        }
        // Only the holder hands off, so nobody counts down at the same time.
        self.hand_offs.store(left - 1, Ordering::SeqCst);
        if self.next_fence.load(Ordering::SeqCst) != 0 {
            self.next_fence.fetch_add(1, Ordering::SeqCst);
        }
        true
    }

    /// Keeps listening for this token until the lease is gone.
    pub(crate) fn go_on_listening(&self, listening: Listening) {
        let _ = self.listening.set(listening);
    }

    /// What the cleaner needs to remove from the store what may be left of this lease.
    fn withdrawal(&self) -> Withdrawal {
        Withdrawal {
            store: Arc::clone(&self.store),
            name: Arc::clone(self.keeper.name()),
            key: self.key.clone(),
            token: self.token.clone(),
            lease: self.length.max(Duration::from_millis(self.longest.load(Ordering::SeqCst))),
            in_flight: self.unsettled,
            reused: self.reuses_value,
            release_in_flight: false,
            abandoned: false.into(),
        }
    }
}
