//! Whose turn it is among this process's threads. They queue here, first come first served, and only the one
//! whose turn it is talks to Redis. With the turn passes what the last one had: a lease that is still valid, or a place in the server's queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::base::bell::Bell;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::locked;
use crate::base::options::LockOptions;
use crate::lease::acquire::Acquisition;
use crate::lease::patience::{Attempts, Patience, Report};
use crate::lease::{Background, Lease, backoff};

/// What comes with the turn.
pub(crate) enum Baton {
    /// Nothing: the thread asks the server, which has not answered since then, if at all.
    Turn { silent_since: Option<Instant> },
    /// A lease to hold at once: a local hand-off.
    Lease(Arc<Lease>),
    /// An acquisition that waits in the server's queue.
    Place(Box<Acquisition>),
}

/// The turn of one lock in one process.
#[derive(Default)]
pub(crate) struct Turn {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_ticket: u64,
    /// Whose turn it is; 0: nobody's.
    turn: u64,
    /// What the one whose turn it is has not picked up yet.
    baton: Option<Baton>,
    /// The lease it holds, by address; 0 while it still asks for one.
    lease: usize,
    answer: LastAnswer,
    waiting: VecDeque<Waiter>,
}

/// What the server last said to whoever's turn it is, for those who wait behind.
#[derive(Default, Clone, Copy)]
enum LastAnswer {
    #[default]
    NoneYet,
    Refused,
    SilentSince(Instant),
}

struct Waiter {
    ticket: u64,
    bell: Arc<Bell>,
    options: Arc<LockOptions>,
}

/// How the lock stands, for a thread that waits behind another.
enum Standing {
    Held,
    Refused,
    Silent(Instant),
    Asking,
}

/// The turn, until dropped; then it passes on.
pub(crate) struct Ticket<'a> {
    turn: &'a Turn,
    number: u64,
    /// What passes on with it.
    place: Option<Box<Acquisition>>,
}

impl Turn {
    /// Waits for the turn. `Ok(None)`: patience or attempts ended, that is an answer, and another has the lock.
    pub(crate) fn take(
        &self,
        background: &Background,
        options: &Arc<LockOptions>,
        patience: &Patience<'_>,
        attempts: &mut Attempts,
    ) -> Result<Option<(Ticket<'_>, Baton)>> {
        let mut state = locked(&self.state);
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        if state.turn == 0 {
            state.turn = ticket;
            state.answer = LastAnswer::NoneYet;
            return Ok(Some((Ticket::new(self, ticket), Baton::Turn { silent_since: None })));
        }
        let bell = Bell::new();
        state.waiting.push_back(Waiter { ticket, bell: Arc::clone(&bell), options: Arc::clone(options) });
        drop(state);
        let result = self.wait(background, &bell, ticket, options, patience, attempts);
        if let Ok(Some(_)) = result {
            return result;
        }
        // The turn may have come at the very moment at which the thread gave up.
        match self.give_up(ticket) {
            None => result,
            // It holds the lock then, as if it had looked a moment earlier.
            Some(baton @ Baton::Lease(_)) => Ok(Some((Ticket::new(self, ticket), baton))),
            Some(Baton::Place(place)) => {
                Ticket::new(self, ticket).pass_place(*place);
                result
            }
            Some(Baton::Turn { .. }) => {
                drop(Ticket::new(self, ticket));
                result
            }
        }
    }

