//! Where leases live. The only place that names redis and r2d2.

#[cfg(test)]
#[allow(clippy::expect_used, clippy::unwrap_used)]
mod fuzz;
pub(crate) mod layout;
pub(crate) mod memory;
pub(crate) mod quorum;
pub(crate) mod server;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::base::clock::Clock;
use crate::base::error::{Error, Result};
use crate::base::key::Key;
use crate::base::options::Layout;
use crate::lease::cleaner::{Cleaner, Withdrawal};
use crate::lease::store::{LeaseStore, StoreError};
use crate::lease::token::Tokens;
use crate::limiter::port::LimitStore;
use layout::limits::ServerLimits;
use layout::plain::Plain;
use layout::redisson::Redisson;
use layout::timestamp::Timestamp;
use memory::Memory;
use quorum::{NoLimits, Quorum};
use server::callers::Work;
use server::inbox::Inbox;
use server::node::Node;
use server::settings::{Settings, parse};

/// Where one client's leases live.
pub(crate) enum Backend {
    /// One Redis server.
    Server {
        node: Arc<Node>,
        inbox: Arc<Inbox>,
        plain: Arc<dyn LeaseStore>,
        redisson: Arc<dyn LeaseStore>,
        timestamp: Arc<dyn LeaseStore>,
        limits: Arc<dyn LimitStore>,
    },
    /// In this process.
    Memory { leases: Arc<dyn LeaseStore>, limits: Arc<dyn LimitStore> },
    /// On a majority of several servers.
    Quorum { quorum: Arc<Quorum>, leases: Arc<dyn LeaseStore>, limits: Arc<dyn LimitStore> },
}

impl Backend {
    pub(crate) fn new(
        settings: Settings,
        clock: Clock,
        tokens: &Tokens,
        cleaner: &Cleaner,
    ) -> Result<Self> {
        if let Some(urls) = &settings.nodes {
            let quorum = Arc::new(Quorum::open(urls, &settings, &clock)?);
            return Ok(Self::Quorum {
                leases: Arc::clone(&quorum) as Arc<dyn LeaseStore>,
                limits: Arc::new(NoLimits),
                quorum,
            });
        }
        if let Some(name) = settings.url.strip_prefix("memory://") {
            if settings.pool.is_some() {
                return Err(Error::invalid("memory:// cannot use a pool"));
            }
            let memory = Memory::open(name, clock);
            return Ok(Self::Memory {
                leases: Arc::clone(&memory) as Arc<dyn LeaseStore>,
                limits: memory,
            });
        }
        let info = parse(&settings.url)?;
        let node = Arc::new(Node::new(info, settings, clock)?);
        let id = tokens.fresh()?;
        let cleaner = cleaner.clone();
        let plain = Arc::new_cyclic(|plain: &Weak<Plain>| {
            let plain = Weak::clone(plain);
            let stray = Box::new(move |key: Key, token| {
                if let Some(store) = plain.upgrade() {
                    cleaner.withdraw_later(Withdrawal::stray(store, key, token));
                }
            });
            Plain::new(Arc::clone(&node), Arc::new(Inbox::new(id.as_str(), stray)))
        });
        let inbox = plain.inbox();
        let redisson = Arc::new(Redisson::new(Arc::clone(&node), Arc::clone(&inbox)));
        let timestamp = Arc::new(Timestamp::new(Arc::clone(&node)));
        let limits = Arc::new(ServerLimits::new(Arc::clone(&node)));
        Ok(Self::Server { node, inbox, plain, redisson, timestamp, limits })
    }

    pub(crate) fn leases(&self, layout: Layout) -> Result<&Arc<dyn LeaseStore>> {
        match (self, layout) {
            (Self::Server { plain, .. }, Layout::Plain) => Ok(plain),
            (Self::Server { redisson, .. }, Layout::Redisson) => Ok(redisson),
            (Self::Server { timestamp, .. }, Layout::Timestamp) => Ok(timestamp),
            (Self::Memory { leases, .. } | Self::Quorum { leases, .. }, Layout::Plain) => {
                Ok(leases)
            }
            (Self::Memory { .. } | Self::Quorum { .. }, _) => {
                Err(Error::unsupported("this store has only the plain layout"))
            }
        }
    }

    pub(crate) fn limits(&self) -> &Arc<dyn LimitStore> {
        match self {
            Self::Server { limits, .. }
            | Self::Memory { limits, .. }
            | Self::Quorum { limits, .. } => limits,
        }
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        match self {
            Self::Server { node, .. } => node.ping(deadline),
            Self::Memory { .. } => Ok(()),
            Self::Quorum { quorum, .. } => quorum.ping(deadline),
        }
    }

    pub(crate) fn execute<T>(&self, deadline: Instant, work: Work<'_, T>) -> Result<T, StoreError> {
        match self {
            Self::Server { node, .. } => node.execute(deadline, work),
            Self::Memory { .. } => Err(StoreError::not_sent(
                crate::base::error::ErrorKind::Unsupported,
                "memory:// has no commands: `execute` needs a server",
            )),
            Self::Quorum { .. } => Err(StoreError::not_sent(
                crate::base::error::ErrorKind::Unsupported,
                "`execute` needs one server, and a quorum has several",
            )),
        }
    }

    /// Ends the threads and connections of the store. `false`: not by `deadline`.
    pub(crate) fn close(&self, deadline: Instant) -> bool {
        match self {
            Self::Server { node, inbox, .. } => {
                let in_time = inbox.close(node, deadline);
                node.close();
                in_time
            }
            Self::Memory { .. } => true,
            Self::Quorum { quorum, .. } => quorum.close(deadline),
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn wrap(&mut self, wrap: &dyn Fn(Arc<dyn LeaseStore>) -> Arc<dyn LeaseStore>) {
        match self {
            Self::Server { plain, redisson, timestamp, .. } => {
                for leases in [plain, redisson, timestamp] {
                    *leases = wrap(Arc::clone(leases));
                }
            }
            Self::Memory { leases, .. } | Self::Quorum { leases, .. } => {
                *leases = wrap(Arc::clone(leases))
            }
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server { .. } => "one server",
            Self::Memory { .. } => "memory",
            Self::Quorum { .. } => "a quorum",
        })
    }
}
