//! The spin-retry loop: attempt, pause, attempt, until granted.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cleaner::Withdrawal;
use super::key::Key;
use super::notify::Keeper;
use super::patience::{Attempts, Contention, Patience, Report};
use super::store::{Answer, Ask, End, Extend, LeaseStore, Listening, Place, StoreError};
use super::token::Token;
use super::{Background, Lease, Terms, backoff};
use crate::base::bell::{Bell, Fences, Grant, Rung};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::options::{LockOptions, Queue, Renewal as Renew};

/// A hand-off first grants at most this much, so that a frozen waiter never costs a whole lease (R20).
const FIRST_LEASE: Duration = Duration::from_secs(3);
/// One acquisition: its attempts share a token and, once refused, a place in the store's queue.
///
/// Dropped without a grant, it has whatever it may have left behind withdrawn. It can pass to another thread, place and all.
pub(crate) struct Acquisition {
    pub(super) background: Arc<Background>,
    pub(super) store: Arc<dyn LeaseStore>,
    /// Until when the caller of the last wait may be kept, where that had an end: one command timeout after it (R13).
    latest: Option<Instant>,
    /// How long the last refusal took to come.
    refused_after: Duration,
    keeper: Arc<dyn Keeper>,
    key: Key,
    options: Arc<LockOptions>,
    token: Token,
    pub(super) attempts: u64,
    /// The last refusal that was received: what a hand-off must name, and what its validity counts from (R15).
    refusal: Option<(u64, Instant)>,
    /// Whether the store may hold something under our token.
    pub(super) left_behind: bool,
    /// Whether an attempt has had no answer (R5).
    pub(super) unanswered: bool,
    pub(super) silent_since: Option<Instant>,
    /// The condition that it is, or may be, in.
    pub(super) condition: Option<Arc<str>>,
    /// Whether it has been in one: then a hand-off may go with a notification.
    pub(super) was_in_condition: bool,
    /// Whether a wake-up would have reached us when we were refused.
    pub(super) heard: bool,
    /// What the loop shall go on from, where that is not an attempt: a refusal that was received elsewhere.
    pub(super) refused: Option<Option<Duration>>,
    pub(super) bell: Arc<Bell>,
    listening: OnceCell<Option<Listening>>,
}

/// One attempt's outcome.
enum Step {
    Granted(Arc<Lease>),
    Refused(Option<Duration>),
    Failed(StoreError),
}

impl Acquisition {
    pub(crate) fn new(
        background: &Arc<Background>,
        store: &Arc<dyn LeaseStore>,
        keeper: Arc<dyn Keeper>,
        key: &Key,
        options: &Arc<LockOptions>,
    ) -> Result<Self> {
        let token = match &options.owner {
            Some(owner) => Token::new(Arc::clone(owner)),
            None => background.tokens.fresh_for(options.layout)?,
        };
        Ok(Self {
            background: Arc::clone(background),
            store: Arc::clone(store),
            latest: None,
            refused_after: Duration::ZERO,
            keeper,
            key: key.clone(),
            options: Arc::clone(options),
            token,
            attempts: 0,
            refusal: None,
            left_behind: false,
            unanswered: false,
            silent_since: None,
            condition: None,
            was_in_condition: false,
            heard: false,
            refused: None,
            bell: Bell::new(),
            listening: OnceCell::new(),
        })
    }

    /// An outage that the caller has been waiting through already counts.
    pub(crate) fn silent_since(mut self, since: Option<Instant>) -> Self {
        self.silent_since = since;
        self
    }

    pub(crate) fn options(&self) -> &Arc<LockOptions> {
        &self.options
    }

