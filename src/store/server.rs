//! One Redis server: how it is reached, asked and heard.

pub(crate) mod bulk;
pub(crate) mod channels;
pub(crate) mod connect;
pub(crate) mod demotion;
#[cfg(test)]
#[allow(clippy::expect_used, clippy::unwrap_used)]
mod fuzz;
pub(crate) mod gate;
pub(crate) mod inbox;
pub(crate) mod node;
pub(crate) mod once;
pub(crate) mod pool;
pub(crate) mod reply;
pub(crate) mod theirs;
pub(crate) mod watched;
pub(crate) mod wire;
