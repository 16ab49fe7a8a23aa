//! Whose turn it is among this process's threads. They queue here, first come first served, and
//! only the thread which has the turn talks to Redis. With its turn it passes on what it had: a
//! lease that is still valid, or a place in the server's queue. In one file: the queue and the turn
//! are one state machine.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::joinable::Joinable;
use super::owned::Owned;
use crate::base::bell::Bell;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::options::LockOptions;
use crate::base::{backoff, locked};
use crate::lease::acquisition::Acquisition;
use crate::lease::context::Context;
use crate::lease::granted::Lease;
use crate::lease::slow_wait::SlowWait;
use crate::lease::wait::Caller;
use crate::lease::wait_limits::Report;

/// What comes with the turn.
pub(crate) enum Handover {
    /// Nothing: the thread asks the server. `silent_since`: since when the server is silent, if it
    /// is.
    Nothing { silent_since: Option<Instant> },
    /// A lease to hold at once: a local hand-off.
    Lease(Arc<Lease>),
    /// An acquisition that waits in the server's queue; `silent_since` as with `Nothing`.
    Place { place: Box<Acquisition>, silent_since: Option<Instant> },
}

/// What a thread gets when its turn has come.
pub(crate) enum Taken<'a> {
    Turn(Turn<'a>, Handover),
    /// It reads under the lease of another thread, and the turn is not needed.
    Joined(Owned),
}

impl Taken<'_> {
    /// An outage counts for each thread from when it began to wait.
    fn for_one_who_waits(mut self, started: Instant) -> Self {
        if let Self::Turn(_, handover) = &mut self
            && let Handover::Nothing { silent_since: Some(since) }
            | Handover::Place { silent_since: Some(since), .. } = handover
        {
            *since = (*since).max(started);
        }
        self
    }
}

/// The turn of one lock in one process.
#[derive(Default)]
pub(crate) struct LocalQueue {
    state: Mutex<TurnState>,
}

#[derive(Default)]
struct TurnState {
    last_turn: u64,
    phase: Phase,
    /// The server's last answer to the thread which has the turn, for the threads behind it.
    answer: LastAnswer,
    waiting: VecDeque<WaitingThread>,
    /// The lease under which threads read together.
    joinable: Option<Joinable>,
    /// What threads that waited read under, by their turn numbers, until they pick it up.
    joined: Vec<(u64, Owned)>,
}

/// Which thread has the turn, and what it does with it.
#[derive(Default)]
enum Phase {
    #[default]
    Nobody,
    /// The thread with this turn number has not yet picked up what comes with its turn.
    Given(u64, Handover),
    /// It asks the server.
    Asking(u64),
    /// It holds this lease. Never a reader, whose turn passes on at once.
    Holding(u64, Weak<Lease>),
}

impl Phase {
    fn turn(&self) -> Option<u64> {
        match self {
            Self::Nobody => None,
            Self::Given(turn, _) | Self::Asking(turn) | Self::Holding(turn, _) => Some(*turn),
        }
    }

    /// Takes what is given to the thread with this turn number. From then on that thread asks.
    fn pick_up(&mut self, wanted: u64) -> Option<Handover> {
        if !matches!(self, Self::Given(turn, _) if *turn == wanted) {
            return None;
        }
        match std::mem::replace(self, Self::Asking(wanted)) {
            Self::Given(_, handover) => Some(handover),
            _ => None,
        }
    }
}

#[derive(Default, Clone, Copy)]
enum LastAnswer {
    #[default]
    NoneYet,
    Refused,
    SilentSince(Instant),
}

struct WaitingThread {
    turn: u64,
    bell: Arc<Bell>,
    options: Arc<LockOptions>,
}

/// The state of the lock, for a thread that waits behind another.
enum Standing {
    Held,
    Refused,
    Silent(Instant),
    Asking,
}

impl Standing {
    /// For a thread that has waited since `started`, without a deadline: when it gives up on a
    /// silent server, and when it looks again.
    fn look_again(
        &self,
        started: Instant,
        now: Instant,
        max_outage: Duration,
    ) -> (Option<Instant>, Option<Instant>) {
        let give_up = match self {
            Self::Silent(since) => (*since).max(started).checked_add(max_outage),
            _ => None,
        };
        // The server may fall silent for the thread before us, and nobody rings then.
        (give_up, now.checked_add((max_outage / 4).max(LOOK_AGAIN)))
    }
}

