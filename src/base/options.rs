//! How a lock behaves: lease, renewal, retry, layout and the other settings.

mod layout;
mod retry;
mod share;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::error::{Error, Result};
pub use layout::Layout;
pub use retry::Retry;
pub(crate) use share::Share;
pub use share::Side;

const SHORTEST_LEASE: Duration = Duration::from_millis(100);
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
const LONGEST_KEPT: Duration = LONGEST_LEASE;
const LONGEST_OWNER: usize = 1024;
const MOST_HAND_OFFS: u32 = 1_000_000;

/// Whether, and how often, the background extends a lease that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Renewal {
    /// Every third of the lease until the lock is unlocked. The default.
    #[default]
    UntilUnlock,
    /// Never: the lease runs out, and is reported as lost, unless it is unlocked or extended
    /// before.
    Never,
    /// At most this many times; then as [`Never`](Renewal::Never). Only an extend that the server
    /// has confirmed counts. An extend without an answer may have run, and is tried again. So the
    /// lease can end a little later than after `n` extends, never earlier.
    AtMost(u32),
}

/// Whether waiting processes queue on the server. Written and read as `fifo` and `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Queue {
    /// First come, first served among waiting processes; a release hands the lock to the first. The
    /// default.
    #[default]
    Fifo,
    /// No queue: every process polls, and the first to ask after a release gets the lock. Use it
    /// for locks of the plain layout shared with clients of other libraries: they would starve
    /// beside processes that hand the lock on without a gap.
    None,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fifo => "fifo",
            Self::None => "none",
        })
    }
}

impl FromStr for Queue {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Fifo, Self::None]
            .into_iter()
            .find(|queue| queue.to_string() == text)
            .ok_or_else(|| Error::invalid("a queue is fifo or none"))
    }
}

/// The settings of a lock, a read-write lock or a semaphore. Start from [`LockOptions::new`], which
/// has every default, and change what is needed.
///
/// ```
/// # fn main() -> Result<(), distlock::Error> {
/// use distlock::{Client, LockOptions, Renewal};
/// use std::time::Duration;
///
/// let client = Client::open("memory://")?;
/// let ten_seconds = LockOptions::new().lease(Duration::from_secs(10));
/// let options = ten_seconds.renewal(Renewal::AtMost(4)).fenced();
/// let lock = client.lock_with("orders:42", options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct LockOptions {
    pub(crate) lease: Duration,
    pub(crate) renewal: Renewal,
    pub(crate) retry: Option<Retry>,
    pub(crate) layout: Layout,
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) at_least: Duration,
    pub(crate) fenced: bool,
    pub(crate) local_hand_offs: u32,
    pub(crate) queue: Queue,
    pub(crate) confirm: Confirm,
    /// What each lease takes.
    pub(crate) share: Share,
}

/// How leases are written: in which layout, and whether they have shares.
pub(crate) type Written = (Layout, bool);

/// What must have a lease before it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Confirm {
    /// How many replicas must confirm.
    pub(crate) replicas: u32,
    /// Whether the server's own disk must.
    pub(crate) fsynced: bool,
}

impl Confirm {
    pub(crate) const NOTHING: Self = Self { replicas: 0, fsynced: false };

    pub(crate) fn is_wanted(self) -> bool {
        self != Self::NOTHING
    }
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            renewal: Renewal::default(),
            retry: None,
            layout: Layout::default(),
            owner: None,
            at_least: Duration::ZERO,
            fenced: false,
            local_hand_offs: 16,
            queue: Queue::default(),
            confirm: Confirm::default(),
            share: Share::default(),
        }
    }
}

