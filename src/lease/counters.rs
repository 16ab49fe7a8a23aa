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
    asked: Count,
    direct: Count,
    local: Count,
    joined: Count,
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
        match how {
            // Those of threads that ended are counted by holds, of which a lease may have several.
            Ended::Released { .. } | Ended::Abandoned => {}
            Ended::GivenUp { .. } => {
                self.unknown.add_one();
                self.tell(|| Event::Unknown { subject: subject.clone() });
            }
            Ended::Lost(_) => {
                self.lost.add_one();
                self.tell(|| Event::Lost { subject: subject.clone(), reason });
            }
        }
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

impl Calls {
    /// Those that got the lock in this way.
    pub(crate) fn granted(&self, how: How) -> &Count {
        match how {
            How::Asked => &self.asked,
            How::Direct => &self.direct,
            How::Local => &self.local,
            How::Joined => &self.joined,
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
        let Self { counters, subject, clock, since, .. } = *self;
        let (calls, subject) = (&counters.calls, || subject.clone());
        let waited = |until: Instant| until.saturating_duration_since(since);
        match self.outcome {
            Outcome::Granted(how, at) => {
                let waited = waited(at);
                calls.granted(how).add_one();
                calls.waits.add(waited);
                counters.tell(|| Event::Granted { subject: subject(), how, waited });
            }
            Outcome::Refused => {
                calls.refused.add_one();
                let waited = || waited(clock.now());
                counters.tell(|| Event::Refused { subject: subject(), waited: waited() });
            }
            Outcome::Failed => {
                calls.failed.add_one();
                let waited = || waited(clock.now());
                counters.tell(|| Event::Failed { subject: subject(), waited: waited() });
            }
        }
    }
}
