//! One connection, opened under one deadline: name resolution, TCP, TLS and AUTH together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{Connection, ConnectionInfo, RedisConnectionInfo, RedisResult, Value};

use super::demotion;
use super::reply;
use crate::base::clock::Clock;
use crate::base::error::{Error, ErrorKind, Result};
use crate::lease::store::StoreError;

/// How many attempts may be stuck at the same time, on top of the connections that a client needs;
/// for instance because a name server does not answer. Further attempts fail at once.
const MOST_STUCK: usize = 32;

/// What each new connection is asked after the log-in, by this instant. `Some`: the server has
/// answered, but must not be used. `Err`: the connection is of no use.
pub(crate) type Greeting =
    Arc<dyn Fn(&mut Connection, Instant) -> Result<Option<StoreError>, StoreError> + Send + Sync>;

/// Opens connections to one server.
pub(crate) struct Connector {
    /// Without user, password and database: see [`log_in`].
    client: redis::Client,
    login: Arc<RedisConnectionInfo>,
    pub(crate) greeting: Option<Greeting>,
    most_under_way: usize,
    clock: Clock,
    timeout: Duration,
    under_way: Arc<AtomicUsize>,
}

impl Connector {
    pub(crate) fn new(
        info: ConnectionInfo,
        clock: Clock,
        timeout: Duration,
        idle: Duration,
        connections: u32,
        #[cfg(feature = "tls")] root_certificates: Option<Vec<u8>>,
    ) -> Result<Self> {
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
        let info = info.set_tcp_settings(settings).set_redis_settings(redis);
        let refused = |_| Error::invalid("the URL or one of its certificates cannot be used");
        #[cfg(feature = "tls")]
        let client = {
            if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
                // The first choice counts for the whole process, and the program may have made it.
                let _ = rustls::crypto::ring::default_provider().install_default();
            }
            match root_certificates {
                Some(pem) => redis::Client::build_with_tls(
                    info,
                    redis::TlsCertificates { client_tls: None, root_cert: Some(pem) },
                ),
                None => redis::Client::open(info),
            }
            .map_err(refused)?
        };
        #[cfg(not(feature = "tls"))]
        let client = redis::Client::open(info).map_err(refused)?;
        let most_under_way = MOST_STUCK + connections as usize;
        Ok(Self {
            client,
            login,
            greeting: None,
            most_under_way,
            clock,
            timeout,
            under_way: Arc::default(),
        })
    }

    /// Opens a connection by `deadline`, or within the connect timeout if that ends sooner. Also
    /// logs in and asks the server for its role.
    ///
    /// On a short-lived thread, because redis-rs has no limit for the whole: each address gets the
    /// full timeout, so does each read, and name resolution and unix sockets have none. A thread
    /// that is too late closes what it opened.
    pub(crate) fn open(&self, deadline: Instant) -> Result<Opened, StoreError> {
        let within = self.timeout.min(self.clock.left(deadline));
        if within.is_zero() {
            return Err(unreachable_node("no time was left to open a connection"));
        }
        if self.under_way.load(Ordering::SeqCst) >= self.most_under_way {
            return Err(unreachable_node("too many attempts to connect are stuck"));
        }
        let (done, opened) = bounded(1);
        let (client, login) = (self.client.clone(), Arc::clone(&self.login));
        let greeting = self.greeting.clone();
        let until = Instant::now() + within;
        let under_way = UnderWay::new(&self.under_way);
        let started = thread::Builder::new().name("distlock-connect".into()).spawn(move || {
            let _under_way = under_way;
            let opened = client
                .get_connection_with_timeout(within)
                .map_err(|error| reply::connecting(&error));
            let opened = opened.and_then(|connection| log_in(connection, &login, until));
            let _ = done.send(opened.and_then(|mut opened| {
                if let (Some(greeting), Opened::Ready { connection, .. }) = (greeting, &mut opened)
                    && let Some(error) = greeting(connection, until)?
                {
                    opened = Opened::Refused(error);
                }
                Ok(opened)
            }));
        });
        if let Err(error) = started {
            return Err(unreachable_node("no thread could be started to connect").because(error));
        }
        match opened.recv_timeout(within) {
            Ok(opened) => opened,
            Err(_) => Err(unreachable_node("the server could not be reached in time")),
        }
    }
}

/// The result of opening a connection.
pub(crate) enum Opened {
    /// The connection can be used. `tells_role`: whether the server answers ROLE to this user.
    Ready { connection: Connection, tells_role: bool },
    /// The server is a replica, and of no use (R22).
    Replica,
    /// The server has answered, but must not be used.
    Refused(StoreError),
}

/// Sends AUTH and SELECT, and asks for the role and a sign of life.
///
/// redis-rs could send AUTH and SELECT, but it reports every error as a wrong password: also the
/// error of a server that has too many clients and turns us away.
fn log_in(
    connection: Connection,
    login: &RedisConnectionInfo,
    until: Instant,
) -> Result<Opened, StoreError> {
    let mut ask = Asking { connection, until };
    if let Some(password) = login.password() {
        let mut auth = redis::cmd("AUTH");
        if let Some(user) = login.username() {
            auth.arg(user);
        }
        ask.send(&auth.arg(password).get_packed_command())?;
        reply::logged_in(ask.reply()?)?;
    }
    if login.db() != 0 {
        ask.send(&redis::cmd("SELECT").arg(login.db()).get_packed_command())?;
        reply::value(ask.reply()?)?;
    }
    // The kernel of a server that hangs, or is about to close the connection, accepts connections
    // all the same; and with TLS the handshake takes place only now. Both commands go in one
    // packet: a server that is loading its data answers ROLE, but refuses PING, as it will refuse
    // everything else.
    ask.send(
        &[redis::cmd("ROLE").get_packed_command(), redis::cmd("PING").get_packed_command()]
            .concat(),
    )?;
    let role = sign_of_life(ask.reply()?)?;
    if role.as_ref().is_some_and(demotion::is_replicas_role) {
        return Ok(Opened::Replica);
    }
    sign_of_life(ask.reply()?)?;
    Ok(Opened::Ready { connection: ask.connection, tells_role: role.is_some() })
}

/// A server that is loading, or turns us away, is of no use yet. Any other answer is a sign of
/// life, also a refusal: what a refusal means will show at the next command.
fn sign_of_life(reply: Value) -> Result<Option<Value>, StoreError> {
    match reply::value(reply) {
        Err(error) if error.kind == ErrorKind::Unavailable => Err(error),
        answer => Ok(answer.ok()),
    }
}

/// A connection that is being opened.
struct Asking {
    connection: Connection,
    until: Instant,
}

impl Asking {
    fn send(&mut self, commands: &[u8]) -> Result<(), StoreError> {
        self.bound()
            .and_then(|()| self.connection.send_packed_command(commands))
            .map_err(|error| reply::connecting(&error))
    }

    fn reply(&mut self) -> Result<Value, StoreError> {
        self.bound()
            .and_then(|()| self.connection.recv_response())
            .map_err(|error| reply::connecting(&error))
    }

    fn bound(&self) -> RedisResult<()> {
        // Zero would mean no limit.
        let left = Some(
            self.until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)),
        );
        self.connection.set_read_timeout(left)?;
        self.connection.set_write_timeout(left)
    }
}

fn unreachable_node(message: &'static str) -> StoreError {
    StoreError::not_sent(ErrorKind::Unavailable, message)
}

/// Counts a thread until it ends, however it ends.
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
