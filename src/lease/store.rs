//! `LeaseStore`: what a store of leases must do.

mod request;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::token::Token;
use crate::base::bell::{Bell, Fences};
use crate::base::error::{Error, ErrorKind};
use crate::base::key::Key;
use crate::base::options::{Confirm, LockOptions};
use crate::base::store_error::StoreError;
use crate::base::within::Within;
pub use request::{Ask, Extend, Notify, Place, Release, Withdraw};

/// The answer to an attempt. `asked_at` was read after check-out and connect, before the first byte
/// was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The lease is ours.
    Granted {
        /// What its validity counts from.
        asked_at: Instant,
        /// The fences that were reserved with it.
        fences: Option<Fences>,
    },
    /// Somebody else has the lease.
    Refused {
        /// What the validity of a hand-off to this attempt counts from.
        asked_at: Instant,
        /// How long the other lease lasts at most; `None`: no end is known.
        remaining: Option<Duration>,
        /// Whether a wake-up would reach the waiter now: the server that answered knows that the
        /// waiter listens. Otherwise the waiter has to poll.
        heard: bool,
    },
}

/// The answer to a waiter in a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InCondition {
    /// The waiter is in the condition; nobody has notified it.
    Waiting {
        /// As in [`Answer`].
        asked_at: Instant,
    },
    /// It was notified, and has the lock.
    Granted {
        /// As in [`Answer`].
        asked_at: Instant,
        /// As in [`Answer`].
        fences: Option<Fences>,
    },
    /// It was notified, and queues for the lock.
    Notified {
        /// As in [`Answer`].
        asked_at: Instant,
        /// As in [`Answer`].
        remaining: Option<Duration>,
        /// As in [`Answer`].
        heard: bool,
    },
    /// It was in the condition, and has left it.
    Left,
    /// It is not in the condition, not in the queue, and not the owner: its grant has run out, it
    /// was taken for dead, or the store has lost its data. It may have been notified.
    Nowhere,
    /// The lease that was to be released is not ours.
    NotOurs,
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// The lease was ours, and is released.
    Released,
    /// The lease was not ours: nothing was changed.
    NotOurs,
}

/// The lease that a store has under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The token under the key.
    pub token: Token,
    /// How long the lease lasts unless it is extended; `None`: for ever. With Redlock, how long it
    /// lasts on a majority at least: a node that answered may have missed an extend, while nodes
    /// that were not waited for have it.
    pub remaining: Option<Duration>,
}

/// What a store says about a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Who holds it: of several, the one whose lease ends first before the others.
    pub held: Vec<Held>,
    /// The largest fence that was reserved. `None`: none, or the store does not tell.
    pub fence: Option<u64>,
    /// The tokens of those that wait in the store's queue, the first one first.
    pub waiting: Vec<Token>,
}

/// What to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// The leases alone.
    Holders,
    /// Also who waits, and, of a fenced lock, the largest fence.
    All {
        /// Whether the lock is fenced.
        fenced: bool,
    },
}

/// A waiter that listens: wake-ups for its token ring its bell until this is dropped.
pub struct Listening {
    /// Where the store sends them.
    pub address: Arc<str>,
    /// Whether a place in the store's queue goes with it. Then a wake-up may be a grant, which may
    /// come late: the place has to be withdrawn in the end, and a waiter that is granted the lease
    /// goes on listening. Otherwise every wake-up is a hint.
    pub queues: bool,
    /// Ends the listening when dropped.
    #[allow(dead_code, reason = "it is there to be dropped")]
    pub until_dropped: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What a store can do that not every store can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// It wakes waiters, so a refused attempt listens, and may leave a place behind.
    pub wakes: bool,
    /// Locks have conditions: [`wait_in`](LeaseStore::wait_in) and [`notify`](LeaseStore::notify).
    pub conditions: bool,
    /// Each attempt needs a token of its own: what an attempt without a grant left behind is
    /// withdrawn at once, and that may arrive late, where it would delete a grant of the next
    /// attempt. Late copies of an attempt are the store's own affair: a withdrawal is over
    /// once it has an answer.
    pub one_shot_tokens: bool,
    /// What it grants and extends counts only once it is confirmed elsewhere. A hand-off is not
    /// confirmed: its waiter has to extend the lease before it has the lock (R24).
    pub confirm: Confirm,
    /// Its tokens have the form `uuid:number`, as those of Redisson have, with one UUID per client.
    /// The number is the thread's there, and fresh here (R3).
    pub numbered_tokens: bool,
}

/// A store of leases.
///
/// Every call ends by its deadline. A call that fails says whether the store may still have carried
/// it out; a failure is harmless only if it cannot have (R5).
pub trait LeaseStore: Send + Sync {
    /// Tries once to acquire.
    ///
    /// # Errors
    /// When there was no answer, or one that was neither a grant nor a refusal.
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError>;

