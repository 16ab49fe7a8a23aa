//! How connections are made, wherever they lead: the settings of the socket, TLS, and the log-in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::io::tcp::{TcpSettings, socket2};
use redis::{Connection, ConnectionAddr, ConnectionInfo, RedisConnectionInfo, RedisResult, Value};

use super::reply;
use crate::base::error::{Error, Result};
use crate::lease::store::StoreError;

/// Opens connections of one kind: to its own address, or to another one in the same way.
#[derive(Clone)]
pub(crate) struct Dialer {
    /// Without user, password and database: see [`Asking::authenticate`].
    info: ConnectionInfo,
    login: Arc<RedisConnectionInfo>,
    #[cfg(feature = "tls")]
    root_certificates: Option<Vec<u8>>,
}

impl Dialer {
    /// `idle`: how long what was sent may stay unacknowledged.
    pub(crate) fn new(
        info: ConnectionInfo,
        idle: Duration,
        #[cfg(feature = "tls")] root_certificates: Option<Vec<u8>>,
    ) -> Self {
        let settings = TcpSettings::default()
            // A lock is one small packet each way: waiting for more to send would double its cost.
            .set_nodelay(true)
            // Closing resets the connection: our kernel drops what it has not delivered, so that no
            // attempt arrives after we gave it up (R5).
            .set_linger_time(Duration::ZERO)
            .set_user_timeout(idle)
            .set_keepalive(socket2::TcpKeepalive::new().with_time(Duration::from_secs(60)));
        let login = Arc::new(info.redis_settings().clone());
        // Sending the library's name would cost two more replies at each connect, and each reply
        // has a timeout of its own.
        let redis = RedisConnectionInfo::default().set_skip_set_lib_name();
        Self {
            info: info.set_tcp_settings(settings).set_redis_settings(redis),
            login,
            #[cfg(feature = "tls")]
            root_certificates,
        }
    }

    /// The same for another address.
    pub(crate) fn to(&self, host: &str, port: u16) -> Self {
        let host = host.to_owned();
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self { info: self.info.clone().set_addr(addr), ..self.clone() }
    }

    pub(crate) fn client(&self) -> Result<redis::Client> {
        let refused = |_| Error::invalid("the URL or one of its certificates cannot be used");
        let info = self.info.clone();
        #[cfg(feature = "tls")]
        {
            if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
                // The first choice counts for the whole process, and the program may have made it.
                let _ = rustls::crypto::ring::default_provider().install_default();
            }
            match &self.root_certificates {
                Some(pem) => redis::Client::build_with_tls(
                    info,
                    redis::TlsCertificates { client_tls: None, root_cert: Some(pem.clone()) },
                ),
                None => redis::Client::open(info),
            }
            .map_err(refused)
        }
        #[cfg(not(feature = "tls"))]
        redis::Client::open(info).map_err(refused)
    }

    pub(crate) fn login(&self) -> Arc<RedisConnectionInfo> {
        Arc::clone(&self.login)
    }
}

/// A connection that is being opened: whatever is asked over it has to be answered `until` then.
pub(crate) struct Asking {
    pub(crate) connection: Connection,
    pub(crate) until: Instant,
}

impl Asking {
    pub(crate) fn open(client: &redis::Client, until: Instant) -> Result<Self, StoreError> {
        let connection = client
            .get_connection_with_timeout(left(until))
            .map_err(|error| reply::connecting(&error))?;
        Ok(Self { connection, until })
    }

    /// Says who we are.
    ///
    /// redis-rs could do that, but it reports every error as a wrong password: also the error of a
    /// server that has too many clients and turns us away.
    pub(crate) fn authenticate(&mut self, login: &RedisConnectionInfo) -> Result<(), StoreError> {
        let Some(password) = login.password() else { return Ok(()) };
        let mut auth = redis::cmd("AUTH");
        if let Some(user) = login.username() {
            auth.arg(user);
        }
        self.send(&auth.arg(password).get_packed_command())?;
        reply::logged_in(self.reply()?)
    }

    pub(crate) fn send(&mut self, commands: &[u8]) -> Result<(), StoreError> {
        self.bound()
            .and_then(|()| self.connection.send_packed_command(commands))
            .map_err(|error| reply::connecting(&error))
    }

    pub(crate) fn reply(&mut self) -> Result<Value, StoreError> {
        self.bound()
            .and_then(|()| self.connection.recv_response())
            .map_err(|error| reply::connecting(&error))
    }

    fn bound(&self) -> RedisResult<()> {
        let left = Some(left(self.until));
        self.connection.set_read_timeout(left)?;
        self.connection.set_write_timeout(left)
    }
}

/// What is left until then. Never zero, which would mean no limit.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}
