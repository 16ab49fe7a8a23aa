//! A lease that was granted: who owns what, until when, and how it ends.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::cleaner::{Cleaner, InUse, Withdrawal};
use super::durations::rest_of;
use super::events::How;
use super::expiry::Expiry;
use super::lost::{Ended, Lost, LostReason};
use super::store::{LeaseStore, Listening};
use super::token::Token;
use crate::base::bell::Fences;
use crate::base::clock::Clock;
use crate::base::key::Key;
use crate::base::locked;
use crate::base::options::Renewal;
use crate::base::subject::Subject;

/// The lock for which a lease was granted. The lease calls it when it ends.
pub(crate) trait LeaseObserver: Send + Sync {
    fn subject(&self) -> &Subject;
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
    /// The shard of the store whose renewal looks after it.
    pub(super) shard: u16,
    pub(crate) observer: Arc<dyn LeaseObserver>,
    /// How its first holder got it.
    pub(crate) how: How,
    pub(crate) length: Duration,
    pub(crate) expiry: Expiry,
    /// Whether the lease has ended, in any way. Until then a release that the server confirms
    /// counts as a release, even if the validity is over.
    ended: AtomicBool,
    hand_offs: HandOffs,
    /// How many holds and claims it is for. Only a reader's lease, and a writer's while its thread
    /// also reads, is for several; 0: it is being released.
    users: AtomicU32,
    left_behind: LeftBehind,
    /// Until when the lock is kept even if the lease ends before.
    kept_until: Option<Instant>,
    /// Whether it ends before it got an owner. Then the lock is not kept.
    nobody_had_it: AtomicBool,
    /// The listening of the wait before the grant, so that a late wake-up still finds a listener.
    listening: OnceLock<Listening>,
    /// How many times renewal may still move the end; `u32::MAX`: no limit. Kept here, because a
    /// wait takes the lease out of the book for a while.
    pub(super) extends_left: AtomicU32,
    /// Its entry in the renewal's book.
    pub(super) entry: AtomicUsize,
}

/// How often in a row a lease may still pass to another thread of this process, and the fence of
/// its present holder.
struct HandOffs {
    left: AtomicU64,
    /// A hand-off moves to the next one. 0 if the lock has no fences.
    fence: AtomicU64,
}

/// What a lease may leave in the store, beside itself.
struct LeftBehind {
    /// Whether an attempt of this acquisition is still unanswered, so that a copy of it may run
    /// after the release (R5).
    unsettled: bool,
    /// Whether the token is the caller's own value.
    reuses_value: bool,
    /// The use of the caller's own value, until the lease ends.
    in_use: Mutex<Option<InUse>>,
    /// How many milliseconds an extend may have made it last, at most.
    longest: AtomicU64,
}

/// What a grant says about the lease that it made.
pub(crate) struct Terms {
    pub(crate) how: How,
    pub(crate) asked_at: Instant,
    /// How long it lasts now.
    pub(crate) granted: Duration,
    /// How long renewal makes it last.
    pub(crate) length: Duration,
    pub(crate) kept_until: Option<Instant>,
    pub(crate) renewal: Renewal,
    /// The fences reserved for it.
    pub(crate) fences: Option<Fences>,
    pub(crate) hand_offs: u32,
    pub(crate) unsettled: bool,
    pub(crate) in_use: Option<InUse>,
}

impl HandOffs {
    fn new(fences: Option<Fences>, most: u32) -> Self {
        Self {
            // One fence for each hand-off, and the server may have reserved fewer than were asked
            // for (R16).
            left: AtomicU64::new(u64::from(
                fences.map_or(most, |fences| most.min(fences.count.saturating_sub(1))),
            )),
            // The first holder gets the first fence of the block.
            fence: AtomicU64::new(fences.map_or(0, |fences| {
                fences.last.saturating_sub(u64::from(fences.count.saturating_sub(1))).max(1)
            })),
        }
    }

