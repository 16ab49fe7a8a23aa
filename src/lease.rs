//! Leases: ownership limited in time. Nothing here names Redis.

pub(crate) mod acquire;
pub(crate) mod acquisition;
pub(crate) mod cleaner;
pub(crate) mod condition;
pub(crate) mod context;
pub(crate) mod count;
pub(crate) mod ended;
pub(crate) mod extend;
pub(crate) mod granted;
pub(crate) mod leaving;
pub(crate) mod loss;
pub(crate) mod lost;
pub(crate) mod outages;
pub(crate) mod release;
pub(crate) mod renewal;
pub(crate) mod renewer;
pub(crate) mod store;
pub(crate) mod timeouts;
pub(crate) mod token;
pub(crate) mod validity;
pub(crate) mod wait;
pub(crate) mod wait_limits;