    fn wait(
        &self,
        background: &Background,
        bell: &Arc<Bell>,
        ticket: u64,
        options: &LockOptions,
        patience: &Patience<'_>,
        attempts: &mut Attempts,
    ) -> Result<Option<(Ticket<'_>, Baton)>> {
        let clock = &background.clock;
        let limits = background.limits;
        let _closing = background.closing.rings(bell);
        let _interrupt = patience.interrupt.map(|interrupt| interrupt.rings(bell));
        let started = clock.now();
        // `None`: so far away that it never comes (R18).
        let mut next_attempt = Some(started);
        let mut exhausted = false;
        let mut over_since = None;
        loop {
            if let Some(mut baton) = self.pick_up(ticket) {
                // An outage counts for each thread from when it began to wait.
                if let Baton::Turn { silent_since: Some(since) } = &mut baton {
                    *since = (*since).max(started);
                }
                return Ok(Some((Ticket::new(self, ticket), baton)));
            }
            patience.check(background)?;
            let now = clock.now();
            let standing = self.standing();
            while let Some(due) = next_attempt.filter(|due| attempts.are_limited() && *due <= now && !exhausted) {
                exhausted = !attempts.use_one();
                next_attempt = due.checked_add(backoff::pause(options.retry, false, options.lease));
            }
            if exhausted || patience.is_over(now) {
                match standing {
                    Standing::Held | Standing::Refused if exhausted && !patience.trying => {
                        return Err(Error::new(ErrorKind::Exhausted, "the lock was held by another during every attempt"));
                    }
                    Standing::Held | Standing::Refused => return Ok(None),
                    Standing::Silent(_) => return Err(silent()),
                    // The first question of whoever is before us is on its way: its answer is ours, too, and bounded as every command is.
                    Standing::Asking => {
                        let asked_for = now.saturating_duration_since(*over_since.get_or_insert(now));
                        if asked_for >= limits.command_timeout {
                            return Err(silent());
                        }
                        bell.wait(clock, Some(now + LOOK_AGAIN.min(limits.command_timeout - asked_for)));
                        continue;
                    }
                }
            }
            let mut until = patience.deadline;
            let mut sooner = |instant: Instant| until = Some(until.map_or(instant, |until| until.min(instant)));
            if let Some(due) = next_attempt.filter(|_| attempts.are_limited()) {
                sooner(due);
            }
            if patience.deadline.is_none() {
                if let Standing::Silent(since) = standing
                    && let Some(give_up) = since.max(started).checked_add(limits.max_outage)
                {
                    if now >= give_up {
                        return Err(silent());
                    }
                    sooner(give_up);
                }
                // Whoever is before us may fall silent without anybody ringing.
                if let Some(look) = now.checked_add((limits.max_outage / 4).max(LOOK_AGAIN)) {
                    sooner(look);
                }
            }
            bell.wait(clock, until);
        }
    }

    fn pick_up(&self, ticket: u64) -> Option<Baton> {
        let mut state = locked(&self.state);
        if state.turn == ticket { state.baton.take() } else { None }
    }

    fn standing(&self) -> Standing {
        let state = locked(&self.state);
        match state.answer {
            _ if state.lease != 0 => Standing::Held,
            LastAnswer::Refused => Standing::Refused,
            LastAnswer::SilentSince(since) => Standing::Silent(since),
            LastAnswer::NoneYet => Standing::Asking,
        }
    }

    /// What the server said to the one whose turn it is.
    pub(crate) fn report(&self, report: Report, now: Instant) {
        let mut state = locked(&self.state);
        state.answer = match (report, state.answer) {
            (Report::Refused, _) => LastAnswer::Refused,
            (Report::Unanswered, since @ LastAnswer::SilentSince(_)) => since,
            (Report::Unanswered, _) => LastAnswer::SilentSince(now),
        };
    }

    /// Passes a lease that is still valid to the next thread, if it waits for such a one. `false`: it does not.
    pub(crate) fn hand_off(&self, ticket: u64, lease: &Arc<Lease>, options: &Arc<LockOptions>) -> bool {
        let mut state = locked(&self.state);
        let suits = ticket != 0
            && state.turn == ticket
            && state.waiting.front().is_some_and(|next| Arc::ptr_eq(&next.options, options) || next.options == *options);
        if !suits || !lease.is_valid() || !lease.take_hand_off() {
            return false;
        }
        let next = state.pass(Some(Baton::Lease(Arc::clone(lease))));
        drop(state);
        ring(next);
        true
    }

