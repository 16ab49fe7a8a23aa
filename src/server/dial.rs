//! How connections are made, wherever they lead: the settings of the socket, TLS, and the log-in.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
#[cfg(unix)]
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo, RedisError, Value};

use super::connection::{Connection, Stream};
use super::counters::ServerCounters;
use super::reply;
use super::socket::Patient;
#[cfg(feature = "tls")]
use super::tls::Tls;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::store_error::StoreError;

/// How long a connection is idle before the kernel asks whether its peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Where a server listens. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
}

impl Address {
    /// The address in a URL. `None`: it is that of a unix socket.
    pub(crate) fn of(info: &ConnectionInfo) -> Option<Self> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(Self { host: host.as_str().into(), port: *port })
            }
            _ => None,
        }
    }
}

/// Opens connections of one kind: to its own address, or to another one in the same way.
#[derive(Clone)]
pub(crate) struct Dialer {
    to: To,
    login: Arc<RedisConnectionInfo>,
    /// Whether connections lead to nodes of a Redis Cluster.
    pub(super) in_cluster: bool,
    counters: Arc<ServerCounters>,
    /// How long what was sent may stay unacknowledged.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux can limit it"))]
    unacknowledged: Duration,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

/// Where connections lead.
#[derive(Clone)]
enum To {
    Host(String, u16),
    #[cfg(unix)]
    Path(PathBuf),
}

impl Dialer {
    pub(crate) fn new(
        info: &ConnectionInfo,
        unacknowledged: Duration,
        in_cluster: bool,
        counters: Arc<ServerCounters>,
        #[cfg(feature = "tls")] root_certificates: Option<&[u8]>,
    ) -> Result<Self> {
        #[cfg(feature = "tls")]
        let mut tls = None;
        let to = match info.addr() {
            ConnectionAddr::Tcp(host, port) => To::Host(host.clone(), *port),
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, insecure: false, .. } => {
                tls = Some(Tls::new(root_certificates)?);
                To::Host(host.clone(), *port)
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => To::Path(path.clone()),
            _ => return Err(Error::unsupported("this build cannot use such a URL")),
        };
        Ok(Self {
            to,
            login: Arc::new(info.redis_settings().clone()),
            in_cluster,
            counters,
            unacknowledged,
            #[cfg(feature = "tls")]
            tls,
        })
    }

    /// The same for another address.
    pub(crate) fn to(&self, host: &str, port: u16) -> Self {
        Self { to: To::Host(host.to_owned(), port), ..self.clone() }
    }

    /// For messages.
    pub(crate) fn address(&self) -> String {
        match &self.to {
            To::Host(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            To::Host(host, port) => format!("{host}:{port}"),
            #[cfg(unix)]
            To::Path(path) => path.display().to_string(),
        }
    }

    pub(crate) fn login(&self) -> &RedisConnectionInfo {
        &self.login
    }

    /// Opens a connection, and says nothing over it.
    pub(crate) fn open(&self, until: Instant) -> Result<Asking, StoreError> {
        let failed = |error: io::Error| reply::connecting(&error.into());
        let stream = match &self.to {
            To::Host(host, port) => {
                let addresses = (host.as_str(), *port).to_socket_addrs();
                let addresses = addresses.map_err(|error| unresolved(&error))?;
                let socket = first_of(&addresses.collect::<Vec<_>>(), until);
                let socket = socket.and_then(|socket| self.settle(socket)).map_err(failed)?;
                let socket = Patient::new(socket);
                #[cfg(feature = "tls")]
                match &self.tls {
                    Some(tls) => Stream::Tls(Box::new(tls.over(socket, host)?)),
                    None => Stream::Tcp(socket),
                }
                #[cfg(not(feature = "tls"))]
                Stream::Tcp(socket)
            }
            #[cfg(unix)]
            To::Path(path) => {
                let socket = connect_unix(path, until);
                Stream::Unix(Patient::new(socket.map_err(|error| unconnected(path, error))?))
            }
        };
        self.counters.connections.add_one();
        Ok(Asking { connection: Connection::new(stream, self.login.db()), until })
    }

    fn settle(&self, socket: TcpStream) -> io::Result<TcpStream> {
        // A lock is one small packet each way: waiting for more to send would double its cost.
        socket.set_nodelay(true)?;
        let settings = SockRef::from(&socket);
        // Closing resets the connection: our kernel drops what it has not delivered, so that no
        // attempt arrives after we gave it up (R5).
        settings.set_linger(Some(Duration::ZERO))?;
        settings.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        #[cfg(target_os = "linux")]
        settings.set_tcp_user_timeout(Some(self.unacknowledged))?;
        Ok(socket)
    }
}

/// What resolvers say about a name that does not exist, as opposed to one that they could not ask
/// about: those of glibc (two), musl, and the BSDs with macOS. Their error has no other sign of it.
const NO_SUCH_NAME: [&str; 4] = [
    "Name or service not known",
    "No address associated with hostname",
    "Name does not resolve",
    "nodename nor servname provided",
];

fn unresolved(error: &io::Error) -> StoreError {
    let words = error.to_string();
    let unknown = NO_SUCH_NAME.iter().any(|said| words.contains(said));
    let message = "the host has no address";
    let unresolved = StoreError::not_sent(ErrorKind::Unavailable, message).because(words);
    if unknown { unresolved.permanent() } else { unresolved }
}

/// A connection to the first of these addresses that answers. Each gets its share of the time that
/// is left, so one that is silent leaves time for the others.
fn first_of(addresses: &[SocketAddr], until: Instant) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for (tried, address) in addresses.iter().enumerate() {
        let others = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        match TcpStream::connect_timeout(address, left(until) / others) {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// A connection to a unix socket. A signal ends the wait for a place in its queue.
#[cfg(unix)]
fn connect_unix(path: &Path, until: Instant) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted && Instant::now() < until => {}
            result => return result,
        }
    }
}

/// A server that starts makes its socket, but not the directory, nor does it change who may use it.
#[cfg(unix)]
fn unconnected(path: &Path, error: io::Error) -> StoreError {
    let message = match error.kind() {
        io::ErrorKind::NotFound if path.parent().is_some_and(|parent| !parent.exists()) => {
            "the directory of the unix socket does not exist"
        }
        io::ErrorKind::PermissionDenied => "this process may not use the unix socket",
        io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            "the path cannot be that of a unix socket"
        }
        _ => return reply::connecting(&error.into()),
    };
    let incurable = StoreError::not_sent(ErrorKind::Unavailable, message);
    incurable.permanent().because(error.kind().to_string())
}

