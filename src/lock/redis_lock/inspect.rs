//! What the server knows of a lock, whoever holds it; and the operator's hand.

use super::RedisLock;
use crate::base::error::Result;
use crate::lease::store::Holder;

impl RedisLock {
    /// Whether anybody holds the lock, by the server's word. One round trip; true or false of a
    /// moment that has passed.
    ///
    /// # Errors
    /// `Unavailable`, `Denied`, `WrongType`, `Server`: nobody knows.
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.inspect()?.is_some())
    }

    /// Who holds the lock, by the server's word. One round trip.
    ///
    /// # Errors
    /// As [`is_locked`](Self::is_locked).
    pub fn inspect(&self) -> Result<Option<Holder>> {
        self.check_usable()?;
        self.store
            .inspect(&self.shared.key, self.context().command_deadline())
            .map_err(|error| self.failed(error))
    }

    /// Releases the lock whoever holds it, and hands it on if somebody waits. `false`: nobody held
    /// it. One round trip; over an idle connection one more before it, because it must not be sent
    /// twice.
    ///
    /// For an operator's hand: the holder goes on working until it notices, which a waiting process
    /// does not wait for.
    ///
    /// # Errors
    /// `Unknown`: no answer; the lock may still be held on the server. `Unavailable`, `Denied`,
    /// `WrongType`, `Server`: nothing was changed.
    pub fn force_unlock(&self) -> Result<bool> {
        self.check_usable()?;
        self.store.force_release(&self.shared.key, self.context().command_deadline()).map_err(
            |error| {
                if error.may_have_run {
                    self.unknown(
                        "the forced release had no answer: it may have been carried out",
                        error,
                    )
                } else {
                    self.failed(error)
                }
            },
        )
    }
}