    /// Gives the turn up. Nothing happens where it has passed on before.
    pub(crate) fn leave(&self, ticket: u64) {
        self.pass(ticket, None);
    }

    /// Gives the turn of the holder of `lease` up, unless it is on its way to the next thread, which will see that the lease is over.
    pub(crate) fn leave_after_loss(&self, lease: &Arc<Lease>) {
        let mut state = locked(&self.state);
        if state.lease == address(lease) && state.baton.is_none() {
            let next = state.pass(None);
            drop(state);
            ring(next);
        }
    }

    fn pass(&self, ticket: u64, place: Option<Box<Acquisition>>) {
        let mut state = locked(&self.state);
        if state.turn != ticket || ticket == 0 {
            return;
        }
        // A place in the server's queue is of use only to a waiter that asks for the same; dropped, it is withdrawn.
        let suits = state.waiting.front().is_some_and(|next| place.as_ref().is_some_and(|place| *place.options() == next.options));
        let (passed, unused) = if suits { (place, None) } else { (None, place) };
        let next = state.pass(passed.map(Baton::Place));
        drop(state);
        drop(unused);
        ring(next);
    }

    /// Leaves the queue. What it came to instead, if the turn has come.
    fn give_up(&self, ticket: u64) -> Option<Baton> {
        let mut state = locked(&self.state);
        state.waiting.retain(|waiter| waiter.ticket != ticket);
        if state.turn == ticket { state.baton.take() } else { None }
    }

    /// The turn for a thread that has `lease` without having waited here for it, as after a wait in a condition; 0, nobody's, if another has it.
    pub(crate) fn adopt(&self, lease: &Arc<Lease>) -> u64 {
        let mut state = locked(&self.state);
        if state.turn != 0 {
            return 0;
        }
        state.last_ticket += 1;
        state.turn = state.last_ticket;
        state.lease = address(lease);
        state.turn
    }

    /// How many threads wait.
    #[cfg(feature = "testing")]
    pub(crate) fn waiting(&self) -> usize {
        locked(&self.state).waiting.len()
    }
}

impl State {
    /// Makes it the next waiter's turn.
    fn pass(&mut self, baton: Option<Baton>) -> Option<Arc<Bell>> {
        let was_held = self.lease != 0;
        self.lease = match &baton {
            Some(Baton::Lease(lease)) => address(lease),
            _ => 0,
        };
        if was_held {
            self.answer = LastAnswer::NoneYet;
        }
        let Some(next) = self.waiting.pop_front() else {
            self.turn = 0;
            self.baton = None;
            return None;
        };
        self.turn = next.ticket;
        let silent_since = if let LastAnswer::SilentSince(since) = self.answer { Some(since) } else { None };
        self.baton = Some(baton.unwrap_or(Baton::Turn { silent_since }));
        Some(next.bell)
    }
}

fn ring(bell: Option<Arc<Bell>>) {
    if let Some(bell) = bell {
        bell.ring();
    }
}

fn address(lease: &Arc<Lease>) -> usize {
    Arc::as_ptr(lease) as usize
}

fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "the server did not answer the thread of this process that asks for this lock")
}

/// How often a thread looks at what nobody rings for.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

impl<'a> Ticket<'a> {
    fn new(turn: &'a Turn, number: u64) -> Self {
        Self { turn, number, place: None }
    }

    /// The thread holds `lease` now, and gives its turn up by [`Turn::leave`] or [`Turn::hand_off`].
    pub(crate) fn hold(self, lease: &Arc<Lease>) -> u64 {
        locked(&self.turn.state).lease = address(lease);
        let number = self.number;
        std::mem::forget(self);
        number
    }

    /// Gives the turn up, and with it a place in the server's queue.
    pub(crate) fn pass_place(mut self, place: Acquisition) {
        self.place = Some(Box::new(place));
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.turn.pass(self.number, self.place.take());
    }
}
