//! Opening a connection: who may, and what comes of it.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Endpoint;
use crate::base::error::ErrorKind;
use crate::base::log;
use crate::base::store_error::StoreError;
use crate::server::connection::Connection;
use crate::server::log_in::{self, Opened};
use crate::server::reply;

impl Endpoint {
    /// Opens a connection. A server that refuses our credentials has answered; it is not down.
    pub(super) fn connect(&self, deadline: Instant) -> Result<Connection, StoreError> {
        let generation = self.generation();
        let left = self.clock.left(deadline);
        let pass = self.gate.enter(left);
        let pass = pass.ok_or_else(|| self.is_down())?;
        match self.connector.open(deadline) {
            Ok(Opened::Ready { connection, untold }) => {
                pass.opened();
                self.had_primary.store(true, Ordering::SeqCst);
                if let Some(why) = untold {
                    self.say_untold(&why);
                }
                self.watch();
                Ok(connection)
            }
            // The server is up: other connections to its address do not have to wait.
            Ok(Opened::Refused(error)) => {
                pass.opened();
                Err(error)
            }
            Ok(Opened::Replica) if self.is_a_wrong_address() => {
                pass.opened();
                Err(self.connector.at(log_in::replica()))
            }
            Ok(Opened::Replica) => {
                let error = reply::replica();
                pass.failed(&error);
                self.distrust(generation, true);
                Err(error)
            }
            Err(mut error) => {
                // What is wrong with an address that has led to a primary may end, as an outage
                // does: a name or a directory that is gone while the server starts anew.
                if error.kind != ErrorKind::Denied && self.had_primary.load(Ordering::SeqCst) {
                    error.permanent = false;
                }
                if error.permanent {
                    pass.opened()
                } else if left < self.time_to_connect / 2 && self.clock.left(deadline) < left / 4 {
                    pass.had_no_time(&error)
                } else {
                    pass.failed(&error)
                }
                Err(error)
            }
        }
    }

    /// Whoever is turned away is told what the last attempt was told.
    fn is_down(&self) -> StoreError {
        let down = StoreError::not_sent(ErrorKind::Unavailable, "the server is down");
        match self.gate.cause() {
            Some(cause) => down.because(cause),
            None => down,
        }
    }

    /// A connection outside the pool, for one user alone.
    pub(crate) fn open_for_itself(&self) -> Result<Connection, StoreError> {
        self.connect(self.clock.now() + self.command_timeout)
    }

    /// Opens a connection for a first command. `demotions`: how many were known before. If there is
    /// one more now, the connection may lead to the old primary, and nothing is sent there (R23).
    pub(super) fn connect_unless_moved(
        &self,
        deadline: Instant,
        demotions: u64,
    ) -> Result<Connection, StoreError> {
        let connection = self.connect(deadline)?;
        if self.demotions.count() == demotions {
            Ok(connection)
        } else {
            Err(reply::moved_meanwhile())
        }
    }

    /// Whether a replica at this address will stay one: a name that has stood for a primary may do
    /// so again, after a failover. Sentinels know better, and a quorum does without this node.
    fn is_a_wrong_address(&self) -> bool {
        self.watched.is_none() && !self.is_member && !self.had_primary.load(Ordering::SeqCst)
    }

    fn say_untold(&self, why: &StoreError) {
        if !self.said_untold.swap(true, Ordering::Relaxed) {
            let source = why.source.as_ref().map_or_else(String::new, |said| format!(": {said}"));
            log::warn!(
                "the server does not say whether it is a primary, so a replica is found only when \
                 it refuses to write{source}"
            );
        }
    }
}
