//! The program's own pool.

use std::sync::atomic::AtomicU32;

/// The program's own pool.
pub(crate) struct Theirs {
    pub(super) pool: r2d2::Pool<redis::Client>,
    /// How many connections have failed since one was in good order. As many as the pool has may
    /// have been closed while they lay idle; if there are more, new ones fail as well, and trying
    /// again at once would go on as fast as the pool connects (R14).
    pub(super) failures: AtomicU32,
}

impl Theirs {
    pub(crate) fn new(pool: r2d2::Pool<redis::Client>) -> Self {
        Self { pool, failures: AtomicU32::new(0) }
    }
}
