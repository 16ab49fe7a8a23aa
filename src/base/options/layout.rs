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
    /// write it: `redisson.getLock(name)` and this lock exclude each other, and a release on either
    /// side wakes the waiters of the other.
    ///
    /// Fences come from `RFencedLock`'s own counter. There is no queue on the server: the first to
    /// ask after a release gets the lock. Acquire, extend and release are one round trip each; a
    /// contended wait costs up to three more. [Layouts](crate::guide::layouts) has the details.
    Redisson,
    /// A string key that holds the deadline in epoch milliseconds. Once it has passed, old clients
    /// take the lock over with `GETSET`. For fleets in which such code still runs; move to
    /// [`Plain`](Layout::Plain) when the last such client is gone.
    ///
    /// Against old clients the promise of this crate does **not** hold in full:
    /// [layouts](crate::guide::layouts) says why. No wake-ups, no queue, no
    /// [fences](crate::LockOptions::fenced) and no [`owner`](crate::LockOptions::owner). Acquire,
    /// extend and release are one round trip each.
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
