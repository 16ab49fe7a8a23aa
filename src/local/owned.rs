//! What a hold, a claim or a permit owns.

use std::sync::Arc;

use crate::base::options::LockOptions;
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
}
