//! The support does what it says: if a fault were not injected, every test that relies on it would
//! prove nothing.

mod odd;
mod proxy;
mod proxy_modes;
mod server;
