//! The renewal thread: keeps leases alive, in bulk, and reports lost leases (R7, R8, R9).

mod book;
mod pace;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::cleaner::Cleaner;
use super::durations::{Timeouts, valid_until};
use super::granted::Lease;
use super::lost::{Ended, LostReason};
use super::store::Extend;
use crate::base::active::ActiveCount;
use crate::base::clock::Clock;
use crate::base::within::Within;
use crate::base::worker::{Stopped, Wake, Worker};
use crate::base::{locked, log};
use book::{Book, Found, Sleep};

/// The most leases in one call: so few that the call ends well before the next short lease is due.
const BULK: usize = 1024;
/// The same for leases of at least [`LONG`]: each call costs a round trip, also on a slow link, and
/// thousands may be due together.
const LONG_BULK: usize = 4096;
/// Extends of long leases are brought forward to a common beat, so that thousands of them go out
/// together, and in time although the batch before them took a round trip. Extends of leases
/// shorter than [`LONG`] are not.
const BEAT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(3);
/// A hand-off grants a short lease first, and renewal makes it whole once the hold has lasted for
/// this long. That is so early that only a paused process misses it (R20), and so late that a hold
/// of less than a millisecond costs no extend.
const FIRST: Duration = Duration::from_millis(10);

fn bulk(lease: &Lease) -> usize {
    if lease.length < LONG { BULK } else { LONG_BULK }
}

/// Looks after leases that are held: one thread, started with the first lease, stopped over a
/// channel.
pub(crate) struct Renewer {
    worker: Worker<Wake>,
    shard: u16,
    thread: RenewerThread,
}

#[derive(Clone)]
struct RenewerThread {
    book: Arc<Mutex<Book>>,
    clock: Clock,
    timeouts: Timeouts,
    cleaner: Cleaner,
    /// What closing waits for.
    under_way: ActiveCount,
    /// What the common beat counts from.
    origin: Instant,
}

impl Renewer {
    pub(crate) fn new(
        (thread, shard): (&'static str, u16),
        clock: Clock,
        timeouts: Timeouts,
        cleaner: Cleaner,
        under_way: ActiveCount,
    ) -> Self {
        Self {
            worker: Worker::new(thread),
            shard,
            thread: RenewerThread {
                book: Arc::default(),
                origin: clock.now(),
                clock,
                timeouts,
                cleaner,
                under_way,
            },
        }
    }

    /// Starts the thread, and the cleaner's of the same shard.
    pub(crate) fn start(&self) -> io::Result<()> {
        if self.worker.has_started() {
            return Ok(());
        }
        self.thread.cleaner.start(self.shard)?;
        let thread = self.thread.clone();
        self.worker.start(move |wake| thread.run(wake))
    }

    /// Looks after `lease` from now on. `false`: the client was closed meanwhile.
    pub(crate) fn add(&self, lease: &Arc<Lease>) -> bool {
        let extends_left = lease.extends_left.load(Ordering::SeqCst);
        let mut book = locked(&self.thread.book);
        if book.closed {
            return false;
        }
        let now = self.thread.clock.now();
        book.pace.granted_within(now.saturating_duration_since(lease.expiry.asked_at()));
        let mut due = self.thread.next_due(lease, extends_left, now);
        if lease
            .expiry
            .valid_until()
            .is_some_and(|until| until < valid_until(lease.expiry.asked_at(), lease.length))
        {
            due = due.min(now + FIRST);
        }
        book.insert(lease, due);
        book.linger = due.saturating_duration_since(now);
        self.wake_for(book, due);
        true
    }

    /// Looks after `lease` as before it was removed: repeated removal must not postpone its
    /// renewal. `false`: the client was closed meanwhile.
    pub(crate) fn put_back(&self, lease: &Arc<Lease>, due: Instant) -> bool {
        let mut book = locked(&self.thread.book);
        if book.closed {
            return false;
        }
        book.insert(lease, due);
        self.wake_for(book, due);
        true
    }

    /// Stops looking after `lease`, before its release is sent (R8). An extend that is under way
    /// may still arrive, without harm: it compares the token. Returns when the lease was due;
    /// `None`: it was not looked after any more.
    pub(crate) fn remove(&self, lease: &Lease) -> Option<Instant> {
        locked(&self.thread.book).remove(lease)
    }

    fn wake_for(&self, mut book: std::sync::MutexGuard<'_, Book>, due: Instant) {
        let wake = match book.sleep {
            Sleep::Awake => false,
            Sleep::Until(until) => due < until,
            Sleep::Forever => true,
        };
        if wake {
            book.sleep = Sleep::Awake;
            drop(book);
            let _ = self.worker.send(Wake);
        }
    }

    /// How many leases are looked after.
    pub(crate) fn len(&self) -> usize {
        locked(&self.thread.book).due.len()
    }

    /// Removes every lease, and accepts no new one.
    pub(crate) fn close(&self) -> Vec<Arc<Lease>> {
        let mut book = locked(&self.thread.book);
        book.closed = true;
        book.due.clear();
        let entries = std::mem::take(&mut book.entries);
        drop(book);
        entries
            .into_iter()
            .flatten()
            .map(|entry| entry.lease)
            .inspect(|lease| lease.entry.store(0, Ordering::SeqCst))
            .collect()
    }

    pub(crate) fn stop(&self) -> Stopped {
        self.worker.stop()
    }
}

/// A lease to extend now.
struct Due {
    found: Found,
    /// How long to wait for the answer: so short that three tries fit into a validity, the first of
    /// them after a third of it. Two tries, if replicas have to confirm it.
    reply_limit: Duration,
}

impl Due {
    fn new(found: Found) -> Self {
        let lease = &found.lease;
        // Each try writes anew, so what a replica was too slow for is lost with its try.
        let (share, rest) =
            if lease.store.abilities().confirm.is_wanted() { (4, 2) } else { (6, 3) };
        let reply_limit = (lease.length / share).min(lease.expiry.remaining() / rest);
        Self { reply_limit, found }
    }
}

impl RenewerThread {
    fn run(&self, wake: &Receiver<Wake>) {
        loop {
            let (found, sleep) = {
                let mut book = locked(&self.book);
                (book.take_due(self.clock.now()), book.sleep)
            };
            let stopped = match sleep {
                Sleep::Awake => {
                    self.look_at(found);
                    continue;
                }
                Sleep::Until(until) => {
                    matches!(
                        wake.recv_timeout(self.clock.sleep_for(until)),
                        Err(RecvTimeoutError::Disconnected)
                    )
                }
                Sleep::Forever => wake.recv().is_err(),
            };
            if stopped {
                return;
            }
        }
    }

