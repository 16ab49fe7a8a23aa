//! Longer pages: what is promised, how to port, which layouts there are, how it works inside, what
//! comes up in production, jobs on several instances, the command, what operators need, and how to
//! run it safely.
//! Documentation only.

#[doc = include_str!("guide/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("guide/porting.md")]
pub mod porting {}

#[doc = include_str!("guide/layouts.md")]
pub mod layouts {}

#[doc = include_str!("guide/internals.md")]
pub mod internals {}

#[doc = include_str!("guide/security.md")]
pub mod security {}

#[doc = include_str!("guide/practice.md")]
pub mod practice {}

#[doc = include_str!("guide/jobs.md")]
pub mod jobs {}

#[doc = include_str!("guide/command.md")]
pub mod command {}

#[doc = include_str!("guide/operations.md")]
pub mod operations {}

#[doc = include_str!("guide/errors.md")]
pub mod errors {}
