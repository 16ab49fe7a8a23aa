//! The rows of the matrix: which fault, how it is injected, and what the row's own criterion is.

mod clients;
mod conditions;
mod data;
mod network;
pub mod packets;
mod quorum;
mod quota;
mod server;
pub mod time;

use std::time::Duration;

use self::packets::Namespace;
use super::world::{Tune, World};

/// One row.
pub struct Row {
    pub number: u32,
    /// N: exclusion must hold strictly. T: detection and the fence are judged. P: a paused client.
    pub class: char,
    pub name: &'static str,
    /// At least so many faults, in a quick run and in a full one.
    pub faults: (u64, u64),
    /// At least so many holds in the faulted phase.
    pub holds: usize,
    /// For how long no key may have waiters and no holder, where the fault is no outage.
    pub stuck: Option<Duration>,
    /// Whether timed calls must end in time (I6): not where the clients themselves are stopped.
    pub punctual: bool,
    pub may_lose: bool,
    pub may_be_unknown: bool,
    /// The share of its former rate that the load must come back to; 0: the row does not end in a healthy state.
    pub recovers: f64,
    /// Whether no queue may be left at the end: those of killed processes end by themselves, a little later.
    pub leaves_no_queue: bool,
    /// The first keys hold somebody else's data.
    pub foreign_keys: u64,
    pub namespace: Namespace,
    pub tune: fn(&mut Tune),
    /// Before the clients start.
    pub prepare: fn(&mut World),
    pub run: fn(&mut World),
    /// After they have ended.
    pub after: fn(&mut World),
}

/// What rows have unless they say otherwise.
const USUAL: Row = Row {
    number: 0,
    class: 'N',
    name: "",
    faults: (5, 20),
    holds: 1000,
    stuck: None,
    punctual: true,
    may_lose: true,
    may_be_unknown: true,
    recovers: 0.8,
    leaves_no_queue: true,
    foreign_keys: 0,
    namespace: Namespace::No,
    tune: |_| (),
    prepare: |_| (),
    run: |_| (),
    after: |_| (),
};

/// Every row that is built, by number. The matrix ends at 62; those above are the faults of conditions.
pub fn all() -> Vec<Row> {
    let mut rows: Vec<Row> =
        [network::rows(), packets::rows(), server::rows(), clients::rows(), data::rows(), quorum::rows(), time::rows(), conditions::rows()]
            .into_iter()
            .flatten()
            .collect();
    rows.sort_by_key(|row| row.number);
    rows
}

/// Rows of the matrix that this driver does not run, and why.
pub const NOT_RUN: &[(u32, &str)] = &[
    (56, "TLS certificates: tests/it"),
    (57, "edge values: tests/it"),
    (58, "fuzzed replies: a target of its own"),
    (59, "schedules: tests/models and tests/it"),
    (60, "all of N at random: `tests/faults/run soak`"),
    (62, "other servers: DISTLOCK_REDIS_SERVER=… tests/faults/run quick 1 1 5 21"),
];
