//! A held lease that is about to be released: which thread ends it, and until when it is renewed.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;

use super::context::Context;
use super::granted::Lease;
use super::lost::{Ended, LostReason};
use super::store::Release;
use crate::base::active::Active;

/// A lease whose release was requested.
///
/// It stays in renewal until the release is about to be sent, because the wait for a connection may
/// be long (R9). The thread that takes it out of renewal ends it, and no other thread does:
///
/// 1. a thread unlocks, and waits for a connection;
/// 2. renewal finds the lease lost, and ends it; a thread may now use its value again;
/// 3. the first thread gets its connection. It must not send: that would release the next hold.
pub(crate) struct Leaving<'a> {
    context: &'a Context,
    lease: &'a Arc<Lease>,
    /// Whether closing waits for this thread anyway.
    is_counted: bool,
    /// `Some` while this thread is the one that ends the lease.
    ours: RefCell<Option<Ours>>,
    is_over: Cell<bool>,
}

struct Ours {
    /// When renewal would have looked at the lease next.
    due: Instant,
    /// Makes closing wait for us.
    counted: Option<Active>,
}

impl<'a> Leaving<'a> {
    /// For a lease that is released.
    pub(crate) fn new(context: &'a Context, lease: &'a Arc<Lease>) -> Self {
        Self {
            context,
            lease,
            is_counted: false,
            ours: RefCell::default(),
            is_over: Cell::new(false),
        }
    }

    /// For a lease that is released for a wait in a condition: its acquisition is counted already.
    pub(crate) fn of_a_wait(context: &'a Context, lease: &'a Arc<Lease>) -> Self {
        Self {
            context,
            lease,
            is_counted: true,
            ours: RefCell::default(),
            is_over: Cell::new(false),
        }
    }

    /// Takes the lease out of renewal, so that no extend of ours follows its release (R8). `false`:
    /// another thread has ended it, or is ending it.
    pub(crate) fn take(&self) -> bool {
        let mut ours = self.ours.borrow_mut();
        if ours.is_none() {
            // Active first: closing always finds the lease either in renewal or here.
            let counted = (!self.is_counted).then(|| self.context.acquiring.add());
            *ours = self
                .context
                .renewers
                .of(self.lease)
                .remove(self.lease)
                .map(|due| Ours { due, counted });
        }
        ours.is_some()
    }

    /// The release was certainly not carried out: the lease is held, and renewed, as before.
    pub(crate) fn put_back(&self) {
        let Some(Ours { due, counted }) = self.ours.take() else { return };
        if !self.context.renewers.of(self.lease).put_back(self.lease, due) {
            self.context.finish(self.lease, Ended::Lost(LostReason::Closed));
        }
        drop(counted);
    }

    /// Ends the lease, which this thread has taken out.
    pub(crate) fn end(&self, how: Ended) {
        debug_assert!(self.ours.borrow().is_some(), "another thread ends the lease");
        self.is_over.set(true);
        self.context.finish(self.lease, how);
    }

    /// Leaves the lease as it is: held, or ended by another thread.
    pub(crate) fn let_go(&self) {
        self.put_back();
        self.is_over.set(true);
    }

    /// The request that releases it. `may_be_sent` is [`take`](Leaving::take).
    pub(crate) fn release<'b>(&'b self, may_be_sent: &'b dyn Fn() -> bool) -> Release<'b> {
        let Lease { key, token, .. } = &**self.lease;
        Release { key, token, keep: self.lease.left_to_keep(), may_be_sent }
    }

    pub(crate) fn lease(&self) -> &'a Arc<Lease> {
        self.lease
    }
}

impl Drop for Leaving<'_> {
    /// Only a panic, for example in a program's own pool, gets here before the release is over. No
    /// thread holds the lease any more, so it must not be renewed.
    fn drop(&mut self) {
        if self.is_over.get() {
            return;
        }
        let release_sent = self.ours.borrow().is_some();
        if release_sent || self.take() {
            self.context.finish(self.lease, Ended::GivenUp { release_sent });
        }
    }
}
