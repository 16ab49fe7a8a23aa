//! Longer pages: what is promised, how to port, how it works inside, and how to run it safely.
//! Documentation only.

#[doc = include_str!("guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("porting.md")]
pub mod porting {}

#[doc = include_str!("internals.md")]
pub mod internals {}

#[doc = include_str!("security.md")]
pub mod security {}
