//! What a hold, a claim or a permit owns.

use std::sync::Arc;
use std::time::Instant;

use crate::base::options::LockOptions;
use crate::base::subject::Subject;
use crate::lease::context::Context;
use crate::lease::granted::Lease;

/// A lease, and what it came with. It belongs to no thread.
pub(crate) struct Owned {
    pub(crate) lease: Arc<Lease>,
    /// The turn that came with the lease; `None`: another thread of this process has the turn, or
    /// may have it, because it is the lease of a permit or of a reader.
    pub(crate) turn: Option<u64>,
    pub(crate) fence: Option<u64>,
    /// Those with which it was acquired.
    pub(crate) options: Arc<LockOptions>,
    /// When its owner got it.
    pub(crate) since: Instant,
}

impl Owned {
    /// Counts how long it was owned. Called when its owner lets go, before another can have it.
    pub(crate) fn ends(&self, context: &Context, subject: &Subject) {
        let held = context.clock.now().saturating_duration_since(self.since);
        context.counters.hold_ended(subject, held);
    }
}
