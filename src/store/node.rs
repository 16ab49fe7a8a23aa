//! One server: its pool, its gate while it is down, and calls with one deadline each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{Connection, ConnectionInfo, ConnectionLike, RedisError, RedisResult, Value};

use super::Settings;
use super::connect::Connector;
use super::gate::{self, Gate};
use super::pool::{OwnPool, Pool, Slot, closed_connection};
use super::reply;
use super::watched::Watched;
use super::wire::{self, Part, Reply, Script, Shape, State, Wire};
use crate::base::clock::Clock;
use crate::base::error::{ErrorKind, Result};
use crate::base::locked;
use crate::lease::store::{StoreError, Within};

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

/// After so many commands of a bulk comes a tag: what was read before it stands, also when the connection fails after it.
const BETWEEN_TAGS: usize = 64;

/// What is done over one connection. `asked_at` is when the first byte may be sent.
type Talk<'a, T> = &'a mut dyn FnMut(Wire<'_>, &mut Vec<u8>, Instant) -> RedisResult<T>;

impl Node {
    pub(super) fn new(info: ConnectionInfo, settings: Settings, clock: Clock) -> Result<Self> {
        let pool = match settings.pool {
            Some(pool) => Pool::Theirs(pool),
            None if settings.member_of.is_some() => Pool::One(Mutex::default()),
            None => Pool::Own(OwnPool::new(settings.pool_size, settings.command_timeout)),
        };
        let gate = Gate::at(info.addr().to_string(), gate::pause(settings.member_of));
        let mut connector = Connector::new(
            info,
            clock.clone(),
            settings.connect_timeout,
            settings.command_timeout,
            settings.pool_size,
            #[cfg(feature = "tls")]
            settings.root_certificates,
        )?;
        connector.greeting = settings.greeting;
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
    pub(super) fn command(&self, parts: &[Part<'_>], shape: Shape, deadline: Instant) -> Result<Reply, StoreError> {
        self.pooled(deadline, &mut |mut wire, buffer, asked_at| {
            buffer.clear();
            wire::pack(parts, buffer);
            Ok(Reply { asked_at, value: wire.ask(buffer, shape)? })
        })
        .and_then(understood)
    }

    /// Runs a script. The first `keys` of `parts` are its keys, the others its arguments.
    pub(super) fn script(&self, script: &Script, keys: usize, parts: &[Part<'_>], deadline: Instant) -> Result<Reply, StoreError> {
        self.pooled(deadline, &mut |mut wire, buffer, asked_at| {
            buffer.clear();
            script.by_hash(keys, parts, buffer);
            let mut value = wire.ask(buffer, script.shape)?;
            if reply::unknown_script(&value) {
                // It did not run, so this is no second try.
                value = by_body(&mut wire, buffer, script, keys, parts)?;
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
        within: Within,
    ) -> Vec<Result<Value, StoreError>> {
        let deadline = self.clock.now() + within.reply;
        let waiting: Vec<Vec<Part<'a>>> = calls.collect();
        let total = waiting.len();
        let mut values: Vec<Value> = Vec::with_capacity(total);
        let talked = self.usable().and_then(|()| {
            self.talk(&mut locked(&self.renewing), deadline, &mut |mut wire, buffer, _| {
                buffer.clear();
                let pack = |part: &[Vec<Part<'a>>]| {
                    part.iter().for_each(|parts| script.by_hash(keys, parts, buffer));
                    wire::push_tag(buffer)
                };
                let tags: Vec<u64> = waiting.chunks(BETWEEN_TAGS).map(pack).collect();
                wire.send(buffer)?;
                for (part, tag) in waiting.chunks(BETWEEN_TAGS).zip(tags) {
                    let mut heard = Vec::with_capacity(part.len());
                    for _ in part {
                        wire.bound()?;
                        heard.push(wire.receive(script.shape, Some(tag))?);
                    }
                    wire.bound()?;
                    wire.receive_tag(tag, &heard)?;
                    values.append(&mut heard);
                }
                for (value, parts) in values.iter_mut().zip(&waiting).filter(|(value, _)| reply::unknown_script(value)) {
                    *value = by_body(&mut wire, buffer, script, keys, parts)?;
                }
                Ok(())
            })
        });
        let unknown = || StoreError::not_sent(ErrorKind::Unavailable, "the connection failed before this reply").maybe_run();
        // What was read before a failure stands, each answer at the place of its question; a script that the server did not know has had none.
        let heard = |value| if reply::unknown_script(&value) { Err(unknown()) } else { reply::value(value) };
        let mut answers: Vec<_> = values.into_iter().map(heard).collect();
        if let Err(error) = talked {
            if answers.len() < total {
                answers.push(Err(error));
            }
            answers.resize_with(total, || Err(unknown()));
        }
        answers
    }

    /// A connection for somebody's use alone, whose reads and writes take no longer than `timeout` each.
    pub(super) fn open_for_itself(&self, timeout: Duration) -> Result<Connection, StoreError> {
        self.usable()?;
        let connection = self.connect(self.clock.now() + self.command_timeout)?;
        let limited = connection.set_read_timeout(Some(timeout)).and_then(|()| connection.set_write_timeout(Some(timeout)));
        limited.map_err(|error| reply::connecting(&error))?;
        Ok(connection)
    }

    /// Publishes, if that goes quickly: nobody depends on it.
    pub(super) fn publish(&self, channel: &str, message: &str, deadline: Instant) {
        let deadline = deadline.min(self.clock.now() + self.command_timeout);
        let _ = self.command(&[Part::Text("PUBLISH"), Part::Text(channel), Part::Text(message)], Shape::Number, deadline);
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        again_if_stale(|| self.command(&[Part::Text("PING")], Shape::Pong, deadline)).map(drop)
    }

    /// Runs a caller's commands, and once more after a dropped connection.
    pub(crate) fn execute<T>(&self, deadline: Instant, work: Work<'_, T>) -> Result<T, StoreError> {
        let mut run = || {
            let mut value = None;
            let talked = self.pooled(deadline, &mut |wire, _, _| {
                wire.state.forget();
                let mut watched = Watched { connection: wire.connection, failed: None };
                let result = work(&mut watched);
                match watched.failed {
                    // The connection is done for, whatever the caller made of it.
                    Some(failed) => {
                        value = result.ok();
                        Err(failed)
                    }
                    None => Ok(result),
                }
            });
            match value {
                Some(value) => Ok(Ok(value)),
                None => talked,
            }
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

    /// Closes the connections that nobody uses, and ends the pool's thread. A program's own pool is left to the program.
    ///
    /// Without it they would last as long as anything that still names the client, such as a hold that its thread never took back.
    pub(crate) fn close(&self) {
        match &self.pool {
            Pool::Own(pool) => pool.close(),
            Pool::One(slot) => locked(slot).connection = None,
            Pool::Theirs(_) => {}
        }
        locked(&self.renewing).connection = None;
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
                let mut checked_out = pool.check_out(wait).ok_or_else(exhausted)?;
                self.talk(checked_out.slot(), deadline, talk)
            }
            Pool::One(slot) => self.talk(&mut locked(slot), deadline, talk),
            Pool::Theirs(pool) => {
                let mut connection = pool.get_timeout(wait()).map_err(|_| exhausted())?;
                let result = self.talk_over(&mut connection, deadline, talk);
                if result.as_ref().is_err_and(|error| error.dropped) {
                    drop(connection);
                    self.try_idle(pool, deadline);
                }
                result
            }
        }
    }

    /// Talks over the connection of a slot, opened first if need be.
    fn talk<T>(&self, slot: &mut Slot, deadline: Instant, talk: Talk<'_, T>) -> Result<T, StoreError> {
        let generation = self.generation.load(Ordering::SeqCst);
        if slot.generation != generation {
            slot.connection = None;
        }
        // Taken out, and put back only if all went well: a connection in the middle of something stays out, also when a caller's code panics.
        let (mut connection, fresh) = match slot.connection.take() {
            Some(connection) => (connection, false),
            None => {
                slot.state = State::fresh();
                slot.generation = generation;
                (self.connect(deadline)?, true)
            }
        };
        let mut wire = Wire { connection: &mut connection, state: &mut slot.state, clock: &self.clock, deadline };
        let asked_at = self.clock.now();
        let result = wire.bound_from(asked_at).and_then(|()| talk(wire, &mut slot.buffer, asked_at));
        match result {
            Ok(value) => {
                slot.connection = Some(connection);
                Ok(value)
            }
            Err(error) => {
                // Closed here and now; and those that were opened before it are not trusted either.
                drop(connection);
                let _ = self.generation.compare_exchange(generation, generation + 1, Ordering::SeqCst, Ordering::SeqCst);
                if fresh && !error.is_timeout() {
                    // Connecting works and using it does not: without a pause that would go on as fast as the network.
                    self.gate.shut();
                } else {
                    self.gate.doubt();
                }
                Err(self.failed(&error, !fresh))
            }
        }
    }

    /// Opens a connection. A server that refuses our credentials has answered; it is not down.
    fn connect(&self, deadline: Instant) -> Result<Connection, StoreError> {
        let pass = self.gate.enter(deadline.saturating_duration_since(self.clock.now()));
        let pass = pass.ok_or_else(|| StoreError::not_sent(ErrorKind::Unavailable, "the server is down"))?;
        let opened = self.connector.open(deadline);
        match &opened {
            Err(error) if !error.permanent => pass.failed(),
            _ => pass.opened(),
        }
        opened
    }

    /// Talks over a connection of the program's own pool.
    fn talk_over<T>(&self, connection: &mut Connection, deadline: Instant, talk: Talk<'_, T>) -> Result<T, StoreError> {
        // What the program did with it is not known.
        let mut state = State::default();
        let asked_at = self.clock.now();
        let mut wire = Wire { connection, state: &mut state, clock: &self.clock, deadline };
        let result = wire.bound_from(asked_at).and_then(|()| talk(wire, &mut Vec::new(), asked_at));
        result.map_err(|error| {
            discard(connection);
            self.failed(&error, true)
        })
    }

    /// Tries the connections that lie idle in the program's own pool, and discards those that the server has closed: like the one that has just
    /// failed they are from before whatever happened, and each would cost somebody another failure (R6).
    fn try_idle(&self, pool: &r2d2::Pool<redis::Client>, deadline: Instant) {
        let mut tried = Vec::new();
        for _ in 0..pool.state().idle_connections {
            let left = deadline.saturating_duration_since(self.clock.now());
            let Some(mut connection) = pool.try_get().filter(|_| !left.is_zero()) else { return };
            let answer = connection.set_read_timeout(Some(left)).and_then(|()| redis::cmd("PING").exec(&mut connection));
            let silent = answer.as_ref().is_err_and(RedisError::is_timeout);
            if answer.is_err_and(|error| error.is_io_error()) {
                discard(&mut connection);
            }
            if silent {
                return;
            }
            // Kept until all have been tried, or the pool would give out the same one again.
            tried.push(connection);
        }
    }

    fn failed(&self, error: &RedisError, was_idle: bool) -> StoreError {
        let mut failure = reply::unanswered(error);
        failure.stale = was_idle && failure.dropped;
        failure
    }
}

/// Has its pool discard a connection when it comes back.
fn discard(connection: &mut Connection) {
    if let Some(closed) = closed_connection() {
        *connection = closed;
    }
}

/// Asks once more, at once, where an idle connection turned out to be closed. For questions that may be carried out twice.
pub(super) fn again_if_stale<T>(mut ask: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    match ask() {
        Err(error) if error.stale => ask(),
        answer => answer,
    }
}

/// Sends the whole of a script to a server that does not know it.
fn by_body(wire: &mut Wire<'_>, buffer: &mut Vec<u8>, script: &Script, keys: usize, parts: &[Part<'_>]) -> RedisResult<Value> {
    buffer.clear();
    script.by_body(keys, parts, buffer);
    wire.bound()?;
    wire.ask(buffer, script.shape)
}

fn understood(reply: Reply) -> Result<Reply, StoreError> {
    Ok(Reply { asked_at: reply.asked_at, value: reply::value(reply.value)? })
}
