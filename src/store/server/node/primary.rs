//! A server that moves: where sentinels say that it is, and what ends when they say that it is
//! another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use redis::ConnectionInfo;

use super::Endpoint;
use crate::base::error::Result;
use crate::base::log;
use crate::base::worker::Worker;
use crate::store::server::demotion::Demotions;
use crate::store::server::dial::Dialer;
use crate::store::server::gate::Gate;
use crate::store::server::sentinel::Sentinels;
use crate::store::server::sentinel::place;
use crate::store::server::sentinel::watcher::Watcher;
use crate::store::server::settings::{Service, Settings};

/// How a server is reached.
pub(super) struct Place {
    /// What its gate goes by.
    pub(super) name: String,
    pub(super) dialer: Dialer,
    pub(super) sentinels: Option<Arc<Sentinels>>,
}

impl Place {
    pub(super) fn new(
        info: ConnectionInfo,
        service: Option<&Service>,
        settings: &Settings,
    ) -> Result<Self> {
        if let Some(service) = service {
            let name = format!("{}@{}", service.name, service.sentinels.join(","));
            let (sentinels, dialer) = place::open(service, info, settings)?;
            return Ok(Self { name, dialer, sentinels: Some(sentinels) });
        }
        let dialer = settings.dialer(&info)?;
        Ok(Self { name: dialer.address(), dialer, sentinels: None })
    }
}

/// The sentinels of a node, and the thread that listens to them.
pub(super) struct Watched {
    pub(super) sentinels: Arc<Sentinels>,
    watcher: Worker<()>,
}

impl Watched {
    /// Has every connection be lost when the primary moves.
    pub(super) fn new(
        sentinels: Arc<Sentinels>,
        (generation, demotions, gate): (&Arc<AtomicU64>, &Demotions, &Arc<Gate>),
    ) -> Self {
        let (generation, demotions) = (Arc::clone(generation), demotions.clone());
        let gate = Arc::clone(gate);
        sentinels.when_moved(Box::new(move || {
            generation.fetch_add(1, Ordering::SeqCst);
            demotions.add();
            gate.doubt();
        }));
        Self { sentinels, watcher: Worker::new("distlock-sentinel") }
    }

    pub(super) fn sentinels(&self) -> Arc<Sentinels> {
        Arc::clone(&self.sentinels)
    }
}

impl Endpoint {
    /// Ends the thread that listens to the sentinels. `false`: not by `deadline`.
    pub(crate) fn stop_watching(&self, deadline: Instant) -> bool {
        self.watched.as_ref().is_none_or(|watched| watched.watcher.stop().wait(deadline))
    }

    /// Listens to the sentinels from now on, if there are any.
    pub(super) fn watch(&self) {
        let Some(watched) = &self.watched else { return };
        let sentinels = watched.sentinels();
        let started = watched
            .watcher
            .start(move |stop| Watcher { sentinels: Arc::clone(&sentinels), stop }.run());
        if let Err(error) = started {
            log::warn!("no thread could be started to listen to the sentinels: {error}");
        }
    }
}
