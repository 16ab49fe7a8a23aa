//! Where leases live. With `server`, the only place that names redis and r2d2.

#[cfg(test)]
#[allow(clippy::expect_used, clippy::unwrap_used)]
mod fuzz;
mod inbox;
mod layout;
mod memory;
mod quorum;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::base::clock::Clock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::locked;
use crate::base::options::{Confirm, Layout, LockOptions};
use crate::base::store_error::StoreError;
use crate::lease::cleaner::Cleaner;
use crate::lease::store::LeaseStore;
use crate::lease::token::Tokens;
use crate::limiter::port::LimitStore;
use crate::limiter::scripts::ServerLimits;
use crate::server::cluster;
use crate::server::execute::{Work, execute};
use crate::server::node::Node;
use crate::server::sentinel::service::{self, Service};
use crate::server::servers::Servers;
use crate::server::settings::Settings;
use crate::server::url::parse;
use inbox::Inboxes;
use layout::Leases;
#[cfg(feature = "testing")]
pub use layout::scripts;
use memory::Memory;
pub(crate) use quorum::Nodes;
use quorum::{NoLimits, Quorum};

/// Where a program wants its leases.
pub(crate) enum Deployment {
    /// On one server, at the primary that sentinels name, or in this process: as the URL says.
    Url(String),
    /// At the primary that sentinels name.
    Sentinel(Service),
    /// On the nodes of a Redis Cluster, reached by these first.
    Cluster(Vec<String>),
    /// On a majority of several servers.
    Quorum(Nodes),
}

/// Where one client's leases live.
pub(crate) struct Backend {
    leases: Leases,
    /// The same for leases that replicas have to confirm, each kind of confirmations apart, made at
    /// its first use.
    confirmed: Mutex<HashMap<Confirm, (Servers, Leases)>>,
    limits: Arc<dyn LimitStore>,
    kind: Kind,
}

enum Kind {
    /// One Redis server, or a cluster.
    Servers { servers: Servers, inboxes: Arc<Inboxes> },
    /// In this process.
    Memory,
    /// On a majority of several servers.
    Quorum(Arc<Quorum>),
}

impl Backend {
    pub(crate) fn new(
        deployment: &Deployment,
        settings: Settings,
        clock: Clock,
        tokens: &Tokens,
        cleaner: &Cleaner,
    ) -> Result<Self> {
        let alone = |leases: Leases, limits, kind| Self {
            leases,
            confirmed: Mutex::default(),
            limits,
            kind,
        };
        let (info, service) = match deployment {
            Deployment::Quorum(nodes) => {
                settings.check_without_sentinels()?;
                let quorum = Arc::new(Quorum::open(nodes, &settings, &clock)?);
                let leases = Arc::clone(&quorum) as Arc<dyn LeaseStore>;
                let leases = vec![((Layout::Plain, false), leases)];
                return Ok(alone(leases, Arc::new(NoLimits), Kind::Quorum(quorum)));
            }
            Deployment::Cluster(urls) => {
                let cluster = cluster::open(urls, settings, clock)?;
                return Self::on(Servers::Cluster(cluster), tokens, cleaner);
            }
            Deployment::Sentinel(service) => (parse(&service.primary())?, Some(service.clone())),
            Deployment::Url(url) => {
                if let Some(name) = memory::name_in(url).transpose()? {
                    settings.check_without_sentinels()?;
                    if settings.pool.is_some() {
                        return Err(Error::invalid("memory:// cannot use a pool"));
                    }
                    let memory = Memory::open(name, clock);
                    let [locks, shares] = [false, true].map(|has_shares| {
                        let leases: Arc<dyn LeaseStore> = Arc::new(memory.leases(has_shares));
                        ((Layout::Plain, has_shares), leases)
                    });
                    return Ok(alone(vec![locks, shares], Arc::new(memory), Kind::Memory));
                }
                if let Some(urls) = cluster::in_url(url) {
                    let cluster = cluster::open(&urls, settings, clock)?;
                    return Self::on(Servers::Cluster(cluster), tokens, cleaner);
                }
                match service::in_url(url).transpose()? {
                    Some((service, primary)) => (parse(&primary)?, Some(service)),
                    None => {
                        settings.check_without_sentinels()?;
                        (parse(url)?, None)
                    }
                }
            }
        };
        let info = settings.at(info);
        let node = Arc::new(Node::new(info, service.as_ref(), settings, clock)?);
        Self::on(Servers::One(node), tokens, cleaner)
    }

