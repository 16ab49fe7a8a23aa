//! Leases: ownership limited in time. Nothing here names Redis; time is read nowhere else.

pub(crate) mod acquire;
pub(crate) mod backoff;
pub(crate) mod cleaner;
pub(crate) mod condition;
pub(crate) mod key;
pub(crate) mod notify;
pub(crate) mod patience;
pub(crate) mod renewal;
pub(crate) mod store;
pub(crate) mod token;
pub(crate) mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::base::bell::Fences;
use crate::base::clock::Clock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::interrupt::Interrupt;
use crate::base::locked;
use crate::base::options::Renewal as Renew;
use key::Key;
use notify::{Keeper, Lost, LostReason};
use store::LeaseStore;
use token::{Token, Tokens};

/// What every lease of one client shares: the clock, the limits, and the threads that look after leases.
pub(crate) struct Background {
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    pub(crate) tokens: Tokens,
    pub(crate) renewal: renewal::Renewal,
    pub(crate) cleaner: cleaner::Cleaner,
    pub(crate) notifier: notify::Notifier,
    /// Set when the client is closed: ends every wait.
    pub(crate) closing: Interrupt,
    /// Which process made the client.
    process: u32,
}

/// How long a command, and an outage, may last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) command_timeout: Duration,
    pub(crate) max_outage: Duration,
}

impl Background {
    pub(crate) fn new(clock: Clock, limits: Limits) -> Self {
        let cleaner = cleaner::Cleaner::new(clock.clone(), limits);
        Self {
            renewal: renewal::Renewal::new(clock.clone(), limits, cleaner.clone()),
            cleaner,
            notifier: notify::Notifier::new(),
            tokens: Tokens::default(),
            closing: Interrupt::new(),
            process: std::process::id(),
            clock,
            limits,
        }
    }

    /// Starts the threads that a lease needs, unless they run already. Before it is asked for.
    pub(crate) fn start(&self) -> Result<()> {
        self.cleaner
            .start()
            .and_then(|()| self.renewal.start())
            .map_err(|error| Error::new(ErrorKind::Unavailable, "no thread could be started to look after leases").because(error))
    }

    /// An error once the client is being closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.is_interrupted() {
            return Err(Error::new(ErrorKind::Unavailable, "the client is closed"));
        }
        Ok(())
    }

    /// Whether this process is a fork of the one that made the client. Then nothing here may be waited for: none of the threads is in this process, and one of
    /// them may have held any of these mutexes when it was copied (R11).
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    pub(crate) fn command_deadline(&self) -> Instant {
        self.clock.now() + self.limits.command_timeout
    }
}

/// A lease that was granted: who owns what, until when.
pub(crate) struct Lease {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) store: Arc<dyn LeaseStore>,
    pub(crate) keeper: Arc<dyn Keeper>,
    pub(crate) length: Duration,
    pub(crate) renew: Renew,
    clock: Clock,
    /// What `until` counts from.
    origin: Instant,
    /// Nanoseconds from `origin` to the end of the validity; [`OVER`] once it has ended, for good.
    until: AtomicU64,
    /// Why it is over; the first reason stays.
    reason: AtomicUsize,
    /// Whether the loss has been told. Until then a release that the server confirms is simply a release.
    told: AtomicBool,
    /// Whether an attempt of this acquisition is still unanswered, so that a copy of it may run after the release (R5).
    unsettled: bool,
    /// The fences that this lease may still give out: the next one. 0 where the lock has no fences.
    next_fence: AtomicU64,
    /// How often in a row it may still pass to another thread of this process.
    hand_offs: AtomicU64,
    /// The wait that it came of: a late wake-up must not be taken for one that nobody waits for.
    listening: OnceLock<store::Listening>,
    /// Whether the server has not heard of us since it handed us the lock: it keeps the notification that woke us until then.
    settles: AtomicBool,
    /// How many notifications have been sent under it.
    notifications: AtomicU64,
    /// What has been done to its end.
    moves: Mutex<Moves>,
    /// Its entry in the renewal's book.
    pub(super) entry: AtomicUsize,
}

