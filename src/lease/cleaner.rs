//! The cleaner: withdraws, in the background, what nobody waits for any more (R5, R11).

mod backlog;
mod withdrawal;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::counters::Counters;
use super::token::Token;
use crate::base::clock::Clock;
use crate::base::error::ErrorKind;
use crate::base::key::Key;
use crate::base::locked;
use crate::base::store_error::StoreError;
use crate::base::worker::{Stopped, Wake, Worker};
pub(crate) use backlog::Backlog;
pub(crate) use withdrawal::Withdrawal;

/// Hands withdrawals to the cleaner's threads: one for each shard, because a shard that does not
/// answer shall delay no withdrawal at another. Clones feed the same threads.
#[derive(Clone)]
pub(crate) struct Cleaner {
    threads: Arc<Mutex<Threads>>,
    backlog: Backlog,
    /// Those of the client, for all that end leases.
    pub(super) counters: Arc<Counters>,
}

#[derive(Default)]
struct Threads {
    of_shards: BTreeMap<u16, Worker<Wake>>,
    closed: bool,
}

/// The use of a caller's own value, until dropped.
pub(crate) struct InUse {
    cleaner: Cleaner,
    name: (Key, Token),
    /// Whether a command of an earlier use may still arrive at the store.
    pub(crate) left_behind: bool,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = locked(&self.cleaner.backlog.shared.state);
        let at = state.in_use.iter().position(|name| *name == self.name);
        debug_assert!(at.is_some(), "a value is in use until this is dropped");
        if let Some(at) = at {
            state.in_use.swap_remove(at);
        }
        let (key, token) = &self.name;
        let waiting: Vec<u16> =
            state.jobs.iter().filter(|job| job.is(key, token)).map(|job| job.shard).collect();
        drop(state);
        self.cleaner.backlog.shared.changed.notify_all();
        waiting.into_iter().for_each(|shard| self.cleaner.wake(shard));
    }
}

impl Cleaner {
    pub(crate) fn new(clock: Clock, command_timeout: Duration, counters: Arc<Counters>) -> Self {
        Self { threads: Arc::default(), backlog: Backlog::new(clock, command_timeout), counters }
    }

    /// Starts the thread of a shard. Called before anybody has a lease there: a thread that dies
    /// while it holds cannot start another thread.
    pub(crate) fn start(&self, shard: u16) -> io::Result<()> {
        let Threads { of_shards, closed } = &mut *locked(&self.threads);
        if *closed {
            return Ok(());
        }
        let backlog = self.backlog.of_shard(shard);
        let thread = of_shards.entry(shard).or_insert_with(|| Worker::new("distlock-cleaner"));
        thread.start(move |wake| run(&backlog, wake))
    }

    /// Withdraws soon, and again until nothing can be left. Once the client is closed: at once, on
    /// this thread, and only once.
    pub(crate) fn withdraw(&self, what: Withdrawal) {
        let shard = what.store.shard(&what.key);
        // An attempt without an answer may be the first at its shard.
        let _ = self.start(shard);
        if let Err(what) = self.add(shard, what) {
            let _ = what.try_once(&self.backlog.clock, self.backlog.command_deadline());
        }
    }

    /// Withdraws at once, on this thread. `false`: no answer by the deadline; the background goes
    /// on.
    pub(crate) fn withdraw_now(&self, mut what: Withdrawal, deadline: Instant) -> bool {
        let Err(error) = what.try_once(&self.backlog.clock, deadline) else { return true };
        what.release_in_flight |= error.may_have_run;
        self.withdraw(what);
        false
    }

    /// As `withdraw`, but neither blocks nor panics, so that a thread-local destructor may call it.
    /// After `close` it does nothing: closing released every hold.
    pub(crate) fn withdraw_later(&self, what: Withdrawal) {
        let _ = self.add(what.store.shard(&what.key), what);
    }

    fn add(&self, shard: u16, what: Withdrawal) -> Result<(), Withdrawal> {
        // The first shard's thread does what another's would, if that has not been started.
        let has_started =
            locked(&self.threads).of_shards.get(&shard).is_some_and(Worker::has_started);
        let shard = if has_started { shard } else { 0 };
        self.backlog.of_shard(shard).add(what)?;
        self.counters.withdrawals.add_one();
        self.wake(shard);
        Ok(())
    }

    fn wake(&self, shard: u16) {
        if let Some(thread) = locked(&self.threads).of_shards.get(&shard) {
            let _ = thread.send(Wake);
        }
    }

    /// Begins to use a caller's own value, which may have been used before. A withdrawal of it
    /// never runs beside the new use:
    ///
    /// 1. hold 1 ends, and its value is withdrawn in the background, again and again, because an
    ///    attempt of it had no answer;
    /// 2. hold 2 begins, under the same value;
    /// 3. the next withdrawal deletes hold 2.
    ///
    /// So pending withdrawals of the value are dropped here: a late copy of an attempt changes
    /// nothing while hold 2 lasts, and hold 2 withdraws it in the end. Only a late copy of a
    /// *release* would delete hold 2: if one may be on its way, the use is refused.
    pub(crate) fn reuse(
        &self,
        key: &Key,
        token: &Token,
        deadline: Instant,
    ) -> Result<InUse, StoreError> {
        let refused = || {
            StoreError::not_sent(
                ErrorKind::Unavailable,
                "an earlier hold with the same value is still being undone",
            )
        };
        let name = (key.clone(), token.clone());
        let Backlog { shared, clock, .. } = &self.backlog;
        let mut state = locked(&shared.state);
        while state.in_use.contains(&name)
            || state.jobs.iter().any(|job| job.running && job.is(key, token))
        {
            let left = clock.sleep_for(deadline);
            if left.is_zero() {
                return Err(refused());
            }
            state =
                shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.jobs.iter().any(|job| job.is(key, token) && job.release_in_flight) {
            return Err(refused());
        }
        let before = state.jobs.len();
        state.jobs.retain(|job| !job.is(key, token));
        let left_behind = state.jobs.len() < before;
        state.in_use.push(name.clone());
        Ok(InUse { cleaner: self.clone(), name, left_behind })
    }

    /// Lets the threads retry what has had no answer, until the deadline, and then end.
    pub(crate) fn close(&self, deadline: Instant) -> Vec<Stopped> {
        locked(&self.backlog.shared.state).closing.get_or_insert(deadline);
        let mut threads = locked(&self.threads);
        threads.closed = true;
        threads.of_shards.values().map(Worker::stop).collect()
    }

    /// How many locks may still be held on the server, because their withdrawals have no answer.
    pub(crate) fn unanswered(&self) -> usize {
        locked(&self.backlog.shared.state).unanswered()
    }
}

/// A thread of the cleaner.
fn run(backlog: &Backlog, wake: &Receiver<Wake>) {
    backlog.begin();
    loop {
        let closed = match backlog.work() {
            None => wake.recv().is_err(),
            Some(next) => matches!(
                wake.recv_timeout(backlog.clock.sleep_for(next)),
                Err(RecvTimeoutError::Disconnected)
            ),
        };
        if closed {
            return backlog.drain();
        }
    }
}