impl LocalQueue {
    /// Waits for the turn. `Ok(None)`: the time or the attempts of a `try_lock` are used up, and
    /// another has the lock.
    pub(crate) fn take(
        &self,
        context: &Context,
        options: &Arc<LockOptions>,
        caller: &mut Caller<'_>,
    ) -> Result<Option<Taken<'_>>> {
        let mut state = locked(&self.state);
        state.last_turn += 1;
        let turn = state.last_turn;
        if matches!(state.phase, Phase::Nobody) {
            debug_assert!(state.waiting.is_empty(), "nobody waits for nobody");
            if let Some(owned) = state.join(options) {
                return Ok(Some(Taken::Joined(owned)));
            }
            state.phase = Phase::Asking(turn);
            state.answer = LastAnswer::NoneYet;
            let nothing = Handover::Nothing { silent_since: None };
            return Ok(Some(Taken::Turn(Turn::new(self, turn), nothing)));
        }
        let bell = Bell::new();
        state.waiting.push_back(WaitingThread {
            turn,
            bell: Arc::clone(&bell),
            options: Arc::clone(options),
        });
        drop(state);
        let result = self.wait(context, &bell, turn, options, caller);
        if let Ok(Some(_)) = result {
            return result;
        }
        // The turn may have come at the moment when the thread gave up.
        match self.give_up(turn) {
            None => result,
            // The thread then holds the lock, as if it had looked a moment earlier.
            taken @ Some(Taken::Joined(_) | Taken::Turn(_, Handover::Lease(_))) => Ok(taken),
            Some(Taken::Turn(turn, Handover::Place { place, .. })) => {
                drop(turn.pass_place(*place));
                result
            }
            Some(Taken::Turn(turn, Handover::Nothing { .. })) => {
                drop(turn);
                result
            }
        }
    }

    fn wait(
        &self,
        context: &Context,
        bell: &Arc<Bell>,
        turn: u64,
        options: &LockOptions,
        caller: &mut Caller<'_>,
    ) -> Result<Option<Taken<'_>>> {
        let Caller { limits, attempts, slow } = caller;
        let clock = &context.clock;
        let timeouts = context.timeouts;
        let _rings = limits.rings(context, bell);
        let started = clock.now();
        // `None`: so far away that it never comes (R18).
        let mut next_attempt = Some(started);
        let mut exhausted = false;
        let mut over_since = None;
        loop {
            if let Some(taken) = self.pick_up(&mut locked(&self.state), turn) {
                return Ok(Some(taken.for_one_who_waits(started)));
            }
            limits.check(context)?;
            let now = clock.now();
            let standing = self.standing();
            while let Some(due) =
                next_attempt.filter(|due| attempts.are_limited() && *due <= now && !exhausted)
            {
                exhausted = !attempts.use_one();
                next_attempt = due.checked_add(backoff::pause(options.retry, false, options.lease));
            }
            if exhausted || limits.is_over(now) {
                match standing {
                    Standing::Held | Standing::Refused if exhausted && !limits.trying => {
                        return Err(Error::new(
                            ErrorKind::Exhausted,
                            "the lock was held by another during every attempt",
                        ));
                    }
                    Standing::Held | Standing::Refused => return Ok(None),
                    Standing::Silent(_) => return Err(silent()),
                    // The first question of the thread before us is under way. Its answer is ours,
                    // too: we wait for it, but no longer than one command timeout.
                    Standing::Asking => {
                        let asked_for =
                            now.saturating_duration_since(*over_since.get_or_insert(now));
                        if asked_for >= timeouts.command_timeout {
                            return Err(silent());
                        }
                        bell.wait(
                            clock,
                            Some(now + LOOK_AGAIN.min(timeouts.command_timeout - asked_for)),
                        );
                        continue;
                    }
                }
            }
            let (give_up, look) = match limits.deadline {
                Some(_) => (None, None),
                None => standing.look_again(started, now, timeouts.max_outage),
            };
            if give_up.is_some_and(|give_up| now >= give_up) {
                return Err(silent());
            }
            self.speak(slow, turn, &standing, now);
            let next_attempt = next_attempt.filter(|_| attempts.are_limited());
            let until = [limits.deadline, next_attempt, give_up, look, slow.waits(now)];
            bell.wait(clock, until.into_iter().flatten().min());
        }
    }

    /// If it is time to, says in the log that the thread with this turn number waits for one that
    /// holds the lock. One that asks the server says itself who holds it.
    fn speak(&self, slow: &mut SlowWait<'_>, turn: u64, standing: &Standing, now: Instant) {
        let Standing::Held = standing else { return };
        slow.say(now, || {
            let state = locked(&self.state);
            let before = state.waiting.iter().take_while(|waiting| waiting.turn < turn).count();
            format!("another thread of this process holds it; threads before it: {before}")
        });
    }

    /// What the thread with this turn number has been given.
    fn pick_up(&self, state: &mut TurnState, turn: u64) -> Option<Taken<'_>> {
        if let Some(at) = state.joined.iter().position(|(joined, _)| *joined == turn) {
            return Some(Taken::Joined(state.joined.swap_remove(at).1));
        }
        state.phase.pick_up(turn).map(|handover| Taken::Turn(Turn::new(self, turn), handover))
    }

    fn standing(&self) -> Standing {
        let state = locked(&self.state);
        match (&state.phase, state.answer) {
            (Phase::Holding(..) | Phase::Given(_, Handover::Lease(_)), _) => Standing::Held,
            (_, LastAnswer::Refused) => Standing::Refused,
            (_, LastAnswer::SilentSince(since)) => Standing::Silent(since),
            (_, LastAnswer::NoneYet) => Standing::Asking,
        }
    }

    /// Notes the server's answer to the thread which has the turn.
    pub(crate) fn report(&self, report: Report, now: Instant) {
        let mut state = locked(&self.state);
        state.answer = match (report, state.answer) {
            (Report::Refused, _) => LastAnswer::Refused,
            (Report::Unanswered, since @ LastAnswer::SilentSince(_)) => since,
            (Report::Unanswered, _) => LastAnswer::SilentSince(now),
        };
    }

    /// Lets other threads of this process read under a lease, too: those that wait in front, when
    /// the turn passes on next, and those that come while nobody waits.
    pub(crate) fn offer(&self, lease: &Arc<Lease>, options: &Arc<LockOptions>) {
        let mut state = locked(&self.state);
        // The server's answer from before that lease is out of date.
        state.answer = LastAnswer::NoneYet;
        state.joinable = Some(Joinable::new(lease, options));
    }

    /// Passes a lease that is still valid to the next thread, if that waits with the same options.
    /// `false`: not passed on.
    pub(crate) fn hand_off(
        &self,
        turn: Option<u64>,
        lease: &Arc<Lease>,
        options: &Arc<LockOptions>,
    ) -> bool {
        let mut state = locked(&self.state);
        let suits = turn.is_some()
            && state.phase.turn() == turn
            && state.waiting.front().is_some_and(|next| {
                Arc::ptr_eq(&next.options, options) || next.options == *options
            });
        if !suits || !lease.is_valid() || !lease.take_hand_off() {
            return false;
        }
        let next = state.pass(|_, _| Handover::Lease(Arc::clone(lease)));
        drop(state);
        ring(next);
        true
    }

    /// Gives the turn up. Does nothing if it has passed on before.
    pub(crate) fn leave(&self, turn: Option<u64>) {
        let mut state = locked(&self.state);
        if turn.is_none() || state.phase.turn() != turn {
            return;
        }
        let next = state.pass(|_, silent_since| Handover::Nothing { silent_since });
        drop(state);
        ring(next);
    }

    /// Gives up the turn of the holder of `lease`. Does nothing if the lease is on its way to the
    /// next thread, which will see that it is over.
    pub(crate) fn leave_after_loss(&self, lease: &Arc<Lease>) {
        let mut state = locked(&self.state);
        let is_its = |held: &Weak<Lease>| std::ptr::eq(held.as_ptr(), Arc::as_ptr(lease));
        if !matches!(&state.phase, Phase::Holding(_, held) if is_its(held)) {
            return;
        }
        let next = state.pass(|_, silent_since| Handover::Nothing { silent_since });
        drop(state);
        ring(next);
    }

    /// Gives the turn up, and with it a place in the server's queue, if the next thread has the
    /// same options. Otherwise returns the place.
    fn pass_place(&self, turn: u64, place: Acquisition) -> Option<Acquisition> {
        let mut state = locked(&self.state);
        let mut place = Some(place);
        if state.phase.turn() == Some(turn) {
            let next = state.pass(|next, silent_since| {
                match place.take_if(|place| *place.options() == next.options) {
                    Some(place) => Handover::Place { place: Box::new(place), silent_since },
                    None => Handover::Nothing { silent_since },
                }
            });
            drop(state);
            ring(next);
        }
        place
    }

    /// Leaves the queue. Returns what the thread has been given meanwhile.
    fn give_up(&self, turn: u64) -> Option<Taken<'_>> {
        let mut state = locked(&self.state);
        state.waiting.retain(|waiter| waiter.turn != turn);
        self.pick_up(&mut state, turn)
    }

    /// The turn for a thread that got `lease` without waiting here for it, as after a wait in a
    /// condition; `None` if another thread has the turn.
    pub(crate) fn adopt(&self, lease: &Arc<Lease>) -> Option<u64> {
        let mut state = locked(&self.state);
        if !matches!(state.phase, Phase::Nobody) {
            return None;
        }
        state.last_turn += 1;
        state.phase = Phase::Holding(state.last_turn, Arc::downgrade(lease));
        Some(state.last_turn)
    }

    /// How many threads wait.
    #[cfg(feature = "testing")]
    pub(crate) fn waiting(&self) -> usize {
        locked(&self.state).waiting.len()
    }
}

