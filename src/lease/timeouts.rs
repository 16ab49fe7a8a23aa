//! How long a command, an outage, and the first lease of a hand-off may last.

use std::time::Duration;

/// A hand-off first grants at most this long a lease, so that a frozen waiter never costs a whole
/// lease (R20).
pub(crate) const FIRST_LEASE: Duration = Duration::from_secs(3);

/// How long a command, and an outage, may last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) command_timeout: Duration,
    pub(crate) max_outage: Duration,
}
