//! The program's own pool.

use std::sync::atomic::AtomicU32;

/// The program's own pool.
pub(crate) struct Theirs {
    pub(super) pool: r2d2::Pool<redis::Client>,
    /// How many connections have failed since the last that worked. Up to the pool's size, they may
    /// have been closed while they were idle. If there are more, new connections fail as well, and
    /// trying again at once would go on as fast as the pool connects (R14).
    pub(super) failures: AtomicU32,
}

impl Theirs {
    pub(crate) fn new(pool: r2d2::Pool<redis::Client>) -> Self {
        Self { pool, failures: AtomicU32::new(0) }
    }
}
