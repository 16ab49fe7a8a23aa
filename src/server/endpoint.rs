//! One server, as connections to it are opened: its address and its gate, who may open one and what
//! comes of it, and which connections are still trusted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{ConnectionInfo, RedisError};

use super::connect::{self, Connector};
use super::connection::Connection;
use super::counters::Reach;
use super::demotion::{DemotionWatch, Demotions};
use super::gate::{self, Gate, Target};
use super::log_in::{self, Opened};
use super::reply;
use super::sentinel::service::{self, Service};
use super::sentinel::watcher::Watchers;
use super::settings::{Among, Settings};
use super::url::is_tls;
use crate::base::clock::Clock;
use crate::base::error::{ErrorKind, Result};
use crate::base::log;
use crate::base::store_error::StoreError;

/// One server, as connections to it are opened.
pub(crate) struct Endpoint {
    pub(super) connector: Connector,
    pub(super) gate: Arc<Gate>,
    /// Whether this client reaches it.
    pub(super) reach: Reach,
    /// How long opening a connection may take. An attempt with less than half of it says little.
    pub(super) time_to_connect: Duration,
    /// How many failures there have been: connections from before the last failure are not trusted
    /// any more (R6).
    generation: Arc<AtomicU64>,
    /// For connections that the generation does not cover (R22).
    pub(super) demotions: Demotions,
    /// The threads that listen to the sentinels which say where it is.
    watchers: Option<Watchers>,
    /// Whether a primary has ever been reached. Before that, a replica is a wrong address.
    pub(super) had_primary: AtomicBool,
    /// Whether it is a node of a quorum.
    pub(super) is_member: bool,
    /// Whether it has been said that the server does not tell its role.
    pub(super) said_untold: AtomicBool,
    /// Whether it has been said that renewal shares the pool's connections.
    said_shared: AtomicBool,
    pub(super) clock: Clock,
    pub(super) command_timeout: Duration,
}

impl Endpoint {
    pub(super) fn new(
        info: ConnectionInfo,
        service: Option<&Service>,
        settings: Settings,
        clock: Clock,
    ) -> Result<Self> {
        let tls = is_tls(&info);
        let (address, dialer, sentinels) = match service {
            Some(service) => {
                let (sentinels, dialer) = service::open(service, info, &settings)?;
                let address = format!("{}@{}", service.name, service.sentinels.join(","));
                (address, dialer, Some(sentinels))
            }
            None => {
                let dialer = settings.dialer(&info)?;
                (dialer.address(), dialer, None)
            }
        };
        let target = Target {
            address,
            tls,
            within: settings.connect_timeout.min(settings.command_timeout),
            process: std::process::id(),
        };
        let time_to_connect = target.within;
        let reach = Reach::new(&settings.counters, &target.address);
        let gate = Gate::at(target, gate::pause(settings.among));
        let (generation, demotions) = (Arc::<AtomicU64>::default(), Demotions::default());
        if let Some(sentinels) = &sentinels {
            let (generation, demotions) = (Arc::clone(&generation), demotions.clone());
            let gate = Arc::clone(&gate);
            // No connection to the old primary is used any more.
            sentinels.when_moved(Box::new(move || {
                generation.fetch_add(1, Ordering::SeqCst);
                demotions.add();
                gate.doubt();
            }));
        }
        let connector = Connector::new(
            dialer,
            sentinels.clone(),
            clock.clone(),
            settings.connect_timeout,
            settings.pool_size,
        );
        Ok(Self {
            connector,
            gate,
            reach,
            time_to_connect,
            generation,
            demotions,
            watchers: sentinels.map(Watchers::new),
            had_primary: AtomicBool::new(false),
            is_member: matches!(settings.among, Among::Quorum(_)),
            said_untold: AtomicBool::new(false),
            said_shared: AtomicBool::new(false),
            clock,
            command_timeout: settings.command_timeout,
        })
    }

    /// Says once why renewal has no connection of its own.
    pub(super) fn say_shared(&self, why: &StoreError) {
        if !self.said_shared.swap(true, Ordering::Relaxed) {
            log::warn!(
                "renewal cannot open a connection of its own, and shares those of the pool: {why}"
            );
        }
    }

    /// Whether the last attempt to reach the server failed.
    pub(super) fn is_shut(&self) -> bool {
        self.gate.is_shut()
    }

    /// For a connection that only its reader uses: the reader checks it for demotions.
    pub(crate) fn demotions(&self) -> DemotionWatch {
        self.demotions.watch()
    }