    fn look_at(&self, mut found: Vec<Found>) {
        found.retain(|Found { lease, extends_left, .. }| {
            if !lease.is_valid() {
                self.lost(lease, LostReason::Expired);
                return false;
            }
            if *extends_left == 0 {
                self.put_off(lease, 0);
            }
            *extends_left > 0
        });
        let mut due: Vec<Due> = found.into_iter().map(Due::new).collect();
        // One store after another, the most urgent first; leases of very different urgency never
        // share a call, because the call's deadline is that of the most urgent lease.
        let urgency = |due: &Due| {
            (
                Arc::as_ptr(&due.found.lease.store).cast::<()>() as usize,
                due.reply_limit.as_millis().checked_ilog2(),
            )
        };
        due.sort_by_key(urgency);
        for group in due.chunk_by(|a, b| urgency(a) == urgency(b)) {
            let most = group.first().map_or(BULK, |due| bulk(&due.found.lease));
            for bulk in group.chunks(most) {
                self.extend(bulk);
            }
        }
    }

    /// Extends leases of one store and of about the same length.
    fn extend(&self, bulk: &[Due]) {
        let Some(first) = bulk.first().map(|due| &*due.found.lease.store) else { return };
        let same = |due: &Due| std::ptr::addr_eq(&*due.found.lease.store, first);
        debug_assert!(bulk.iter().all(same), "one call goes to one store");
        let asked_at = self.clock.now();
        let (within, hurried) = self.within(bulk, asked_at);
        let asked: Vec<_> = bulk
            .iter()
            .map(|Due { found: Found { lease, .. }, .. }| Extend {
                key: &lease.key,
                token: &lease.token,
                lease: lease.length,
            })
            .collect();
        let answers = first.extend(&asked, within);
        let now = self.clock.now();
        let took = now.saturating_duration_since(asked_at);
        let silent = took >= within.reply
            && answers.iter().any(|answer| answer.as_ref().is_err_and(|error| error.may_have_run));
        // The server has answered, but its replicas have not, in the time that the pace gave them.
        let unconfirmed = !silent
            && first.abilities().confirm.is_wanted()
            && answers.iter().any(|answer| answer.as_ref().is_err_and(|error| error.may_have_run));
        let most = self.timeouts.command_timeout;
        // A silent call is a time-out only if the pace limited its time, not a lease so short that
        // it could not wait for longer.
        let no_connection = took >= within.connect_by.saturating_duration_since(asked_at)
            && answers.iter().all(Result::is_err);
        let too_soon = (silent || unconfirmed) && hurried;
        if too_soon || no_connection {
            locked(&self.book).pace.timed_out(most);
        } else if answers.iter().all(Result::is_ok) {
            locked(&self.book).pace.answered(took, most);
        }
        for (Due { found, .. }, answer) in bulk.iter().zip(answers) {
            let Found { lease, extends_left, wanted } = found;
            match answer {
                Ok(true) if lease.expiry.extended(asked_at, lease.length) => {
                    // `AtMost` counts only extends that moved the end: the holder may have moved it
                    // further meanwhile.
                    let moved =
                        lease.expiry.valid_until() == Some(valid_until(asked_at, lease.length));
                    let counts = moved && *extends_left != u32::MAX;
                    let late = now.saturating_duration_since(*wanted);
                    self.cleaner.counters.extended(lease.observer.subject(), late);
                    self.put_off(lease, extends_left - u32::from(counts));
                }
                // Confirmed, but after the validity had run out: a validity that was seen to end
                // stays ended.
                Ok(true) => self.lost(lease, LostReason::Expired),
                Ok(false) => self.lost(lease, LostReason::Taken),
                Err(error) => {
                    self.cleaner.counters.failed_extends.add_one();
                    log::debug!(
                        "{}: no answer to an extend: {}",
                        lease.observer.subject(),
                        error.message
                    );
                    // A short wait without an answer is a pause itself. A call that failed sooner,
                    // or had all the time it could have, is followed by a pause (R14).
                    let pause = (lease.length / 12)
                        .min(lease.expiry.remaining() / 6)
                        .min(Duration::from_secs(1));
                    let again = now + if too_soon { Duration::ZERO } else { pause };
                    let again = lease.expiry.valid_until().map_or(again, |until| again.min(until));
                    locked(&self.book).try_again(lease, again);
                }
            }
        }
    }

