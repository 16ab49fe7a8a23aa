//! One server: its pool, its gate while it is down, and calls with one deadline each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use redis::{Connection, ConnectionAddr, ConnectionInfo, RedisError, RedisResult, Value};

use super::Settings;
use super::connect::{Connector, Opened};
use super::demotion::{self, Demotions};
use super::gate::{self, Gate, Target};
use super::pool::{OwnPool, Pool, Slot};
use super::reply;
use super::theirs::Theirs;
use super::wire::{self, Part, Reply, Script, Shape, State, Wire};
use crate::base::clock::Clock;
use crate::base::error::{ErrorKind, Result};
use crate::base::locked;
use crate::lease::store::{StoreError, Within};

/// One Redis server.
pub(crate) struct Node {
    pub(super) pool: Pool,
    connector: Connector,
    gate: Arc<Gate>,
    /// How many failures there have been: connections from before the last one are not trusted any more (R6).
    generation: AtomicU64,
    /// For connections that the generation does not reach (R22).
    pub(super) demotions: Demotions,
    /// Whether the server told at the last log-in whether it is a master.
    pub(super) tells_role: AtomicBool,
    closed: AtomicBool,
    /// The connection of renewal, which waits for nobody (R9).
    renewing: Mutex<Slot>,
    pub(super) clock: Clock,
    pub(super) command_timeout: Duration,
    process: u32,
}

/// After so many commands of a bulk comes a tag: what was read before it stands, also when the connection fails after it.
const BETWEEN_TAGS: usize = 64;

/// By when a talk must be over.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    /// Connecting, and the replies.
    By(Instant),
    /// The replies have their own time from when there is a connection.
    Within(Within),
}

impl Limit {
    fn connect_by(self) -> Instant {
        match self {
            Self::By(deadline) => deadline,
            Self::Within(within) => within.connect_by,
        }
    }

    fn reply_by(self, connected: Instant) -> Instant {
        match self {
            Self::By(deadline) => deadline,
            Self::Within(within) => connected + within.reply,
        }
    }
}