    /// Asks until granted, or until patience or attempts end: `Ok(None)` where that is an answer, and the last answer was a refusal.
    pub(crate) fn run(
        &mut self,
        patience: &Patience<'_>,
        attempts: &mut Attempts,
        contention: &Contention,
        report: &dyn Fn(Report),
    ) -> Result<Option<Arc<Lease>>> {
        let background = Arc::clone(&self.background);
        let bell = Arc::clone(&self.bell);
        let mut rings = None;
        let mut was_stale = false;
        patience.check(&background)?;
        self.latest = patience.deadline.and_then(|deadline| deadline.checked_add(background.limits.command_timeout));
        loop {
            let step = match self.refused.take() {
                Some(remaining) => Step::Refused(remaining),
                None => {
                    if self.attempts > 0 && self.store.undoes_attempts() && self.options.owner.is_none() {
                        self.change_token()?;
                    }
                    self.attempt(patience, contention)
                }
            };
            let (pause, failure) = match step {
                Step::Granted(lease) => return Ok(Some(self.hand_out(lease))),
                Step::Refused(remaining) => {
                    self.silent_since = None;
                    was_stale = false;
                    report(Report::Refused);
                    (self.pause_after_refusal(remaining), None)
                }
                Step::Failed(error) if error.permanent => return Err(error.into_error()),
                // An idle connection that the server had closed: not an outage yet. The same token asks again over a fresh one.
                Step::Failed(error) if error.stale && !std::mem::replace(&mut was_stale, true) => continue,
                Step::Failed(error) => {
                    report(Report::Unanswered);
                    self.silent_since.get_or_insert(background.clock.now());
                    (backoff::outage_pause(), Some(error))
                }
            };
            let now = background.clock.now();
            let attempts_left = attempts.use_one_at(now);
            let out_of_time = patience.is_over(now) || !attempts_left;
            if let Some(error) = failure {
                let outage = self.silent_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
                if out_of_time || (patience.deadline.is_none() && outage >= background.limits.max_outage) {
                    return Err(error.into_error());
                }
            } else if out_of_time {
                return if patience.trying {
                    Ok(None)
                } else {
                    Err(Error::new(ErrorKind::Exhausted, "every attempt was refused: the lock is held by another"))
                };
            }
            let until = attempts.pause(now, now.checked_add(pause));
            let until = match (until, patience.deadline) {
                (Some(until), Some(deadline)) => Some(until.min(deadline)),
                (until, deadline) => until.or(deadline),
            };
            // Only whoever sleeps has to be woken. Looked at after they can ring, so that nothing is missed.
            rings.get_or_insert_with(|| (background.closing.rings(&bell), patience.interrupt.map(|interrupt| interrupt.rings(&bell))));
            patience.check(&background)?;
            if let Rung::Grant(grant) = bell.wait(&background.clock, until)
                && let Some(lease) = self.enter(grant)
            {
                return Ok(Some(self.hand_out(lease)));
            }
            patience.check(&background)?;
            // At the deadline the last answer decides, and it is known: no further attempt.
            if patience.is_over(background.clock.now()) {
                return match self.silent_since {
                    None => Ok(None),
                    Some(_) => Err(Error::new(ErrorKind::Unavailable, "the server did not answer until the end of the wait")),
                };
            }
        }
    }

    /// From here on the lease answers for what was left behind.
    pub(super) fn hand_out(&mut self, lease: Arc<Lease>) -> Arc<Lease> {
        self.left_behind = false;
        if let Some(listening) = self.listening.take().flatten()
            && listening.queues
        {
            lease.go_on_listening(listening);
        }
        lease
    }

    fn attempt(&mut self, patience: &Patience<'_>, contention: &Contention) -> Step {
        self.attempts += 1;
        let place = self.place(patience);
        let contended = self.attempts > 1 || contention.is_known();
        let deadline = patience.attempt_deadline(&self.background);
        let answer = self.store.try_acquire(&Ask { deadline, ..self.ask(place.as_ref().map(|place| place as &dyn Place), contended) });
        match answer {
            Ok(Answer::Granted { asked_at, fences }) => {
                if self.attempts == 1 {
                    // A store that was refused first, and granted it on a closer look, has asked where the waiter listens.
                    let refused_first = !contended && self.listening.get().is_some();
                    if refused_first { contention.seen() } else { contention.not_seen() }
                }
                match self.granted(asked_at, self.options.lease, fences, false) {
                    Some(lease) => Step::Granted(lease),
                    None => Step::Failed(self.too_late()),
                }
            }
            Ok(Answer::Refused { asked_at, remaining, heard }) => {
                self.heard = heard;
                contention.seen();
                self.refused_at(asked_at);
                Step::Refused(remaining)
            }
            Err(error) => Step::Failed(self.no_answer(error)),
        }
    }

    pub(super) fn ask<'a>(&'a self, place: Option<&'a dyn Place>, contended: bool) -> Ask<'a> {
        let options = &self.options;
        Ask {
            key: &self.key,
            token: &self.token,
            attempt: self.attempts,
            lease: options.lease,
            fences: if options.fenced { options.hand_offs().saturating_add(1) } else { 0 },
            place,
            contended,
            may_be_mine: options.owner.is_none() || self.unanswered,
            deadline: self.background.command_deadline(),
        }
    }

    pub(super) fn refused_at(&mut self, asked_at: Instant) {
        self.refusal = Some((self.attempts, asked_at));
        self.refused_after = self.background.clock.now().saturating_duration_since(asked_at);
        self.left_behind |= self.listening.get().and_then(Option::as_ref).is_some_and(|listening| listening.queues);
    }

    pub(super) fn no_answer(&mut self, error: StoreError) -> StoreError {
        self.left_behind |= error.may_have_run;
        self.unanswered |= error.may_have_run;
        error
    }

    /// Granted, and the lease had run out when the grant was answered (R2), or there is no fence with it.
    pub(super) fn too_late(&mut self) -> StoreError {
        self.left_behind = true;
        StoreError::not_sent(ErrorKind::Unavailable, "the lock was granted so late that the lease had run out, or without its fence")
    }

    /// The store is undoing the last attempt, which takes its token with it. What it does not know of is left to the cleaner: a grant that we
    /// did not take because it came too late.
    fn change_token(&mut self) -> Result<()> {
        let fresh = self.background.tokens.fresh()?;
        if self.left_behind && !self.unanswered {
            let what = self.withdrawal();
            self.background.cleaner.withdraw(what);
        }
        self.token = fresh;
        (self.left_behind, self.unanswered) = (false, false);
        Ok(())
    }

