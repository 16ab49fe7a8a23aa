//! Talking over the program's own pool: its connections come from r2d2 and redis-rs, and go back
//! there.

use std::sync::atomic::Ordering;
use std::time::Instant;

use redis::{Connection, RedisError};

use super::{Node, Talk};
use crate::base::error::ErrorKind;
use crate::base::store_error::StoreError;
use crate::server::demotion;
use crate::server::exchange::{Exchange, Known};
use crate::server::pool::closed_connection;
use crate::server::theirs::{Lent, Theirs};

impl Node {
    /// Talks over a connection of the program's own pool, as soon as one is free.
    pub(crate) fn talk_over_theirs<T>(
        &self,
        theirs: &Theirs,
        deadline: Instant,
        talk: Talk<'_, T>,
    ) -> Result<T, StoreError> {
        let left = self.endpoint.clock.left(deadline);
        let exhausted = |_| {
            StoreError::not_sent(ErrorKind::Unavailable, "no pooled connection came free in time")
        };
        let mut connection = theirs.pool.get_timeout(left).map_err(exhausted)?;
        let result = self.talk_over(theirs, &mut connection, deadline, talk);
        if let Err(error) = &result
            && error.dropped
        {
            drop(connection);
            let demoted = !error.may_have_run;
            self.try_idle(&theirs.pool, demoted, deadline);
        }
        result
    }

    pub(super) fn talk_over<T>(
        &self,
        theirs: &Theirs,
        connection: &mut Connection,
        deadline: Instant,
        talk: Talk<'_, T>,
    ) -> Result<T, StoreError> {
        let mut state = Known { was_lent: true, ..Known::default() };
        let generation = self.endpoint.generation();
        let asked_at = self.endpoint.clock.now();
        let mut lent = Lent::new(connection);
        let mut exchange = Exchange {
            connection: &mut lent,
            state: &mut state,
            clock: &self.endpoint.clock,
            deadline,
        };
        let result =
            exchange.bound_from(asked_at).and_then(|()| talk(exchange, &mut Vec::new(), asked_at));
        if result.is_ok() {
            theirs.failures.store(0, Ordering::Relaxed);
            self.give_back(connection);
        }
        result.map_err(|error| {
            discard(connection);
            let was_idle = theirs.failures.fetch_add(1, Ordering::Relaxed) < theirs.pool.max_size();
            if demotion::says(&error) {
                // Renewal and the inbox use connections of the client's own: these are not trusted
                // any more either.
                self.endpoint.distrust(generation, true);
            }
            self.endpoint.failed(&error, was_idle)
        })
    }

    /// Resets the timeouts: the program's own next command must not get only what is left of ours.
    fn give_back(&self, connection: &Connection) {
        let timeout = Some(self.endpoint.command_timeout);
        let _ = connection
            .set_read_timeout(timeout)
            .and_then(|()| connection.set_write_timeout(timeout));
    }

    /// Tries the idle connections of the program's own pool, and discards those that the server has
    /// closed or that lead to a replica. Like the connection that has just failed, they were opened
    /// before the event that broke it, and each would cost one more failure (R6, R22).
    fn try_idle(&self, pool: &r2d2::Pool<redis::Client>, demoted: bool, deadline: Instant) {
        let mut tried = Vec::new();
        // Connections may come back in between: so this goes on until none is left, not for the
        // number that was idle at first.
        for _ in 0..pool.max_size() {
            let left = self.endpoint.clock.left(deadline);
            let Some(mut connection) = pool.try_get().filter(|_| !left.is_zero()) else { return };
            let role = connection
                .set_read_timeout(Some(left))
                .and_then(|()| redis::cmd("ROLE").query(&mut connection));
            let silent = role.as_ref().is_err_and(RedisError::is_timeout);
            self.give_back(&connection);
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

/// Makes its pool discard a connection when it comes back.
fn discard(connection: &mut Connection) {
    if let Some(closed) = closed_connection() {
        *connection = closed;
    }
}
