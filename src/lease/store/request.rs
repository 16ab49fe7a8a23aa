//! The requests to a store.

use std::fmt;
use std::time::{Duration, Instant};

use crate::base::key::Key;
use crate::base::store_error::StoreError;
use crate::lease::token::Token;

/// One attempt to acquire.
pub struct Ask<'a> {
    /// The lock.
    pub key: &'a Key,
    /// Who asks: the same token in every attempt of one acquisition, unless the store has one-shot
    /// tokens.
    pub token: &'a Token,
    /// The number of this attempt within its acquisition, from 1.
    pub attempt: u64,
    /// How long the lease shall last.
    pub lease: Duration,
    /// How many fences to reserve; 0: the lock is not fenced.
    pub fences: u32,
    /// A place in the store's queue, to be taken or kept if the answer is a refusal; `None`: do not
    /// queue.
    pub place: Option<Place<'a>>,
    /// Whether the lock was just seen contended: then asking in the simplest way first would waste
    /// a round trip.
    pub contended: bool,
    /// Whether a key that already holds this token may be taken for a grant of an earlier attempt
    /// (R4). `false` at a node of a quorum, and for a caller's own value (`owner`) if every attempt
    /// was answered: then it is somebody else's hold.
    pub may_be_mine: bool,
    /// The deadline for the answer.
    pub deadline: Instant,
}

/// What a waiter leaves in the queue, or in a condition.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// Begins to listen, unless it does already. Returns the address for hand-offs; `None`: the
    /// store cannot wake anybody.
    pub listen: &'a dyn Fn() -> Option<&'a str>,
    /// How long the waiter counts as alive without asking again.
    pub alive_for: Duration,
    /// The lease that a hand-off grants at first (R20).
    pub first_lease: Duration,
}

/// One lease to extend.
#[derive(Debug, Clone, Copy)]
pub struct Extend<'a> {
    /// The lock.
    pub key: &'a Key,
    /// Whose lease.
    pub token: &'a Token,
    /// How long it shall last from now.
    pub lease: Duration,
}

/// One lease to withdraw.
#[derive(Debug, Clone, Copy)]
pub struct Withdraw<'a> {
    /// The lock.
    pub key: &'a Key,
    /// Whose attempts, place and lease.
    pub token: &'a Token,
    /// As in [`Release`].
    pub keep: Option<Duration>,
}

impl<'a> Withdraw<'a> {
    /// These, whose lease ends now.
    #[must_use]
    pub fn of(key: &'a Key, token: &'a Token) -> Self {
        Self { key, token, keep: None }
    }
}

/// One lease to release.
#[derive(Clone, Copy)]
pub struct Release<'a> {
    /// The lock.
    pub key: &'a Key,
    /// Whose lease.
    pub token: &'a Token,
    /// For how long the lock is kept from everybody after that, under a token that nobody has: then
    /// a late extend of the lease finds nothing. A store that does not support it is not asked.
    pub keep: Option<Duration>,
    /// Called when there is a connection, before the first byte is sent, and again for every
    /// connection that is tried. `false`: the lease has ended meanwhile, so nothing is sent, and
    /// the call fails. Until the first call the lease is as before, and may be renewed (R9).
    pub may_be_sent: &'a dyn Fn() -> bool,
}

impl<'a> Release<'a> {
    /// For a lease that nobody renews.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn of(key: &'a Key, token: &'a Token) -> Self {
        Self { key, token, keep: None, may_be_sent: &|| true }
    }

    /// An error if the release may not be sent any more.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if (self.may_be_sent)() { Ok(()) } else { Err(StoreError::ended()) }
    }
}

impl fmt::Debug for Release<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Release").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Which waiters of a condition to notify.
#[derive(Debug, Clone, Copy)]
pub struct Notify<'a> {
    /// The lock.
    pub key: &'a Key,
    /// Who holds it.
    pub token: &'a Token,
    /// The condition's name.
    pub condition: &'a str,
    /// The most waiters to notify.
    pub most: u32,
}