    fn on(servers: Servers, tokens: &Tokens, cleaner: &Cleaner) -> Result<Self> {
        let (leases, inboxes) = layout::on_servers(&servers, tokens.client_uuid(), cleaner);
        let limits = Arc::new(ServerLimits::new(servers.clone()));
        let (confirmed, kind) = (Mutex::default(), Kind::Servers { servers, inboxes });
        Ok(Self { leases, confirmed, limits, kind })
    }

    /// The store for locks with these options.
    pub(crate) fn leases(&self, options: &LockOptions) -> Result<Arc<dyn LeaseStore>> {
        // Where there is none with shares, the one without says why.
        let find = |leases: &Leases| {
            let leases = layout::find(leases, options.written())
                .or_else(|| layout::find(leases, (options.layout, false)));
            let only_plain = || Error::unsupported("this store has only the plain layout");
            leases.cloned().ok_or_else(only_plain)
        };
        let leases = find(&self.leases)?;
        leases.supports(options)?;
        if !options.confirm.is_wanted() {
            return Ok(leases);
        }
        let Kind::Servers { servers, inboxes } = &self.kind else {
            return Err(Error::unsupported(
                "only one server, with or without sentinels, and a cluster have replicas to ask",
            ));
        };
        let mut all = locked(&self.confirmed);
        let (_, confirmed) = all.entry(options.confirm).or_insert_with(|| {
            let granting = servers.confirming(options.confirm);
            let leases = layout::every_layout(servers, &granting, inboxes);
            (granting, leases)
        });
        find(confirmed)
    }

    pub(crate) fn limits(&self) -> &Arc<dyn LimitStore> {
        &self.limits
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        match &self.kind {
            Kind::Servers { servers, .. } => servers.ping(deadline),
            Kind::Memory => Ok(()),
            Kind::Quorum(quorum) => quorum.ping(deadline),
        }
    }

    pub(crate) fn execute<T>(&self, deadline: Instant, work: Work<'_, T>) -> Result<T, StoreError> {
        let unsupported = |why| Err(StoreError::not_sent(ErrorKind::Unsupported, why));
        match &self.kind {
            Kind::Servers { servers: Servers::One(node), .. } => execute(node, deadline, work),
            Kind::Servers { .. } => {
                unsupported("`execute` needs one server, and a cluster has several")
            }
            Kind::Memory => unsupported("memory:// has no commands: `execute` needs a server"),
            Kind::Quorum(_) => unsupported("`execute` needs one server, and a quorum has several"),
        }
    }

    /// Ends the threads and connections of the store. `false`: not by `deadline`.
    pub(crate) fn close(&self, deadline: Instant) -> bool {
        match &self.kind {
            Kind::Servers { servers, inboxes } => {
                let in_time = inboxes.close(deadline);
                let confirmed = locked(&self.confirmed);
                // None waits for another: sentinels are watched for all of them.
                let closed = confirmed.values().map(|(servers, _)| servers).chain([servers]);
                closed.fold(in_time, |in_time, servers| servers.close(deadline) && in_time)
            }
            Kind::Memory => true,
            Kind::Quorum(quorum) => quorum.close(deadline),
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn wrap(&mut self, wrap: &dyn Fn(Arc<dyn LeaseStore>) -> Arc<dyn LeaseStore>) {
        for (_, leases) in &mut self.leases {
            *leases = wrap(Arc::clone(leases));
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Servers { servers: Servers::One(_), .. } => "one server",
            Kind::Servers { .. } => "a cluster",
            Kind::Memory => "memory",
            Kind::Quorum(_) => "a quorum",
        })
    }
}
