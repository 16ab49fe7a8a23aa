//! The rows of the matrix: which fault, how it is injected, and what the row's own criterion is.

mod acquires;
mod clients;
mod closing;
mod cluster;
mod conditions;
mod data;
mod failover;
mod network;
pub mod packets;
mod quorum;
mod quota;
mod roles;
mod rooms;
mod server;
mod shower;
mod slots;
pub mod time;
pub mod versions;

use std::time::Duration;

use self::packets::Namespace;
use super::load::Load;
use super::tune::{Tune, ms};
use super::world::World;

/// One row.
pub struct Row {
    pub number: u32,
    /// N: exclusion must hold strictly. T: detection and the fence are judged. P: a paused client.
    pub class: char,
    pub name: &'static str,
    /// At least this many faults, in a quick run and in a full one.
    pub faults: (u64, u64),
    /// At least this many holds in the faulted phase.
    pub holds: usize,
    /// At least this many of them while the fault lasts, unless the fault makes every grant
    /// impossible.
    pub under_fault: usize,
    /// At least this many renewals that their holders saw, and this many losses, in a quick run and
    /// in a full one: the subject of the row.
    pub renewals: (u64, u64),
    pub losses: (u64, u64),
    /// At least this many waits in conditions.
    pub waits_in_conditions: usize,
    /// For how long the server may have a token that nobody alive knows of (I4), if the row is
    /// judged by that: one fault in a hundred may cost up to one lease more.
    pub known_within: Option<fn(&Load) -> Duration>,
    /// How long a key may have waiters and no holder (I4), if the fault is no outage.
    pub free_within: Option<fn(&Load) -> Duration>,
    /// Whether the order of the waiters is judged (I7): only if nothing keeps them from the server.
    pub fair: bool,
    /// Whether timed calls must end in time (I6): not if the clients themselves are stopped.
    pub punctual: bool,
    pub may_lose: bool,
    pub may_be_unknown: bool,
    /// Whether a call may end with any other error.
    pub may_fail: bool,
    /// Whether the load must come back to its former rate (I8).
    pub recovers: bool,
    /// Whether a caller's own commands must be answered by their own replies. Not where replies
    /// are garbled: `Client::execute` takes them as they come.
    pub in_step: bool,
    /// Whether two servers may take writes at once, and no replica confirms: then a release at one
    /// of them says nothing about the other.
    pub split: bool,
    /// Whether late writes must have been offered: otherwise the row has shown nothing.
    pub offers_stale: bool,
    /// Whether no queue may be left at the end: the queues of killed processes end by themselves, a
    /// little later.
    pub leaves_no_queue: bool,
    /// Whether it mostly waits, for sentinels, and so may run beside others like it.
    pub waits: bool,
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

/// The defaults of the rows.
const USUAL: Row = Row {
    number: 0,
    class: 'N',
    name: "",
    faults: (5, 20),
    holds: 1000,
    under_fault: 100,
    renewals: (0, 0),
    losses: (0, 0),
    waits_in_conditions: 0,
    known_within: Some(|_| ms(1000)),
    free_within: None,
    fair: false,
    punctual: true,
    may_lose: true,
    may_be_unknown: true,
    may_fail: true,
    recovers: true,
    in_step: true,
    split: false,
    offers_stale: false,
    leaves_no_queue: true,
    waits: false,
    foreign_keys: 0,
    namespace: Namespace::No,
    tune: |_| (),
    prepare: |_| (),
    run: |_| (),
    after: |_| (),
};

/// A dead, lost or unknown hold keeps its key for one lease; the next holder takes up to a second
/// more.
fn a_lease(load: &Load) -> Duration {
    load.lease + ms(1000)
}

/// Without waiting for any lease to end.
fn at_once(load: &Load) -> Duration {
    load.lease / 2
}

/// Every row that is built, by number. The matrix ends at 62; the later rows come from reviews.
pub fn all() -> Vec<Row> {
    let mut rows: Vec<Row> = [
        acquires::rows(),
        network::rows(),
        packets::rows(),
        server::rows(),
        clients::rows(),
        closing::rows(),
        data::rows(),
        quorum::rows(),
        time::rows(),
        conditions::rows(),
        roles::rows(),
        failover::rows(),
        cluster::rows(),
        slots::rows(),
        versions::rows(),
        rooms::rows(),
    ]
    .into_iter()
    .flatten()
    .collect();
    rows.sort_by_key(|row| row.number);
    rows
}

/// Rows of the matrix that this driver does not run, and why.
pub const NOT_RUN: &[(u32, &str)] = &[
    (
        56,
        "expired, misnamed and unknown certificates, and a handshake that stays silent: \
         tests/it/tls.rs",
    ),
    (
        57,
        "edge values of keys, leases, counts and durations, drawn by proptest: \
         tests/it/typed_errors/settings.rs",
    ),
    (
        58,
        "random replies to everything that reads one: tests/it/fuzz.rs and src/store/fuzz.rs, on \
         stable and without coverage; no 10^8 executions",
    ),
    (
        59,
        "no shuttle or loom: the protocols are models under tests/models, the races of threads are \
         tests in tests/it",
    ),
    (
        60,
        "all of N for 24 hours: `tests/faults/run soak` runs the rows one after another, a quarter \
         of an hour each, and not at random together",
    ),
];
