//! Distributed locks on Redis for plain `std::thread` programs.
#![forbid(unsafe_code)]

mod base;
mod client;
mod condition;
mod guard;
mod lease;
mod local;
mod lock;
mod rate_limiter;
mod redis_lock;
mod store;

pub use base::error::{Error, ErrorKind, Result};
pub use base::interrupt::Interrupt;
pub use base::options::{Layout, LockOptions, Queue, Renewal, Retry};
pub use client::{Client, ClientBuilder};
pub use condition::Condition;
pub use guard::LockGuard;
pub use lease::notify::{Lost, LostReason};
pub use lease::store::Holder;
pub use lock::Lock;
pub use rate_limiter::RateLimiter;
pub use redis_lock::RedisLock;
pub use store::limit::Decision;

/// Doors for this crate's own tests and tools. Not part of the API: anything here may change in any release.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::base::bell::{Bell, Grant, Rung};
    pub use crate::base::clock::{Clock, FakeClock};
    pub use crate::lease::key::Key;
    pub use crate::lease::store::{Answer, Ask, End, Extend, Gone, InCondition, LeaseStore, Listening, Place, StoreError};
    pub use crate::lease::token::Token;
}