    /// How long an extend of these leases may take; and whether the wait for its answer is shorter
    /// than the leases allow.
    fn within(&self, bulk: &[Due], now: Instant) -> (Within, bool) {
        let reply_limit = bulk
            .iter()
            .map(|due| due.reply_limit)
            .min()
            .unwrap_or_default()
            .min(self.timeouts.command_timeout);
        let left =
            bulk.iter().map(|due| due.found.lease.expiry.remaining()).min().unwrap_or_default();
        let wait = locked(&self.book).pace.wait(bulk.len());
        // A log-in takes several round trips, and all leases of the client wait for it: so it, too,
        // gets little time at first, and more after a failure.
        let connect_by = now + (left / 2).min(self.timeouts.command_timeout).min(wait * 2);
        (Within { reply: reply_limit.min(wait), connect_by }, wait < reply_limit)
    }

    /// When to look at a lease next: after a third of its length, or of what is left of it if that
    /// is less; or when it runs out.
    fn next_due(&self, lease: &Lease, extends_left: u32, now: Instant) -> Instant {
        let Some(valid_until) = lease.expiry.valid_until() else { return now };
        if extends_left == 0 {
            return valid_until;
        }
        let left = valid_until.saturating_duration_since(now);
        if left > lease.length {
            // The holder has extended the lease further than renewal would. As for other leases,
            // the next extend is due when two thirds of its length are left.
            return valid_until - lease.length * 2 / 3;
        }
        // A hand-off grants a short lease first, and `extend` may have left less than a whole
        // lease.
        let due = now + left / 3;
        if left < LONG {
            return due;
        }
        let beats = due.saturating_duration_since(self.origin).as_nanos() / BEAT.as_nanos();
        let beat = u32::try_from(beats).map_or(due, |beats| self.origin + BEAT * beats);
        if beat > now { beat } else { due }
    }

    fn put_off(&self, lease: &Arc<Lease>, extends_left: u32) {
        let mut book = locked(&self.book);
        lease.extends_left.store(extends_left, Ordering::SeqCst);
        let due = self.next_due(lease, extends_left, self.clock.now());
        book.set_due(lease, due);
    }

    /// Ends the lease and reports the loss, unless the lease was unlocked meanwhile. An unlock
    /// removes the entry *before* it sends the release. So an entry that is still there when the
    /// answer has come proves that no release of ours made the server say "not ours".
    fn lost(&self, lease: &Arc<Lease>, reason: LostReason) {
        // Active until the cleaner has what the lease left behind: meanwhile closing would find
        // the lease neither in the book nor in the cleaner.
        let _counted = self.under_way.add();
        if locked(&self.book).remove(lease).is_none() {
            return;
        }
        log::warn!("{}: lease lost ({reason:?})", lease.observer.subject());
        lease.finish(&self.cleaner, Ended::Lost(reason));
    }
}
