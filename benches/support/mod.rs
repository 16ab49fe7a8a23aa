//! What the benches share: placement, contenders and their processes, statistics, tables.
//!
//! A bench prints Markdown to standard output and its progress to standard error; `benches/run`
//! collects the Markdown.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "each bench uses a part of it, and fails aloud"
)]

pub mod aims;
pub mod args;
pub mod clock;
pub mod contender;
pub mod contest;
pub mod crowd;
pub mod cycles;
pub mod driver;
pub mod leases;
pub mod peers;
pub mod placement;
pub mod plot;
pub mod server;
pub mod stats;
pub mod table;
pub mod watch;

/// The tests' private servers and delaying proxy.
#[allow(unused_imports, reason = "a bench uses a part of it")]
#[path = "../../tests/it/support/mod.rs"]
pub mod it;

/// Prints the progress of a bench to standard error.
#[macro_export]
macro_rules! progress {
    ($($text:tt)*) => { eprintln!("  … {}", format_args!($($text)*)) };
}
