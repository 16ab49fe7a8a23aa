//! One exchange over a connection: commands, and replies that certainly belong to them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult, Value};

use super::confirm::{self, Confirmations, Wanted};
use super::demotion;
use super::reply;
use super::script::{Part, pack};
use super::shape::Shape;
use crate::base::clock::Clock;

/// A command's reply.
pub(crate) struct Reply {
    /// Read after check-out and connect, before the first byte was sent (R1).
    pub(crate) asked_at: Instant,
    pub(crate) value: Value,
    /// What was said of its confirmations, if they were asked for.
    pub(crate) confirmed: Option<Value>,
}

/// What is known about an open connection.
#[derive(Default)]
pub(crate) struct Known {
    /// The present value of its socket's timeouts. Kept because setting each of them costs a system
    /// call.
    timeout: Option<Duration>,
    /// Whether the server has carried out all that it was sent, and only its replicas or its disk
    /// have not answered.
    pub(crate) awaits_confirmations: bool,
}

/// How much too late a read may end before its socket's timeouts are set again, which costs two
/// system calls.
const NOT_WORTH_A_CALL: Duration = Duration::from_millis(5);

/// An open connection, for an exchange that must end by `deadline`.
pub(crate) struct Exchange<'a> {
    /// Whether the connection was opened for this, and so has just answered.
    pub(crate) fresh: bool,
    pub(crate) connection: &'a mut Connection,
    pub(crate) state: &'a mut Known,
    pub(crate) clock: &'a Clock,
    pub(crate) deadline: Instant,
}

impl Exchange<'_> {
    /// Bounds each read and write from now on, so that it ends by the deadline.
    pub(crate) fn bound(&mut self) -> RedisResult<()> {
        self.bound_from(self.clock.now())
    }

    /// As [`bound`](Self::bound), with `now` as the current time.
    pub(crate) fn bound_from(&mut self, now: Instant) -> RedisResult<()> {
        let left = self.deadline.saturating_duration_since(now);
        if self.state.timeout.is_some_and(|set| left <= set && left + NOT_WORTH_A_CALL >= set) {
            return Ok(());
        }
        // Zero would mean no limit, or an error.
        let timeout = left.max(Duration::from_millis(1));
        self.connection.set_read_timeout(Some(timeout))?;
        self.connection.set_write_timeout(Some(timeout))?;
        self.state.timeout = Some(timeout);
        Ok(())
    }

    /// Asks an idle connection for a sign of life, in half of the time that is left: the other half
    /// is for opening a new one.
    pub(crate) fn check(&mut self, buffer: &mut Vec<u8>) -> RedisResult<()> {
        if self.fresh {
            return Ok(());
        }
        let (deadline, now) = (self.deadline, self.clock.now());
        self.deadline = now + deadline.saturating_duration_since(now) / 2;
        self.bound_from(now)?;
        buffer.clear();
        pack(&[Part::Text("PING")], buffer);
        // A refusal is a sign of life, too.
        self.ask(buffer, Shape::Pong)?;
        self.deadline = deadline;
        self.bound()
    }

    /// Sends the command in `buffer` and returns the reply, which certainly belongs to it.
    pub(crate) fn ask(&mut self, buffer: &mut Vec<u8>, shape: Shape) -> RedisResult<Value> {
        Ok(self.ask_confirmed(buffer, shape, None)?.0)
    }

    /// The same. In the same packet goes the question for what is `wanted` of confirmations, and
    /// with the reply comes what was said of them.
    pub(crate) fn ask_confirmed(
        &mut self,
        buffer: &mut Vec<u8>,
        shape: Shape,
        wanted: Wanted,
    ) -> RedisResult<(Value, Option<Value>)> {
        self.ask_for(wanted, buffer);
        let tag = push_tag(buffer);
        self.connection.send_packed_command(buffer)?;
        let reply = self.receive(shape, tag)?;
        match self.receive_rest(tag, wanted, &reply) {
            // A server that hangs up on somebody who has not logged in answers nothing more.
            Err(error) if error.is_io_error() && reply::is_unauthenticated(&reply) => {
                Ok((reply, None))
            }
            confirmed => confirmed.map(|confirmed| (reply, confirmed)),
        }
    }

    /// Appends the question for what is `wanted` of confirmations: they have as long as the reply.
    pub(crate) fn ask_for(&self, wanted: Wanted, buffer: &mut Vec<u8>) {
        if let Some(Confirmations { what, most }) = wanted {
            confirm::ask(what, most.min(self.clock.left(self.deadline)), buffer);
        }
    }

    /// Reads what was said of the confirmations, and the tag behind it.
    pub(crate) fn receive_confirmations(
        &mut self,
        wanted: Confirmations,
        tag: u64,
        all_refused: bool,
    ) -> RedisResult<Value> {
        self.bound()?;
        self.state.awaits_confirmations = true;
        let said = self.receive(confirm::shape(wanted.what), tag)?;
        self.state.awaits_confirmations = false;
        self.bound()?;
        self.receive_tag(tag, all_refused && is_refusal(&said))?;
        Ok(said)
    }

    /// What comes behind a reply: what was said of the confirmations, and the tag.
    fn receive_rest(
        &mut self,
        tag: u64,
        wanted: Wanted,
        reply: &Value,
    ) -> RedisResult<Option<Value>> {
        if let Some(wanted) = wanted {
            return self.receive_confirmations(wanted, tag, is_refusal(reply)).map(Some);
        }
        self.bound()?;
        self.receive_tag(tag, is_refusal(reply)).map(|()| None)
    }

    /// Sends what is in `buffer`: commands with tags between them.
    pub(crate) fn send(&mut self, buffer: &[u8]) -> RedisResult<()> {
        self.connection.send_packed_command(buffer)
    }

    /// The next reply. `tag`: the tag that comes after it.
    pub(crate) fn receive(&mut self, shape: Shape, tag: u64) -> RedisResult<Value> {
        let reply = self.connection.recv_response()?;
        if reply::turned_away(&reply) {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        }
        if let Some(said) = demotion::said_in(std::slice::from_ref(&reply)) {
            // This ends the connection, and all others to this server (R22).
            return Err(said);
        }
        if is_tag(&reply, tag) {
            return Err(reply::out_of_step());
        }
        if !shape.fits(&reply) {
            return Err(reply::misshapen());
        }
        Ok(reply)
    }

    /// Reads the answer to a tag. A server that refuses everything refuses the tag, too: then all
    /// replies before it are refusals, and it does not matter which command each belongs to. A
    /// server that began to refuse in between looks the same as replies that are out of step.
    pub(crate) fn receive_tag(&mut self, tag: u64, all_refused: bool) -> RedisResult<()> {
        let reply = self.connection.recv_response()?;
        if is_tag(&reply, tag) {
            return Ok(());
        }
        match reply {
            Value::ServerError(_) if all_refused => Ok(()),
            Value::ServerError(error) if error.code() == "NOPERM" => Err(error.into()),
            _ => Err(reply::out_of_step()),
        }
    }
}

/// Appends an ECHO of a number that no other ECHO has.
pub(crate) fn push_tag(buffer: &mut Vec<u8>) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let tag = LAST.fetch_add(1, Ordering::Relaxed);
    pack(&[Part::Text("ECHO"), Part::Number(tag)], buffer);
    tag
}

pub(crate) fn is_refusal(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(_))
}

fn is_tag(reply: &Value, tag: u64) -> bool {
    let Value::BulkString(text) = reply else { return false };
    std::str::from_utf8(text).is_ok_and(|text| text.parse() == Ok(tag))
}
