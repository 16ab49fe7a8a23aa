//! One Redis server: how it is reached, asked and heard. Nothing here knows of leases.

pub(crate) mod batch;
pub(crate) mod call;
pub(crate) mod confirm;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod demotion;
pub(crate) mod dial;
pub(crate) mod endpoint;
pub(crate) mod exchange;
pub(crate) mod execute;
pub(crate) mod gate;
pub(crate) mod log_in;
pub(crate) mod node;
pub(crate) mod pool;
pub(crate) mod program_pool;
pub(crate) mod reply;
pub(crate) mod script;
pub(crate) mod sentinel;
pub(crate) mod settings;
pub(crate) mod shape;
pub(crate) mod socket;
pub(crate) mod subscription;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod url;
