//! How a lock behaves: lease, renewal, retry, layout, and what else can be chosen.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::error::{Error, Result};

const SHORTEST_LEASE: Duration = Duration::from_millis(100);
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
const LONGEST_OWNER: usize = 1024;
const MOST_HAND_OFFS: u32 = 1_000_000;

/// Whether, and how often, the background extends a lease that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Renewal {
    /// Every third of the lease until the lock is unlocked. The default.
    #[default]
    UntilUnlock,
    /// Never: the lease runs out, and is reported as lost, unless it is unlocked or extended
    /// before.
    Never,
    /// At most this many times; then as [`Never`](Renewal::Never). Only an extend that the server
    /// has confirmed counts: one without an answer, which may have run all the same, is tried
    /// again, so the lease can end a little later than after `n` extends, never earlier.
    AtMost(u32),
}

/// How a lease is written in Redis: which other programs take it for a lock of theirs.
///
/// Processes that share a lock must use the same layout. A key that another layout has written is
/// foreign data here: the call fails with [`is_wrong_type`](Error::is_wrong_type), or, where both
/// layouts write a string and nothing tells them apart, the lock looks held by another. Other
/// layouts than `Plain` are for one server, neither for `memory://` nor for a quorum, and have no
/// conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Layout {
    /// A string key that holds the token: `SET key token NX PX lease`. The default; what Jedis,
    /// redis-py and redsync write.
    #[default]
    Plain,
    /// A hash of one field, the owner `<uuid>:<number>`, as Redisson's `RLock` and `RFencedLock`
    /// write it.
    ///
    /// Shared with Java: `redisson.getLock(name)` excludes us, is excluded, wakes our waiters by
    /// its release and is woken by ours. The key is the client's prefix and the name; on the Java
    /// side a `NameMapper` gives the same.
    ///
    /// - **Owner.** Both parts are fresh for every acquisition, unlike Redisson's, where each hold
    ///   of a thread looks like the one before. Holds are counted in this process: the count in
    ///   Redis is always 1. An [`owner`](LockOptions::owner) is written as it is given.
    /// - **Waiting.** There is no queue on the server: whoever asks first after a release has the
    ///   lock, as among Redisson's clients. One waiter per lock and client is woken by the message;
    ///   without a message (the holder's process died, the subscription was lost) it asks again
    ///   when the lease in the way has run out, and at least every 1.5 s. With [`Queue::None`] or
    ///   an `owner` nobody is woken here, and the lock is polled.
    /// - **Local hand-offs.** They publish nothing. Where Java must not wait behind a run of our
    ///   threads, set [`local_hand_offs(0)`](LockOptions::local_hand_offs).
    /// - **Fences** come from `RFencedLock`'s own counter `redisson_lock_token:{name}`, and grow in
    ///   common with Java's tokens. Ours never lag behind the server's clock in microseconds, so
    ///   Java sees tokens of 16 digits from the first of ours on. The counter has no time to live,
    ///   because Redisson's has none: if it ended, Java would begin at 1 again and be refused by
    ///   every resource that had seen more. So one small key stays per fenced lock name. If the
    ///   counter is lost, our next fence is larger all the same, while Java's tokens begin at 1
    ///   until then.
    /// - **Not promised.** What Redisson does not promise: a Java thread whose unlock is sent late
    ///   may free its own next hold; nothing waits for replicas.
    ///
    /// Acquire, extend and release are one round trip each. A contended wait costs up to three
    /// more: it subscribes, asks once again when the subscription stands, and asks when it is
    /// woken.
    ///
    /// What a user with an ACL needs stands in the [guide](crate::guide::security). Without
    /// `SUBSCRIBE` or the channels to hear, waiters ask every 1.5 s at the latest.
    Redisson,
    /// A string key that holds the deadline in epoch milliseconds, taken over with `GETSET` once it
    /// has passed: the oldest form, with the oldest hazards.
    ///
    /// For fleets in which such code still runs: `SETNX key deadline`; if that fails, `GET`; if the
    /// deadline has passed, `GETSET` and compare what it gave back with what was read; release by
    /// `DEL`, only inside the own deadline. Our side asks and takes over in one script, by the
    /// server's clock. Move to [`Plain`](Layout::Plain) when the last such client is gone.
    ///
    /// Against old clients the promise of this crate does **not** hold in full:
    ///
    /// - **Clocks.** Old clients write and judge deadlines by their own clocks, we by the server's,
    ///   so all of them must agree. An old client whose clock is ahead takes over while we still
    ///   hold; from one whose clock is behind we take over while it still works. What is forgiven
    ///   is what a lease's validity here is shorter than the lease: 1 % and 2 ms.
    /// - **False loss.** An old client that read a passed deadline and is overtaken by us
    ///   overwrites our deadline with its own `GETSET` all the same. It then knows that it lost,
    ///   but our lease is gone: reported as lost at the next extend or `unlock`, and the lock is
    ///   nobody's until that deadline has passed. If its lease is shorter than ours, others may
    ///   take over before we know: use the same lease on both sides, and renewal.
    /// - **Strangers.** A `DEL` of an old client is not compared with anything: one that was
    ///   overtaken without knowing deletes our lease.
    ///
    /// Among this crate's own processes all rules hold: a companion key `{name}:owner` says which
    /// token wrote the deadline, so a late or repeated command of one lease never touches
    /// another's, even with equal deadlines. Both keys end with the deadline, by Redis itself: an
    /// old client then finds no key and has it by `SETNX`, where a passed deadline left behind
    /// would have invited several of them to the race above. Old code that cannot take a nil from
    /// its `GET` fails here as it does after every release.
    ///
    /// No wake-ups and no queue: waiters poll. Neither [`fenced`](LockOptions::fenced) nor
    /// [`owner`](LockOptions::owner). A string that is not a number of at least 13 digits is
    /// foreign data. [`inspect`](crate::RedisLock::inspect) gives the deadline itself for the token
    /// of an old client. Acquire, extend and release are one round trip each.
    ///
    /// What a user with an ACL needs stands in the [guide](crate::guide::security).
    Timestamp,
}

