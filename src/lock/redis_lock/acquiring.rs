//! Acquiring: one more hold for this thread, or a lease, which a hold or a claim then owns.

use std::sync::Arc;

use super::RedisLock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::interrupt::Interruption;
use crate::base::log;
use crate::lease::acquisition::Acquisition;
use crate::lease::events::How;
use crate::lease::granted::{Lease, LeaseObserver};
use crate::lease::lost::Ended;
use crate::lease::wait::{Caller, Wait};
use crate::lease::wait_limits::{Attempts, WaitLimits};
use crate::local::holds::{self, Hold};
use crate::local::owned::Owned;
use crate::local::queue::{Handover, Taken, Turn};

impl RedisLock {
    pub(super) fn acquire(&self, limits: &WaitLimits<'_>) -> Result<bool> {
        // As in Java, also if this thread holds the lock already and would not have to wait.
        if limits.interrupt.is_some_and(Interruption::has_happened) {
            return Err(self.named(Error::new(ErrorKind::Interrupted, "the wait was interrupted")));
        }
        if let Some(again) = holds::with(&self.shared, |hold| self.lock_again(hold)) {
            if again.is_ok() {
                // A task that an error ended may have left the hold to the next task of its thread.
                log::debug!("{}: a thread that holds it locks it again", self.shared.subject);
            }
            return again.map(|()| true);
        }
        if let Some(reading) = self.read_under_write()? {
            let (context, subject) = (self.context(), &self.shared.subject);
            let waiting = context.counters.waits(subject, &context.clock);
            waiting.granted(How::Joined, reading.since);
            return self.hold(reading).map(|()| true);
        }
        match self.acquire_lease(limits)? {
            Some(owned) => self.hold(owned).map(|()| true),
            None => Ok(false),
        }
    }

    /// One more hold of a lock that this thread holds already.
    pub(super) fn lock_again(&self, hold: &mut Hold) -> Result<()> {
        if !self.same_options(hold) {
            return Err(self.conflict());
        }
        if !hold.owned.lease.is_valid() {
            return Err(self.lost());
        }
        hold.count = hold
            .count
            .checked_add(1)
            .ok_or_else(|| self.named(Error::invalid("the hold count is at its limit")))?;
        Ok(())
    }

    pub(super) fn same_options(&self, hold: &Hold) -> bool {
        Arc::ptr_eq(&hold.owned.options, &self.options) || hold.owned.options == self.options
    }

    pub(super) fn conflict(&self) -> Error {
        self.named(Error::new(ErrorKind::Conflict, "this thread holds the lock with other options"))
    }

    /// The error of a wait without limits that ends without a lease all the same.
    pub(in crate::lock) fn ended_without_lease(&self) -> Error {
        let error = Error::new(ErrorKind::Unavailable, "the wait ended without a lease");
        self.named(error)
    }

    /// A lease, for the first hold of this thread, a claim or a permit; whoever calls ends it by
    /// [`give_up`](Self::give_up). `None`: the time or the attempts of a `try_lock` are used up.
    pub(in crate::lock) fn acquire_lease(&self, limits: &WaitLimits<'_>) -> Result<Option<Owned>> {
        self.acquire_unnamed(limits).map_err(|error| self.named(error))
    }

    fn acquire_unnamed(&self, limits: &WaitLimits<'_>) -> Result<Option<Owned>> {
        self.shared.check_name()?;
        let context = self.context();
        // Checked before any mutex is locked: in a forked child it may stay locked for ever.
        context.check_process()?;
        self.check_options()?;
        limits.check(context)?;
        if self.is_held() {
            // A claim: it would wait for this very thread.
            return Err(Error::new(ErrorKind::Conflict, "this thread holds the lock already"));
        }
        self.check_other_side()?;
        context.start(&*self.store)?;
        let waiting = context.counters.waits(&self.shared.subject, &context.clock);
        Ok(match self.wait_for_lease(limits)? {
            Some((owned, how)) => {
                waiting.granted(how, owned.since);
                Some(owned)
            }
            None => {
                waiting.refused();
                None
            }
        })
    }

