//! The support does what it says; a fault that is not injected would make every test above it
//! blind.

mod odd;
mod proxy;
mod proxy_modes;
mod server;