/// Whether waiting processes queue on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Queue {
    /// First come, first served among waiting processes; a release hands the lock to the first. The
    /// default.
    #[default]
    Fifo,
    /// No queue: every process asks again and again, and whoever asks first after a release has the
    /// lock. For locks shared with clients of other libraries, which would starve beside processes
    /// that hand the lock on without a gap.
    None,
}

/// The pause between two attempts, and how many attempts there are.
///
/// Without one, a waiter that is woken by the server asks again about once a second, and one that
/// is not woken every 20 to 80 ms. A pause is never longer than the rest of the lease that is in
/// the way. Of the threads of one client that wait for a lock only the first asks, for all of them:
/// a long pause of its own is theirs, too, and a `try_lock` that ends meanwhile is told what that
/// one heard last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
    pub(crate) attempts: Option<u32>,
}

impl Retry {
    /// A pause drawn anew between `min` and `max` each time, so that waiters do not ask in step. At
    /// least 1 ms.
    #[must_use]
    pub fn jittered(min: Duration, max: Duration) -> Self {
        Self { min, max, attempts: None }
    }

    /// Always the same pause. At least 1 ms.
    #[must_use]
    pub fn fixed(pause: Duration) -> Self {
        Self::jittered(pause, pause)
    }

    /// Gives up after `n` attempts: `lock` then ends with [`is_exhausted`](Error::is_exhausted),
    /// `try_lock` with `Ok(false)`. A thread that waits behind another thread of its process uses
    /// up one attempt per pause, too. A wake-up that comes before the pause is over makes it ask
    /// once more than that.
    #[must_use]
    pub fn attempts(mut self, n: u32) -> Self {
        self.attempts = Some(n);
        self
    }
}

/// The settings of a lock. Start from [`LockOptions::new`], which has every default, and change
/// what is needed.
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
    pub(crate) fenced: bool,
    pub(crate) local_hand_offs: u32,
    pub(crate) queue: Queue,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            renewal: Renewal::default(),
            retry: None,
            layout: Layout::default(),
            owner: None,
            fenced: false,
            local_hand_offs: 16,
            queue: Queue::default(),
        }
    }
}

impl LockOptions {
    /// Every setting at its default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long ownership lasts unless it is extended: how soon the lock of a dead process is free.
    /// Default 30 s; 100 ms to 24 h; what is finer than a millisecond is cut off.
    ///
    /// The lease may be shorter than the command timeout; a grant that is answered after it has run
    /// out is not a grant.
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

    /// The caller's own value under the key instead of a fresh token for every acquisition. 1 to
    /// 1024 bytes.
    ///
    /// For programs that must see their own value there. It costs safety: a late command of one
    /// hold cannot be told from a later hold with the same value, so two processes must never use
    /// the same value, and one process not for two holds that overlap an outage. Another thread is
    /// refused even though the value is the same, and an attempt that finds the value already there
    /// is believed only after an unanswered attempt of the same call. What one hold of this client
    /// has left behind is never withdrawn beside its next hold of the same value; and after a
    /// release without an answer the value is not used again until that release cannot arrive any
    /// more: `lock` waits, for about ten seconds after the server's next answer, or fails by
    /// `max_outage` if that is shorter, and `try_lock` is `Unavailable`. There is no server queue
    /// for such locks. Refused with [`Layout::Timestamp`].
    #[must_use]
    pub fn owner(mut self, value: impl Into<String>) -> Self {
        self.owner = Some(value.into().into());
        self
    }

    /// Gives every acquisition a fence: a number that grows with each. The protected resource
    /// refuses an older one than it has seen.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// How many times in a row a lease may pass from thread to thread of this process without
    /// asking the server. Default 16; 0 turns it off; at most 1,000,000. Only leases with
    /// [`Renewal::UntilUnlock`] are passed on. A fenced lock needs a fence for each, which never
    /// run ahead of the server's clock: it passes on at most 1,023 times, and less often if it was
    /// acquired less than as many microseconds ago.
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

    /// Refuses what cannot work (R18).
    pub(crate) fn check(&self) -> Result<()> {
        check_lease(self.lease)?;
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
        if let Some(owner) = &self.owner {
            if owner.is_empty() || owner.len() > LONGEST_OWNER {
                return Err(Error::invalid("the owner must have 1 to 1024 bytes"));
            }
            if self.layout == Layout::Timestamp {
                return Err(Error::invalid(
                    "the timestamp layout holds a deadline and has no place for an owner",
                ));
            }
        }
        if self.fenced && self.layout == Layout::Timestamp {
            return Err(Error::unsupported(
                "the timestamp layout has no fences: its old clients do not use them",
            ));
        }
        Ok(())
    }

    /// How many local hand-offs one acquisition may serve.
    pub(crate) fn hand_offs(&self) -> u32 {
        // A lease that is not renewed was promised whole to the thread that acquired it, and an
        // owner's value to one hold.
        if self.renewal == Renewal::UntilUnlock && self.owner.is_none() {
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

/// Redis counts leases in milliseconds: the finer part would be validity that the server does not
/// know of.
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
            .field("fenced", &self.fenced)
            .field("local_hand_offs", &self.local_hand_offs)
            .field("queue", &self.queue)
            .finish()
    }
}