impl TurnState {
    fn join(&self, options: &Arc<LockOptions>) -> Option<Owned> {
        self.joinable.as_ref()?.join(options)
    }

    /// Gives the turn to the next waiter, with what `handover` makes of it and of the server's
    /// silence so far. Waiters before it that can join the lease of a reader do so. If nobody is
    /// left, `handover` is not called. Returns whom to ring for.
    fn pass(
        &mut self,
        handover: impl FnOnce(&WaitingThread, Option<Instant>) -> Handover,
    ) -> Vec<Arc<Bell>> {
        if matches!(self.phase, Phase::Holding(..) | Phase::Given(_, Handover::Lease(_))) {
            // The server's answer from before that lease is out of date.
            self.answer = LastAnswer::NoneYet;
        }
        let before = self.phase.turn();
        self.phase = Phase::Nobody;
        let mut bells = Vec::new();
        while let Some(next) = self.waiting.pop_front() {
            debug_assert!(before.is_some_and(|before| before < next.turn), "in order");
            if let Some(owned) = self.join(&next.options) {
                self.joined.push((next.turn, owned));
                bells.push(next.bell);
                continue;
            }
            let silent_since =
                if let LastAnswer::SilentSince(since) = self.answer { Some(since) } else { None };
            self.phase = Phase::Given(next.turn, handover(&next, silent_since));
            bells.push(next.bell);
            break;
        }
        bells
    }
}