    fn are_used_up(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    /// What is left of the block, from the present holder's fence on.
    fn fences(&self) -> Option<Fences> {
        let (fence, left) = (self.fence()?, self.left.load(Ordering::SeqCst));
        let count = u32::try_from(left).unwrap_or(u32::MAX).saturating_add(1);
        Some(Fences { last: fence.saturating_add(u64::from(count - 1)), count })
    }

    /// Uses one up, and moves to the next fence of the block. Called under the mutex of the local
    /// queue, so nobody counts at the same time.
    fn use_one(&self) {
        let before = self.left.fetch_sub(1, Ordering::SeqCst);
        debug_assert_ne!(before, 0, "a hand-off too many, and a fence that was not reserved");
        if self.fence().is_some() {
            self.fence.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn fence(&self) -> Option<u64> {
        let fence = self.fence.load(Ordering::SeqCst);
        (fence != 0).then_some(fence)
    }
}

impl Lease {
    pub(crate) fn new(
        key: Key,
        token: Token,
        (store, shard): (Arc<dyn LeaseStore>, u16),
        observer: Arc<dyn LeaseObserver>,
        clock: Clock,
        terms: Terms,
    ) -> Self {
        debug_assert!(terms.granted <= terms.length, "renewal never shortens a lease");
        Self {
            key,
            token,
            store,
            shard,
            observer,
            how: terms.how,
            length: terms.length,
            expiry: Expiry::new(clock, terms.asked_at, terms.granted),
            ended: AtomicBool::new(false),
            hand_offs: HandOffs::new(terms.fences, terms.hand_offs),
            users: AtomicU32::new(1),
            left_behind: LeftBehind {
                unsettled: terms.unsettled,
                reuses_value: terms.in_use.is_some(),
                in_use: Mutex::new(terms.in_use),
                longest: AtomicU64::new(0),
            },
            kept_until: terms.kept_until,
            nobody_had_it: AtomicBool::new(false),
            listening: OnceLock::new(),
            extends_left: AtomicU32::new(match terms.renewal {
                Renewal::UntilUnlock => u32::MAX,
                Renewal::Never => 0,
                Renewal::AtMost(n) => n,
            }),
            entry: AtomicUsize::new(0),
        }
    }

    /// Whether this process's own monotonic clock says that the lease has not run out. Once
    /// `false`, always `false`.
    pub(crate) fn is_valid(&self) -> bool {
        self.expiry.is_valid()
    }

    /// It ends before it got an owner.
    pub(crate) fn nobody_had_it(&self) {
        self.nobody_had_it.store(true, Ordering::SeqCst);
    }

    fn kept_until(&self) -> Option<Instant> {
        self.kept_until.filter(|_| !self.nobody_had_it.load(Ordering::SeqCst))
    }

    /// For how long the lock has to be kept if the lease ends now.
    pub(super) fn left_to_keep(&self) -> Option<Duration> {
        self.kept_until().and_then(|until| rest_of(until, self.expiry.now()))
    }

    /// Called before an extend by hand is sent: the lease may last for so long then, whatever the
    /// answer.
    pub(crate) fn may_last(&self, length: Duration) {
        let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        self.left_behind.longest.fetch_max(millis, Ordering::SeqCst);
    }

    /// Ends the lease. Only the first call counts. `false`: it had ended before.
    ///
    /// What may be left on the server is handed to the cleaner first, so that the cleaner knows it
    /// before another thread gets the turn.
    pub(super) fn finish(self: &Arc<Self>, cleaner: &Cleaner, how: Ended) -> bool {
        self.expiry.end(if let Ended::Lost(reason) = how { reason } else { LostReason::Expired });
        if self.ended.swap(true, Ordering::SeqCst) {
            return false;
        }
        debug_assert!(!self.expiry.is_valid(), "what has ended is not valid again");
        cleaner.counters.lease_ended(self.observer.subject(), how, self.expiry.reason());
        // A late copy of a release finds nothing under a fresh token, but it finds the next hold
        // under a caller's own value (R38).
        let release_in_flight = matches!(
            how,
            Ended::Released { copy_in_flight: true } | Ended::GivenUp { release_sent: true }
        );
        let may_be_left = match how {
            Ended::Released { .. } | Ended::Lost(LostReason::Taken) => {
                self.left_behind.unsettled || (self.left_behind.reuses_value && release_in_flight)
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
        drop(locked(&self.left_behind.in_use).take());
        if matches!(how, Ended::Lost(_) | Ended::GivenUp { .. }) {
            self.observer.over(self);
        }
        if let Ended::Lost(_) = how {
            let (subject, fence) = (self.observer.subject(), self.held_fence());
            self.observer.lost(&Lost::new(subject, fence, self.expiry.reason()));
        }
        true
    }

    /// Whether it has ended, in any way.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// The fence of the thread that has the lease now; of several readers, of the last that joined.
    pub(crate) fn held_fence(&self) -> Option<u64> {
        self.hand_offs.fence()
    }

    /// The fences that are left for its next holders, and first that of the present one.
    pub(super) fn fences(&self) -> Option<Fences> {
        self.hand_offs.fences()
    }

    /// One more hold uses it. `false`: the last user has gone already.
    pub(crate) fn add_user(&self) -> bool {
        let one_more = |users: u32| users.checked_add(1).filter(|_| users > 0);
        self.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
    }

    /// A hold or a claim that used it has ended. `true`: it was the last, and none can be added.
    pub(crate) fn remove_user(&self) -> bool {
        let before = self.users.fetch_sub(1, Ordering::SeqCst);
        debug_assert_ne!(before, 0, "each user goes once");
        before == 1
    }

    /// Uses up one local hand-off of the lease. `false`: none is left.
    pub(crate) fn take_hand_off(&self) -> bool {
        // A lease that was extended beyond its length is not passed on: if this process dies, the
        // lock shall be free within one lease.
        if self.hand_offs.are_used_up() || self.expiry.remaining() > self.length {
            return false;
        }
        self.hand_offs.use_one();
        true
    }

    /// Keeps listening for this token until the lease is gone.
    pub(crate) fn go_on_listening(&self, listening: Listening) {
        let first = self.listening.set(listening).is_ok();
        debug_assert!(first, "an acquisition listens once");
    }

    /// What the cleaner needs to remove from the store what may be left of this lease.
    fn withdrawal(&self) -> Withdrawal {
        Withdrawal {
            store: Arc::clone(&self.store),
            subject: self.observer.subject().clone(),
            key: self.key.clone(),
            token: self.token.clone(),
            lease: self
                .length
                .max(Duration::from_millis(self.left_behind.longest.load(Ordering::SeqCst))),
            in_flight: self.left_behind.unsettled,
            reused: self.left_behind.reuses_value,
            kept_until: self.kept_until(),
            release_in_flight: false,
            abandoned: false.into(),
        }
    }
}