    /// Extends many leases, each only if it is ours and never to an earlier end (R7). `Ok(false)`:
    /// not ours. An error means *unknown*, for that lease. Uses a connection of its own, so that no
    /// exhausted pool delays it (R9).
    fn extend(&self, leases: &[Extend<'_>], within: Within) -> Vec<Result<bool, StoreError>>;

    /// As [`extend`](Self::extend), for one lease, over a pooled connection.
    ///
    /// # Errors
    /// Unknown: it may have been extended or not.
    fn extend_one(&self, lease: &Extend<'_>, deadline: Instant) -> Result<bool, StoreError>;

    /// Deletes the lease if it is ours (R10), and hands the lock on to the first waiter if the
    /// store has a queue.
    ///
    /// # Errors
    /// Unknown: it may have been released or not.
    fn release(&self, what: &Release<'_>, deadline: Instant) -> Result<Gone, StoreError>;

    /// Undoes what attempts with these tokens may have done: leaves the condition and the queue,
    /// and releases. A waiter's notification passes on to another waiter. May be repeated. An error
    /// means *unknown*, for that token.
    fn withdraw(&self, what: &[Withdraw<'_>], deadline: Instant) -> Vec<Result<Gone, StoreError>>;

    /// Withdraws one.
    ///
    /// # Errors
    /// Unknown: it may have been withdrawn or not.
    fn withdraw_one(&self, what: Withdraw<'_>, deadline: Instant) -> Result<Gone, StoreError> {
        let missing = || {
            StoreError::not_sent(ErrorKind::Unavailable, "no answer to a withdrawal").maybe_run()
        };
        self.withdraw(&[what], deadline).pop().unwrap_or_else(|| Err(missing()))
    }

    /// Exchanges the token of a lease for another, whose lease lasts so long, in one step and
    /// without a gap (R28). `false`: the lease was not ours. The same when repeated.
    ///
    /// # Errors
    /// Unknown: they may have been exchanged or not.
    fn exchange(
        &self,
        what: &Release<'_>,
        token: &Token,
        lease: Duration,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let _ = (what, token, lease, deadline);
        Err(StoreError::without_exchange())
    }

    /// Lets wake-ups for this token ring `bell` until the returned value is dropped. `None`: this
    /// store cannot wake anybody, so the waiter polls.
    fn listen(&self, key: &Key, token: &Token, bell: &Arc<Bell>) -> Option<Listening>;

    /// The number of the shard that has this key, where a store has shards that fail apart.
    /// Leases of different shards are extended by different threads (R9). 0 if the store has no
    /// shards, or does not know. It may change when keys move, or a server is replaced.
    fn shard(&self, key: &Key) -> u16 {
        let _ = key;
        0
    }

    /// What this store can do that not every store can. Never changes.
    fn abilities(&self) -> Abilities;

    /// Enters a condition and releases the lease of `release` in one step, or keeps the place in
    /// the condition. With `leave`, leaves the condition instead; a waiter that was notified before
    /// is told so. The `place` of `ask` is required.
    ///
    /// # Errors
    /// Unknown: it may have been carried out or not. Asking again with the same arguments finds
    /// out.
    fn wait_in(
        &self,
        ask: &Ask<'_>,
        condition: &str,
        release: Option<&Release<'_>>,
        leave: bool,
    ) -> Result<InCondition, StoreError> {
        let _ = (ask, condition, release, leave);
        Err(StoreError::without_conditions())
    }

    /// Notifies waiters of a condition, if the lease is ours. `None`: it is not.
    ///
    /// # Errors
    /// Unknown: they may have been notified or not. Repeating it may notify others, too.
    fn notify(&self, what: &Notify<'_>, deadline: Instant) -> Result<Option<u64>, StoreError> {
        let _ = (what, deadline);
        Err(StoreError::without_conditions())
    }

    /// Who holds the lock, and who waits for it.
    ///
    /// # Errors
    /// When there was no answer, or foreign data under the key.
    fn inspect(&self, key: &Key, look: Look, deadline: Instant) -> Result<State, StoreError>;

    /// Deletes the leases of all holders, and hands the lock on. `share`: what stands in front of
    /// their tokens' UUIDs; those of the other side of a read-write lock stay. `false`: there was
    /// no lease.
    ///
    /// # Errors
    /// Unknown: they may have been deleted or not.
    fn force_release(&self, key: &Key, share: &str, deadline: Instant) -> Result<bool, StoreError>;

    /// Checks that this store can do what the options ask for.
    ///
    /// # Errors
    /// `Unsupported`.
    fn supports(&self, options: &LockOptions) -> Result<(), Error>;
}

impl StoreError {
    /// A release that was not sent, because its lease ended first.
    pub(crate) fn ended() -> Self {
        Self::not_sent(ErrorKind::Lost, "the lease ended before its release was sent").permanent()
    }

    /// The key, or a companion of it, is somebody else's data.
    pub(crate) fn foreign() -> Self {
        Self::not_sent(ErrorKind::WrongType, "the key holds data of another type").permanent()
    }

    pub(crate) fn without_exchange() -> Self {
        Self::not_sent(ErrorKind::Unsupported, "leases of this store or layout stay as they are")
            .permanent()
    }

    pub(crate) fn without_conditions() -> Self {
        Self::not_sent(ErrorKind::Unsupported, "locks of this store or layout have no conditions")
            .permanent()
    }
}
