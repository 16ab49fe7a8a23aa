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

mod close;
mod contract;
mod errors;
mod execute;
mod fences;
mod growth;
mod holds;
mod interrupts;
mod layers;
mod lock;
mod loss;
mod outage;
mod renewal;
mod secrets;
mod tls;
mod typed_errors;
mod unanswered;
mod unlocking;
mod validity;
