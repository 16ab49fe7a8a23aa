//! One server: its pool, its gate while it is down, and calls with one deadline each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{Connection, ConnectionInfo, ConnectionLike, RedisError, RedisResult, Value};

use super::Settings;
use super::connect::Connector;
use super::gate::{Gate, Pass};
use super::pool::{Pool, Slot, closed_connection};
use super::reply;
use super::wire::{self, Part, Script, Wire};
use crate::base::clock::Clock;
use crate::base::error::{ErrorKind, Result};
use crate::base::locked;
use crate::lease::store::StoreError;

/// The commands of a caller of `execute`.
pub(crate) type Work<'a, T> = &'a mut dyn FnMut(&mut dyn ConnectionLike) -> RedisResult<T>;

/// One Redis server.
pub(crate) struct Node {
    pool: Pool,
    connector: Connector,
    gate: Arc<Gate>,
    /// How many failures there have been: connections from before the last one are not trusted any more (R6).
    generation: AtomicU64,
    /// The connection of renewal, which waits for nobody (R9).
    renewing: Mutex<Slot>,
    clock: Clock,
    command_timeout: Duration,
    process: u32,
}

/// A command and its reply.
pub(super) struct Reply {
    /// Read after check-out and connect, before the first byte was sent (R1).
    pub(super) asked_at: Instant,
    pub(super) value: Value,
}

