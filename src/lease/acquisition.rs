//! One acquisition: its token, its attempts, its place in the store's queue, and what it may leave
//! behind there. In one file: what each step leaves decides what the next may believe.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cleaner::{InUse, Withdrawal};
use super::context::Context;
use super::durations::{FIRST_LEASE, valid_until};
use super::events::How;
use super::granted::{Lease, LeaseObserver, Terms};
use super::slow_wait;
use super::store::{Answer, Ask, Extend, LeaseStore, Listening, Look, Place};
use super::token::Token;
use super::wait::Wait;
use super::wait_limits::{Contention, WaitLimits};
use crate::base::active::Active;
use crate::base::backoff;
use crate::base::bell::{Bell, Fences, Grant};
use crate::base::error::{ErrorKind, Result};
use crate::base::key::Key;
use crate::base::options::{LockOptions, Queue, Renewal};
use crate::base::store_error::StoreError;

/// One acquisition: its attempts share a token and, once refused, a place in the store's queue.
/// Only where the store has one-shot tokens, each attempt draws its own.
///
/// If dropped without a grant, it has what it may have left behind withdrawn. It can pass to
/// another thread, with its place.
pub(crate) struct Acquisition {
    pub(super) context: Arc<Context>,
    pub(super) store: Arc<dyn LeaseStore>,
    observer: Arc<dyn LeaseObserver>,
    key: Key,
    options: Arc<LockOptions>,
    pub(super) token: Token,
    pub(super) attempts: u64,
    refusal: Option<Refusal>,
    remains: Remains,
    /// The use of the caller's own value; `None` with a fresh token, and until the first attempt.
    in_use: Option<InUse>,
    /// Made once the caller has to wait.
    bell: OnceCell<Arc<Bell>>,
    listening: OnceCell<Option<Listening>>,
    /// The last field, so that closing waits until the fields above are dropped.
    _counted: Active,
}

