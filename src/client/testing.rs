//! What the feature `testing` adds.

use super::open::Open;
use super::{Client, ClientBuilder};
use crate::base::clock::{Clock, FakeClock};
use crate::base::error::Result;
use crate::base::options::{Layout, LockOptions};
use crate::lease::store::LeaseStore;
use crate::lock::rw_lock::RwLock;
use crate::lock::semaphore::Semaphore;
use crate::store::Deployment;
use std::sync::Arc;

impl ClientBuilder {
    /// Reads the time from `clock`.
    #[doc(hidden)]
    #[must_use]
    pub fn clock(mut self, clock: FakeClock) -> Self {
        self.clock = Clock::fake(clock);
        self
    }

    /// Wraps each store of the client in a store of the test's own.
    #[doc(hidden)]
    #[must_use]
    pub fn wrap(
        mut self,
        wrap: impl Fn(Arc<dyn LeaseStore>) -> Arc<dyn LeaseStore> + 'static,
    ) -> Self {
        self.wrap = Some(Box::new(wrap));
        self
    }
}

impl ClientBuilder {
    /// Wraps each node of a quorum in a store of the test's own; `wrap` gets the node's index.
    #[doc(hidden)]
    #[must_use]
    pub fn wrap_nodes(
        mut self,
        wrap: impl Fn(usize, Arc<dyn LeaseStore>) -> Arc<dyn LeaseStore> + 'static,
    ) -> Self {
        if let Deployment::Quorum(nodes) = &mut self.deployment {
            nodes.wrap = Some(Box::new(wrap));
        }
        self
    }
}

impl Client {
    /// The store behind the locks of this layout.
    #[doc(hidden)]
    pub fn store(&self, layout: Layout) -> Result<Arc<dyn LeaseStore>> {
        self.store_with(&LockOptions::new().layout(layout))
    }

    /// The store behind locks with these options.
    ///
    /// # Errors
    /// `Unsupported` if there is none.
    #[doc(hidden)]
    pub fn store_with(&self, options: &LockOptions) -> Result<Arc<dyn LeaseStore>> {
        self.open.backend.leases(options)
    }

    /// The store behind semaphores with these options.
    ///
    /// # Errors
    /// `Unsupported` if there is none.
    #[doc(hidden)]
    pub fn store_of_permits(
        &self,
        permits: u32,
        options: &LockOptions,
    ) -> Result<Arc<dyn LeaseStore>> {
        self.open.backend.leases(&Semaphore::options(options.clone(), permits))
    }

    /// The store behind read-write locks with these options.
    ///
    /// # Errors
    /// `Unsupported` if there is none.
    #[doc(hidden)]
    pub fn store_of_rw_locks(&self, options: &LockOptions) -> Result<Arc<dyn LeaseStore>> {
        self.open.backend.leases(&RwLock::options(options)[1])
    }

    /// How many names the client remembers, and how many leases it looks after.
    #[doc(hidden)]
    #[must_use]
    pub fn remembered(&self) -> (usize, usize) {
        let Open { locks, semaphores, read_sides, write_sides, .. } = &*self.open;
        let names =
            [locks, semaphores, read_sides, write_sides].into_iter().map(|names| names.len()).sum();
        (names, self.open.context.renewers.len())
    }

    /// How many threads of this process wait for their turn at a lock.
    #[doc(hidden)]
    #[must_use]
    pub fn waiting(&self, name: &str) -> usize {
        self.open.locks.get(name, &self.open.prefix, &self.open.context).queue().waiting()
    }

    /// How many threads of this process wait for their turn at a read-write lock.
    #[doc(hidden)]
    #[must_use]
    pub fn waiting_at_rw_lock(&self, name: &str) -> usize {
        self.open.write_sides.get(name, &self.open.prefix, &self.open.context).queue().waiting()
    }
}
