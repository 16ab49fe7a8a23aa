//! How servers are reached.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::ConnectionInfo;
use scheduled_thread_pool::ScheduledThreadPool;

use super::counters::ServerCounters;
use super::dial::Dialer;
use crate::base::error::{Error, Result};

/// How servers are reached.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) pool_size: u32,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) pool_thread: PoolThread,
    /// The program's own pool.
    pub(crate) pool: Option<r2d2::Pool<redis::Client>>,
    pub(crate) among: Among,
    /// What is counted of all servers that are reached by these settings or clones of them.
    pub(crate) counters: Arc<ServerCounters>,
    /// Who we are at the primary that sentinels name, and which database we want there.
    pub(crate) credentials: Option<Credentials>,
    pub(crate) database: Option<u32>,
    /// Who we are at its sentinels.
    pub(crate) sentinel_credentials: Option<Credentials>,
    #[cfg(feature = "tls")]
    pub(crate) root_certificates: Option<Vec<u8>>,
}

/// The servers that a server is one of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Among {
    Itself,
    /// So many that each keep every lock.
    Quorum(u32),
    /// Several that each keep their share of the locks.
    Cluster,
}

/// The thread of all pools of a client, while one of them needs it.
pub(crate) type PoolThread = Arc<Mutex<Weak<ScheduledThreadPool>>>;

/// A user and a password; an empty user is the default one.
pub(crate) type Credentials = (String, String);

/// The same address, as this user.
pub(super) fn as_user(info: ConnectionInfo, (user, password): &Credentials) -> ConnectionInfo {
    let mut login = info.redis_settings().clone().set_password(password);
    if !user.is_empty() {
        login = login.set_username(user);
    }
    info.set_redis_settings(login)
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pool_size: 8,
            command_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(2),
            pool_thread: PoolThread::default(),
            pool: None,
            among: Among::Itself,
            counters: Arc::default(),
            credentials: None,
            database: None,
            sentinel_credentials: None,
            #[cfg(feature = "tls")]
            root_certificates: None,
        }
    }
}

impl Settings {
    /// Only sentinels leave anything to say about the primary that does not stand in its URL.
    pub(crate) fn check_without_sentinels(&self) -> Result<()> {
        let has_own = self.credentials.is_some() || self.database.is_some();
        if has_own || self.sentinel_credentials.is_some() {
            return Err(Error::invalid(
                "credentials and the database stand in the URL of a server",
            ));
        }
        Ok(())
    }

    /// The same address, as the user and for the database that are set apart from the URL.
    pub(crate) fn at(&self, info: ConnectionInfo) -> ConnectionInfo {
        let info = match &self.credentials {
            Some(credentials) => as_user(info, credentials),
            None => info,
        };
        match self.database {
            Some(database) => {
                let login = info.redis_settings().clone().set_db(i64::from(database));
                info.set_redis_settings(login)
            }
            None => info,
        }
    }

    /// How a connection to this address is opened.
    pub(crate) fn dialer(&self, info: &ConnectionInfo) -> Result<Dialer> {
        Dialer::new(
            info,
            self.command_timeout,
            self.among == Among::Cluster,
            Arc::clone(&self.counters),
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