/// What the attempts so far may have left in the store under our token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Remains {
    Nothing,
    /// A place, or a grant that was of no use: each attempt had an answer.
    Known,
    /// An attempt had no answer: it may be granted, now or later (R5).
    Unanswered,
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
        observer: Arc<dyn LeaseObserver>,
        key: &Key,
        options: &Arc<LockOptions>,
    ) -> Result<Self> {
        let token = match &options.owner {
            Some(owner) => Token::new(&**owner),
            None if store.abilities().numbered_tokens => context.tokens.numbered(),
            None => context.tokens.fresh_for(options.share)?,
        };
        Ok(Self {
            context: Arc::clone(context),
            store: Arc::clone(store),
            observer,
            key: key.clone(),
            options: Arc::clone(options),
            token,
            attempts: 0,
            refusal: None,
            remains: Remains::Nothing,
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
        self.begin_attempt();
        let contended = self.attempts > 1 || contention.is_known();
        let deadline = limits.attempt_deadline(&self.context);
        let listen = || self.listen();
        let place = self.queues(limits).then(|| self.place(&listen, self.alive_for()));
        let answer = self.store.try_acquire(&self.ask(place, contended, deadline));
        match answer {
            Ok(Answer::Granted { asked_at, fences }) => {
                if self.attempts == 1 {
                    // A store that refused first, and granted at a second look, has asked where the
                    // waiter listens.
                    let refused_first = !contended && self.listening.get().is_some();
                    if refused_first { contention.seen() } else { contention.not_seen() }
                }
                match self.granted(How::Asked, asked_at, self.options.lease, fences) {
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

    /// Numbers the question that follows.
    pub(super) fn begin_attempt(&mut self) {
        self.attempts += 1;
        self.context.counters.attempts.add_one();
    }

    /// Called before the first attempt under a caller's own value: what an earlier hold has left
    /// under it must not be undone during this hold.
    fn begin_use(&mut self, limits: &WaitLimits<'_>) -> std::result::Result<(), StoreError> {
        if self.options.owner.is_some() && self.in_use.is_none() {
            let deadline = limits.attempt_deadline(&self.context);
            let in_use = self.context.cleaner.reuse(&self.key, &self.token, deadline)?;
            if in_use.left_behind {
                self.may_be_left(Remains::Unanswered);
            }
            self.in_use = Some(in_use);
        }
        Ok(())
    }

    pub(super) fn ask<'a>(
        &'a self,
        place: Option<Place<'a>>,
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
        self.is_unanswered() || (self.options.owner.is_none() && self.attempts > 1)
    }

    pub(super) fn refused_at(&mut self, asked_at: Instant, heard: bool) {
        let took = self.context.clock.now().saturating_duration_since(asked_at);
        self.refusal = Some(Refusal { attempt: self.attempts, asked_at, took, heard });
        let listening = self.listening.get().and_then(Option::as_ref);
        if listening.is_some_and(|listening| listening.queues) {
            self.may_be_left(Remains::Known);
        }
    }

    pub(super) fn no_answer(&mut self, error: StoreError) -> StoreError {
        if error.may_have_run {
            self.may_be_left(Remains::Unanswered);
        }
        error
    }

    /// From now on at least this much may be left.
    pub(super) fn may_be_left(&mut self, remains: Remains) {
        self.remains = self.remains.max(remains);
    }

    /// Whether the store may hold something under our token.
    pub(crate) fn leaves_something(&self) -> bool {
        self.remains != Remains::Nothing
    }

    /// Whether an attempt has had no answer (R5).
    pub(super) fn is_unanswered(&self) -> bool {
        self.remains == Remains::Unanswered
    }

    /// Granted, but the lease had run out when the answer came (R2), or the fence is missing.
    pub(super) fn too_late(&mut self) -> StoreError {
        self.may_be_left(Remains::Known);
        StoreError::not_sent(
            ErrorKind::Unavailable,
            "granted so late that the lease had run out, or without its fence",
        )
    }

    /// Draws a token for the next attempt, if each needs its own, and leaves the last attempt to
    /// the cleaner.
    pub(super) fn change_token(&mut self) -> Result<()> {
        if self.attempts == 0 || !self.store.abilities().one_shot_tokens {
            return Ok(());
        }
        let fresh = self.context.tokens.fresh_for(self.options.share)?;
        if self.leaves_something() {
            self.context.cleaner.withdraw(self.withdrawal());
        }
        self.token = fresh;
        self.remains = Remains::Nothing;
        Ok(())
    }

    /// Whether an attempt that is refused takes a place in the store's queue.
    fn queues(&self, limits: &WaitLimits<'_>) -> bool {
        !limits.once
            && self.options.queue == Queue::Fifo
            && self.options.owner.is_none()
            && self.store.abilities().wakes
    }

    /// What to leave in the store's queue, or in a condition.
    pub(super) fn place<'a>(
        &self,
        listen: &'a dyn Fn() -> Option<&'a str>,
        alive_for: Duration,
    ) -> Place<'a> {
        Place { listen, alive_for, first_lease: self.first_lease() }
    }

    /// Begins to listen, unless it does already: only when the store says that we have to wait.
    pub(super) fn listen(&self) -> Option<&str> {
        let listen = || self.store.listen(&self.key, &self.token, self.bell());
        self.listening.get_or_init(listen).as_ref().map(|listening| &*listening.address)
    }

    /// How long a place in the queue lasts: three pauses, but not so short that a question over a
    /// slow link arrives after its end.
    fn alive_for(&self) -> Duration {
        let pause = backoff::longest_pause(self.options.retry, true)
            .max(backoff::longest_pause(None, true));
        pause.saturating_mul(3)
    }

    pub(super) fn bell(&self) -> &Arc<Bell> {
        self.bell.get_or_init(Bell::new)
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

    /// What the store says about who holds the lock and who waits before us, for the log. One round
    /// trip.
    pub(super) fn in_the_way(&self) -> String {
        let look = Look::All { fenced: false };
        match self.store.inspect(&self.key, look, self.context.command_deadline()) {
            Ok(state) => slow_wait::in_the_way(&state, &self.token),
            Err(error) => format!("the server did not say who holds it ({error})"),
        }
    }

    fn first_lease(&self) -> Duration {
        self.options.lease.min(FIRST_LEASE)
    }

    fn withdrawal(&self) -> Withdrawal {
        Withdrawal {
            store: Arc::clone(&self.store),
            subject: self.observer.subject().clone(),
            key: self.key.clone(),
            token: self.token.clone(),
            lease: self.options.lease,
            // A store of one-shot tokens waits by itself for late copies.
            in_flight: self.is_unanswered() && !self.store.abilities().one_shot_tokens,
            reused: self.in_use.is_some(),
            // Nobody has had it.
            kept_until: None,
            release_in_flight: false,
            abandoned: false.into(),
        }
    }

    /// A grant that was answered in time (R2) becomes a lease.
    pub(super) fn granted(
        &mut self,
        how: How,
        asked_at: Instant,
        length: Duration,
        fences: Option<Fences>,
    ) -> Option<Arc<Lease>> {
        debug_assert!(self.attempts > 0, "nobody has asked");
        // Without its fence the lock would not protect the resource: treat that as
        // not granted.
        let is_whole = fences.is_some() || !self.options.fenced;
        if !is_whole || self.context.clock.now() >= valid_until(asked_at, length) {
            return None;
        }
        let at_least = self.options.has_at_least().then_some(self.options.at_least);
        let terms = Terms {
            how,
            asked_at,
            granted: length,
            length: self.options.lease,
            kept_until: at_least.map(|time| self.context.clock.now() + time),
            renewal: self.options.renewal,
            fences,
            hand_offs: self.options.hand_offs(),
            unsettled: self.is_unanswered(),
            in_use: self.in_use.take(),
        };
        let (key, token, store) = (self.key.clone(), self.token.clone(), Arc::clone(&self.store));
        let shard = self.context.renewers.shard(&*store, &key);
        Some(Arc::new(Lease::new(
            key,
            token,
            (store, shard),
            Arc::clone(&self.observer),
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
        debug_assert!(refusal.attempt <= self.attempts, "a refusal of an attempt to come");
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
        let is_alone = self.options.renewal != Renewal::UntilUnlock && first < self.options.lease;
        if is_alone
            || self.store.abilities().confirm.is_wanted()
            || left < first / 3
            || left < refusal.took.saturating_mul(4)
        {
            return self.make_whole(grant.fences);
        }
        Ok(self.granted(How::Direct, refusal.asked_at, first, grant.fences))
    }

    /// Extends a lease that was handed to us to its whole length, before the caller has it. `None`:
    /// it is not ours any more; the next attempt asks, with the same token.
    fn make_whole(&mut self, fences: Option<Fences>) -> Result<Option<Arc<Lease>>, StoreError> {
        let asked_at = self.context.clock.now();
        let whole = Extend { key: &self.key, token: &self.token, lease: self.options.lease };
        let is_ours = self.store.extend_one(&whole, self.context.command_deadline())?;
        let lease = self.options.lease;
        Ok(if is_ours { self.granted(How::Direct, asked_at, lease, fences) } else { None })
    }

    /// From here on the lease is responsible for what was left behind.
    pub(super) fn hand_out(&mut self, lease: Arc<Lease>) -> Arc<Lease> {
        self.remains = Remains::Nothing;
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
        let latest = wait.caller.limits.attempt_deadline(&self.context);
        let round_trip = self.refusal.map_or(Duration::ZERO, |refusal| refusal.took);
        let too_slow = self.context.clock.now() + round_trip > latest;
        if self.remains == Remains::Known && wait.silent_since.is_none() && !too_slow {
            self.remains = Remains::Nothing;
            return !self.context.cleaner.withdraw_now(self.withdrawal(), latest);
        }
        self.leaves_something()
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if self.leaves_something() {
            self.context.cleaner.withdraw(self.withdrawal());
        }
    }
}