    fn wait_for_lease(&self, limits: &WaitLimits<'_>) -> Result<Option<(Owned, How)>> {
        let context = self.context();
        let attempts = Attempts::new(&self.options);
        let mut caller = Caller { limits, attempts, slow: self.shared.slow_wait() };
        let (turn, handover) = if self.options.share.has_turns() {
            match self.shared.queue().take(context, &self.options, &mut caller)? {
                None => return Ok(None),
                Some(Taken::Joined(owned)) => return Ok(Some((owned, How::Joined))),
                Some(Taken::Turn(turn, handover)) => (Some(turn), handover),
            }
        } else {
            (None, Handover::Nothing { silent_since: None })
        };
        let report = |report| self.shared.queue().report(report, context.clock.now());
        let (mut acquisition, silent_since) = match handover {
            Handover::Lease(lease) if lease.is_valid() => {
                return Ok(Some((self.own(lease, turn), How::Local)));
            }
            // The lease was lost on its way from the last thread.
            Handover::Lease(_) => (self.acquisition()?, None),
            Handover::Place { place, silent_since } => (*place, silent_since),
            Handover::Nothing { silent_since } => (self.acquisition()?, silent_since),
        };
        let mut wait = Wait {
            caller,
            contention: &self.shared.contention,
            report: &report,
            silent_since,
            why: None,
        };
        match acquisition.run(&mut wait, None) {
            Ok(Some(lease)) => {
                let how = lease.how;
                Ok(Some((self.own(self.register(lease)?, turn), how)))
            }
            ended => {
                let unused = match turn {
                    Some(turn) => turn.pass_place(acquisition),
                    None => Some(acquisition),
                };
                let left_behind = unused.is_some_and(|unused| unused.give_up(&wait));
                ended.map(|_| None).map_err(|error| error.leaving(left_behind))
            }
        }
    }

    /// Renewal looks after the lease before `lock` returns (R8).
    fn register(&self, lease: Arc<Lease>) -> Result<Arc<Lease>> {
        let context = self.context();
        if !context.renewers.of(&lease).add(&lease) {
            lease.nobody_had_it();
            context.finish(&lease, Ended::GivenUp { release_sent: false });
            return Err(Error::new(ErrorKind::Closed, "the client is closed").leaving(true));
        }
        Ok(lease)
    }

    pub(super) fn acquisition(&self) -> Result<Acquisition> {
        let observer = Arc::clone(&self.shared) as Arc<dyn LeaseObserver>;
        Acquisition::new(self.context(), &self.store, observer, &self.shared.key, &self.options)
    }

    /// The lease has an owner from now on, and the turn passes on with its end.
    fn own(&self, lease: Arc<Lease>, turn: Option<Turn<'_>>) -> Owned {
        let fence = lease.held_fence();
        let turn = match turn {
            Some(turn) if self.is_for_readers() => {
                turn.offer(&lease, &self.options);
                None
            }
            turn => turn.map(|turn| turn.hold(&lease)),
        };
        if lease.has_ended() {
            // Lost between the grant and this moment: the loss could not pass the turn on, so it
            // passes on now.
            self.shared.queue().leave_after_loss(&lease);
        }
        let (options, since) = (Arc::clone(&self.options), self.context().clock.now());
        Owned { lease, turn, fence, options, since }
    }

    /// The first hold of this thread.
    fn hold(&self, owned: Owned) -> Result<()> {
        let lock = Arc::clone(&self.shared);
        holds::enter(Hold { lock, owned, count: 1, over: None }).or_else(|hold| {
            hold.owned.lease.nobody_had_it();
            // The thread is ending: nobody would ever remove this hold or give up its turn.
            let given_up = self.give_up(&hold.owned);
            let ending = Error::unsupported("a thread that is ending cannot lock");
            given_up.and(Err(self.named(ending)))
        })
    }

    /// Passes a lease on to the next thread of this process, or releases it, and gives up the turn
    /// that came with it.
    pub(in crate::lock) fn give_up(&self, owned: &Owned) -> Result<()> {
        let Owned { lease, turn, options, .. } = owned;
        // Checked before any mutex is locked: in a forked child it may stay locked for ever. The
        // drop of the lease could lock one, too, so one more reference keeps it there.
        if let Err(error) = self.context().check_process() {
            std::mem::forget(Arc::clone(lease));
            return Err(self.named(error));
        }
        owned.ends(self.context(), &self.shared.subject);
        if self.shared.queue().hand_off(*turn, lease, options) {
            return Ok(());
        }
        // Looked at first: the last of several may release it at any moment.
        let valid = lease.is_valid();
        if !lease.remove_user() {
            // Others of this process use it still.
            return if valid { Ok(()) } else { Err(self.lost()) };
        }
        let released = self.release(lease);
        self.shared.queue().leave(*turn);
        released
    }
}
