//! One server: its pools, and calls with one deadline each.

mod connecting;
mod endpoint;
mod limit;
mod primary;
mod talk;
mod theirs;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use redis::{ConnectionInfo, RedisResult, Value};

use super::ask::{again_if_not_run, again_if_stale, run, understood};
use super::bulk::Bulk;
use super::confirm::{Confirmations, Wanted};
use super::exchange::{Exchange, Reply};
use super::pool::{Pool, Slot};
use super::script;
use super::script::{Part, Script};
use super::settings::{Service, Settings};
use super::shape::Shape;
use crate::base::clock::Clock;
use crate::base::error::Result;
use crate::base::options::Confirm;
use crate::lease::store::{StoreError, Within};
pub(crate) use endpoint::Endpoint;
use limit::TimeLimit;

/// One Redis server, for commands that need the same confirmations. While a replica is away, such a
/// command keeps its connection for as long as its lease allows, so those with other needs have
/// another node: the same endpoint, and a pool and a connection for renewal of their own.
///
/// A forked child must not use it, because it shares its parent's sockets: every call of the client
/// checks that first (R11).
pub(crate) struct Node {
    endpoint: Arc<Endpoint>,
    pool: Pool,
    /// Renewal's own connection, so that renewal waits for nobody (R9).
    renewing: Mutex<Slot>,
    /// What has to be confirmed of its grants and extends.
    confirm: Confirm,
    closed: AtomicBool,
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
        let pool = Pool::new(&settings);
        let endpoint = Arc::new(Endpoint::new(info, service, settings, clock)?);
        Ok(Self::at(endpoint, pool, Confirm::NOTHING))
    }

    /// The same server, for grants and extends that have to be confirmed.
    pub(crate) fn confirming(&self, confirm: Confirm) -> Self {
        Self::at(Arc::clone(&self.endpoint), self.pool.another(), confirm)
    }

    fn at(endpoint: Arc<Endpoint>, pool: Pool, confirm: Confirm) -> Self {
        let (renewing, closed) = (Mutex::default(), AtomicBool::new(false));
        Self { endpoint, pool, renewing, confirm, closed }
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    pub(crate) fn confirm(&self) -> Confirm {
        self.confirm
    }

    /// The question for confirmations that goes with a command; they may take `most`.
    fn wanted(&self, most: Duration) -> Wanted {
        self.confirm.is_wanted().then_some(Confirmations { what: self.confirm, most })
    }

    /// Sends one command. `confirm_within`: how long its confirmations may take, if this node asks
    /// for them.
    pub(crate) fn command(
        &self,
        parts: &[Part<'_>],
        shape: Shape,
        confirm_within: Duration,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let wanted = self.wanted(confirm_within);
        again_if_not_run(|| {
            self.pooled(deadline, &mut |mut exchange, buffer, asked_at| {
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
        self.script_if(&|| true, script, keys, parts, Duration::MAX, deadline)
    }

    /// The same, if the script may still be sent: that is asked once there is a connection, before
    /// anything is sent over it. `confirm_within`: as for [`command`](Self::command).
    pub(crate) fn script_if(
        &self,
        may_be_sent: &dyn Fn() -> bool,
        script: &Script,
        keys: usize,
        parts: &[Part<'_>],
        confirm_within: Duration,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let wanted = self.wanted(confirm_within);
        again_if_not_run(|| {
            self.pooled(deadline, &mut |mut exchange, buffer, asked_at| {
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
        again_if_not_run(|| {
            self.talk(&mut Slot::default(), limit, &mut |mut exchange, buffer, asked_at| {
                let (value, _) = run(&mut exchange, buffer, script, keys, parts, None)?;
                Ok(Reply { asked_at, value, confirmed: None })
            })
        })
        .and_then(understood)
    }

    /// Runs a script once for each list of parts, over renewal's own connection. If that cannot be
    /// opened, an open one of the pool will do: a lock that was granted over it can be kept over
    /// it. All of it has to be confirmed.
    pub(crate) fn script_in_bulk<'a>(
        &self,
        script: &'a Script,
        keys: usize,
        calls: impl Iterator<Item = Vec<Part<'a>>>,
        within: Within,
    ) -> (Vec<Result<Value, StoreError>>, Option<Value>) {
        let mut bulk = Bulk::new(script, keys, calls, self.wanted(Duration::MAX));
        let limit = TimeLimit::Within(within);
        let mut is_open = false;
        let mut talk = |exchange: Exchange<'_>, buffer: &mut Vec<u8>, _| {
            is_open = true;
            bulk.talk(exchange, buffer)
        };
        let mut talked = self.talk_in(&self.renewing, limit, &mut talk);
        if let Err(error) = &talked
            && !is_open
            && let Some(over_pooled) =
                self.over_an_open_one(limit, &mut |exchange, buffer, _| bulk.talk(exchange, buffer))
        {
            self.endpoint.say_shared(error);
            talked = over_pooled;
        }
        bulk.answers(talked)
    }

    /// The same over a pooled connection, for what needs no confirmations.
    pub(crate) fn pooled_in_bulk<'a>(
        &self,
        script: &'a Script,
        keys: usize,
        calls: impl Iterator<Item = Vec<Part<'a>>>,
        deadline: Instant,
    ) -> Vec<Result<Value, StoreError>> {
        let mut bulk = Bulk::new(script, keys, calls, None);
        let talked = self.pooled(deadline, &mut |exchange, buffer, _| bulk.talk(exchange, buffer));
        bulk.answers(talked).0
    }

    /// Publishes a message, but gives up after the command timeout: nobody depends on it.
    pub(crate) fn publish(&self, channel: &str, message: &str, deadline: Instant) {
        let endpoint = &self.endpoint;
        let deadline = deadline.min(endpoint.clock.now() + endpoint.command_timeout);
        let parts = [Part::Text("PUBLISH"), Part::Text(channel), Part::Text(message)];
        let _ = self.command(&parts, Shape::Number, Duration::MAX, deadline);
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        again_if_stale(|| self.command(&[Part::Text("PING")], Shape::Pong, Duration::MAX, deadline))
            .map(drop)
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
        empty(&self.renewing);
        self.endpoint.close();
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
