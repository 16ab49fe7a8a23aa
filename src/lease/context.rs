//! What the leases of one client have in common: the clock, the limits, and the threads that look
//! after them.

use std::sync::Arc;
use std::time::Instant;

use super::counters::Counters;
use super::durations::Timeouts;
use super::granted::Lease;
use super::lost::Ended;
use super::store::LeaseStore;
use super::token::Tokens;
use super::{cleaner, notifier, outages, renewers};
use crate::base::active::ActiveCount;
use crate::base::clock::Clock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::interrupt::Interrupt;

/// What every lease of one client shares: the clock, the limits, and the threads that look after
/// leases.
pub(crate) struct Context {
    pub(crate) clock: Clock,
    pub(crate) timeouts: Timeouts,
    pub(crate) tokens: Tokens,
    pub(crate) counters: Arc<Counters>,
    pub(crate) renewers: renewers::Renewers,
    pub(crate) cleaner: cleaner::Cleaner,
    pub(crate) notifier: notifier::Notifier,
    pub(crate) outages: outages::Outages,
    /// The acquisitions and releases that are under way: closing waits for them to end.
    pub(crate) acquiring: ActiveCount,
    /// Set when the client is closed: ends every wait.
    pub(crate) closing: Interrupt,
    /// Which process made the client.
    process: u32,
}

impl Context {
    pub(crate) fn new(
        clock: Clock,
        timeouts: Timeouts,
        tokens: Tokens,
        counters: Arc<Counters>,
    ) -> Self {
        let cleaner =
            cleaner::Cleaner::new(clock.clone(), timeouts.command_timeout, Arc::clone(&counters));
        let acquiring = ActiveCount::default();
        Self {
            renewers: renewers::Renewers::new(
                clock.clone(),
                timeouts,
                cleaner.clone(),
                acquiring.clone(),
            ),
            cleaner,
            counters,
            notifier: notifier::Notifier::new(),
            tokens,
            outages: outages::Outages::default(),
            acquiring,
            closing: Interrupt::new(),
            process: std::process::id(),
            clock,
            timeouts,
        }
    }

    /// Starts the threads that a lease of this store needs, unless they run already. Called before
    /// the lease is requested.
    pub(crate) fn start(&self, store: &dyn LeaseStore) -> Result<()> {
        self.renewers.start(store).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "no thread could be started to look after leases")
                .because(error)
        })
    }

    /// An error once the client is being closed, and in a forked child. Called before any mutex is
    /// locked.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_process()?;
        self.check_closing()
    }

    /// An error once the client is being closed.
    pub(crate) fn check_closing(&self) -> Result<()> {
        if self.closing.is_interrupted() {
            return Err(Error::new(ErrorKind::Closed, "the client is closed"));
        }
        Ok(())
    }

    /// Whether this process is a fork of the process that made the client. Then nothing here may be
    /// waited for: none of the client's threads is in this process, and one of them may have held
    /// any of these mutexes when the process was copied (R11).
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// An error in a fork of the process that made the client.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.is_forked() {
            return Err(Error::unsupported(
                "the client belongs to the process that this one was forked from: make a new one",
            ));
        }
        Ok(())
    }

    /// Ends a lease. `false`: it had ended before.
    pub(crate) fn finish(&self, lease: &Arc<Lease>, how: Ended) -> bool {
        // Closing waits until the cleaner has what the lease left behind.
        let _counted = self.acquiring.add();
        self.renewers.of(lease).remove(lease);
        lease.finish(&self.cleaner, how)
    }

    pub(crate) fn command_deadline(&self) -> Instant {
        self.clock.now() + self.timeouts.command_timeout
    }
}
