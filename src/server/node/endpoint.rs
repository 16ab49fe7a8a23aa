//! One server, as connections to it are opened: its address and its gate, and which connections are
//! still trusted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, RedisError};

use super::primary::{Place, Watched};
use crate::base::clock::Clock;
use crate::base::error::Result;
use crate::base::log;
use crate::base::store_error::StoreError;
use crate::server::connect::Connector;
use crate::server::demotion::{Demotions, Watch};
use crate::server::gate::{self, Gate, Target};
use crate::server::reply;
use crate::server::settings::{Service, Settings};

/// One server, as connections to it are opened.
pub(crate) struct Endpoint {
    pub(super) connector: Connector,
    pub(super) gate: Arc<Gate>,
    /// How long opening a connection may take. An attempt with less than half of it says little.
    pub(super) time_to_connect: Duration,
    /// How many failures there have been: connections from before the last failure are not trusted
    /// any more (R6).
    generation: Arc<AtomicU64>,
    /// For connections that the generation does not cover (R22).
    pub(super) demotions: Demotions,
    /// The sentinels that say where it is, and the thread that listens to them.
    pub(super) watched: Option<Watched>,
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
        let tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        let place = Place::new(info, service, &settings)?;
        let target = Target {
            address: place.name,
            tls,
            within: settings.connect_timeout.min(settings.command_timeout),
            process: std::process::id(),
        };
        let time_to_connect = target.within;
        let gate = Gate::at(target, gate::pause(settings.member_of));
        let (generation, demotions) = (Arc::<AtomicU64>::default(), Demotions::default());
        let watched = place
            .sentinels
            .map(|sentinels| Watched::new(sentinels, (&generation, &demotions, &gate)));
        let connector = Connector::new(
            place.dialer,
            watched.as_ref().map(Watched::sentinels),
            clock.clone(),
            settings.connect_timeout,
            settings.pool_size,
        );
        Ok(Self {
            connector,
            gate,
            time_to_connect,
            generation,
            demotions,
            watched,
            had_primary: AtomicBool::new(false),
            is_member: settings.member_of.is_some(),
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

    /// For a connection that only its reader uses: the reader checks it for demotions.
    pub(crate) fn demotions(&self) -> Watch {
        self.demotions.watch()
    }

    /// Closes the connections to its sentinels.
    pub(super) fn close(&self) {
        if let Some(watched) = &self.watched {
            watched.sentinels.close();
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
}
