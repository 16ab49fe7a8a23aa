//! What becomes of a client's calls, its holds and its leases: each is counted, and the program's
//! listener is told, if there is one.

use std::time::{Duration, Instant};

use super::events::{Event, Events, How};
use super::lost::{Ended, LostReason};
use crate::base::active::{Active, ActiveCount};
use crate::base::clock::Clock;
use crate::base::count::{Count, Timings};
use crate::base::subject::Subject;

/// The counters of one client.
#[derive(Default)]
pub(crate) struct Counters {
    /// Questions to the store for a lock.
    pub(crate) attempts: Count,
    pub(crate) calls: Calls,
    /// How long each hold, claim or permit lasted.
    pub(crate) holds: Timings,
    /// Those whose threads ended.
    pub(crate) abandoned: Count,
    /// Leases that were not released.
    pub(crate) lost: Count,
    pub(crate) unknown: Count,
    /// How late renewal extended a lease.
    pub(crate) extends: Timings,
    pub(crate) failed_extends: Count,
    /// What was left to the cleaner.
    pub(crate) withdrawals: Count,
    /// What the program's listener hears, if there is one.
    pub(crate) events: Option<Events>,
}

/// The calls that wait for a lock.
#[derive(Default)]
pub(crate) struct Calls {
    /// Those that wait now.
    pub(crate) waiting: ActiveCount,
    pub(crate) asked: Count,
    pub(crate) direct: Count,
    pub(crate) local: Count,
    pub(crate) joined: Count,
    pub(crate) refused: Count,
    pub(crate) failed: Count,
    /// How long each took that got the lock.
    pub(crate) waits: Timings,
}

#[derive(Clone, Copy)]
enum Outcome {
    Granted(How, Instant),
    Refused,
    Failed,
}

/// A call that waits for a lock, until dropped. It has failed then, unless it says otherwise.
pub(crate) struct Waiting<'a> {
    counters: &'a Counters,
    subject: &'a Subject,
    clock: &'a Clock,
    since: Instant,
    outcome: Outcome,
    /// The last field: when nobody waits any more, the listener has been told how each wait ended.
    _counted: Active,
}

impl Counters {
    /// A call waits for a lock from now on.
    pub(crate) fn waits<'a>(&'a self, subject: &'a Subject, clock: &'a Clock) -> Waiting<'a> {
        let counted = self.calls.waiting.add();
        let since = clock.now();
        let outcome = Outcome::Failed;
        Waiting { counters: self, subject, clock, since, outcome, _counted: counted }
    }

    /// The owner of a lease has let go.
    pub(crate) fn hold_ended(&self, subject: &Subject, held: Duration) {
        self.holds.add(held);
        self.tell(|| Event::Ended { subject: subject.clone(), held });
    }

    /// A thread has ended while it held the lock.
    pub(crate) fn abandoned(&self, subject: &Subject) {
        self.abandoned.add_one();
        self.tell(|| Event::Abandoned { subject: subject.clone() });
    }

    /// A lease has ended. `reason`: why, if it was lost.
    pub(super) fn lease_ended(&self, subject: &Subject, how: Ended, reason: LostReason) {
        let (count, event): (_, fn(Subject, LostReason) -> Event) = match how {
            // Those of threads that ended are counted by holds, of which a lease may have several.
            Ended::Released { .. } | Ended::Abandoned => return,
            Ended::GivenUp { .. } => (&self.unknown, |subject, _| Event::Unknown { subject }),
            Ended::Lost(_) => (&self.lost, |subject, reason| Event::Lost { subject, reason }),
        };
        count.add_one();
        self.tell(|| event(subject.clone(), reason));
    }

    /// Renewal has extended a lease so long after it was due.
    pub(super) fn extended(&self, subject: &Subject, late: Duration) {
        self.extends.add(late);
        self.tell(|| Event::Extended { subject: subject.clone(), late });
    }

    /// Tells the program's listener, if there is one.
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event) {
        if let Some(events) = &self.events {
            events.tell(event());
        }
    }
}

impl Waiting<'_> {
    /// The lock has an owner since `now`.
    pub(crate) fn granted(mut self, how: How, now: Instant) {
        self.outcome = Outcome::Granted(how, now);
    }

    pub(crate) fn refused(mut self) {
        self.outcome = Outcome::Refused;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let calls = &self.counters.calls;
        let waited = |until: Instant| until.saturating_duration_since(self.since);
        let granted = |count: &Count, at| {
            count.add_one();
            calls.waits.add(waited(at));
        };
        match self.outcome {
            Outcome::Granted(How::Asked, at) => granted(&calls.asked, at),
            Outcome::Granted(How::Direct, at) => granted(&calls.direct, at),
            Outcome::Granted(How::Local, at) => granted(&calls.local, at),
            Outcome::Granted(How::Joined, at) => granted(&calls.joined, at),
            Outcome::Refused => calls.refused.add_one(),
            Outcome::Failed => calls.failed.add_one(),
        }
        self.counters.tell(|| {
            let (subject, now) = (self.subject.clone(), || waited(self.clock.now()));
            match self.outcome {
                Outcome::Granted(how, at) => Event::Granted { subject, how, waited: waited(at) },
                Outcome::Refused => Event::Refused { subject, waited: now() },
                Outcome::Failed => Event::Failed { subject, waited: now() },
            }
        });
    }
}