/// What is done over one connection. `asked_at` is when the first byte may be sent.
type Talk<'a, T> = &'a mut dyn FnMut(Wire<'_>, &mut Vec<u8>, Instant) -> RedisResult<T>;

impl Node {
    pub(super) fn new(info: ConnectionInfo, settings: Settings, clock: Clock) -> Result<Self> {
        let pool = match settings.pool {
            Some(pool) => Pool::Theirs(pool),
            None => Pool::new(settings.pool_size, settings.command_timeout)?,
        };
        let gate = Gate::at(info.addr().to_string());
        let connector = Connector::new(
            info,
            clock.clone(),
            settings.connect_timeout,
            settings.command_timeout,
            #[cfg(feature = "tls")]
            settings.root_certificates,
        )?;
        Ok(Self {
            pool,
            connector,
            gate,
            generation: AtomicU64::new(0),
            renewing: Mutex::default(),
            clock,
            command_timeout: settings.command_timeout,
            process: std::process::id(),
        })
    }

    /// A fork shares its parent's sockets: one byte from here would be read as the parent's (R11).
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Sends one command.
    pub(super) fn command(&self, parts: &[Part<'_>], deadline: Instant) -> Result<Reply, StoreError> {
        self.pooled(deadline, &mut |mut wire, buffer, asked_at| {
            buffer.clear();
            wire::pack(parts, buffer);
            wire.send(buffer)?;
            Ok(Reply { asked_at, value: wire.receive()? })
        })
        .and_then(understood)
    }

    /// Runs a script. The first `keys` of `parts` are its keys, the others its arguments.
    pub(super) fn script(&self, script: &Script, keys: usize, parts: &[Part<'_>], deadline: Instant) -> Result<Reply, StoreError> {
        self.pooled(deadline, &mut |mut wire, buffer, asked_at| {
            buffer.clear();
            script.by_hash(keys, parts, buffer);
            wire.send(buffer)?;
            let mut value = wire.receive()?;
            if reply::unknown_script(&value) {
                // It did not run, so this is no second try.
                buffer.clear();
                script.by_body(keys, parts, buffer);
                wire.send(buffer)?;
                value = wire.receive()?;
            }
            Ok(Reply { asked_at, value })
        })
        .and_then(understood)
    }

    /// Runs a script once for each list of parts, over renewal's own connection: written at once, read one by one. At the first
    /// failure the rest is unknown; going on to read would wait for each of them in turn.
    pub(super) fn script_in_bulk<'a>(
        &self,
        script: &Script,
        keys: usize,
        calls: impl ExactSizeIterator<Item = Vec<Part<'a>>>,
        deadline: Instant,
    ) -> Vec<Result<Value, StoreError>> {
        let mut waiting: Vec<Vec<Part<'a>>> = calls.collect();
        let total = waiting.len();
        let mut values: Vec<Value> = Vec::with_capacity(total);
        let talked = self.usable().and_then(|()| {
            self.talk(&mut locked(&self.renewing), deadline, &mut |mut wire, buffer, _| {
                buffer.clear();
                waiting.iter().for_each(|parts| script.by_hash(keys, parts, buffer));
                wire.send(buffer)?;
                for _ in 0..total {
                    wire.set_timeout(deadline.saturating_duration_since(self.clock.now()))?;
                    values.push(wire.receive()?);
                }
                for (value, parts) in values.iter_mut().zip(&mut waiting).filter(|(value, _)| reply::unknown_script(value)) {
                    buffer.clear();
                    script.by_body(keys, parts, buffer);
                    wire.send(buffer)?;
                    *value = wire.receive()?;
                }
                Ok(())
            })
        });
        let mut answers: Vec<_> = values.into_iter().map(reply::value).collect();
        if let Err(error) = talked {
            // What was read before the failure stands; the first without an answer has the error itself.
            answers.retain(|answer| !matches!(answer, Err(error) if error.kind == ErrorKind::Server));
            answers.push(Err(error));
            answers.truncate(total);
            let unknown = || StoreError::not_sent(ErrorKind::Unavailable, "the connection failed before this reply").maybe_run();
            answers.resize_with(total, || Err(unknown()));
        }
        answers
    }

    /// A connection for somebody's use alone, whose reads and writes take no longer than `timeout` each.
    pub(super) fn open_for_itself(&self, timeout: Duration) -> Result<Connection, StoreError> {
        self.usable()?;
        let pass = self.enter()?;
        let connection = self.open(&pass, self.clock.now() + self.command_timeout)?;
        pass.answered();
        let limited = connection.set_read_timeout(Some(timeout)).and_then(|()| connection.set_write_timeout(Some(timeout)));
        limited.map_err(|error| reply::connecting(&error))?;
        Ok(connection)
    }

    /// Publishes, if that goes quickly: nobody depends on it.
    pub(super) fn publish(&self, channel: &str, message: &str, deadline: Instant) {
        let deadline = deadline.min(self.clock.now() + self.command_timeout);
        let _ = self.command(&[Part::Text("PUBLISH"), Part::Text(channel), Part::Text(message)], deadline);
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        self.command(&[Part::Text("PING")], deadline).map(drop)
    }

    /// Runs a caller's commands, and once more after a dropped connection.
    pub(crate) fn execute<T>(&self, deadline: Instant, work: Work<'_, T>) -> Result<T, StoreError> {
        let mut run = || {
            self.pooled(deadline, &mut |wire, _, _| {
                let mut watched = Watched { connection: wire.connection, failed: None };
                let result = work(&mut watched);
                match watched.failed {
                    // The connection is done for, whatever the caller made of it.
                    Some(failed) if result.is_err() => Err(failed),
                    _ => Ok(result),
                }
            })
        };
        let result = match run() {
            Err(error) if error.dropped => run(),
            result => result,
        }?;
        result.map_err(|error| match error.code() {
            Some(code) => reply::refused(code, error.detail().unwrap_or_default()),
            None => StoreError::not_sent(ErrorKind::Server, "the commands failed").because(error.category().to_owned()),
        })
    }

    fn usable(&self) -> Result<(), StoreError> {
        if self.is_forked() {
            let message = "the client belongs to the process that this one was forked from: make a new one";
            return Err(StoreError::not_sent(ErrorKind::Unsupported, message).permanent());
        }
        Ok(())
    }

    fn pooled<T>(&self, deadline: Instant, talk: Talk<'_, T>) -> Result<T, StoreError> {
        self.usable()?;
        let wait = || deadline.saturating_duration_since(self.clock.now());
        let exhausted = || StoreError::not_sent(ErrorKind::Unavailable, "no pooled connection came free in time");
        match &self.pool {
            Pool::Own(pool) => {
                // One that is idle is had without a look at the clock.
                let slot = pool.try_get().map_or_else(|| pool.get_timeout(wait()), Ok);
                let mut slot = slot.map_err(|_| exhausted())?;
                self.talk(&mut slot, deadline, talk)
            }
            Pool::Theirs(pool) => {
                let mut connection = pool.get_timeout(wait()).map_err(|_| exhausted())?;
                self.talk_over(&mut connection, deadline, talk)
            }
        }
    }

    fn enter(&self) -> Result<Pass<'_>, StoreError> {
        self.gate.enter(Instant::now()).ok_or_else(|| StoreError::not_sent(ErrorKind::Unavailable, "the server is down"))
    }

    /// Opens a connection. A server that refuses our credentials has answered; it is not down.
    fn open(&self, pass: &Pass<'_>, deadline: Instant) -> Result<Connection, StoreError> {
        self.connector.open(deadline).inspect_err(|error| if error.permanent { pass.answered() } else { self.gate.shut() })
    }

    /// Talks over the connection of a slot, opened first if need be.
    fn talk<T>(&self, slot: &mut Slot, deadline: Instant, talk: Talk<'_, T>) -> Result<T, StoreError> {
        let generation = self.generation.load(Ordering::SeqCst);
        if slot.generation != generation {
            slot.connection = None;
        }
        let mut pass = None;
        if slot.connection.is_none() {
            let entered = self.enter()?;
            slot.connection = Some(self.open(&entered, deadline)?);
            slot.timeout = None;
            slot.generation = generation;
            pass = Some(entered);
        }
        let Some(connection) = &mut slot.connection else {
            return Err(StoreError::not_sent(ErrorKind::Unavailable, "the connection is gone"));
        };
        let mut wire = Wire { connection, timeout: &mut slot.timeout };
        let asked_at = self.clock.now();
        let result = wire.set_timeout(deadline.saturating_duration_since(asked_at)).and_then(|()| talk(wire, &mut slot.buffer, asked_at));
        match result {
            Ok(value) => {
                if let Some(pass) = pass {
                    pass.answered();
                }
                Ok(value)
            }
            Err(error) => {
                // Closed here and now; and those that were opened before it are not trusted either.
                slot.connection = None;
                let _ = self.generation.compare_exchange(generation, generation + 1, Ordering::SeqCst, Ordering::SeqCst);
                let fresh = pass.is_some();
                if fresh || error.is_timeout() {
                    self.gate.shut();
                }
                Err(self.failed(&error, !fresh))
            }
        }
    }

    /// Talks over a connection of the program's own pool.
    fn talk_over<T>(&self, connection: &mut Connection, deadline: Instant, talk: Talk<'_, T>) -> Result<T, StoreError> {
        let mut timeout = None;
        let asked_at = self.clock.now();
        let mut wire = Wire { connection, timeout: &mut timeout };
        let result = wire.set_timeout(deadline.saturating_duration_since(asked_at)).and_then(|()| talk(wire, &mut Vec::new(), asked_at));
        result.map_err(|error| {
            if let Some(closed) = closed_connection() {
                *connection = closed;
            }
            self.failed(&error, true)
        })
    }

    fn failed(&self, error: &RedisError, was_idle: bool) -> StoreError {
        let mut failure = reply::unanswered(error);
        failure.dropped = !error.is_timeout();
        failure.stale = was_idle && failure.dropped;
        failure
    }
}

fn understood(reply: Reply) -> Result<Reply, StoreError> {
    Ok(Reply { asked_at: reply.asked_at, value: reply::value(reply.value)? })
}

/// Remembers whether the connection failed, also where the caller's code swallows the error.
struct Watched<'a> {
    connection: &'a mut Connection,
    failed: Option<RedisError>,
}

impl Watched<'_> {
    fn note<T>(&mut self, result: RedisResult<T>) -> RedisResult<T> {
        if let Err(error) = &result
            && (error.is_io_error() || error.is_unrecoverable_error())
        {
            self.failed = Some(error.clone());
        }
        result
    }
}

impl ConnectionLike for Watched<'_> {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        let result = self.connection.req_packed_command(command);
        self.note(result)
    }

    fn req_packed_commands(&mut self, commands: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        let result = self.connection.req_packed_commands(commands, offset, count);
        self.note(result)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }

    fn check_connection(&mut self) -> bool {
        self.connection.check_connection()
    }

    fn is_open(&self) -> bool {
        self.connection.is_open()
    }
}
