//! A held lease that is about to be released: who ends it, and until when it is renewed.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;

use super::context::Context;
use super::count::Counted;
use super::ended::Ended;
use super::granted::Lease;
use super::lost::LostReason;
use super::store::Release;

/// A lease whose release has been asked for.
///
/// It stays in renewal until the release is about to be sent, because that may take as long as a
/// connection is waited for (R9). Whoever takes it out of there ends it, and nobody else does:
///
/// 1. a thread unlocks, and waits for a connection;
/// 2. renewal finds the lease lost, and ends it; a thread may now use its value again;
/// 3. the first thread has its connection. It must not send: that would release the next hold.
pub(crate) struct Leaving<'a> {
    context: &'a Context,
    lease: &'a Arc<Lease>,
    /// Whether closing waits for this thread anyway.
    is_counted: bool,
    /// There while the lease is ours to end.
    ours: RefCell<Option<Ours>>,
    is_over: Cell<bool>,
}

struct Ours {
    /// When renewal would have looked at it next.
    due: Instant,
    /// Closing waits for us.
    counted: Option<Counted>,
}

impl<'a> Leaving<'a> {
    /// Of a lease that is released.
    pub(crate) fn new(context: &'a Context, lease: &'a Arc<Lease>) -> Self {
        Self {
            context,
            lease,
            is_counted: false,
            ours: RefCell::default(),
            is_over: Cell::new(false),
        }
    }

    /// Of a lease that is released for a wait in a condition: its acquisition is counted already.
    pub(crate) fn of_a_wait(context: &'a Context, lease: &'a Arc<Lease>) -> Self {
        Self {
            context,
            lease,
            is_counted: true,
            ours: RefCell::default(),
            is_over: Cell::new(false),
        }
    }

    /// Takes the lease out of renewal, so that no extend of ours follows its release (R8).
    /// `false`: it has ended, or is just being ended, by somebody else.
    pub(crate) fn take(&self) -> bool {
        let mut ours = self.ours.borrow_mut();
        if ours.is_none() {
            // Counted first: closing always finds the lease either in renewal or here.
            let counted = (!self.is_counted).then(|| self.context.acquiring.add());
            *ours = self.context.renewal.remove(self.lease).map(|due| Ours { due, counted });
        }
        ours.is_some()
    }

    /// What was sent was certainly not carried out: the lease is held, and renewed, as before.
    pub(crate) fn put_back(&self) {
        let Some(Ours { due, counted }) = self.ours.take() else { return };
        if !self.context.renewal.put_back(self.lease, due) {
            self.context.finish(self.lease, Ended::Lost(LostReason::Closed));
        }
        drop(counted);
    }

    /// Ends the lease, which is ours.
    pub(crate) fn end(&self, how: Ended) {
        self.is_over.set(true);
        self.context.finish(self.lease, how);
    }

    /// Leaves the lease as it is: held, or ended by somebody else.
    pub(crate) fn let_go(&self) {
        self.put_back();
        self.is_over.set(true);
    }

    /// The request that releases it. `may_be_sent` is [`take`](Leaving::take).
    pub(crate) fn release<'b>(&'b self, may_be_sent: &'b dyn Fn() -> bool) -> Release<'b> {
        Release {
            key: &self.lease.key,
            token: &self.lease.token,
            settles: self.lease.settles(),
            may_be_sent,
        }
    }

    pub(crate) fn lease(&self) -> &'a Arc<Lease> {
        self.lease
    }
}

impl Drop for Leaving<'_> {
    /// Only a panic comes here before it is over, for example of a program's own pool. Nobody has
    /// the lease any more, so nobody may renew it.
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