const OVER: u64 = 0;

#[derive(Default)]
struct Moves {
    /// How often the end was moved to an earlier one.
    count: u64,
    /// Whether a shortening is on its way.
    shortening: bool,
}

/// How often a lease had been shortened when an extend was sent; `None`: just then it was being shortened.
#[derive(Clone, Copy)]
pub(crate) struct Mark(Option<u64>);

/// What is taken off a lease's length for clocks that run at slightly different rates: 1 % and 2 ms (R1).
pub(crate) fn drift(length: Duration) -> Duration {
    length / 100 + Duration::from_millis(2)
}

/// The end of the validity of a lease of `length` that was asked for at `asked_at` (R1): counted from before the first byte was
/// sent, because the server's clock for it starts at some moment after that.
pub(crate) fn valid_until(asked_at: Instant, length: Duration) -> Instant {
    asked_at + length.saturating_sub(drift(length))
}

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
    /// Whether a notification goes with it that the server keeps until it hears of us.
    pub(crate) settles: bool,
}

impl Lease {
    pub(crate) fn new(key: Key, token: Token, store: Arc<dyn LeaseStore>, keeper: Arc<dyn Keeper>, clock: Clock, terms: &Terms) -> Self {
        let origin = terms.asked_at;
        let lease = Self {
            key,
            token,
            store,
            keeper,
            length: terms.length,
            renew: terms.renew,
            clock,
            origin,
            until: AtomicU64::new(OVER),
            reason: AtomicUsize::new(0),
            told: AtomicBool::new(false),
            unsettled: terms.unsettled,
            // The first holder gets the first of the block.
            next_fence: AtomicU64::new(terms.fences.map_or(0, |fences| (fences.last + 1).saturating_sub(u64::from(fences.count)).max(1))),
            // One fence for each hand-off, and the server may have reserved fewer than were asked for (R16).
            hand_offs: AtomicU64::new(u64::from(terms.fences.map_or(terms.hand_offs, |fences| terms.hand_offs.min(fences.count - 1)))),
            listening: OnceLock::new(),
            settles: AtomicBool::new(terms.settles),
            notifications: AtomicU64::new(0),
            moves: Mutex::default(),
            entry: AtomicUsize::new(0),
        };
        lease.until.store(lease.stamp(valid_until(terms.asked_at, terms.granted)), Ordering::SeqCst);
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

    /// Whether this process's own monotonic clock says that the lease has not run out. Once `false`, always `false`.
    pub(crate) fn is_valid(&self) -> bool {
        loop {
            let until = self.until.load(Ordering::SeqCst);
            if until == OVER {
                return false;
            }
            if self.stamp(self.clock.now()) < until {
                return true;
            }
            // Run out. Renewal may move the end at this very moment; whoever is first decides, and a validity that was seen ended stays ended.
            if self.until.compare_exchange(until, OVER, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
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
            Some(until) if self.is_valid() => until.saturating_duration_since(self.clock.now()),
            _ => Duration::ZERO,
        }
    }

    /// To be taken before an extend is sent, and shown when its answer counts.
    pub(crate) fn mark(&self) -> Mark {
        let moves = locked(&self.moves);
        Mark((!moves.shortening).then_some(moves.count))
    }

    /// Moves the end of the validity to a later one, after the server confirmed an extend that was asked for at `asked_at`. `false`: it was over before.
    ///
    /// An answer does not count where a shortening was on its way since it was asked for: the two may have been carried out in either order.
    pub(crate) fn extended(&self, mark: Mark, asked_at: Instant, length: Duration) -> bool {
        let moves = locked(&self.moves);
        if moves.shortening || mark.0 != Some(moves.count) {
            return self.is_valid();
        }
        self.move_to(valid_until(asked_at, length), |old, new| new > old)
    }

    /// Before a shortening is sent: the server may carry it out and the answer get lost, so our end moves first. `false`: an
    /// earlier one is still without an answer. Until that has come nothing makes the lease longer, because a late copy would shorten it unseen.
    pub(crate) fn begin_shortening(&self, asked_at: Instant, length: Duration) -> bool {
        let mut moves = locked(&self.moves);
        if moves.shortening {
            return false;
        }
        *moves = Moves { count: moves.count + 1, shortening: true };
        self.move_to(valid_until(asked_at, length), |old, new| new < old);
        true
    }

    /// The shortening was answered.
    pub(crate) fn end_shortening(&self) {
        let mut moves = locked(&self.moves);
        *moves = Moves { count: moves.count + 1, shortening: false };
    }

    fn move_to(&self, end: Instant, wanted: impl Fn(u64, u64) -> bool) -> bool {
        let new = self.stamp(end);
        while self.is_valid() {
            let old = self.until.load(Ordering::SeqCst);
            if old != OVER && (!wanted(old, new) || self.until.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()) {
                return self.is_valid();
            }
        }
        false
    }

    /// Ends the validity.
    pub(crate) fn end(&self, reason: LostReason) {
        self.until.store(OVER, Ordering::SeqCst);
        self.set_reason(reason);
    }

    fn set_reason(&self, reason: LostReason) {
        let _ = self.reason.compare_exchange(0, reason.code(), Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Ends the validity and tells the keeper, once.
    pub(crate) fn lose(self: &Arc<Self>, reason: LostReason) {
        self.end(reason);
        if !self.told.swap(true, Ordering::SeqCst) {
            let reason = LostReason::from_code(self.reason.load(Ordering::SeqCst));
            self.keeper.lost(self, &Lost::new(self.keeper.name(), self.held_fence(), reason));
        }
    }

    /// Whether the loss has been told.
    pub(crate) fn is_told(&self) -> bool {
        self.told.load(Ordering::SeqCst)
    }

    /// Says, once and for all, that no loss will be told any more: the lease was released. `false`: it had been told.
    pub(crate) fn settle_as_released(&self) -> bool {
        self.end(LostReason::Expired);
        !self.told.swap(true, Ordering::SeqCst)
    }

    /// The fence of the thread that has the lease now.
    pub(crate) fn held_fence(&self) -> Option<u64> {
        let fence = self.next_fence.load(Ordering::SeqCst);
        (fence != 0).then_some(fence)
    }

    /// Takes one local hand-off off the lease, and moves to the next fence of the block. `false`: none is left.
    pub(crate) fn take_hand_off(&self) -> bool {
        let left = self.hand_offs.load(Ordering::SeqCst);
        if left == 0 {
            return false;
        }
        // Only the holder hands off, so nobody counts down at the same time.
        self.hand_offs.store(left - 1, Ordering::SeqCst);
        if self.next_fence.load(Ordering::SeqCst) != 0 {
            self.next_fence.fetch_add(1, Ordering::SeqCst);
        }
        true
    }

    /// Keeps hearing what is for this token, until the lease is gone.
    pub(crate) fn go_on_listening(&self, listening: store::Listening) {
        let _ = self.listening.set(listening);
    }

    /// Whether what is sent next uses up the notification that woke us.
    pub(crate) fn settles(&self) -> bool {
        self.settles.load(Ordering::SeqCst)
    }

    /// The server has heard of us.
    pub(crate) fn settled(&self) {
        self.settles.store(false, Ordering::SeqCst);
    }

    /// The number of the next notification.
    pub(crate) fn next_notification(&self) -> u64 {
        self.notifications.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether a copy of an attempt may still arrive after the release.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// What the cleaner needs to remove whatever the store may still have of this lease.
    pub(crate) fn withdrawal(&self) -> cleaner::Withdrawal {
        cleaner::Withdrawal {
            store: Arc::clone(&self.store),
            name: Arc::clone(self.keeper.name()),
            key: self.key.clone(),
            token: self.token.clone(),
            lease: self.length,
            condition: None,
            in_flight: self.unsettled,
            abandoned: false,
        }
    }
}
