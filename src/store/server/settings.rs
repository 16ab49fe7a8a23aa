//! How to reach a server, or the nodes of a quorum.

#[cfg(feature = "testing")]
use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionInfo;

use super::dial::Dialer;
use crate::base::error::{Error, Result};
#[cfg(feature = "testing")]
use crate::lease::store::LeaseStore;

/// How to reach the place that keeps leases.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) url: String,
    /// The nodes of a quorum; `None`: one place, at `url`.
    pub(crate) nodes: Option<Vec<String>>,
    /// For a node: the number of nodes in its quorum.
    pub(crate) member_of: Option<u32>,
    pub(crate) pool_size: u32,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) pool: Option<r2d2::Pool<redis::Client>>,
    /// A service that sentinels watch; `None`: what `url` says.
    pub(crate) service: Option<Service>,
    /// Who we are at its primary, and which database we want there.
    pub(crate) credentials: Option<Credentials>,
    pub(crate) database: Option<u32>,
    /// Who we are at its sentinels.
    pub(crate) sentinel_credentials: Option<Credentials>,
    #[cfg(feature = "tls")]
    pub(crate) root_certificates: Option<Vec<u8>>,
    #[cfg(feature = "testing")]
    pub(crate) wrap_nodes: Option<WrapNodes>,
}

/// A user and a password; an empty user is the default one.
pub(crate) type Credentials = (String, String);

/// A service that sentinels watch, as a program names it.
#[derive(Clone, Default)]
pub(crate) struct Service {
    pub(crate) name: String,
    /// `redis://` or `rediss://`, with the sentinels' own credentials.
    pub(crate) sentinels: Vec<String>,
}

/// Wraps a node's store in a store of a test.
#[cfg(feature = "testing")]
pub(crate) type WrapNodes = Arc<dyn Fn(usize, Arc<dyn LeaseStore>) -> Arc<dyn LeaseStore>>;

impl Settings {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            nodes: None,
            member_of: None,
            pool_size: 8,
            command_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(2),
            pool: None,
            service: None,
            credentials: None,
            database: None,
            sentinel_credentials: None,
            #[cfg(feature = "tls")]
            root_certificates: None,
            #[cfg(feature = "testing")]
            wrap_nodes: None,
        }
    }

    /// How a connection to this address is opened.
    pub(crate) fn dialer(&self, info: &ConnectionInfo) -> Result<Dialer> {
        Dialer::new(
            info,
            self.command_timeout,
            #[cfg(feature = "tls")]
            self.root_certificates.as_deref(),
        )
    }

    pub(crate) fn check(&self) -> Result<()> {
        let possible = Duration::from_millis(1)..=Duration::from_secs(3600);
        if !possible.contains(&self.command_timeout) || !possible.contains(&self.connect_timeout) {
            return Err(Error::invalid(
                "command and connect timeouts must be between 1 ms and 1 h",
            ));
        }
        if !(1..=1024).contains(&self.pool_size) {
            return Err(Error::invalid("the pool must have 1 to 1024 connections"));
        }
        Ok(())
    }
}