/// The turn, until dropped; then it passes on.
pub(crate) struct Turn<'a> {
    queue: &'a LocalQueue,
    number: u64,
}

impl<'a> Turn<'a> {
    fn new(queue: &'a LocalQueue, number: u64) -> Self {
        Self { queue, number }
    }

    /// The thread holds `lease` now, and gives its turn up by [`LocalQueue::leave`] or
    /// [`LocalQueue::hand_off`].
    pub(crate) fn hold(self, lease: &Arc<Lease>) -> u64 {
        let number = self.number;
        let mut state = locked(&self.queue.state);
        if state.phase.turn() == Some(number) {
            state.phase = Phase::Holding(number, Arc::downgrade(lease));
        }
        drop(state);
        std::mem::forget(self);
        number
    }

    /// The thread reads under `lease`, and others may join it. The turn passes on.
    pub(crate) fn offer(self, lease: &Arc<Lease>, options: &Arc<LockOptions>) {
        self.queue.offer(lease, options);
    }

    /// Gives the turn up, and with it a place in the server's queue. Returns the place if the next
    /// thread cannot use it.
    pub(crate) fn pass_place(self, place: Acquisition) -> Option<Acquisition> {
        let unused = self.queue.pass_place(self.number, place);
        // The turn has passed on.
        std::mem::forget(self);
        unused
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.queue.leave(Some(self.number));
    }
}

fn ring(bells: Vec<Arc<Bell>>) {
    bells.iter().for_each(|bell| bell.ring());
}

fn silent() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server has not answered; another thread of this process is asking for this lock",
    )
}

/// How often a thread checks for changes for which nobody rings.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
