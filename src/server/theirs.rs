//! The program's own pool.

use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use redis::{Connection, ConnectionLike, RedisResult, Value};

use super::connection::Transport;
use super::socket::timeout;

/// The program's own pool.
pub(crate) struct Theirs {
    pub(super) pool: r2d2::Pool<redis::Client>,
    /// How many connections have failed since the last that worked. Up to the pool's size, they may
    /// have been closed while they were idle. If there are more, new connections fail as well, and
    /// trying again at once would go on as fast as the pool connects (R14).
    pub(super) failures: AtomicU32,
}

impl Theirs {
    pub(crate) fn new(pool: r2d2::Pool<redis::Client>) -> Self {
        Self { pool, failures: AtomicU32::new(0) }
    }
}

/// A connection of the program's own pool. A signal that the program handles ends a read over it,
/// as it ends the program's own.
pub(super) struct Lent<'a> {
    connection: &'a mut Connection,
    /// The timeout that we set.
    set: Option<Duration>,
}

impl<'a> Lent<'a> {
    pub(super) fn new(connection: &'a mut Connection) -> Self {
        Self { connection, set: None }
    }
}

impl Transport for Lent<'_> {
    fn commands(&mut self) -> &mut dyn ConnectionLike {
        self.connection
    }

    fn send(&mut self, packet: &[u8]) -> RedisResult<()> {
        self.connection.send_packed_command(packet)
    }

    fn receive(&mut self) -> RedisResult<Value> {
        self.connection.recv_response()
    }

    fn bound(&mut self, _: Instant, left: Duration) -> RedisResult<()> {
        if let Some(timeout) = timeout(self.set, left) {
            self.connection.set_read_timeout(Some(timeout))?;
            self.connection.set_write_timeout(Some(timeout))?;
            self.set = Some(timeout);
        }
        Ok(())
    }
}
