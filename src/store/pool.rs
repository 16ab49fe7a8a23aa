//! The pool: r2d2 counts and queues, and never connects.
//!
//! r2d2's own connector backs off after an outage, hangs on a silent server, and reports a wrong password as a timeout. So what it
//! keeps are *slots*: making one cannot fail, and whoever checks one out opens the connection in it.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Connection, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use scheduled_thread_pool::ScheduledThreadPool;

use crate::base::error::{Error, ErrorKind, Result};

/// A place for one connection.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) connection: Option<Connection>,
    /// What the socket's timeouts are set to.
    pub(super) timeout: Option<Duration>,
    /// How many failures the node had seen when the connection was opened (R6).
    pub(super) generation: u64,
    /// Where its commands are packed.
    pub(super) buffer: Vec<u8>,
}

/// Makes slots for r2d2.
#[derive(Debug)]
pub(super) struct Slots;

impl r2d2::ManageConnection for Slots {
    type Connection = Slot;
    type Error = Infallible;

    fn connect(&self) -> Result<Slot, Infallible> {
        Ok(Slot::default())
    }

    fn is_valid(&self, _: &mut Slot) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Slot) -> bool {
        false
    }
}

pub(super) enum Pool {
    Own(r2d2::Pool<Slots>),
    /// A single connection, for one thread alone.
    One(Mutex<Slot>),
    /// The program's.
    Theirs(r2d2::Pool<redis::Client>),
}

impl Pool {
    pub(super) fn new(size: u32, timeout: Duration) -> Result<Self> {
        let failed = |error| Error::new(ErrorKind::Unavailable, "the pool could not be started").because(error);
        let thread = ScheduledThreadPool::builder().num_threads(1).thread_name_pattern("distlock-pool").build();
        let pool = r2d2::Pool::builder()
            .max_size(size)
            .test_on_check_out(false)
            // Idle connections are told by use; no thread needs to look at them.
            .idle_timeout(None)
            .max_lifetime(None)
            .connection_timeout(timeout)
            .thread_pool(Arc::new(thread))
            .build(Slots)
            .map_err(failed)?;
        Ok(Self::Own(pool))
    }
}

/// A connection that its pool will discard: r2d2 asks whether it is open, and redis-rs says so of one that timed out (R6).
///
/// redis-rs closes a connection only when it reads the end of its stream, so this one has a peer on this host that hangs up.
pub(super) fn closed_connection() -> Option<Connection> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).ok()?;
    let address = ConnectionAddr::Tcp("127.0.0.1".into(), listener.local_addr().ok()?.port());
    let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
    let info = address.into_connection_info().ok()?.set_redis_settings(silent);
    let timeout = Duration::from_millis(500);
    let mut connection = redis::Client::open(info).ok()?.get_connection_with_timeout(timeout).ok()?;
    // Accepted first: a connection that nobody accepted is reset, and that is no end of a stream.
    drop(listener.accept().ok()?);
    connection.set_read_timeout(Some(timeout)).ok()?;
    let _ = connection.recv_response();
    (!redis::ConnectionLike::is_open(&connection)).then_some(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_connection_can_be_made() {
        assert!(closed_connection().is_some());
    }
}
