//! What the server knows about a lock of any holder, and the operator's forced release.

use std::fmt;
use std::time::Duration;

use super::RedisLock;
use crate::base::error::Result;
use crate::base::options::Share;
use crate::base::store_error::StoreError;
use crate::lease::store::Held;

/// Who holds a lock, or permits of a semaphore, as the server sees it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The token under the key; what is not UTF-8 in it is replaced. It is all that a release
    /// needs, so `Debug` does not show it.
    pub token: String,
    /// How many permits of a semaphore it has; 1 for a lock.
    pub permits: u32,
    /// How long the lease lasts unless it is extended; `None`: for ever. With Redlock, how long it
    /// lasts on a majority at least: a node that answered may have missed an extend, while nodes
    /// that were not waited for have it.
    pub remaining: Option<Duration>,
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("token", &"…")
            .field("permits", &self.permits)
            .field("remaining", &self.remaining)
            .finish()
    }
}

impl RedisLock {
    /// Whether anybody holds the lock, by the server's answer. One round trip; the answer may
    /// already be out of date.
    ///
    /// # Errors
    /// `Unavailable`, `Denied`, `WrongType`, `Server`: it is unknown whether the lock is held.
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.inspect()?.is_some())
    }

    /// Who holds the lock, by the server's answer. One round trip.
    ///
    /// # Errors
    /// As [`is_locked`](Self::is_locked).
    pub fn inspect(&self) -> Result<Option<Holder>> {
        Ok(self.holders()?.pop())
    }

    /// Who holds it: of several, the one whose lease ends first before the others.
    pub(in crate::lock) fn holders(&self) -> Result<Vec<Holder>> {
        self.check_usable()?;
        let held = self.store.inspect(&self.shared.key, self.context().command_deadline());
        let held = held.map_err(|error| self.failed(error))?;
        held.into_iter().filter_map(|held| self.holder(&held).transpose()).collect()
    }

    /// `None`: it holds the other side of a read-write lock.
    fn holder(&self, held: &Held) -> Result<Option<Holder>> {
        let ours = self.options.share;
        let share = match ours {
            Share::Whole => Some(ours),
            _ => Share::in_token(held.token.as_bytes()),
        };
        let share = share.filter(|share| share.is_of_one_kind_with(ours));
        let share = share.ok_or_else(|| self.failed(StoreError::foreign()))?;
        let is_other_side = matches!(share, Share::Side(_)) && share != ours;
        Ok((!is_other_side).then(|| Holder {
            token: held.token.text(),
            permits: share.permits(),
            remaining: held.remaining,
        }))
    }

    /// Releases the lock of any holder, and hands it on if somebody waits. `false`: nobody held it.
    /// One round trip over a connection that is opened for it: the release must not be sent twice.
    /// On a quorum three: it asks who holds the lock, releases it, and asks again.
    ///
    /// For operators: the holder goes on working until it notices the loss, and a waiting process
    /// does not wait for that.
    ///
    /// # Errors
    /// `Unknown`: no answer; the lock may still be held on the server. `Unavailable`, `Denied`,
    /// `WrongType`, `Server`: nothing was changed.
    pub fn force_unlock(&self) -> Result<bool> {
        self.check_usable()?;
        let (share, deadline) = (self.options.share.to_string(), self.context().command_deadline());
        self.store.force_release(&self.shared.key, &share, deadline).map_err(|error| {
            if error.may_have_run {
                self.unknown(
                    "the forced release had no answer: it may have been carried out",
                    error,
                )
            } else {
                self.failed(error)
            }
        })
    }
}
