//! One server: its pools, and calls with one deadline each.

mod connecting;
mod endpoint;
mod primary;
mod talk;
mod theirs;
mod time_limit;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use redis::{ConnectionInfo, RedisResult};

use super::batch::Batch;
use super::call::{Call, Command, Reply, Resend};
use super::confirm::{Confirmations, Wanted};
use super::exchange::Exchange;
use super::pool::{Pool, Slot};
use super::reply;
use super::script::Part;
use super::settings::{Service, Settings};
use super::shape::Shape;
use crate::base::clock::Clock;
use crate::base::error::Result;
use crate::base::options::Confirm;
use crate::base::store_error::StoreError;
use crate::base::within::Within;
pub(crate) use endpoint::Endpoint;
use time_limit::TimeLimit;

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

    /// What its grants and extends need.
    pub(crate) fn confirm(&self) -> Confirm {
        self.confirm
    }

    /// The question for confirmations that goes with a command; they may take `most`.
    fn wanted(&self, most: Duration) -> Wanted {
        self.confirm.is_wanted().then_some(Confirmations { what: self.confirm, most })
    }

    /// Sends a command, and reads its reply.
    pub(crate) fn call(&self, call: &Call<'_>, deadline: Instant) -> Result<Reply, StoreError> {
        let wanted = self.wanted(call.confirm_within);
        let mut talk = |mut exchange: Exchange<'_>, buffer: &mut Vec<u8>, asked_at| {
            if let Err(error) = (call.check)() {
                return Ok(Err(error));
            }
            let (value, said) = exchange.run(&call.command, buffer, wanted)?;
            let confirmations = wanted.map(|wanted| (wanted.what, said));
            Ok(reply::value(value).map(|value| Reply { asked_at, value, confirmations }))
        };
        let mut ask = || match call.resend {
            Resend::IfNotRun | Resend::Always => self.pooled(deadline, &mut talk),
            Resend::Never => self.talk(&mut Slot::default(), TimeLimit::By(deadline), &mut talk),
        };
        match ask() {
            Err(error) if call.may_be_sent_again(&error) => ask(),
            answer => answer,
        }?
    }

    /// Sends many commands at once, and reads the reply to each, or why there is none.
    pub(crate) fn batch(
        &self,
        commands: &[Command<'_>],
        deadline: Instant,
    ) -> Vec<Result<Reply, StoreError>> {
        self.batch_over(commands, |talk| self.pooled(deadline, talk))
    }

    /// The same over renewal's own connection. If that cannot be opened, an open one of the pool
    /// will do: a lock that was granted over it can be kept over it.
    pub(crate) fn renew(
        &self,
        commands: &[Command<'_>],
        within: Within,
    ) -> Vec<Result<Reply, StoreError>> {
        let limit = TimeLimit::Within(within);
        self.batch_over(commands, |talk| {
            let mut is_open = false;
            let talked = self.talk_in(&self.renewing, limit, &mut |exchange, buffer, asked_at| {
                is_open = true;
                talk(exchange, buffer, asked_at)
            });
            match talked {
                Err(error) if !is_open => match self.over_an_open_one(limit, talk) {
                    Some(over_pooled) => {
                        self.endpoint.say_shared(&error);
                        over_pooled
                    }
                    None => Err(error),
                },
                talked => talked,
            }
        })
    }

    fn batch_over(
        &self,
        commands: &[Command<'_>],
        over: impl FnOnce(Talk<'_, ()>) -> Result<(), StoreError>,
    ) -> Vec<Result<Reply, StoreError>> {
        let wanted = self.wanted(Duration::MAX);
        let mut batch = Batch::new(commands, wanted, self.endpoint.clock.now());
        let talked = over(&mut |exchange, buffer, asked_at| batch.talk(exchange, buffer, asked_at));
        batch.replies(talked)
    }

    /// Publishes a message, but gives up after the command timeout: nobody depends on it.
    pub(crate) fn publish(&self, channel: &str, message: &str, deadline: Instant) {
        let endpoint = &self.endpoint;
        let deadline = deadline.min(endpoint.clock.now() + endpoint.command_timeout);
        let parts = [Part::Text("PUBLISH"), Part::Text(channel), Part::Text(message)];
        let _ = self.call(&Call::new(Command::new(&parts, Shape::Number)), deadline);
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        let ping = Command::new(&[Part::Text("PING")], Shape::Pong);
        self.call(&Call::new(ping).resend(Resend::Always), deadline).map(drop)
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
