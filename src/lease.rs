//! Leases: ownership limited in time. Nothing here names Redis.

pub(crate) mod acquire;
pub(crate) mod acquisition;
pub(crate) mod cleaner;
pub(crate) mod condition;
pub(crate) mod context;
pub(crate) mod counters;
pub(crate) mod durations;
pub(crate) mod events;
pub(crate) mod exchange;
pub(crate) mod expiry;
pub(crate) mod granted;
pub(crate) mod held;
pub(crate) mod leaving;
pub(crate) mod lost;
pub(crate) mod notifier;
pub(crate) mod outages;
pub(crate) mod renewer;
pub(crate) mod renewers;
pub(crate) mod slow_wait;
pub(crate) mod store;
pub(crate) mod token;
pub(crate) mod wait;
pub(crate) mod wait_limits;