/// A connection that is being opened: every reply over it has to come by `until`.
pub(crate) struct Asking {
    pub(crate) connection: Connection,
    pub(crate) until: Instant,
}

impl Asking {
    /// Says who we are.
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
        let sent = self.connection.send_by(commands, self.until);
        sent.map_err(|error| self.failed(&error))
    }

    pub(crate) fn reply(&mut self) -> Result<Value, StoreError> {
        let received = self.connection.receive_by(self.until);
        received.map_err(|error| self.failed(&error))
    }

    /// A port without TLS waits for the end of the first line, and a TLS port closes a connection
    /// on which it is not spoken to in TLS. Neither says a word.
    fn failed(&self, error: &RedisError) -> StoreError {
        let mut failed = reply::connecting(error);
        let is_tls = self.connection.is_tls();
        if failed.kind == ErrorKind::Unavailable && !failed.permanent && error.code().is_none() {
            if error.is_timeout() && self.connection.is_shaking_hands() {
                failed.message =
                    "no answer to the TLS handshake: a port without TLS gives none".into();
            } else if !error.is_timeout() && !is_tls {
                failed.message = "the server hung up at the log-in: a port for TLS does so".into();
            }
        }
        failed
    }
}

/// The time left until then. Never zero, which the system refuses.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use redis::io::tcp::socket2::{Domain, Socket, Type};

    use super::*;

    /// A listener that accepts nobody, and those that fill its queue.
    fn silent() -> (Socket, Vec<TcpStream>, SocketAddr) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("bound");
        listener.listen(0).expect("listening");
        let address = listener.local_addr().expect("bound").as_socket().expect("an address");
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
        let queued = std::iter::from_fn(connect).collect();
        (listener, queued, address)
    }

    #[test]
    fn an_address_that_is_silent_leaves_time_for_the_next() {
        let (_listener, _queued, silent) = silent();
        let good = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let good = good.local_addr().expect("bound");
        let until = Instant::now() + Duration::from_secs(10);
        let connected = first_of(&[silent, good], until).expect("connected");
        assert_eq!(connected.peer_addr().expect("connected"), good);
        let none = first_of(&[silent], Instant::now() + Duration::from_millis(50));
        assert_eq!(none.expect_err("silent").kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_name_that_does_not_exist_is_none_that_could_not_be_asked_about() {
        let said = |words: &str| {
            unresolved(&io::Error::other(format!("failed to lookup address information: {words}")))
        };
        for words in NO_SUCH_NAME {
            assert!(said(words).permanent, "{words}");
        }
        assert!(!said("Temporary failure in name resolution").permanent);
    }
}