/// What is done over one connection. `asked_at` is when the first byte may be sent.
pub(super) type Talk<'a, T> = &'a mut dyn FnMut(Wire<'_>, &mut Vec<u8>, Instant) -> RedisResult<T>;

impl Node {
    pub(super) fn new(info: ConnectionInfo, settings: Settings, clock: Clock) -> Result<Self> {
        let pool = match settings.pool {
            Some(pool) => Pool::Theirs(Theirs::new(pool)),
            None if settings.member_of.is_some() => Pool::One(Mutex::default()),
            None => Pool::Own(OwnPool::new(settings.pool_size, settings.command_timeout)),
        };
        let target = Target {
            address: info.addr().to_string(),
            tls: matches!(info.addr(), ConnectionAddr::TcpTls { .. }),
            within: settings.connect_timeout.min(settings.command_timeout),
        };
        let gate = Gate::at(target, gate::pause(settings.member_of));
        let connector = Connector::new(
            info,
            clock.clone(),
            settings.connect_timeout,
            settings.command_timeout,
            settings.pool_size,
            #[cfg(feature = "tls")]
            settings.root_certificates,
        )?;
        Ok(Self {
            pool,
            connector,
            gate,
            generation: AtomicU64::new(0),
            demotions: Demotions::default(),
            tells_role: AtomicBool::new(false),
            closed: AtomicBool::new(false),
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
        again_if_not_run(|| {
            self.pooled(deadline, &mut |mut wire, buffer, asked_at| {
                buffer.clear();
                wire::pack(parts, buffer);
                Ok(Reply { asked_at, value: wire.ask(buffer, shape)? })
            })
        })
        .and_then(understood)
    }

    /// Runs a script. The first `keys` of `parts` are its keys, the others its arguments.
    pub(super) fn script(&self, script: &Script, keys: usize, parts: &[Part<'_>], deadline: Instant) -> Result<Reply, StoreError> {
        again_if_not_run(|| {
            self.pooled(deadline, &mut |mut wire, buffer, asked_at| {
                let value = run(&mut wire, buffer, script, keys, parts)?;
                Ok(Reply { asked_at, value })
            })
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
        let waiting: Vec<Vec<Part<'a>>> = calls.collect();
        let total = waiting.len();
        let mut values: Vec<Value> = Vec::with_capacity(total);
        let talked = self.usable().and_then(|()| {
            self.talk_in(&self.renewing, Limit::Within(within), &mut |mut wire, buffer, _| {
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

    /// Closes the connections that nobody uses, and ends the pool's thread. Waits for nobody: one that is
    /// in use is closed after it. A program's own pool is left to the program.
    ///
    /// Without it they would last as long as anything that still names the client, such as a hold that its thread never took back.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        match &self.pool {
            Pool::Own(pool) => pool.close(),
            Pool::One(slot) => empty(slot),
            Pool::Theirs(_) => {}
        }
        empty(&self.renewing);
    }

    fn usable(&self) -> Result<(), StoreError> {
        if self.is_forked() {
            let message = "the client belongs to the process that this one was forked from: make a new one";
            return Err(StoreError::not_sent(ErrorKind::Unsupported, message).permanent());
        }
        Ok(())
    }

    pub(super) fn pooled<T>(&self, deadline: Instant, talk: Talk<'_, T>) -> Result<T, StoreError> {
        self.usable()?;
        let wait = || deadline.saturating_duration_since(self.clock.now());
        let exhausted = || StoreError::not_sent(ErrorKind::Unavailable, "no pooled connection came free in time");
        match &self.pool {
            Pool::Own(pool) => {
                let mut checked_out = pool.check_out(wait).ok_or_else(exhausted)?;
                self.talk(checked_out.slot(), Limit::By(deadline), talk)
            }
            Pool::One(slot) => self.talk_in(slot, Limit::By(deadline), talk),
            Pool::Theirs(pool) => self.talk_over_theirs(pool, deadline, talk),
        }
    }

    /// Talks over a connection that others may be waiting for.
    fn talk_in<T>(&self, slot: &Mutex<Slot>, limit: Limit, talk: Talk<'_, T>) -> Result<T, StoreError> {
        let result = self.talk(&mut locked(slot), limit, talk);
        // Looked at after the slot is free: either `close` finds it so, or it has said before that it wants it empty.
        if self.closed.load(Ordering::SeqCst) {
            empty(slot);
        }
        result
    }

    /// Talks over the connection of a slot, opened first if need be.
    pub(super) fn talk<T>(&self, slot: &mut Slot, limit: Limit, talk: Talk<'_, T>) -> Result<T, StoreError> {
        let generation = self.generation();
        if slot.generation != generation {
            slot.connection = None;
        }
        // Taken out, and put back only if all went well: a connection in the middle of something stays out, also when a caller's code panics.
        let (mut connection, fresh) = match slot.connection.take() {
            Some(connection) => (connection, false),
            None => {
                slot.state = State::fresh();
                slot.generation = generation;
                (self.connect(limit.connect_by())?, true)
            }
        };
        let asked_at = self.clock.now();
        let deadline = limit.reply_by(asked_at);
        let mut wire = Wire { fresh, connection: &mut connection, state: &mut slot.state, clock: &self.clock, deadline };
        let result = wire.bound_from(asked_at).and_then(|()| talk(wire, &mut slot.buffer, asked_at));
        match result {
            Ok(value) => {
                slot.connection = Some(connection);
                Ok(value)
            }
            Err(error) => {
                // Closed here and now; and those that were opened before it are not trusted either.
                drop(connection);
                self.distrust(generation, demotion::says(&error));
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
        let generation = self.generation();
        let pass = self.gate.enter(deadline.saturating_duration_since(self.clock.now()));
        let pass = pass.ok_or_else(|| StoreError::not_sent(ErrorKind::Unavailable, "the server is down"))?;
        match self.connector.open(deadline) {
            Ok(Opened::Ready { connection, tells_role }) => {
                pass.opened();
                self.tells_role.store(tells_role, Ordering::SeqCst);
                Ok(connection)
            }
            Ok(Opened::Replica) => {
                pass.failed();
                self.distrust(generation, true);
                Err(reply::replica())
            }
            Err(error) => {
                if error.permanent {
                    pass.opened()
                } else {
                    pass.failed()
                }
                Err(error)
            }
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Trusts no connection that was opened up to this generation any more; and if the server is a
    /// replica, no subscription either.
    pub(super) fn distrust(&self, generation: u64, demoted: bool) {
        let _ = self.generation.compare_exchange(generation, generation + 1, Ordering::SeqCst, Ordering::SeqCst);
        if demoted {
            self.demotions.add();
        }
    }

    pub(super) fn failed(&self, error: &RedisError, was_idle: bool) -> StoreError {
        let mut failure = reply::unanswered(error);
        failure.stale = was_idle && failure.dropped;
        failure
    }
}

/// Closes the connection of a slot, unless it is in use.
fn empty(slot: &Mutex<Slot>) {
    let slot = match slot.try_lock() {
        Ok(slot) => Some(slot),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    if let Some(mut slot) = slot {
        slot.connection = None;
    }
}

/// Asks once more, at once, where an idle connection was of no use and certainly nothing was carried out.
pub(super) fn again_if_not_run<T>(mut ask: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    match ask() {
        Err(error) if error.stale && !error.may_have_run => ask(),
        answer => answer,
    }
}

/// Asks once more, at once, where an idle connection turned out to be closed. For questions that may be carried out twice.
pub(super) fn again_if_stale<T>(mut ask: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    match ask() {
        Err(error) if error.stale => ask(),
        answer => answer,
    }
}

/// Runs a script by its hash, and where the server does not know it, by its body.
pub(super) fn run(wire: &mut Wire<'_>, buffer: &mut Vec<u8>, script: &Script, keys: usize, parts: &[Part<'_>]) -> RedisResult<Value> {
    buffer.clear();
    script.by_hash(keys, parts, buffer);
    let value = wire.ask(buffer, script.shape)?;
    // One that is not known did not run, so this is no second try.
    if reply::unknown_script(&value) { by_body(wire, buffer, script, keys, parts) } else { Ok(value) }
}

/// Sends the whole of a script to a server that does not know it.
fn by_body(wire: &mut Wire<'_>, buffer: &mut Vec<u8>, script: &Script, keys: usize, parts: &[Part<'_>]) -> RedisResult<Value> {
    buffer.clear();
    script.by_body(keys, parts, buffer);
    wire.bound()?;
    wire.ask(buffer, script.shape)
}

pub(super) fn understood(reply: Reply) -> Result<Reply, StoreError> {
    Ok(Reply { asked_at: reply.asked_at, value: reply::value(reply.value)? })
}
