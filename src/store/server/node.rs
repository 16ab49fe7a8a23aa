//! One server: its pool, its gate while it is down, and calls with one deadline each.

mod connecting;
mod limit;
mod primary;
mod talk;
mod theirs;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use redis::{ConnectionAddr, ConnectionInfo, RedisError, RedisResult, Value};

use super::ask::{again_if_not_run, again_if_stale, run, understood};
use super::bulk::Bulk;
use super::confirm::{Wanted, lane};
use super::connect::Connector;
use super::demotion::{Demotions, Watch};
use super::exchange::{Exchange, Reply};
use super::gate::{self, Gate, Target};
use super::pool::{OwnPool, Pool, Slot};
use super::reply;
use super::script;
use super::script::{Part, Script};
use super::settings::{Service, Settings};
use super::shape::Shape;
use super::theirs::Theirs;
use crate::base::clock::Clock;
use crate::base::error::Result;
use crate::base::locked;
use crate::base::options::Confirm;
use crate::lease::store::{StoreError, Within};
use limit::TimeLimit;
use primary::{Place, Watched};

/// One Redis server. A forked child must not use it, because it shares its parent's sockets: every
/// call of the client checks that first (R11).
pub(crate) struct Node {
    pool: Pool,
    connector: Connector,
    gate: Arc<Gate>,
    /// How long opening a connection may take. An attempt with less than half of it says little.
    time_to_connect: Duration,
    /// How many failures there have been: connections from before the last failure are not trusted
    /// any more (R6).
    generation: Arc<AtomicU64>,
    /// For connections that the generation does not cover (R22).
    demotions: Demotions,
    /// The sentinels that say where it is, and the thread that listens to them.
    watched: Option<Watched>,
    /// Whether a primary has ever been reached. Before that, a replica is a wrong address.
    had_primary: AtomicBool,
    /// Whether it is a node of a quorum.
    is_member: bool,
    /// Whether it has been said that the server does not tell its role.
    said_untold: AtomicBool,
    closed: AtomicBool,
    /// Renewal's own connections, so that renewal waits for nobody (R9), by what has to be
    /// confirmed.
    renewing: Mutex<HashMap<Confirm, Arc<Mutex<Slot>>>>,
    pub(crate) clock: Clock,
    pub(crate) command_timeout: Duration,
}

/// What is done over one connection. The `Instant` is `asked_at`: the first byte is sent after it.
pub(crate) type Talk<'a, T> =
    &'a mut dyn FnMut(Exchange<'_>, &mut Vec<u8>, Instant) -> RedisResult<T>;

impl Node {
    /// `service`: if sentinels say where the server is; then `info` has no address of its own.
    pub(crate) fn new(
        info: ConnectionInfo,
        service: Option<&Service>,
        settings: Settings,
        clock: Clock,
    ) -> Result<Self> {
        let tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        let place = Place::new(info, service, &settings)?;
        let pool = match settings.pool {
            Some(pool) => Pool::Theirs(Theirs::new(pool)),
            None if settings.member_of.is_some() => Pool::One(Mutex::default()),
            None => Pool::Own(OwnPool::new(settings.pool_size, settings.command_timeout)),
        };
        let target = Target {
            address: place.name,
            tls,
            within: settings.connect_timeout.min(settings.command_timeout),
            process: std::process::id(),
        };
        let time_to_connect = target.within;
        let gate = Gate::at(target, gate::pause(settings.member_of));
        let (generation, demotions) = (Arc::<AtomicU64>::default(), Demotions::default());
        let watched = place
            .sentinels
            .map(|sentinels| Watched::new(sentinels, (&generation, &demotions, &gate)));
        let mut connector = Connector::new(
            &place.dialer,
            watched.as_ref().map(Watched::sentinels),
            clock.clone(),
            settings.connect_timeout,
            settings.pool_size,
        )?;
        connector.greeting = settings.greeting;
        Ok(Self {
            pool,
            connector,
            gate,
            time_to_connect,
            generation,
            demotions,
            watched,
            had_primary: AtomicBool::new(false),
            is_member: settings.member_of.is_some(),
            said_untold: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            renewing: Mutex::default(),
            clock,
            command_timeout: settings.command_timeout,
        })
    }

