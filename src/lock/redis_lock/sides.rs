//! The two sides of a read-write lock: what a thread may do on one while it holds the other.

use std::sync::Arc;

use super::RedisLock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::options::{LockOptions, Share, Side};
use crate::lease::acquisition::Acquisition;
use crate::lease::exchange::Exchanged;
use crate::lease::granted::LeaseObserver;
use crate::local::SharedLock;
use crate::local::holds;
use crate::local::owned::Owned;

impl RedisLock {
    pub(super) fn is_for_readers(&self) -> bool {
        self.options.share == Share::Side(Side::Read)
    }

    /// An error if this thread holds the other side, for which it would have to wait.
    pub(super) fn check_other_side(&self) -> Result<()> {
        let message = match self.options.share {
            Share::Side(Side::Read) if self.shared.writers().is_some_and(holds::has) => {
                "this thread writes: a claim of the read side would wait for it"
            }
            Share::Side(Side::Write) if self.readers.as_ref().is_some_and(holds::has) => {
                "this thread reads: it would wait for itself, and has to unlock the read side first"
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Conflict, message))
    }

    /// An error if this thread also reads. It could not read on without the lease that a wait in a
    /// condition releases.
    pub(super) fn check_not_reading(&self) -> Result<()> {
        if self.readers.as_ref().is_some_and(holds::has) {
            let message = "this thread also reads: it cannot wait in a condition";
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        Ok(())
    }

    /// A thread that writes may read as well, under the lease that it has. `None`: it does not
    /// write, or this is not the read side.
    pub(super) fn read_under_write(&self) -> Result<Option<Owned>> {
        let Some(writers) = self.shared.writers() else { return Ok(None) };
        let reading = holds::with(writers, |writing| {
            self.context().check_process().map_err(|error| self.named(error))?;
            let Owned { lease, fence, options, .. } = &writing.owned;
            let same = LockOptions { share: self.options.share, ..LockOptions::clone(options) };
            if same != *self.options {
                return Err(self.conflict());
            }
            if !lease.is_valid() || !lease.add_user() {
                return Err(self.lost());
            }
            let (lease, options) = (Arc::clone(lease), Arc::clone(&self.options));
            let since = self.context().clock.now();
            Ok(Owned { lease, turn: None, fence: *fence, options, since })
        });
        reading.transpose()
    }

    /// A hold has ended. If its thread still reads under the lease of a writer, the lease becomes
    /// that of a reader; otherwise it passes on, or is released.
    pub(super) fn end_hold(&self, owned: &Owned) -> Result<()> {
        let reading = self.readers.as_ref().and_then(|readers| {
            let options = holds::with(readers, |reading| {
                // A thread that reads cannot begin to write, so it reads under what it writes.
                debug_assert!(Arc::ptr_eq(&reading.owned.lease, &owned.lease), "two leases");
                Arc::clone(&reading.owned.options)
            });
            options.map(|options| (readers, options))
        });
        match reading {
            Some((readers, options)) => self.downgrade(owned, readers, &options),
            None => self.give_up(owned),
        }
    }

    /// The lease of a writer becomes that of a reader, without a gap (R28). `Unknown`: the reader
    /// has lost it. Any other error but `Lost`: it reads on under the writer's lease.
    fn downgrade(
        &self,
        owned: &Owned,
        readers: &Arc<SharedLock>,
        options: &Arc<LockOptions>,
    ) -> Result<()> {
        let (context, queue) = (self.context(), self.shared.queue());
        // Checked before any mutex is locked, as in `give_up`.
        context.check_process().map_err(|error| self.named(error))?;
        owned.ends(context, &self.shared.subject);
        let observer = Arc::clone(readers) as Arc<dyn LeaseObserver>;
        let acquired = Acquisition::new(context, &self.store, observer, &readers.key, options);
        let result = acquired.and_then(|acquired| match acquired.exchange(&owned.lease) {
            Exchanged::Yes(lease) => {
                queue.offer(&lease, options);
                holds::with(readers, |reading| {
                    // `Validity` values look at one lease.
                    reading.over = None;
                    reading.owned.lease = lease;
                });
                Ok(())
            }
            Exchanged::Lost => Err(self.lost()),
            Exchanged::No(error) => {
                let message = "the writer's lease could not be downgraded, and lasts";
                Err(Error::new(error.kind, message).because(error.into_error()))
            }
            Exchanged::Unknown(error) => Err(self
                .unknown("the downgrade had no answer: this thread has lost its read lock", error)),
        });
        owned.lease.remove_user();
        queue.leave(owned.turn);
        result.map_err(|error| self.named(error))
    }
}