    /// Closes the connections to its sentinels.
    pub(super) fn close(&self) {
        if let Some(watchers) = &self.watchers {
            watchers.sentinels.close();
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// From now on trusts no connection of this generation or before it; and if the server is a
    /// replica, no subscription either.
    pub(super) fn distrust(&self, generation: u64, demoted: bool) {
        let _ = self.generation.compare_exchange(
            generation,
            generation + 1,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        if demoted {
            self.demotions.add();
        }
    }

    pub(super) fn failed(&self, error: &RedisError, was_idle: bool) -> StoreError {
        let mut failure = reply::unanswered(error);
        failure.stale = was_idle && failure.dropped;
        failure
    }

    /// Opens a connection. A server that refuses our credentials has answered; it is not down.
    pub(super) fn connect(&self, deadline: Instant) -> Result<Connection, StoreError> {
        let generation = self.generation();
        let left = self.clock.left(deadline);
        if left.is_zero() {
            // An attempt would say nothing about the server.
            return Err(self.connector.at(connect::no_time()));
        }
        let pass = self.gate.enter(left);
        let pass = pass.ok_or_else(|| self.is_down())?;
        match self.connector.open(deadline) {
            Ok(Opened::Ready { connection, untold }) => {
                pass.opened();
                self.reach.answered();
                self.had_primary.store(true, Ordering::SeqCst);
                if let Some(why) = untold {
                    self.say_untold(&why);
                }
                self.watch();
                Ok(connection)
            }
            // The server is up: other connections to its address do not have to wait.
            Ok(Opened::Refused(error)) => {
                pass.opened();
                self.reach.answered();
                Err(error)
            }
            Ok(Opened::Replica) if self.is_a_wrong_address() => {
                pass.opened();
                Err(self.connector.at(log_in::replica()))
            }
            Ok(Opened::Replica) => {
                let error = reply::replica();
                pass.failed(&error);
                self.reach.unconnected();
                self.distrust(generation, true);
                Err(error)
            }
            Err(mut error) => {
                // What is wrong with an address that has led to a primary may end, as an outage
                // does: a name or a directory that is gone while the server starts anew.
                if error.kind != ErrorKind::Denied && self.had_primary.load(Ordering::SeqCst) {
                    error.permanent = false;
                }
                if error.permanent {
                    self.reach.answered();
                    pass.opened();
                    return Err(error);
                }
                self.reach.unconnected();
                if left < self.time_to_connect / 2 && self.clock.left(deadline) < left / 4 {
                    pass.had_no_time(&error)
                } else {
                    pass.failed(&error)
                }
                Err(error)
            }
        }
    }

    /// The error for a caller that is turned away. It has the cause of the last attempt.
    fn is_down(&self) -> StoreError {
        if self.gate.is_shut() {
            self.reach.unconnected();
        }
        let down = StoreError::not_sent(ErrorKind::Unavailable, "the server is down");
        match self.gate.cause() {
            Some(cause) => down.because(cause),
            None => down,
        }
    }

    /// A connection outside the pool, for one user alone.
    pub(crate) fn open_for_itself(&self) -> Result<Connection, StoreError> {
        self.connect(self.command_deadline())
    }

    pub(super) fn command_deadline(&self) -> Instant {
        self.clock.now() + self.command_timeout
    }

    /// Opens a connection for a first command. `demotions`: how many were known before. If there is
    /// one more now, the connection may lead to the old primary, and nothing is sent there (R23).
    pub(super) fn connect_unless_moved(
        &self,
        deadline: Instant,
        demotions: u64,
    ) -> Result<Connection, StoreError> {
        let connection = self.connect(deadline)?;
        if self.demotions.count() == demotions {
            Ok(connection)
        } else {
            Err(reply::moved_meanwhile())
        }
    }

    /// Whether a replica at this address will stay one: a name that has stood for a primary may do
    /// so again, after a failover. Sentinels know better, and a quorum does without this node.
    fn is_a_wrong_address(&self) -> bool {
        self.watchers.is_none() && !self.is_member && !self.had_primary.load(Ordering::SeqCst)
    }

    fn say_untold(&self, why: &StoreError) {
        if !self.said_untold.swap(true, Ordering::Relaxed) {
            let source = why.source.as_ref().map_or_else(String::new, |said| format!(": {said}"));
            log::warn!(
                "the server does not say whether it is a primary, so a replica is found only when \
                 it refuses to write{source}"
            );
        }
    }

    /// Ends the threads that listen to the sentinels. `false`: not by `deadline`.
    pub(crate) fn stop_watching(&self, deadline: Instant) -> bool {
        self.watchers.as_ref().is_none_or(|watchers| watchers.stop(deadline))
    }

    /// Listens to the sentinels from now on, if there are any.
    fn watch(&self) {
        if let Some(watchers) = &self.watchers {
            watchers.start();
        }
    }
}
