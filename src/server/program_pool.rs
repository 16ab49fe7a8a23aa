//! The program's own pool: its connections come from r2d2 and redis-rs, and go back there.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::{
    Connection, ConnectionAddr, ConnectionLike, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, RedisResult, Value,
};

use super::connection::Transport;
use super::demotion;
use super::endpoint::Endpoint;
use super::exchange::{ConnectionState, Exchange, ExchangeFn};
use super::socket::timeout;
use crate::base::error::ErrorKind;
use crate::base::store_error::StoreError;

/// The program's own pool.
pub(crate) struct ProgramPool {
    pool: r2d2::Pool<redis::Client>,
    /// How many connections have failed since the last that worked. Up to the pool's size, they may
    /// have been closed while they were idle. If there are more, new connections fail as well, and
    /// trying again at once would go on as fast as the pool connects (R14).
    failures: AtomicU32,
}

impl ProgramPool {
    pub(crate) fn new(pool: r2d2::Pool<redis::Client>) -> Self {
        Self { pool, failures: AtomicU32::new(0) }
    }

    /// Talks over a connection of the program's own pool, as soon as one is free.
    pub(super) fn talk<T>(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        talk: ExchangeFn<'_, T>,
    ) -> Result<T, StoreError> {
        let left = endpoint.clock.left(deadline);
        let exhausted = |_| {
            StoreError::not_sent(ErrorKind::Unavailable, "no pooled connection came free in time")
        };
        let mut connection = self.pool.get_timeout(left).map_err(exhausted)?;
        let result = self.talk_over(endpoint, &mut connection, deadline, talk);
        if let Err(error) = &result
            && error.dropped
        {
            drop(connection);
            let demoted = !error.may_have_run;
            self.try_idle(endpoint, demoted, deadline);
        }
        result
    }

    /// Talks over an idle connection of the pool, without opening one. `None`: there is none.
    pub(super) fn talk_over_an_idle_one<T>(
        &self,
        endpoint: &Endpoint,
        deadline: impl FnOnce() -> Instant,
        talk: ExchangeFn<'_, T>,
    ) -> Option<Result<T, StoreError>> {
        let mut connection = self.pool.try_get()?;
        // Only now: the pool may have tried the connection, and that took a round trip.
        Some(self.talk_over(endpoint, &mut connection, deadline(), talk))
    }

    fn talk_over<T>(
        &self,
        endpoint: &Endpoint,
        connection: &mut Connection,
        deadline: Instant,
        talk: ExchangeFn<'_, T>,
    ) -> Result<T, StoreError> {
        let mut state = ConnectionState { was_lent: true, ..ConnectionState::default() };
        let generation = endpoint.generation();
        let asked_at = endpoint.clock.now();
        let mut lent = Lent::new(connection);
        let mut exchange =
            Exchange { connection: &mut lent, state: &mut state, clock: &endpoint.clock, deadline };
        let result =
            exchange.bound_from(asked_at).and_then(|()| talk(exchange, &mut Vec::new(), asked_at));
        if result.is_ok() {
            endpoint.reach.answered();
            self.failures.store(0, Ordering::Relaxed);
            give_back(endpoint, connection);
        }
        result.map_err(|error| {
            discard(connection);
            let was_idle = self.failures.fetch_add(1, Ordering::Relaxed) < self.pool.max_size();
            if demotion::says(&error) {
                // Renewal and the inbox use connections of the client's own: these are not trusted
                // any more either.
                endpoint.distrust(generation, true);
            }
            endpoint.failed(&error, was_idle)
        })
    }

    /// Tries the idle connections of the program's own pool, and discards those that the server has
    /// closed or that lead to a replica. Like the connection that has just failed, they were opened
    /// before the event that broke it, and each would cost one more failure (R6, R22).
    fn try_idle(&self, endpoint: &Endpoint, demoted: bool, deadline: Instant) {
        let mut tried = Vec::new();
        // Connections may come back in between: so this goes on until none is left, not for the
        // number that was idle at first.
        for _ in 0..self.pool.max_size() {
            let left = endpoint.clock.left(deadline);
            let Some(mut connection) = self.pool.try_get().filter(|_| !left.is_zero()) else {
                return;
            };
            let role = connection
                .set_read_timeout(Some(left))
                .and_then(|()| redis::cmd("ROLE").query(&mut connection));
            let silent = role.as_ref().is_err_and(RedisError::is_timeout);
            give_back(endpoint, &connection);
            // If the role cannot be read after a demotion, an old connection is of no use.
            if role.map_or_else(
                |error| demoted || error.is_io_error(),
                |role| demotion::is_replicas_role(&role),
            ) {
                discard(&mut connection);
            }
            if silent {
                return;
            }
            // Kept until all have been tried: otherwise the pool would hand out the same one again.
            tried.push(connection);
        }
    }
}

/// Resets the timeouts: the program's own next command must not get only what is left of ours.
fn give_back(endpoint: &Endpoint, connection: &Connection) {
    let timeout = Some(endpoint.command_timeout);
    let _ =
        connection.set_read_timeout(timeout).and_then(|()| connection.set_write_timeout(timeout));
}

/// Makes its pool discard a connection when it comes back.
fn discard(connection: &mut Connection) {
    if let Some(closed) = closed_connection() {
        *connection = closed;
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

/// A connection that its pool will discard. r2d2 asks whether a connection is open, and redis-rs
/// says yes even of one that timed out (R6).
///
/// redis-rs takes a connection for closed only when it reads the end of its stream, so this one has
/// a peer on this host that hangs up.
fn closed_connection() -> Option<redis::Connection> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).ok()?;
    let address = ConnectionAddr::Tcp("127.0.0.1".into(), listener.local_addr().ok()?.port());
    let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
    let info = address.into_connection_info().ok()?.set_redis_settings(silent);
    let timeout = Duration::from_millis(500);
    let mut connection =
        redis::Client::open(info).ok()?.get_connection_with_timeout(timeout).ok()?;
    // Accepted first: a connection that was not accepted is reset, and that is not the end of a
    // stream.
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
