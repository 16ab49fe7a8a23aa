//! `Layout`: how a lock is written in Redis.

use std::fmt;
use std::str::FromStr;

use crate::base::error::{Error, Result};

/// How a lease is written in Redis, and so which other programs see it as a lock of their own.
/// Written and read as `plain`, `redisson` and `timestamp`.
///
/// Processes that share a lock must use the same layout. A key that another layout has written is
/// foreign data here: the call fails with [`is_wrong_type`](crate::Error::is_wrong_type). If both
/// layouts write a string and nothing tells them apart, the lock looks held by another. Layouts
/// other than `Plain` need one server, not `memory://` or a quorum, and have no conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Layout {
    /// A string key that holds the token: `SET key token NX PX lease`. The default. Jedis, redis-py
    /// and redsync write the same.
    #[default]
    Plain,
    /// A hash of one field, the owner `<uuid>:<number>`, as Redisson's `RLock` and `RFencedLock`
    /// write it.
    ///
    /// Shared with Java: `redisson.getLock(name)` and this lock exclude each other, and a release
    /// on either side wakes the waiters of the other. The key is the client's prefix and the name;
    /// on the Java side a `NameMapper` gives the same key.
    ///
    /// - **Owner.** Both parts are fresh for every acquisition. In Redisson each hold of a thread
    ///   looks like its last hold. Holds are counted in this process, and the count in Redis is
    ///   always 1. An [`owner`](crate::LockOptions::owner) is written as it is given.
    /// - **Waiting.** There is no queue on the server: the first to ask after a release gets the
    ///   lock, as among Redisson's clients. The message wakes one waiter per lock and client.
    ///   Without a message (the holder's process died, the subscription was lost) that waiter asks
    ///   again when the present lease has run out, and at least every 1.5 s. With
    ///   [`Queue::None`](crate::Queue::None) or an `owner` nobody is woken here, and waiters poll.
    /// - **Local hand-offs.** They publish nothing. If Java must not wait behind a run of our
    ///   threads, set [`local_hand_offs(0)`](crate::LockOptions::local_hand_offs).
    /// - **Fences** come from `RFencedLock`'s own counter `redisson_lock_token:{name}`, and grow
    ///   together with Java's tokens. Our fences are never below the server's clock in
    ///   microseconds, so Java's tokens have 16 digits after our first fence. The counter has no
    ///   time to live, because Redisson's has none: if it expired, Java would begin at 1 again, and
    ///   every resource that had seen a larger token would refuse it. So one small key stays per
    ///   fenced lock name. If the counter is lost, our next fence is still larger, but Java's
    ///   tokens begin at 1 until then.
    /// - **Not promised.** As in Redisson: a Java thread whose unlock is sent late may free its own
    ///   next hold; nothing waits for replicas.
    ///
    /// Acquire, extend and release are one round trip each. A contended wait costs up to three
    /// more: it subscribes, asks again once it is subscribed, and asks again when it is woken.
    ///
    /// The [guide](crate::guide::security) lists the permissions that a user with an ACL needs.
    /// Without `SUBSCRIBE` or access to the channels, waiters ask every 1.5 s at the latest.
    Redisson,
    /// A string key that holds the deadline in epoch milliseconds. Once the deadline has passed,
    /// old clients take the lock over with `GETSET`. It is the oldest form, with the oldest
    /// hazards.
    ///
    /// For fleets in which such code still runs: `SETNX key deadline`; if that fails, `GET`; if the
    /// deadline has passed, `GETSET` and compare its reply with the value that was read; release by
    /// `DEL`, only before the client's own deadline. Our side asks and takes over in one script, by
    /// the server's clock. Move to [`Plain`](Layout::Plain) when the last such client is gone.
    ///
    /// Against old clients the promise of this crate does **not** hold in full:
    ///
    /// - **Clocks.** Old clients write and judge deadlines by their own clocks, we by the server's,
    ///   so all these clocks must agree. An old client whose clock is ahead takes over while we
    ///   still hold. From an old client whose clock is behind, we take over while it still works.
    ///   The tolerance is the difference between a lease and its validity here: 1 % and 2 ms.
    /// - **False loss.** An old client reads a passed deadline; then we take over. Its `GETSET`
    ///   still overwrites our deadline. The old client then knows that it lost, but our lease is
    ///   gone: it is reported as lost at the next extend or `unlock`, and nobody has the lock until
    ///   the old client's deadline has passed. If its lease is shorter than ours, others may take
    ///   over before we know: use the same lease on both sides, and renewal.
    /// - **Strangers.** An old client's `DEL` compares nothing: if it was overtaken without
    ///   knowing, it deletes our lease.
    ///
    /// Among this crate's own processes all rules hold: a companion key `{name}:owner` says which
    /// token wrote the deadline, so a late or repeated command of one lease never touches another
    /// lease, even with equal deadlines. Redis itself expires both keys at the deadline: an old
    /// client then finds no key and gets the lock by `SETNX`. A passed deadline left behind would
    /// lead several old clients into the race above. Old code that cannot handle a nil from its
    /// `GET` fails here as it does after every release.
    ///
    /// No wake-ups and no queue: waiters poll. [`fenced`](crate::LockOptions::fenced) and
    /// [`owner`](crate::LockOptions::owner) are refused. A string that is not a number of at least
    /// 13 digits is foreign data. [`inspect`](crate::RedisLock::inspect) shows an old client's
    /// deadline as its token. Acquire, extend and release are one round trip each.
    ///
    /// The [guide](crate::guide::security) lists the permissions that a user with an ACL needs.
    Timestamp,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Redisson => "redisson",
            Self::Timestamp => "timestamp",
        })
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Plain, Self::Redisson, Self::Timestamp]
            .into_iter()
            .find(|layout| layout.to_string() == text)
            .ok_or_else(|| Error::invalid("a layout is plain, redisson or timestamp"))
    }
}
