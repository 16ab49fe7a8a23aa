//! The integration tests: one binary, one module per behaviour.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod conditions;
mod examples;
mod queue;
mod rate_limiter;
#[allow(dead_code)]
mod support;
mod support_works;

mod faults;
#[allow(dead_code)]
mod helpers;
#[allow(dead_code)]
mod logs;

mod execute;
mod outage;
mod redlock;
mod secrets;
mod tls;
mod typed_errors;
mod unanswered;
mod unlocking;
mod validity;
