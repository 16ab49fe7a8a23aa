//! What a client has counted.

use super::Client;
use crate::base::count::Histogram;
use crate::lease::events::How;

/// What a client has counted since it was made. Made by [`Client::stats`].
///
/// It is for all locks, read-write locks, semaphores and conditions of the client together. A
/// thread that locks again what it holds is not counted, nor are rate limiters, except their
/// connections. For numbers of single locks there is
/// [`ClientBuilder::listener`](crate::ClientBuilder::listener).
///
/// `waiting`, `held`, `pending_withdrawals` and `unreachable` say how it is now, and are 0 in a
/// forked child. All others only grow. Each number is exact by itself, but they are not read at one
/// moment: while other threads lock, two of them may differ by what happens in between.
///
/// The guide says [which of them to watch](crate::guide::operations#numbers-for-a-dashboard).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The attempts to acquire, also those that could not be sent or had no answer, and the
    /// questions of waiters in conditions. The first attempt at a lock may ask the server twice; on
    /// a quorum an attempt asks all nodes.
    pub attempts: u64,
    /// The calls that got a lock, by how they got it.
    pub grants: Grants,
    /// The calls that did not get it before their time was over: they returned `Ok(false)` or
    /// `None`.
    pub refused: u64,
    /// The calls that failed, and the waits in conditions that ended without the lock. A call that
    /// is refused before it asks or waits is not counted, as one with an invalid name, or with
    /// `Conflict`.
    pub failed: u64,
    /// How many calls wait for a lock now. Waits in conditions are not counted.
    pub waiting: u64,
    /// How long each call took that got a lock. After a wait in a condition that is the time from
    /// its end: zero if the lock came with the notification.
    pub waits: Histogram,
    /// How many leases the client has now. Threads that read together may share one.
    pub held: u64,
    /// How long each hold, claim or permit lasted that has ended: by the last unlock or the drop,
    /// by a wait in a condition, or with its thread. The release comes after that.
    pub holds: Histogram,
    /// The leases that were lost while they were held, as [`on_lost`](crate::RedisLock::on_lost)
    /// tells: also those that [`close`](Client::close) ended.
    pub lost: u64,
    /// The leases that were given up, and the server did not confirm the release. Such a lock may
    /// have been held until the background had withdrawn it, or the lease ended.
    pub unknown: u64,
    /// The holds whose threads ended before they unlocked.
    pub abandoned: u64,
    /// The extends by renewal that the server confirmed: how long after each was due. A
    /// confirmation that came after the end of the lease is a loss instead.
    pub late: Histogram,
    /// The tries of renewal to extend a lease that had no answer, or an error. Each is repeated.
    pub failed_extends: u64,
    /// What the background had to withdraw from the server: attempts that had no answer, places in
    /// queues, and leases that may still have been there after they had ended here.
    pub withdrawals: u64,
    /// How many of these the server has not confirmed yet. Each may be a lock that is held there,
    /// and by nobody here.
    pub pending_withdrawals: u64,
    /// The connections that were opened, those to sentinels included. Those of a
    /// [pool of the program's own](crate::ClientBuilder::pool) are not.
    pub connections: u64,
    /// How often a server went down: for a second, all attempts to open a connection failed, or led
    /// to a replica, and nothing else had an answer. A client that asks nobody notices neither the
    /// begin nor the end. Sentinels are not counted. A [pool of the program's
    /// own](crate::ClientBuilder::pool) connects by itself: only renewal and wake-ups notice such
    /// an outage then.
    pub outages: u64,
    /// How many servers are down now, as far as the client has noticed.
    pub unreachable: u64,
    /// The events that were dropped because the listener was too slow.
    pub dropped_events: u64,
}

/// The calls that got a lock, by [how](crate::How) they got it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grants {
    /// The server granted it when it was asked.
    pub asked: u64,
    /// The server handed it over when it was released: a direct hand-off.
    pub direct: u64,
    /// Another thread passed it on within the client: a local hand-off.
    pub local: u64,
    /// It is for reading, under a lease that the client had already.
    pub joined: u64,
}

impl Grants {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.asked + self.direct + self.local + self.joined
    }
}

impl Client {
    /// What this client has counted since it was made. Local: no round trip.
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// let client = distlock::Client::open("memory://")?;
    /// client.lock("a").with(|_| ())?;
    /// let stats = client.stats();
    /// assert_eq!((stats.grants.asked, stats.waits.count(), stats.lost), (1, 1, 0));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (context, servers) = (&self.open.context, &self.open.counters);
        let (counters, calls) = (&context.counters, &context.counters.calls);
        let granted = |how| calls.granted(how).get();
        let [waiting, held, pending_withdrawals, unreachable] = if context.is_forked() {
            // Its mutexes may stay locked for ever (R11).
            [0; 4]
        } else {
            let (held, pending) = (context.renewers.len(), context.cleaner.unanswered());
            [calls.waiting.count(), held, pending, servers.down.count()]
        }
        .map(|count| count as u64);
        Stats {
            attempts: counters.attempts.get(),
            grants: Grants {
                asked: granted(How::Asked),
                direct: granted(How::Direct),
                local: granted(How::Local),
                joined: granted(How::Joined),
            },
            refused: calls.refused.get(),
            failed: calls.failed.get(),
            waiting,
            waits: calls.waits.histogram(),
            held,
            holds: counters.holds.histogram(),
            lost: counters.lost.get(),
            unknown: counters.unknown.get(),
            abandoned: counters.abandoned.get(),
            late: counters.extends.histogram(),
            failed_extends: counters.failed_extends.get(),
            withdrawals: counters.withdrawals.get(),
            pending_withdrawals,
            connections: servers.connections.get(),
            outages: servers.outages.get(),
            unreachable,
            dropped_events: counters.events.as_ref().map_or(0, |events| events.dropped.get()),
        }
    }
}
