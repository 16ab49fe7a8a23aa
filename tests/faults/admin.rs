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

    /// Runs a command. `None`: the server did not answer, or refused. A node of a cluster that says
    /// where the key is is asked there, over a connection for this command alone.
    pub fn command(&mut self, words: &[&str]) -> Option<redis::Value> {
        if self.connection.is_none() {
            self.connection = Some(self.connect(&self.url)?);
        }
        let (name, arguments) = words.split_first()?;
        let command = redis::cmd(name).arg(arguments).to_owned();
        let answer = command.query(self.connection.as_mut()?);
        let Err(error) = answer else { return answer.ok() };
        if error.is_io_error() || error.is_unrecoverable_error() {
            self.connection = None;
        }
        let moved = error.code().filter(|code| *code == "MOVED").and(error.detail())?;
        let owner = moved.split(' ').nth(1)?;
        command.query(&mut self.connect(&format!("redis://{owner}/"))?).ok()
    }

    fn connect(&self, url: &str) -> Option<redis::Connection> {
        let client = redis::Client::open(url).ok()?;
        let connection = client.get_connection_with_timeout(self.patience).ok()?;
        connection.set_read_timeout(Some(self.patience)).ok()?;
        Some(connection)
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }
}
