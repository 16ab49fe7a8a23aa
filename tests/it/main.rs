//! The integration tests: one binary, one module per behaviour.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod at_least;
mod circles;
mod claims;
mod close;
mod cluster;
mod command;
mod conditions;
mod confirmations;
mod contract;
#[path = "support/elsewhere.rs"]
mod elsewhere;
mod errors;
mod examples;
mod execute;
mod fault_checkers;
#[path = "support/faults.rs"]
mod faults;
mod fences;
mod fuzz;
mod growth;
mod hand_offs;
#[allow(dead_code)]
#[path = "support/helpers.rs"]
mod helpers;
mod holds;
mod in_step;
mod inspect;
mod interrupts;
mod killed;
mod layers;
mod listener;
mod lock;
#[allow(dead_code)]
#[path = "support/logs.rs"]
mod logs;
mod loss;
mod messages;
mod notifications;
mod operations;
mod outage;
mod own_lock;
mod owner;
mod peers;
mod permissions;
mod program_code;
mod queue;
mod rate_limiter;
mod redisson_layout;
mod redlock;
mod renewal;
mod replicas;
mod rooms;
mod round_trips;
mod rules;
mod rw_lock;
mod secrets;
mod semaphore;
mod sent_once;
mod sentinel;
mod signals;
mod slow_waits;
mod stats;
#[allow(dead_code)]
mod support;
mod support_works;
mod timestamp_layout;
mod tls;
mod typed_errors;
mod unanswered;
mod unlocking;
mod validity;
