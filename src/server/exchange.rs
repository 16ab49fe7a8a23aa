//! One exchange over a connection: commands and their replies.
//!
//! A reply in Redis's protocol does not say to which command it belongs: the next one in the stream
//! is taken as the answer. So a connection that failed, timed out, or gave a reply of another shape
//! than its command has is closed, and never used again (R6).

use std::io;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use redis::{RedisResult, Value};

use super::call::{Command, Reply};
use super::confirm::{self, Confirmations, Wanted};
use super::connection::Transport;
use super::demotion;
use super::reply;
use super::script::{Part, pack};
use super::shape::Shape;
use crate::base::backoff;
use crate::base::clock::Clock;

/// The state of an open connection.
#[derive(Default)]
pub(crate) struct ConnectionState {
    /// Whether the server has carried out all that it was sent, and only its replicas or its disk
    /// have not answered.
    pub(crate) awaits_confirmations: bool,
    /// Whether the program's own code may have used the connection since the last exchange. It may
    /// have left replies that nobody has read: redis-rs goes on using a connection after a read
    /// that timed out.
    pub(crate) was_lent: bool,
}

/// The number of the next `ECHO`. It begins anywhere: what the program left unread may be a small
/// number.
static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(backoff::random()));

/// An open connection, for an exchange that must end by `deadline`.
pub(crate) struct Exchange<'a> {
    pub(crate) connection: &'a mut dyn Transport,
    pub(crate) state: &'a mut ConnectionState,
    pub(crate) clock: &'a Clock,
    pub(crate) deadline: Instant,
}

/// The commands and replies of one exchange. The `Instant` is `asked_at`: the first byte goes out
/// after it.
pub(crate) type ExchangeFn<'a, T> =
    &'a mut dyn FnMut(Exchange<'_>, &mut Vec<u8>, Instant) -> RedisResult<T>;

impl Exchange<'_> {
    /// Bounds each read and write from now on, so that it ends by the deadline.
    pub(crate) fn bound(&mut self) -> RedisResult<()> {
        self.bound_from(self.clock.now())
    }

    /// As [`bound`](Self::bound), with `now` as the current time.
    pub(crate) fn bound_from(&mut self, now: Instant) -> RedisResult<()> {
        let left = self.deadline.saturating_duration_since(now);
        self.connection.bound(self.clock.on_real_time(self.deadline), left)
    }

    /// Sends a command. Returns its reply, and the reply to `WAIT` if confirmations are wanted. A
    /// script goes by its hash, and whole if the server does not know it.
    pub(crate) fn run(
        &mut self,
        command: &Command<'_>,
        buffer: &mut Vec<u8>,
        wanted: Wanted,
    ) -> RedisResult<(Value, Option<Value>)> {
        buffer.clear();
        command.pack(buffer);
        let replies = self.ask_confirmed(buffer, command, wanted)?;
        // A script that the server does not know did not run, so this is not a second try.
        if reply::unknown_script(&replies.0) {
            self.run_whole(command, buffer, wanted)
        } else {
            Ok(replies)
        }
    }

    /// Sends a script whole, to a server that does not know it.
    pub(super) fn run_whole(
        &mut self,
        command: &Command<'_>,
        buffer: &mut Vec<u8>,
        wanted: Wanted,
    ) -> RedisResult<(Value, Option<Value>)> {
        buffer.clear();
        command.pack_whole(buffer);
        self.bound()?;
        self.ask_confirmed(buffer, command, wanted)
    }

    /// Sends the command that is packed in `buffer`, with `WAIT` behind it if confirmations are
    /// wanted, and returns the replies to both.
    fn ask_confirmed(
        &mut self,
        buffer: &mut Vec<u8>,
        command: &Command<'_>,
        wanted: Wanted,
    ) -> RedisResult<(Value, Option<Value>)> {
        self.ask_for(wanted, buffer);
        self.send(buffer)?;
        let reply = self.reply_to(command)?;
        let Some(wanted) = wanted else { return Ok((reply, None)) };
        match self.receive_confirmations(wanted) {
            // A server refuses somebody who has not logged in, and may hang up behind that.
            Err(error) if error.is_connection_dropped() && is_refusal(&reply) => {
                self.state.awaits_confirmations = false;
                Ok((reply, None))
            }
            said => said.map(|said| (reply, Some(said))),
        }
    }

    /// Appends `WAIT` if confirmations are wanted: they have as long as the reply.
    pub(crate) fn ask_for(&self, wanted: Wanted, buffer: &mut Vec<u8>) {
        if let Some(Confirmations { what, most }) = wanted {
            confirm::ask(what, most.min(self.clock.left(self.deadline)), buffer);
        }
    }

    /// Reads the reply to `WAIT`.
    pub(crate) fn receive_confirmations(&mut self, wanted: Confirmations) -> RedisResult<Value> {
        self.bound()?;
        self.state.awaits_confirmations = true;
        let said = self.receive(confirm::shape(wanted.what))?;
        self.state.awaits_confirmations = false;
        Ok(said)
    }

    /// Sends the commands in `buffer`. Over a connection that was lent to the program, an `ECHO` of
    /// a new number goes in front of them in the same packet: if the next reply is that number, the
    /// replies are in step with the commands. A refusal proves nothing: it may be that of an `ECHO`
    /// of the program.
    pub(crate) fn send(&mut self, buffer: &mut Vec<u8>) -> RedisResult<()> {
        debug_assert!(!buffer.is_empty(), "an empty packet is an error, and costs the connection");
        if !self.state.was_lent {
            return self.connection.send(buffer);
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut question = Vec::new();
        pack(&[Part::Text("ECHO"), Part::Number(number)], &mut question);
        buffer.splice(0..0, question);
        self.connection.send(buffer)?;
        match self.connection.receive()? {
            Value::BulkString(said) if said == number.to_string().as_bytes() => {}
            Value::ServerError(error)
                if error.code() == "NOAUTH" || reply::refuses(&error, "echo") =>
            {
                return Err(error.into());
            }
            _ => return Err(reply::out_of_step()),
        }
        self.state.was_lent = false;
        self.bound()
    }

    /// The reply to a command that was sent.
    pub(crate) fn reply_to(&mut self, command: &Command<'_>) -> RedisResult<Value> {
        if command.is_asking() {
            // If `ASKING` is refused, the command is redirected.
            self.receive(Shape::Set)?;
        }
        self.receive(command.shape())
    }

    /// The next reply.
    pub(crate) fn receive(&mut self, shape: Shape) -> RedisResult<Value> {
        let reply = self.connection.receive()?;
        if reply::turned_away(&reply) {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        }
        if let Some(said) = demotion::said_in(std::slice::from_ref(&reply)) {
            // This ends the connection, and all others to this server (R22).
            return Err(said);
        }
        if !shape.fits(&reply) {
            return Err(reply::misshapen());
        }
        Ok(reply)
    }
}

fn is_refusal(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(_))
}

/// The exchange of one command that needs no confirmations.
pub(super) fn unconfirmed(
    command: &Command<'_>,
) -> impl FnMut(Exchange<'_>, &mut Vec<u8>, Instant) -> RedisResult<Reply> {
    |mut exchange, buffer, asked_at| {
        let (value, _) = exchange.run(command, buffer, None)?;
        Ok(Reply { asked_at, value, confirmations: None })
    }
}
