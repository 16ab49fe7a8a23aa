//! How leases and limits are written on a server: each layout beside its scripts.

pub(crate) mod answers;
pub(crate) mod limits;
pub(crate) mod plain;
pub(crate) mod redisson;
pub(crate) mod timestamp;
