//! What a row sets before anything starts: its size, its load and the lengths of its phases.

use std::time::Duration;

use super::load::{Habit, Load};
use super::support::Server;
use super::support::settings::ServerBuilder;

/// How long a row runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Quick,
    Full,
    Soak,
}

/// What a row may set before anything starts.
pub struct Tune {
    pub processes: u64,
    pub load: Load,
    /// Without the proxy in between.
    pub direct: bool,
    /// Whether the first process has a proxy of its own.
    pub apart: bool,
    pub server: ServerBuilder,
    /// The clients' user and password.
    pub user: Option<(&'static str, &'static str)>,
    pub baseline: Duration,
    pub faulted: Duration,
    pub healing: Duration,
    /// How long the fault lasts each time, and the pause between two faults.
    pub on: (Duration, Duration),
    pub off: (Duration, Duration),
}

/// A length of time in milliseconds.
pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Tune {
    /// Load L. `FAULTS_SCALE` multiplies the processes.
    pub fn new(size: Size) -> Tune {
        let scale: u64 =
            std::env::var("FAULTS_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1);
        let quick = size == Size::Quick;
        Tune {
            processes: if quick { 3 } else { 4 } * scale,
            load: Load {
                url: String::new(),
                threads: if quick { 6 } else { 8 },
                keys: if quick { 12 } else { 16 },
                lease: ms(if quick { 1000 } else { 2000 }),
                command: ms(500),
                pool: 8,
                hold: ms(if quick { 2 } else { 5 }),
                long_leases: 3,
                long_threads: if quick { 1 } else { 2 },
                long_keys: if quick { 4 } else { 8 },
                bait_keys: 2,
                pause: ms(1),
                timed: true,
                habit: Habit::Unlock,
                replicas: 0,
                fenced: true,
            },
            direct: false,
            apart: true,
            server: Server::builder().arg("maxclients", "4000"),
            user: None,
            baseline: ms(if quick { 1000 } else { 5000 }),
            faulted: match size {
                Size::Quick => ms(3200),
                Size::Full => ms(47_000),
                Size::Soak => ms(900_000),
            },
            // At least this long: the phase lasts until the load has reached its rate again, or its
            // time for that is over.
            healing: ms(if quick { 1000 } else { 8000 }),
            // Twenty times one to three seconds of each would not fit into a minute.
            on: if quick { (ms(200), ms(500)) } else { (ms(500), ms(1800)) },
            off: if quick { (ms(200), ms(400)) } else { (ms(400), ms(1400)) },
        }
    }
}
