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
use crate::server::execute::{Work, execute};
use crate::server::node::Node;
use crate::server::sentinel::service::{self, Service};
use crate::server::settings::Settings;
use crate::server::url::parse;
use inbox::Inbox;
use layout::Leases;
use memory::Memory;
pub(crate) use quorum::Nodes;
use quorum::{NoLimits, Quorum};

/// Where a program wants its leases.
pub(crate) enum Deployment {
    /// On one server, at the primary that sentinels name, or in this process: as the URL says.
    Url(String),
    /// At the primary that sentinels name.
    Sentinel(Service),
    /// On a majority of several servers.
    Quorum(Nodes),
}

/// Where one client's leases live.
pub(crate) struct Backend {
    leases: Leases,
    /// The same for leases that replicas have to confirm: one node for each kind of confirmations,
    /// made at its first use.
    confirmed: Mutex<HashMap<Confirm, (Arc<Node>, Leases)>>,
    limits: Arc<dyn LimitStore>,
    kind: Kind,
}

enum Kind {
    /// One Redis server.
    Server { node: Arc<Node>, inbox: Arc<Inbox> },
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
        let plain = |leases: Arc<dyn LeaseStore>, limits, kind| {
            let (leases, confirmed) = (vec![(Layout::Plain, leases)], Mutex::default());
            Self { leases, confirmed, limits, kind }
        };
        let (info, service) = match deployment {
            Deployment::Quorum(nodes) => {
                settings.check_without_sentinels()?;
                let quorum = Arc::new(Quorum::open(nodes, &settings, &clock)?);
                let leases = Arc::clone(&quorum) as Arc<dyn LeaseStore>;
                return Ok(plain(leases, Arc::new(NoLimits), Kind::Quorum(quorum)));
            }
            Deployment::Sentinel(service) => (parse(&service.primary())?, Some(service.clone())),
            Deployment::Url(url) => {
                if let Some(name) = memory::name_in(url).transpose()? {
                    settings.check_without_sentinels()?;
                    if settings.pool.is_some() {
                        return Err(Error::invalid("memory:// cannot use a pool"));
                    }
                    let memory = Memory::open(name, clock);
                    let leases = Arc::clone(&memory) as Arc<dyn LeaseStore>;
                    return Ok(plain(leases, memory, Kind::Memory));
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
        let (leases, inbox) = layout::on_server(&node, &tokens.fresh()?.text(), cleaner);
        let limits = Arc::new(ServerLimits::new(Arc::clone(&node)));
        let (confirmed, kind) = (Mutex::default(), Kind::Server { node, inbox });
        Ok(Self { leases, confirmed, limits, kind })
    }

    /// The store for locks with these options.
    pub(crate) fn leases(&self, options: &LockOptions) -> Result<Arc<dyn LeaseStore>> {
        let of_layout = |leases: &Leases| {
            let leases = leases.iter().find(|(has, _)| *has == options.layout);
            leases.map(|(_, leases)| Arc::clone(leases))
        };
        let only_plain = || Error::unsupported("this store has only the plain layout");
        let leases = of_layout(&self.leases).ok_or_else(only_plain)?;
        leases.supports(options)?;
        if !options.confirm.is_wanted() {
            return Ok(leases);
        }
        let Kind::Server { node, inbox } = &self.kind else {
            return Err(Error::unsupported(
                "only one server, with or without sentinels, has replicas to ask",
            ));
        };
        let mut all = locked(&self.confirmed);
        let (_, confirmed) = all.entry(options.confirm).or_insert_with(|| {
            let granting = Arc::new(node.confirming(options.confirm));
            let leases = layout::every_layout(node, &granting, inbox);
            (granting, leases)
        });
        of_layout(confirmed).ok_or_else(only_plain)
    }

    pub(crate) fn limits(&self) -> &Arc<dyn LimitStore> {
        &self.limits
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        match &self.kind {
            Kind::Server { node, .. } => node.ping(deadline),
            Kind::Memory => Ok(()),
            Kind::Quorum(quorum) => quorum.ping(deadline),
        }
    }

    pub(crate) fn execute<T>(&self, deadline: Instant, work: Work<'_, T>) -> Result<T, StoreError> {
        let unsupported = |why| Err(StoreError::not_sent(ErrorKind::Unsupported, why));
        match &self.kind {
            Kind::Server { node, .. } => execute(node, deadline, work),
            Kind::Memory => unsupported("memory:// has no commands: `execute` needs a server"),
            Kind::Quorum(_) => unsupported("`execute` needs one server, and a quorum has several"),
        }
    }

    /// Ends the threads and connections of the store. `false`: not by `deadline`.
    pub(crate) fn close(&self, deadline: Instant) -> bool {
        match &self.kind {
            Kind::Server { node, inbox } => {
                let in_time = inbox.close(node, deadline);
                node.close();
                locked(&self.confirmed).values().for_each(|(node, _)| node.close());
                node.endpoint().stop_watching(deadline) && in_time
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
            Kind::Server { .. } => "one server",
            Kind::Memory => "memory",
            Kind::Quorum(_) => "a quorum",
        })
    }
}
