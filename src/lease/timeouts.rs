//! How long a command, and an outage, may last.

use std::time::Duration;

/// How long a command, and an outage, may last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) command_timeout: Duration,
    pub(crate) max_outage: Duration,
}
