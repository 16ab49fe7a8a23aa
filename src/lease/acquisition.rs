//! One acquisition: its token, its attempts, its place in the store's queue, and what it may leave
//! behind there.

mod place;

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cleaner::{InUse, Withdrawal};
use super::context::Context;
use super::count::Counted;
use super::granted::Keeper;
use super::granted::{Lease, Terms};
use super::store::{Answer, Ask, Extend, LeaseStore, Listening, Place};
use super::timeouts::FIRST_LEASE;
use super::token::Token;
use super::validity::valid_until;
use super::wait::Wait;
use super::wait_limits::{Contention, WaitLimits};
use crate::base::backoff;
use crate::base::bell::{Bell, Fences, Grant};
use crate::base::error::{ErrorKind, Result};
use crate::base::key::Key;
use crate::base::options::{LockOptions, Queue, Renewal as Renew};
use crate::base::store_error::StoreError;
pub(super) use place::Waiting;

/// One acquisition: its attempts share a token and, once refused, a place in the store's queue.
/// Only where the store has one-shot tokens, each attempt draws its own.
///
/// If dropped without a grant, it has what it may have left behind withdrawn. It can pass to
/// another thread, with its place.
pub(crate) struct Acquisition {
    pub(super) context: Arc<Context>,
    pub(super) store: Arc<dyn LeaseStore>,
    keeper: Arc<dyn Keeper>,
    key: Key,
    options: Arc<LockOptions>,
    token: Token,
    pub(super) attempts: u64,
    refusal: Option<Refusal>,
    /// Whether the store may hold something under our token.
    pub(crate) left_behind: bool,
    /// Whether an attempt has had no answer (R5).
    pub(super) unanswered: bool,
    /// The use of the caller's own value; `None` with a fresh token, and until the first attempt.
    in_use: Option<InUse>,
    /// Made once the caller has to wait.
    bell: OnceCell<Arc<Bell>>,
    listening: OnceCell<Option<Listening>>,
    /// The last field, so that closing waits until the fields above are dropped.
    _counted: Counted,
}

/// The last refusal that was received. A hand-off must name its attempt, and the hand-off's
/// validity counts from its `asked_at` (R15).
#[derive(Clone, Copy)]
struct Refusal {
    attempt: u64,
    asked_at: Instant,
    /// How long the answer took.
    took: Duration,
    /// Whether a wake-up would have reached us then.
    heard: bool,
}

/// One attempt's outcome.
pub(super) enum Step {
    Granted(Arc<Lease>),
    Refused(Option<Duration>),
    Failed(StoreError),
}

impl Acquisition {
    pub(crate) fn new(
        context: &Arc<Context>,
        store: &Arc<dyn LeaseStore>,
        keeper: Arc<dyn Keeper>,
        key: &Key,
        options: &Arc<LockOptions>,
    ) -> Result<Self> {
        let token = match &options.owner {
            Some(owner) => Token::new(&**owner),
            None if store.abilities().numbered_tokens => context.tokens.numbered()?,
            None => context.tokens.fresh()?,
        };
        Ok(Self {
            context: Arc::clone(context),
            store: Arc::clone(store),
            keeper,
            key: key.clone(),
            options: Arc::clone(options),
            token,
            attempts: 0,
            refusal: None,
            left_behind: false,
            unanswered: false,
            in_use: None,
            bell: OnceCell::new(),
            listening: OnceCell::new(),
            _counted: context.acquiring.add(),
        })
    }

    pub(crate) fn options(&self) -> &Arc<LockOptions> {
        &self.options
    }

    pub(super) fn attempt(&mut self, limits: &WaitLimits<'_>, contention: &Contention) -> Step {
        if let Err(error) = self.begin_use(limits) {
            return Step::Failed(error);
        }
        self.attempts += 1;
        let place = self.place(limits);
        let contended = self.attempts > 1 || contention.is_known();
        let deadline = limits.attempt_deadline(&self.context);
        let place = place.as_ref().map(|place| place as &dyn Place);
        let answer = self.store.try_acquire(&self.ask(place, contended, deadline));
        match answer {
            Ok(Answer::Granted { asked_at, fences }) => {
                if self.attempts == 1 {
                    // A store that refused first, and granted at a second look, has asked where the
                    // waiter listens.
                    let refused_first = !contended && self.listening.get().is_some();
                    if refused_first { contention.seen() } else { contention.not_seen() }
                }
                match self.granted(asked_at, self.options.lease, fences) {
                    Some(lease) => Step::Granted(lease),
                    None => Step::Failed(self.too_late()),
                }
            }
            Ok(Answer::Refused { asked_at, remaining, heard }) => {
                contention.seen();
                self.refused_at(asked_at, heard);
                Step::Refused(remaining)
            }
            Err(error) => Step::Failed(self.no_answer(error)),
        }
    }

