//! A connection to a server: its socket, and the parser of its replies.
//!
//! redis-rs has connections, too. But they take a signal that the program handles for a failure,
//! and then skip the reply when it comes.

use std::io::{self, Write};
use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis::{ConnectionLike, Parser, RedisError, RedisResult, Value};

use super::demotion;
use super::socket::Patient;
#[cfg(feature = "tls")]
use super::tls;

/// What commands are sent over.
pub(crate) trait Transport {
    /// For commands of the program.
    fn commands(&mut self) -> &mut dyn ConnectionLike;

    /// Sends one packet.
    fn send(&mut self, packet: &[u8]) -> RedisResult<()>;

    /// The next reply.
    fn receive(&mut self) -> RedisResult<Value>;

    /// Bounds each read and write from now on: it ends by `until`, which is `left` from now.
    fn bound(&mut self, until: Instant, left: Duration) -> RedisResult<()>;
}

/// What the bytes go over.
pub(super) enum Stream {
    Tcp(Patient<TcpStream>),
    #[cfg(unix)]
    Unix(Patient<UnixStream>),
    #[cfg(feature = "tls")]
    Tls(Box<tls::TlsStream>),
}

/// A connection of the client's own.
pub(crate) struct Connection {
    stream: Stream,
    parser: Parser,
    database: i64,
    is_open: bool,
    /// How long the last exchange could take. Each command of the program can take as long.
    patience: Duration,
}

impl Connection {
    pub(super) fn new(stream: Stream, database: i64) -> Self {
        Self { stream, parser: Parser::new(), database, is_open: true, patience: Duration::ZERO }
    }

    /// Whether the peers are still agreeing on how to speak.
    pub(super) fn is_shaking_hands(&self) -> bool {
        match &self.stream {
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.conn.is_handshaking(),
            _ => false,
        }
    }

    pub(super) fn is_tls(&self) -> bool {
        match &self.stream {
            #[cfg(feature = "tls")]
            Stream::Tls(_) => true,
            _ => false,
        }
    }

    pub(crate) fn send_by(&mut self, packet: &[u8], until: Instant) -> RedisResult<()> {
        self.bound_by(until)?;
        self.send(packet)
    }

    pub(crate) fn receive_by(&mut self, until: Instant) -> RedisResult<Value> {
        self.bound_by(until)?;
        self.receive()
    }

    fn bound_by(&mut self, until: Instant) -> RedisResult<()> {
        self.bound(until, until.saturating_duration_since(Instant::now()))
    }

    /// Sends commands of the program, unless an earlier one failed: its reply may still come.
    fn begin(&mut self, commands: &[u8]) -> RedisResult<()> {
        if !self.is_open {
            return Err(io::Error::from(io::ErrorKind::NotConnected).into());
        }
        self.bound_anew()?;
        self.send(commands)
    }

    /// The next reply to a command of the program, which may have asked for pushed messages, too.
    fn answer(&mut self) -> RedisResult<Value> {
        loop {
            let reply = self.receive()?;
            if !matches!(reply, Value::Push { .. }) {
                return Ok(reply);
            }
        }
    }

    fn bound_anew(&mut self) -> RedisResult<()> {
        self.bound(Instant::now() + self.patience, self.patience)
    }

    /// After a failure, the next reply may be that to an earlier command.
    fn unless_failed<T>(&mut self, result: RedisResult<T>) -> RedisResult<T> {
        self.is_open &= result.is_ok();
        result
    }
}

impl Transport for Connection {
    fn commands(&mut self) -> &mut dyn ConnectionLike {
        self
    }

    fn send(&mut self, packet: &[u8]) -> RedisResult<()> {
        let sent = match &mut self.stream {
            Stream::Tcp(socket) => socket.write_all(packet),
            #[cfg(unix)]
            Stream::Unix(socket) => socket.write_all(packet),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => {
                let sent = stream.write_all(packet).and_then(|()| stream.flush());
                sent.map_err(|error| tls::last_words(stream, error))
            }
        };
        self.unless_failed(sent.map_err(RedisError::from))
    }

    fn receive(&mut self) -> RedisResult<Value> {
        let received = match &mut self.stream {
            Stream::Tcp(socket) => self.parser.parse_value(socket),
            #[cfg(unix)]
            Stream::Unix(socket) => self.parser.parse_value(socket),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => self.parser.parse_value(&mut **stream),
        };
        self.unless_failed(received)
    }

    fn bound(&mut self, until: Instant, left: Duration) -> RedisResult<()> {
        self.patience = left;
        match &mut self.stream {
            Stream::Tcp(socket) => socket.bound(until, left)?,
            #[cfg(unix)]
            Stream::Unix(socket) => socket.bound(until, left)?,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.sock.bound(until, left)?,
        }
        Ok(())
    }
}

/// For the program's own commands.
impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        self.begin(command)?;
        self.answer()
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.begin(commands)?;
        let mut replies = Vec::with_capacity(offset + count);
        for _ in 0..offset + count {
            self.bound_anew()?;
            replies.push(self.answer()?);
        }
        let wanted = replies.split_off(offset);
        // The commands of a transaction come before what is wanted. If one of them is refused,
        // the server discards the transaction.
        match replies.iter().find_map(refusal) {
            Some(refused) => Err(demotion::said_in(&replies)
                .or_else(|| wanted.iter().find_map(refusal))
                .unwrap_or(refused)),
            None => Ok(wanted),
        }
    }

    fn get_db(&self) -> i64 {
        self.database
    }

    fn check_connection(&mut self) -> bool {
        redis::cmd("PING").exec(self).is_ok()
    }

    fn is_open(&self) -> bool {
        self.is_open
    }
}

fn refusal(reply: &Value) -> Option<RedisError> {
    match reply {
        Value::ServerError(error) => Some(error.clone().into()),
        _ => None,
    }
}
