//! The driver's own connection to a server: it does not go through the proxy, and is opened again
//! when it breaks.

use std::time::Duration;

use super::support::Server;

/// Commands for one server.
pub struct Admin {
    url: String,
    patience: Duration,
    connection: Option<redis::Connection>,
}

impl Admin {
    /// `patience`: how long an answer may take.
    pub fn of(server: &Server, patience: Duration) -> Admin {
        Admin { url: server.url(), patience, connection: None }
    }

    /// Runs a command. `None`: the server did not answer, or refused.
    pub fn command(&mut self, words: &[&str]) -> Option<redis::Value> {
        if self.connection.is_none() {
            let client = redis::Client::open(&*self.url).ok()?;
            let connection = client.get_connection_with_timeout(self.patience).ok()?;
            connection.set_read_timeout(Some(self.patience)).ok()?;
            self.connection = Some(connection);
        }
        let (name, arguments) = words.split_first()?;
        let answer = redis::cmd(name).arg(arguments).query(self.connection.as_mut()?);
        if answer.as_ref().is_err_and(|error: &redis::RedisError| {
            error.is_io_error() || error.is_unrecoverable_error()
        }) {
            self.connection = None;
        }
        answer.ok()
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }
}
