//! A connection that is subscribed to channels.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use redis::{RedisResult, Value};

use super::connection::Connection;
use super::reply;

/// A connection that is subscribed to channels.
pub(crate) struct Subscription {
    connection: Connection,
    /// Whether its channels are those of a cluster's shard.
    sharded: bool,
    /// How long each call may wait.
    within: Duration,
    /// Those that came before the answer to a command.
    messages: VecDeque<Message>,
}

/// What was published.
pub(crate) struct Message {
    pub(crate) channel: Vec<u8>,
    pub(crate) text: Vec<u8>,
}

/// What a server sends to a subscriber.
enum Heard {
    Message(Message),
    /// A channel was left: on request, or because its slot has left the node.
    Left,
    /// The answer to another command.
    Answer,
}

impl Subscription {
    pub(crate) fn new(connection: Connection, within: Duration) -> Self {
        Self { connection, sharded: false, within, messages: VecDeque::new() }
    }

    /// For channels of a cluster's shard.
    pub(crate) fn sharded(self, sharded: bool) -> Self {
        Self { sharded, ..self }
    }

    /// From now on each call waits for so long.
    pub(crate) fn wait_for(&mut self, within: Duration) {
        self.within = within;
    }

    pub(crate) fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        let name = if self.sharded { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        self.tell(redis::cmd(name).arg(channel), false)
    }

    pub(crate) fn unsubscribe(&mut self, channel: &str) -> RedisResult<()> {
        let name = if self.sharded { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" };
        self.tell(redis::cmd(name).arg(channel), true)
    }

    /// Whether the server is there.
    pub(crate) fn ping(&mut self) -> RedisResult<()> {
        match self.tell(&redis::cmd("PING"), false) {
            // A refusal is an answer, too.
            Err(error) if error.code().is_some() => Ok(()),
            answer => answer,
        }
    }

    /// The next message.
    pub(crate) fn message(&mut self) -> RedisResult<Message> {
        if let Some(message) = self.messages.pop_front() {
            return Ok(message);
        }
        let until = Instant::now() + self.within;
        loop {
            match self.hear(until)? {
                Heard::Message(message) => return Ok(message),
                Heard::Left => return Err(reply::left()),
                Heard::Answer => {}
            }
        }
    }

    /// Sends a command, and waits for its answer. `leaves`: which is that a channel was left.
    fn tell(&mut self, command: &redis::Cmd, leaves: bool) -> RedisResult<()> {
        let until = Instant::now() + self.within;
        self.connection.send_by(&command.get_packed_command(), until)?;
        loop {
            match self.hear(until)? {
                Heard::Message(message) => self.messages.push_back(message),
                Heard::Left if leaves => return Ok(()),
                Heard::Left => return Err(reply::left()),
                Heard::Answer => return Ok(()),
            }
        }
    }

    /// Reads on by then. After a time-out a later call goes on where this one was, even in the
    /// middle of a message.
    fn hear(&mut self, until: Instant) -> RedisResult<Heard> {
        let Value::Array(parts) = self.connection.receive_by(until)?.extract_error()? else {
            return Err(reply::misshapen());
        };
        let mut parts = parts.into_iter().map(|part| match part {
            Value::BulkString(bytes) => bytes,
            _ => Vec::new(),
        });
        let (kind, channel, text) = (parts.next(), parts.next(), parts.next());
        Ok(match (kind.as_deref(), channel, text) {
            (Some(b"message" | b"smessage"), Some(channel), Some(text)) => {
                Heard::Message(Message { channel, text })
            }
            (Some(b"unsubscribe" | b"sunsubscribe"), ..) => Heard::Left,
            _ => Heard::Answer,
        })
    }
}