    /// Sends one command.
    pub(crate) fn command(
        &self,
        parts: &[Part<'_>],
        shape: Shape,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        self.command_confirmed(parts, shape, None, deadline)
    }

    /// The same, with what is `wanted` of confirmations.
    pub(crate) fn command_confirmed(
        &self,
        parts: &[Part<'_>],
        shape: Shape,
        wanted: Wanted,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        again_if_not_run(|| {
            self.pooled_in(lane(wanted), deadline, &mut |mut exchange, buffer, asked_at| {
                buffer.clear();
                script::pack(parts, buffer);
                let (value, confirmed) = exchange.ask_confirmed(buffer, shape, wanted)?;
                Ok(Reply { asked_at, value, confirmed })
            })
        })
        .and_then(understood)
    }

    /// Runs a script. The first `keys` of `parts` are its keys, the others its arguments.
    pub(crate) fn script(
        &self,
        script: &Script,
        keys: usize,
        parts: &[Part<'_>],
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        self.script_if(&|| true, script, keys, parts, None, deadline)
    }

    /// The same, if the script may still be sent: that is asked once there is a connection, before
    /// anything is sent over it. With what is `wanted` of confirmations.
    pub(crate) fn script_if(
        &self,
        may_be_sent: &dyn Fn() -> bool,
        script: &Script,
        keys: usize,
        parts: &[Part<'_>],
        wanted: Wanted,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        again_if_not_run(|| {
            self.pooled_in(lane(wanted), deadline, &mut |mut exchange, buffer, asked_at| {
                if !may_be_sent() {
                    return Ok(None);
                }
                let (value, confirmed) = run(&mut exchange, buffer, script, keys, parts, wanted)?;
                Ok(Some(Reply { asked_at, value, confirmed }))
            })
        })?
        .map_or_else(|| Err(StoreError::ended()), understood)
    }

    /// Runs a script that must not run twice, over a new connection: over an idle one that turns
    /// out to be closed, nobody would know whether it had run.
    pub(crate) fn script_once(
        &self,
        script: &Script,
        keys: usize,
        parts: &[Part<'_>],
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let limit = TimeLimit::By(deadline);
        self.talk(&mut Slot::default(), limit, &mut |mut exchange, buffer, asked_at| {
            let (value, _) = run(&mut exchange, buffer, script, keys, parts, None)?;
            Ok(Reply { asked_at, value, confirmed: None })
        })
        .and_then(understood)
    }

    /// Runs a script once for each list of parts, over renewal's own connection.
    pub(crate) fn script_in_bulk<'a>(
        &self,
        script: &'a Script,
        keys: usize,
        calls: impl Iterator<Item = Vec<Part<'a>>>,
        wanted: Wanted,
        within: Within,
    ) -> (Vec<Result<Value, StoreError>>, Option<Value>) {
        let mut bulk = Bulk::new(script, keys, calls).confirmed(wanted);
        let slot = self.renewing(lane(wanted));
        let talked = self.talk_in(&slot, TimeLimit::Within(within), &mut |exchange, buffer, _| {
            bulk.talk(exchange, buffer)
        });
        bulk.answers(talked)
    }

    fn renewing(&self, lane: Confirm) -> Arc<Mutex<Slot>> {
        Arc::clone(locked(&self.renewing).entry(lane).or_default())
    }

    /// The same over a pooled connection.
    pub(crate) fn pooled_in_bulk<'a>(
        &self,
        script: &'a Script,
        keys: usize,
        calls: impl Iterator<Item = Vec<Part<'a>>>,
        deadline: Instant,
    ) -> Vec<Result<Value, StoreError>> {
        let mut bulk = Bulk::new(script, keys, calls);
        let talked = self.pooled(deadline, &mut |exchange, buffer, _| bulk.talk(exchange, buffer));
        bulk.answers(talked).0
    }

    /// For a connection that only its reader uses: the reader checks it for demotions.
    pub(crate) fn demotions(&self) -> Watch {
        self.demotions.watch()
    }

    /// Publishes a message, but gives up after the command timeout: nobody depends on it.
    pub(crate) fn publish(&self, channel: &str, message: &str, deadline: Instant) {
        let deadline = deadline.min(self.clock.now() + self.command_timeout);
        let _ = self.command(
            &[Part::Text("PUBLISH"), Part::Text(channel), Part::Text(message)],
            Shape::Number,
            deadline,
        );
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        again_if_stale(|| self.command(&[Part::Text("PING")], Shape::Pong, deadline)).map(drop)
    }

    /// Closes the idle connections and ends the pool's thread. Does not wait: a connection that is
    /// in use is closed after its use. A program's own pool is left to the program.
    ///
    /// Otherwise they would last as long as anything that still refers to the client, such as a
    /// hold that its thread never gave back.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        match &self.pool {
            Pool::Own(pool) => pool.close(),
            Pool::One(slot) => empty(slot),
            Pool::Theirs(_) => {}
        }
        locked(&self.renewing).values().for_each(|slot| empty(slot));
        if let Some(watched) = &self.watched {
            watched.sentinels.close();
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// From now on trusts no connection of this generation or before it; and if the server is a
    /// replica, no subscription either.
    pub(crate) fn distrust(&self, generation: u64, demoted: bool) {
        let _ = self.generation.compare_exchange(
            generation,
            generation + 1,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        if demoted {
            self.demotions.add();
        }
    }

    pub(crate) fn failed(&self, error: &RedisError, was_idle: bool) -> StoreError {
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
