//! What the benches share: placement, contenders and their processes, statistics, tables.
//!
//! A bench prints Markdown to standard output and its progress to standard error; `benches/run`
//! gathers the former.
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
pub mod driver;
pub mod peers;
pub mod placement;
pub mod plot;
pub mod server;
pub mod stats;
pub mod table;
pub mod watch;

/// Private servers and the delaying proxy, as the tests have them.
#[allow(unused_imports, reason = "a bench uses a part of it")]
#[path = "../../tests/it/support/mod.rs"]
pub mod it;

/// Tells on standard error how far a bench has come.
#[macro_export]
macro_rules! progress {
    ($($text:tt)*) => { eprintln!("  … {}", format_args!($($text)*)) };
}