    /// What to leave in the store's queue, if this acquisition queues.
    fn place(&self, patience: &Patience<'_>) -> Option<Waiting<'_>> {
        let queues = !patience.once && self.options.queue == Queue::Fifo && self.options.owner.is_none();
        (queues && self.store.queues()).then(|| self.waiting())
    }

    pub(super) fn waiting(&self) -> Waiting<'_> {
        Waiting { acquisition: self }
    }

    fn pause_after_refusal(&self, remaining: Option<Duration>) -> Duration {
        let woken = self.heard && self.listening.get().is_some_and(Option::is_some);
        let pause = backoff::pause(self.options.retry, woken, self.first_lease());
        // A key that simply runs out is taken at once by whoever asks then.
        remaining.map_or(pause, |remaining| pause.min(remaining.saturating_add(Duration::from_millis(1))))
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
            condition: self.condition.take(),
            in_flight: self.unanswered,
            abandoned: false,
        }
    }

    /// A grant that was answered in time (R2) becomes a lease.
    pub(super) fn granted(&self, asked_at: Instant, length: Duration, fences: Option<Fences>, settles: bool) -> Option<Arc<Lease>> {
        let terms = Terms {
            asked_at,
            granted: length,
            length: self.options.lease,
            renew: self.options.renewal,
            fences,
            hand_offs: self.options.hand_offs(),
            unsettled: self.unanswered,
            settles,
        };
        let lease = Lease::new(
            self.key.clone(),
            self.token.clone(),
            Arc::clone(&self.store),
            Arc::clone(&self.keeper),
            self.background.clock.clone(),
            &terms,
        );
        // Without the fence that was asked for, the resource would not be protected: as if it had not been granted.
        let is_whole = terms.fences.is_some() || !self.options.fenced;
        (is_whole && lease.is_valid()).then(|| Arc::new(lease))
    }

    /// A hand-off was announced. It lets us in only if it names the last attempt whose refusal we received (R15):
    ///
    /// 1. attempt 1 is refused; the holder releases, we are granted, and the message is delayed;
    /// 2. the grant runs out, B acquires; attempt 2 is refused;
    /// 3. the message of step 1 arrives. It names attempt 1, not 2: a hint to ask again, and no lease.
    pub(super) fn enter(&mut self, grant: Grant) -> Option<Arc<Lease>> {
        let (attempt, asked_at) = self.refusal?;
        if grant.attempt != attempt || grant.fences.is_some() != self.options.fenced {
            return None;
        }
        let first = self.first_lease();
        let lease = self.granted(asked_at, first, grant.fences, self.was_in_condition)?;
        if self.options.renewal != Renew::UntilUnlock && first < self.options.lease {
            // Nobody would make this one whole, or it would count as an extend: done here, before the caller has it.
            let (mark, asked_at) = (lease.mark(), self.background.clock.now());
            let whole = Extend { key: &self.key, token: &self.token, lease: self.options.lease, settles: lease.settles() };
            let whole = self.store.end_in(&whole, End::NotBefore, self.background.command_deadline());
            if !(matches!(whole, Ok(true)) && lease.extended(mark, asked_at, self.options.lease)) {
                // Ours no more, or nobody knows. The next attempt asks, with the same token.
                return None;
            }
            lease.settled();
        }
        Some(lease)
    }
}

/// A waiter's place, which begins to listen only when the store says that it has to wait.
pub(super) struct Waiting<'a> {
    pub(super) acquisition: &'a Acquisition,
}

impl Place for Waiting<'_> {
    fn address(&self) -> Option<&str> {
        let waiter = self.acquisition;
        let listening = waiter.listening.get_or_init(|| waiter.store.listen(&waiter.key, &waiter.token, &waiter.bell));
        listening.as_ref().map(|listening| &*listening.address)
    }

    fn alive_for(&self) -> Duration {
        backoff::longest_pause(self.acquisition.options.retry, true).saturating_mul(3)
    }

    fn first_lease(&self) -> Duration {
        self.acquisition.first_lease()
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if !self.left_behind {
            return;
        }
        let what = self.withdrawal();
        // A caller whose time is over is not kept for one more round trip that would end later than an attempt may (R13):
        //
        // 1. try_lock(50 ms) over a link on which a round trip takes 1.2 s; the command timeout is 2 s;
        // 2. the attempt is refused after 1.2 s; its place is withdrawn, and that takes another 1.2 s: 2.4 s, instead of at most 2.05.
        let too_slow = self.latest.is_some_and(|latest| self.background.clock.now() + self.refused_after > latest);
        if self.unanswered || self.silent_since.is_some() || too_slow {
            self.background.cleaner.withdraw(what);
        } else {
            // The server answers, and a place that stays for a moment longer may be handed the lock: whoever was told "held by another" would find it
            // held by nobody he knows.
            let whole = self.background.command_deadline();
            self.background.cleaner.withdraw_now(what, self.latest.map_or(whole, |latest| latest.min(whole)));
        }
    }
}