    /// Called before the first attempt under a caller's own value: what an earlier hold has left
    /// under it must not be undone during this hold.
    fn begin_use(&mut self, limits: &WaitLimits<'_>) -> std::result::Result<(), StoreError> {
        if self.options.owner.is_some() && self.in_use.is_none() {
            let deadline = limits.attempt_deadline(&self.context);
            let in_use = self.context.cleaner.reuse(&self.key, &self.token, deadline)?;
            self.unanswered |= in_use.left_behind;
            self.left_behind |= in_use.left_behind;
            self.in_use = Some(in_use);
        }
        Ok(())
    }

    pub(super) fn ask<'a>(
        &'a self,
        place: Option<&'a dyn Place>,
        contended: bool,
        deadline: Instant,
    ) -> Ask<'a> {
        let options = &self.options;
        Ask {
            key: &self.key,
            token: &self.token,
            attempt: self.attempts,
            lease: options.lease,
            fences: if options.fenced { options.hand_offs().saturating_add(1) } else { 0 },
            place,
            contended,
            may_be_mine: self.may_be_mine(),
            deadline,
        }
    }

    /// Whether a key that already holds our token is ours. Only our own attempts can have put a
    /// fresh token there. A caller's own value may be somebody else's, unless an unanswered attempt
    /// of ours may have put it there.
    fn may_be_mine(&self) -> bool {
        self.unanswered || (self.options.owner.is_none() && self.attempts > 1)
    }

    pub(super) fn refused_at(&mut self, asked_at: Instant, heard: bool) {
        let took = self.context.clock.now().saturating_duration_since(asked_at);
        self.refusal = Some(Refusal { attempt: self.attempts, asked_at, took, heard });
        self.left_behind |=
            self.listening.get().and_then(Option::as_ref).is_some_and(|listening| listening.queues);
    }

    pub(super) fn no_answer(&mut self, error: StoreError) -> StoreError {
        self.left_behind |= error.may_have_run;
        self.unanswered |= error.may_have_run;
        error
    }

    /// Granted, but the lease had run out when the answer came (R2), or the fence is missing.
    pub(super) fn too_late(&mut self) -> StoreError {
        self.left_behind = true;
        StoreError::not_sent(
            ErrorKind::Unavailable,
            "the lock was granted so late that the lease had run out, or without its fence",
        )
    }

    /// Draws a token for the next attempt, if each needs its own, and leaves the last attempt to
    /// the cleaner.
    pub(super) fn change_token(&mut self) -> Result<()> {
        if self.attempts == 0 || !self.store.abilities().one_shot_tokens {
            return Ok(());
        }
        let fresh = self.context.tokens.fresh()?;
        if self.left_behind {
            let what = self.withdrawal();
            self.context.cleaner.withdraw(what);
        }
        self.token = fresh;
        (self.left_behind, self.unanswered) = (false, false);
        Ok(())
    }

    /// What to leave in the store's queue, if this acquisition queues.
    fn place(&self, limits: &WaitLimits<'_>) -> Option<Waiting<'_>> {
        let queues =
            !limits.once && self.options.queue == Queue::Fifo && self.options.owner.is_none();
        (queues && self.store.abilities().wakes).then(|| self.waiting())
    }

    pub(super) fn bell(&self) -> &Arc<Bell> {
        self.bell.get_or_init(Bell::new)
    }

    pub(super) fn waiting(&self) -> Waiting<'_> {
        Waiting { acquisition: self }
    }

    pub(super) fn pause_after_refusal(&self, remaining: Option<Duration>) -> Duration {
        let heard = self.refusal.is_some_and(|refusal| refusal.heard);
        let woken = heard && self.listening.get().is_some_and(Option::is_some);
        let pause = backoff::pause(self.options.retry, woken, self.first_lease());
        // If the key runs out, the first to ask gets the lock: so ask right after that.
        remaining.map_or(pause, |remaining| {
            pause.min(remaining.saturating_add(Duration::from_millis(1)))
        })
    }

    fn first_lease(&self) -> Duration {
        self.options.lease.min(FIRST_LEASE)
    }

    fn withdrawal(&mut self) -> Withdrawal {
        Withdrawal {
            store: Arc::clone(&self.store),
            name: Arc::clone(self.keeper.name()),
            key: self.key.clone(),
            token: self.token.clone(),
            lease: self.options.lease,
            // A store of one-shot tokens waits by itself for late copies.
            in_flight: self.unanswered && !self.store.abilities().one_shot_tokens,
            reused: self.in_use.is_some(),
            release_in_flight: false,
            abandoned: false.into(),
        }
    }

    /// A grant that was answered in time (R2) becomes a lease.
    pub(super) fn granted(
        &mut self,
        asked_at: Instant,
        length: Duration,
        fences: Option<Fences>,
    ) -> Option<Arc<Lease>> {
        // Without the fence that was asked for, the resource would not be protected: treat that as
        // not granted.
        let is_whole = fences.is_some() || !self.options.fenced;
        if !is_whole || self.context.clock.now() >= valid_until(asked_at, length) {
            return None;
        }
        let terms = Terms {
            asked_at,
            granted: length,
            length: self.options.lease,
            renew: self.options.renewal,
            fences,
            hand_offs: self.options.hand_offs(),
            unsettled: self.unanswered,
            in_use: self.in_use.take(),
        };
        let (key, token, store) = (self.key.clone(), self.token.clone(), Arc::clone(&self.store));
        Some(Arc::new(Lease::new(
            key,
            token,
            store,
            Arc::clone(&self.keeper),
            self.context.clock.clone(),
            terms,
        )))
    }

    /// A hand-off was announced. It counts only if it names the last attempt whose refusal we
    /// received (R15):
    ///
    /// 1. attempt 1 is refused; the holder releases, we are granted, and the message is delayed;
    /// 2. the grant runs out, B acquires; attempt 2 is refused;
    /// 3. the message of step 1 arrives. It names attempt 1, not 2: a hint to ask again, and no
    ///    lease.
    ///
    /// `Err`: the lease had to be made whole first, and the server did not answer. The next attempt
    /// asks.
    pub(super) fn enter(&mut self, grant: Grant) -> Result<Option<Arc<Lease>>, StoreError> {
        let Some(refusal) = self.refusal.filter(|refusal| grant.attempt == refusal.attempt) else {
            return Ok(None);
        };
        if grant.fences.is_some() != self.options.fenced {
            return Ok(None);
        }
        let first = self.first_lease();
        let left = self.context.clock.left(valid_until(refusal.asked_at, first));
        if left.is_zero() {
            return Ok(None);
        }
        // Renewal would not make this lease whole, or would count that as an extend; or the lease
        // would end before renewal has made it whole.
        let is_alone = self.options.renewal != Renew::UntilUnlock && first < self.options.lease;
        if is_alone
            || self.store.abilities().confirm.is_wanted()
            || left < first / 3
            || left < refusal.took.saturating_mul(4)
        {
            return self.make_whole(grant.fences);
        }
        Ok(self.granted(refusal.asked_at, first, grant.fences))
    }

    /// Extends a lease that was handed to us to its whole length, before the caller has it. `None`:
    /// it is not ours any more; the next attempt asks, with the same token.
    fn make_whole(&mut self, fences: Option<Fences>) -> Result<Option<Arc<Lease>>, StoreError> {
        let asked_at = self.context.clock.now();
        let whole = Extend { key: &self.key, token: &self.token, lease: self.options.lease };
        let is_ours = self.store.extend_one(&whole, self.context.command_deadline())?;
        Ok(if is_ours { self.granted(asked_at, self.options.lease, fences) } else { None })
    }

    /// From here on the lease is responsible for what was left behind.
    pub(super) fn hand_out(&mut self, lease: Arc<Lease>) -> Arc<Lease> {
        self.left_behind = false;
        if let Some(listening) = self.listening.take().flatten()
            && listening.queues
        {
            lease.go_on_listening(listening);
        }
        lease
    }

    /// Ends without a grant, and withdraws what may be left behind: on this thread, if the caller's
    /// time allows it. `true`: something may be left.
    ///
    /// This thread does so only while the server answers. A place that stayed a moment longer might
    /// be handed the lock: a caller that was told "held by another" would find a lock that no
    /// thread holds. But the caller does not wait for a round trip that would end later than an
    /// attempt may (R13): if it takes 1.2 s, `try_lock(50 ms)` with a command timeout of 2 s would
    /// end after 2.4 s, instead of at most 2.05.
    pub(crate) fn give_up(mut self, wait: &Wait<'_>) -> bool {
        let latest = wait.limits.attempt_deadline(&self.context);
        let round_trip = self.refusal.map_or(Duration::ZERO, |refusal| refusal.took);
        let too_slow = self.context.clock.now() + round_trip > latest;
        if self.left_behind && !self.unanswered && wait.silent_since.is_none() && !too_slow {
            self.left_behind = false;
            let what = self.withdrawal();
            return !self.context.cleaner.withdraw_now(what, latest);
        }
        self.left_behind
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if self.left_behind {
            let what = self.withdrawal();
            self.context.cleaner.withdraw(what);
        }
    }
}
