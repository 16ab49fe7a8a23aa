//! A reader's lease that other threads of the process may join.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::owned::Owned;
use crate::base::options::LockOptions;
use crate::lease::granted::Lease;

pub(super) struct Joinable {
    lease: Weak<Lease>,
    options: Arc<LockOptions>,
    until: Instant,
}

/// For how long a lease is joined. A writer of another process waits for the last thread that
/// joined it, and a thread that reads for longer than this gains little by not asking a server that
/// is near.
const JOINING: Duration = Duration::from_millis(2);

impl Joinable {
    pub(super) fn new(lease: &Arc<Lease>, options: &Arc<LockOptions>) -> Self {
        let until = lease.expiry.now() + JOINING;
        Self { lease: Arc::downgrade(lease), options: Arc::clone(options), until }
    }

    /// One more thread reads under the lease. `None`: not with these options, or the lease is lost
    /// or released, or was joined for long enough, or as often in a row as a lease may pass from
    /// thread to thread; so the readers of this process cannot keep others out for ever. Called
    /// under the mutex of the local queue: no other thread takes a fence at the same time.
    pub(super) fn join(&self, options: &Arc<LockOptions>) -> Option<Owned> {
        if !Arc::ptr_eq(&self.options, options) && self.options != *options {
            return None;
        }
        let lease = self.lease.upgrade()?;
        let since = lease.expiry.now();
        if since > self.until || !lease.is_valid() {
            return None;
        }
        if !lease.take_hand_off() || !lease.add_user() {
            return None;
        }
        let (fence, options) = (lease.held_fence(), Arc::clone(options));
        Some(Owned { lease, turn: None, fence, options, since })
    }
}
