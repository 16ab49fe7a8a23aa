//! A server that moves: where sentinels say that it is, and what ends when they say that it is
//! another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use redis::ConnectionInfo;

use super::Endpoint;
use crate::base::error::Result;
use crate::base::log;
use crate::base::worker::{Stopped, Worker};
use crate::server::demotion::Demotions;
use crate::server::dial::Dialer;
use crate::server::gate::Gate;
use crate::server::sentinel::Sentinels;
use crate::server::sentinel::place;
use crate::server::sentinel::watcher::Watcher;
use crate::server::settings::{Service, Settings};

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

/// The sentinels of a node, and the threads that listen to them.
pub(super) struct Watched {
    pub(super) sentinels: Arc<Sentinels>,
    watchers: Vec<Worker<()>>,
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
        let watchers = sentinels.all.iter().map(|_| Worker::new("distlock-sentinel")).collect();
        Self { sentinels, watchers }
    }

    pub(super) fn sentinels(&self) -> Arc<Sentinels> {
        Arc::clone(&self.sentinels)
    }
}

impl Endpoint {
    /// Ends the threads that listen to the sentinels. `false`: not by `deadline`.
    pub(crate) fn stop_watching(&self, deadline: Instant) -> bool {
        let watchers = self.watched.iter().flat_map(|watched| &watched.watchers);
        let stopped: Vec<Stopped> = watchers.map(Worker::stop).collect();
        stopped.iter().all(|stopped| stopped.wait(deadline))
    }

    /// Listens to the sentinels from now on, if there are any.
    pub(super) fn watch(&self) {
        let Some(watched) = &self.watched else { return };
        for (watcher, sentinel) in watched.watchers.iter().zip(&watched.sentinels.all) {
            let (sentinels, sentinel) = (watched.sentinels(), Arc::clone(sentinel));
            let started = watcher.start(move |stop| {
                let sentinels = Arc::clone(&sentinels);
                Watcher { sentinels, sentinel: &sentinel, stop }.run();
            });
            if let Err(error) = started {
                log::warn!("no thread could be started to listen to the sentinels: {error}");
            }
        }
    }
}
