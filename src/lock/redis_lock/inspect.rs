//! What the server knows about a lock of any holder, and the operator's forced release.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::RedisLock;
use crate::base::error::Result;
use crate::base::options::{Share, Side};
use crate::base::store_error::StoreError;
use crate::lease::store::{Held, Look, State};
use crate::lease::token::Token;

/// What the server knows about a lock or a semaphore. The answer may already be out of date.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// Who holds it: of several, the one whose lease ends first before the others. Of a read-write
    /// lock, the holders of both sides.
    pub holders: Vec<Holder>,
    /// A number that no fence given out so far exceeds; `memory://` has one for all locks. `None`:
    /// no fence is known, or the handle that asks is not [fenced](crate::LockOptions::fenced).
    pub fence: Option<u64>,
    /// Who has a place in the server's queue, the next one first. A client has one place for all of
    /// its threads that wait for a lock, and one for each thread that waits for permits, or comes
    /// back from a condition.
    ///
    /// Who polls has no place: with [`Queue::None`](crate::Queue::None) or an
    /// [`owner`](crate::LockOptions::owner), with another layout than the plain one, with Redlock,
    /// in a cluster before Redis 7, and where the client cannot subscribe. Nor has who waits in a
    /// condition. A waiter whose process has died keeps its place for 3 to 4.5 s, or for three
    /// pauses of its [`Retry`](crate::Retry) if these are longer.
    pub waiters: Vec<Waiter>,
}

/// Who holds a lock, or permits of a semaphore, as the server sees it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The token under the key; what is not UTF-8 in it is replaced. It is all that a release
    /// needs, so `Debug` does not show it.
    pub token: String,
    /// The name of the client: see [`ClientBuilder::name`](crate::ClientBuilder::name). `None`: the
    /// token tells none, as in Redisson's layout, with a value of the caller's own, or of another
    /// program.
    pub client: Option<String>,
    /// When the client drew the token, by its own clock; `None` as for `client`. The lease is not
    /// older. A token is drawn when an acquisition begins to ask the server, with Redlock for each
    /// attempt. A downgrade draws one, too, and a lease that passes from thread to thread keeps
    /// its own.
    pub drawn_at: Option<SystemTime>,
    /// How many permits of a semaphore it has; 1 for a lock.
    pub permits: u32,
    /// Which side of a read-write lock it holds; `None`: this is no read-write lock.
    pub side: Option<Side>,
    /// Whether this holder has unlocked: nobody holds the lock, and the server keeps it for
    /// `remaining`, as [`LockOptions::at_least`](crate::LockOptions::at_least) asks.
    pub is_kept: bool,
    /// How long the lease lasts unless it is extended; `None`: for ever. With Redlock, how long it
    /// lasts on a majority at least: a node that answered may have missed an extend, while nodes
    /// that were not waited for have it.
    pub remaining: Option<Duration>,
}

/// Who waits for a lock, or for permits of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The name of the client: see [`ClientBuilder::name`](crate::ClientBuilder::name). `None`: the
    /// place is not of this crate's making.
    pub client: Option<String>,
    /// When the client drew the token of this place, by its own clock: when the first of its
    /// threads that waited there began to ask the server, or began to wait in a condition.
    pub drawn_at: Option<SystemTime>,
    /// How many permits of a semaphore it waits for; 1 for a lock.
    pub permits: u32,
    /// Which side of a read-write lock it waits for; `None`: this is no read-write lock.
    pub side: Option<Side>,
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("token", &"…")
            .field("client", &self.client)
            .field("drawn_at", &self.drawn_at)
            .field("permits", &self.permits)
            .field("side", &self.side)
            .field("is_kept", &self.is_kept)
            .field("remaining", &self.remaining)
            .finish()
    }
}

impl RedisLock {
    /// Whether anybody holds the lock, or it is kept, by the server's answer; of a read-write lock,
    /// whether anybody holds this side. One round trip; the answer may already be out of date.
    ///
    /// # Errors
    /// `Unavailable`, `Denied`, `WrongType`, `Server`: it is unknown whether the lock is held.
    /// `InvalidInput`, `Unsupported` and `Closed` as of [`lock`](Self::lock).
    pub fn is_locked(&self) -> Result<bool> {
        Ok(!self.holders()?.is_empty())
    }

    /// Who holds the lock, and who waits for it, by the server's answer. One round trip. For the
    /// server it is as much work as there are places in the queue.
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// let client = distlock::Client::builder("memory://").name("billing-3").build()?;
    /// let lock = client.lock("orders:42");
    /// let guard = lock.guard()?;
    /// assert_eq!(lock.inspect()?.holders[0].client.as_deref(), Some("billing-3"));
    /// # guard.release()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`is_locked`](Self::is_locked). That one needs the lock's own key only, and so may still
    /// answer while a slot moves in a cluster (`Unavailable`), or with foreign data in a companion
    /// key (`WrongType`).
    pub fn inspect(&self) -> Result<LockState> {
        let state = self.look(Look::All { fenced: self.options.fenced })?;
        Ok(LockState {
            holders: self.holders_in(&state)?,
            fence: state.fence,
            waiters: state.waiting.iter().map(|token| self.waiter(token)).collect(),
        })
    }

    /// Who holds it; of a read-write lock, who holds this side.
    pub(in crate::lock) fn holders(&self) -> Result<Vec<Holder>> {
        let mut holders = self.holders_in(&self.look(Look::Holders)?)?;
        if let Share::Side(ours) = self.options.share {
            holders.retain(|holder| holder.side == Some(ours));
        }
        Ok(holders)
    }

    fn look(&self, look: Look) -> Result<State> {
        self.check_usable()?;
        let state = self.store.inspect(&self.shared.key, look, self.context().command_deadline());
        state.map_err(|error| self.failed(error))
    }

    fn holders_in(&self, state: &State) -> Result<Vec<Holder>> {
        state.held.iter().map(|held| self.holder(held)).collect()
    }

    fn holder(&self, held: &Held) -> Result<Holder> {
        let share = self.share_in(&held.token);
        let share = share.filter(|share| share.is_of_one_kind_with(self.options.share));
        let share = share.ok_or_else(|| self.failed(StoreError::foreign()))?;
        let (client, drawn_at) = held.token.origin().unzip();
        Ok(Holder {
            token: held.token.text(),
            client,
            drawn_at,
            permits: share.permits(),
            side: share.side(),
            is_kept: held.token.is_kept(),
            remaining: held.remaining,
        })
    }

    fn waiter(&self, token: &Token) -> Waiter {
        let share = self.share_in(token).unwrap_or_default();
        let (client, drawn_at) = token.origin().unzip();
        Waiter { client, drawn_at, permits: share.permits(), side: share.side() }
    }

    /// What a lease of this token takes.
    fn share_in(&self, token: &Token) -> Option<Share> {
        match self.options.share {
            Share::Whole => Some(Share::Whole),
            _ => Share::in_token(token.as_bytes()),
        }
    }

    /// Releases the lock of any holder, or one that is kept, and hands it on if somebody waits.
    /// `false`: nobody held it.
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
