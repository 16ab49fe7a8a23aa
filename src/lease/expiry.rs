//! When a lease runs out by the clock of its holder.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::durations::valid_until;
use super::lost::LostReason;
use crate::base::clock::Clock;

/// When a lease runs out by the clock of its holder, and why it is over.
///
/// The end may move until it is over; then it is over for good.
pub(crate) struct Expiry {
    clock: Clock,
    /// What `until` counts from.
    asked_at: Instant,
    /// Nanoseconds from `asked_at` to the end of the validity; [`OVER`] once it has ended.
    until: AtomicU64,
    /// Why it is over; the first reason stays.
    reason: OnceLock<LostReason>,
}

const OVER: u64 = 0;

impl Expiry {
    /// The expiry of a lease of this length, whose attempt was sent at `asked_at`.
    pub(super) fn new(clock: Clock, asked_at: Instant, length: Duration) -> Self {
        let (until, reason) = (AtomicU64::new(OVER), OnceLock::new());
        let expiry = Self { clock, asked_at, until, reason };
        expiry.until.store(expiry.stamp(valid_until(asked_at, length)), Ordering::SeqCst);
        expiry
    }

    fn stamp(&self, instant: Instant) -> u64 {
        let nanos = instant.saturating_duration_since(self.asked_at).as_nanos();
        u64::try_from(nanos).unwrap_or(u64::MAX).max(OVER + 1)
    }

    /// The time on the holder's clock.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// When the attempt was sent that was granted.
    pub(super) fn asked_at(&self) -> Instant {
        self.asked_at
    }

    /// The end of the validity; `None` once it is over.
    pub(crate) fn valid_until(&self) -> Option<Instant> {
        let until = self.until.load(Ordering::SeqCst);
        (until != OVER).then(|| self.asked_at + Duration::from_nanos(until))
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
                let _ = self.reason.set(LostReason::Expired);
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

    /// Moves the end to a later one, after the server confirmed an extend that was asked for at
    /// `asked_at`. `false`: the validity was over before.
    pub(super) fn extended(&self, asked_at: Instant, length: Duration) -> bool {
        debug_assert!(asked_at >= self.asked_at, "an extend follows the grant");
        let new = self.stamp(valid_until(asked_at, length));
        if self.is_valid() {
            let later = |old| (old != OVER && old < new).then_some(new);
            let _ = self.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
        }
        self.is_valid()
    }

    /// Ends the validity.
    pub(super) fn end(&self, reason: LostReason) {
        self.until.store(OVER, Ordering::SeqCst);
        let _ = self.reason.set(reason);
    }

    /// Why it is over.
    pub(super) fn reason(&self) -> LostReason {
        debug_assert!(self.is_over(), "a reason is asked for at the end");
        self.reason.get().copied().unwrap_or(LostReason::Expired)
    }
}