impl LockOptions {
    /// Every setting at its default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long ownership lasts unless it is extended. After this time the lock of a dead process
    /// is free. Default 30 s; 100 ms to 24 h; rounded down to whole milliseconds.
    ///
    /// The lease may be shorter than the command timeout; a grant whose answer comes after the
    /// lease has run out does not count.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = whole_millis(lease);
        self
    }

    /// Whether the background extends the lease. Default [`Renewal::UntilUnlock`].
    #[must_use]
    pub fn renewal(mut self, renewal: Renewal) -> Self {
        self.renewal = renewal;
        self
    }

    /// The pause between attempts. For the default see [`Retry`].
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// How the lease is written in Redis. Default [`Layout::Plain`].
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// The caller's own value under the key instead of a fresh token for every acquisition, for
    /// programs that must see their own value there. 1 to 1024 bytes. Default: none.
    ///
    /// It costs safety: a late command of one hold looks like a command of a later hold with the
    /// same value. Two processes must never use the same value. After a release without an answer
    /// the value rests for about ten seconds: `lock` waits that long, and `try_lock` fails with
    /// `Unavailable`. Such locks do not queue on the server, and do not pass from thread to thread.
    /// `Unsupported` on a quorum, `InvalidInput` with [`Layout::Timestamp`].
    /// [Layouts](crate::guide::layouts) has the details.
    #[must_use]
    pub fn owner(mut self, value: impl Into<String>) -> Self {
        self.owner = Some(value.into().into());
        self
    }

    /// The least time for which the lock stays taken, from when the caller gets it. An unlock
    /// before that succeeds, and the caller holds nothing any more; the server keeps the lock until
    /// the time is over. For jobs that several instances start, and one of them shall run:
    /// [`run_once`](crate::RedisLock::run_once). Default: zero; at most 24 h. ShedLock calls it
    /// `lockAtLeastFor`.
    ///
    /// It may be longer than the lease. If the process dies before the unlock, the lock is free
    /// after one lease, as always; after the unlock the process does not matter. The unlock tells
    /// the first waiter how long the lock is kept; another learns it when it asks next.
    /// [`inspect`](crate::RedisLock::inspect) shows that a lock is kept, and
    /// [`force_unlock`](crate::RedisLock::force_unlock) frees it at once.
    ///
    /// Such a lock does not pass from thread to thread without asking the server, and has no
    /// conditions. `InvalidInput` with an [`owner`](LockOptions::owner), and for a read-write lock
    /// or a semaphore; `Unsupported` on a quorum and with [`Layout::Timestamp`].
    #[must_use]
    pub fn at_least(mut self, time: Duration) -> Self {
        self.at_least = time;
        self
    }

    /// Gives every acquisition a fence: a number that grows with each acquisition. The protected
    /// resource refuses a fence that is older than the newest it has seen;
    /// [`RwLock`](crate::RwLock) and [`Semaphore`](crate::Semaphore) say what is different for
    /// them. Default: none. No round trip more. `Unsupported` on a quorum and with
    /// [`Layout::Timestamp`].
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// How many times in a row a lease may pass from thread to thread of this process without
    /// asking the server, and how many may join the lease of a reader of an
    /// [`RwLock`](crate::RwLock) in its first 2 ms. Default 16; 0 turns it off; at most 1,000,000.
    /// Only leases with [`Renewal::UntilUnlock`], and without an [`owner`](LockOptions::owner) and
    /// [`at_least`](LockOptions::at_least), are passed on. A fenced lock needs a fence for each
    /// hand-off, and fences never run ahead of the server's clock: it passes on at most 1,023
    /// times, and fewer times if its last acquisition was fewer microseconds ago.
    #[must_use]
    pub fn local_hand_offs(mut self, times: u32) -> Self {
        self.local_hand_offs = times;
        self
    }

    /// Whether waiting processes queue on the server. Default [`Queue::Fifo`].
    #[must_use]
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queue = queue;
        self
    }

    /// How many replicas must confirm a lock before it counts as acquired, or its lease as
    /// extended. Default 0.
    ///
    /// With as many as there are, [no single failover loses the lock](crate::guide::guarantees);
    /// while one of them is away, nothing is granted, and `lock` goes on as in an outage until it
    /// fails with `Unavailable`. With fewer, a replica that had not confirmed may be promoted.
    ///
    /// Redis's `WAIT` goes along in the packet that acquires: no round trip more, except for a lock
    /// that is handed over. An acquisition waits for a tenth of the lease at most, and no longer
    /// than the command timeout. `Unsupported` on a quorum and on `memory://`.
    /// [Internals](crate::guide::internals) says, under *Confirmations*, what they cost other
    /// locks.
    #[must_use]
    pub fn replicas(mut self, count: u32) -> Self {
        self.confirm.replicas = count;
        self
    }

    /// As [`replicas`](LockOptions::replicas), for the server's own append-only file: a lock counts
    /// only once the server has written it to its disk. With `replicas`, both.
    ///
    /// Asked by `WAITAOF`, from Redis 7.2 on. A server that does not have it, or writes no such
    /// file, is `Unsupported`, which the first call says.
    #[must_use]
    pub fn fsynced(mut self) -> Self {
        self.confirm.fsynced = true;
        self
    }

    /// Refuses settings that cannot work (R18).
    pub(crate) fn check(&self) -> Result<()> {
        check_lease(self.lease)?;
        self.share.check()?;
        if let Some(retry) = &self.retry {
            if retry.min < Duration::from_millis(1) || retry.max < retry.min {
                return Err(Error::invalid(
                    "the pause must be at least 1 ms, and its maximum not below its minimum",
                ));
            }
            if retry.attempts == Some(0) {
                return Err(Error::invalid("there must be at least one attempt"));
            }
        }
        if self.local_hand_offs > MOST_HAND_OFFS {
            return Err(Error::invalid("local_hand_offs must be at most 1,000,000"));
        }
        if self.at_least > LONGEST_KEPT {
            return Err(Error::invalid("at_least must be at most 24 h"));
        }
        if self.has_at_least() && (self.owner.is_some() || !self.share.is_whole()) {
            return Err(Error::invalid(
                "at_least is for locks without an owner, and not for a semaphore or a read-write \
                 lock",
            ));
        }
        if self.owner.is_some() && !self.share.is_whole() {
            return Err(Error::invalid(
                "a semaphore or a read-write lock cannot have an owner's value under the key",
            ));
        }
        if let Some(owner) = &self.owner
            && (owner.is_empty() || owner.len() > LONGEST_OWNER)
        {
            return Err(Error::invalid("the owner must have 1 to 1024 bytes"));
        }
        Ok(())
    }

    /// Whether an unlock may leave the lock kept.
    pub(crate) fn has_at_least(&self) -> bool {
        !self.at_least.is_zero()
    }

    /// How the leases are written.
    pub(crate) fn written(&self) -> Written {
        (self.layout, !self.share.is_whole())
    }

    /// How many local hand-offs one acquisition may serve.
    pub(crate) fn hand_offs(&self) -> u32 {
        // A lease without renewal was promised whole to the thread that acquired it, and a caller's
        // own value to one hold. Permits go back to the server, which has the order. A lock that is
        // kept for a while is kept from these threads, too.
        if self.renewal == Renewal::UntilUnlock
            && self.owner.is_none()
            && self.share.has_turns()
            && !self.has_at_least()
        {
            self.local_hand_offs
        } else {
            0
        }
    }
}

/// The bounds of a lease, also of one that is set later by `extend` (R18).
pub(crate) fn check_lease(lease: Duration) -> Result<()> {
    if lease < SHORTEST_LEASE || lease > LONGEST_LEASE {
        return Err(Error::invalid("a lease must be between 100 ms and 24 h"));
    }
    Ok(())
}

/// Redis counts leases in milliseconds: a fraction of one would be validity that the server does
/// not know of.
pub(crate) fn whole_millis(length: Duration) -> Duration {
    Duration::from_millis(u64::try_from(length.as_millis()).unwrap_or(u64::MAX))
}

impl fmt::Debug for LockOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockOptions")
            .field("lease", &self.lease)
            .field("renewal", &self.renewal)
            .field("retry", &self.retry)
            .field("layout", &self.layout)
            .field("owner", &self.owner.as_ref().map(|_| "…"))
            .field("at_least", &self.at_least)
            .field("fenced", &self.fenced)
            .field("local_hand_offs", &self.local_hand_offs)
            .field("queue", &self.queue)
            .field("replicas", &self.confirm.replicas)
            .field("fsynced", &self.confirm.fsynced)
            .finish()
    }
}
