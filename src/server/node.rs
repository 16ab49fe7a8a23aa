//! One server: its pools, and calls with one deadline each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use redis::ConnectionInfo;

use super::batch::Batch;
use super::call::{Call, Command, Reply, Resend};
use super::confirm::{Confirmations, Wanted};
use super::endpoint::Endpoint;
use super::exchange::{ConnectionState, Exchange, ExchangeFn, unconfirmed};
use super::pool::{Pool, Slot};
use super::script::Part;
use super::sentinel::service::Service;
use super::settings::Settings;
use super::shape::Shape;
use super::{demotion, reply};
use crate::base::clock::Clock;
use crate::base::error::{ErrorKind, Result};
use crate::base::locked;
use crate::base::options::Confirm;
use crate::base::store_error::StoreError;
use crate::base::within::{TimeLimit, Within};

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
    /// Who has to confirm its grants and extends.
    confirm: Confirm,
    closed: AtomicBool,
}

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

    /// A node of the same server, for grants and extends that replicas have to confirm.
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

    /// Who has to confirm its grants and extends.
    pub(crate) fn confirm(&self) -> Confirm {
        self.confirm
    }

    /// The confirmations that a command needs; they may take `most`.
    fn wanted(&self, most: Duration) -> Wanted {
        self.confirm.is_wanted().then_some(Confirmations { what: self.confirm, most })
    }

    /// Sends a command, and reads its reply.
    pub(crate) fn call(&self, call: &Call<'_>, deadline: Instant) -> Result<Reply, StoreError> {
        self.ask(call, deadline)?.understood()
    }

    /// As [`call`](Self::call), but an error reply is a reply, too.
    pub(super) fn ask(&self, call: &Call<'_>, deadline: Instant) -> Result<Reply, StoreError> {
        let wanted = self.wanted(call.confirm_within);
        // Kept apart from the answer: whatever the exchange ends with, nothing was sent.
        let mut forbidden = None;
        let mut talk = |mut exchange: Exchange<'_>, buffer: &mut Vec<u8>, asked_at| {
            if let Err(error) = (call.check)() {
                forbidden = Some(error);
                return Ok(None);
            }
            let (value, said) = exchange.run(&call.command, buffer, wanted)?;
            let confirmations = wanted.map(|wanted| (wanted.what, said));
            Ok(Some(Reply { asked_at, value, confirmations }))
        };
        let mut ask = || match call.resend {
            Resend::IfNotRun | Resend::Always => self.pooled(deadline, &mut talk),
            Resend::Never => self.talk(&mut Slot::default(), TimeLimit::By(deadline), &mut talk),
        };
        let answer = match ask() {
            Err(error) if call.may_be_sent_again(&error) => ask(),
            answer => answer,
        };
        match forbidden {
            Some(error) => Err(error),
            None => answer?.ok_or_else(reply::nonsense),
        }
    }

    /// Sends many commands at once, and reads the reply to each, or why there is none.
    pub(crate) fn batch(
        &self,
        commands: &[Command<'_>],
        deadline: Instant,
    ) -> Vec<Result<Reply, StoreError>> {
        understood(self.ask_batch(commands, deadline))
    }

    /// As [`batch`](Self::batch), but an error reply is a reply, too.
    pub(super) fn ask_batch(
        &self,
        commands: &[Command<'_>],
        deadline: Instant,
    ) -> Vec<Result<Reply, StoreError>> {
        self.batch_over(commands, |talk| self.pooled(deadline, talk))
    }

    /// As [`batch`](Self::batch), over renewal's own connection. If that cannot be opened, an open
    /// one of the pool will do: a lock that was granted over it can be kept over it.
    pub(crate) fn renew(
        &self,
        commands: &[Command<'_>],
        within: Within,
    ) -> Vec<Result<Reply, StoreError>> {
        understood(self.ask_renewing(commands, within))
    }

    /// As [`renew`](Self::renew), but an error reply is a reply, too.
    pub(super) fn ask_renewing(
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

    /// Sends a command that needs no confirmations over a pooled connection that is open and free,
    /// and reads its reply. `None`: there is none.
    pub(super) fn ask_over_a_free_one(
        &self,
        command: &Command<'_>,
        reply: Duration,
    ) -> Option<Result<Reply, StoreError>> {
        let limit = TimeLimit::once_open(reply, self.endpoint.clock.now());
        self.over_an_open_one(limit, &mut unconfirmed(command))
    }

    /// The same over renewal's own connection.
    pub(super) fn ask_over_renewals_own(
        &self,
        command: &Command<'_>,
        reply: Duration,
    ) -> Option<Result<Reply, StoreError>> {
        let limit = TimeLimit::once_open(reply, self.endpoint.clock.now());
        self.talk_if_open(&self.renewing, limit, &mut unconfirmed(command))
    }

    fn batch_over(
        &self,
        commands: &[Command<'_>],
        over: impl FnOnce(ExchangeFn<'_, ()>) -> Result<(), StoreError>,
    ) -> Vec<Result<Reply, StoreError>> {
        let wanted = self.wanted(Duration::MAX);
        let mut batch = Batch::new(commands, wanted, self.endpoint.clock.now());
        let talked = over(&mut |exchange, buffer, asked_at| batch.talk(exchange, buffer, asked_at));
        batch.replies(talked)
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        let ping = Command::new(&[Part::Text("PING")], Shape::Pong);
        self.call(&Call::new(ping).resend(Resend::Always), deadline).map(drop)
    }

    /// Talks over a pooled connection.
    pub(super) fn pooled<T>(
        &self,
        deadline: Instant,
        talk: ExchangeFn<'_, T>,
    ) -> Result<T, StoreError> {
        let wait = || self.endpoint.clock.left(deadline);
        let exhausted = || {
            StoreError::not_sent(ErrorKind::Unavailable, "no pooled connection came free in time")
        };
        match &self.pool {
            Pool::Own(pool) => {
                let mut checked_out = pool.check_out(wait).ok_or_else(exhausted)?;
                self.talk(checked_out.slot(), TimeLimit::By(deadline), talk)
            }
            Pool::One(slot) => self.talk_in(slot, TimeLimit::By(deadline), talk),
            Pool::Programs(pool) => pool.talk(&self.endpoint, deadline, talk),
        }
    }

    /// Talks over a pooled connection that is open, without opening one. `None`: there is none.
    fn over_an_open_one<T>(
        &self,
        limit: TimeLimit,
        talk: ExchangeFn<'_, T>,
    ) -> Option<Result<T, StoreError>> {
        let clock = &self.endpoint.clock;
        match &self.pool {
            Pool::Own(pool) => {
                let generation = self.endpoint.generation();
                let is_open = |slot: &Slot| slot.is_open(generation);
                let mut found = pool.find(|| clock.left(limit.connect_by()), is_open)?;
                Some(self.talk(found.slot(), limit, talk))
            }
            Pool::One(slot) => self.talk_if_open(slot, limit, talk),
            Pool::Programs(pool) => {
                let deadline = || limit.reply_by(clock.now());
                pool.talk_over_an_idle_one(&self.endpoint, deadline, talk)
            }
        }
    }

    /// Talks over the connection of this slot, if that is open, and free.
    fn talk_if_open<T>(
        &self,
        slot: &Mutex<Slot>,
        limit: TimeLimit,
        talk: ExchangeFn<'_, T>,
    ) -> Option<Result<T, StoreError>> {
        let mut free = free(slot)?;
        let is_open = free.is_open(self.endpoint.generation());
        let result = is_open.then(|| self.talk(&mut free, limit, talk));
        drop(free);
        self.empty_if_closed(slot);
        result
    }

    /// Talks over a connection that others may be waiting for.
    fn talk_in<T>(
        &self,
        slot: &Mutex<Slot>,
        limit: TimeLimit,
        talk: ExchangeFn<'_, T>,
    ) -> Result<T, StoreError> {
        let result = self.talk(&mut locked(slot), limit, talk);
        self.empty_if_closed(slot);
        result
    }

    /// Called after the slot is free: either `close` finds the slot free, or it has set `closed`
    /// before.
    fn empty_if_closed(&self, slot: &Mutex<Slot>) {
        if self.closed.load(Ordering::SeqCst) {
            empty(slot);
        }
    }

    /// Talks over the connection of a slot, opened first if need be.
    fn talk<T>(
        &self,
        slot: &mut Slot,
        limit: TimeLimit,
        talk: ExchangeFn<'_, T>,
    ) -> Result<T, StoreError> {
        let endpoint = &*self.endpoint;
        // First: a demotion that becomes known while a connection is opened is one of the server
        // that it leads to.
        let demotions = endpoint.demotions.count();
        let generation = endpoint.generation();
        if slot.generation != generation {
            slot.connection = None;
        }
        // Taken out, and put back only if all went well: a connection in the middle of an exchange
        // stays out, even if a caller's code panics.
        let (mut connection, fresh) = match slot.connection.take() {
            Some(connection) => (connection, false),
            None => {
                slot.state = ConnectionState::default();
                slot.generation = generation;
                (endpoint.connect_unless_moved(limit.connect_by(), demotions)?, true)
            }
        };
        let asked_at = endpoint.clock.now();
        let deadline = limit.reply_by(asked_at);
        let mut exchange = Exchange {
            connection: &mut connection,
            state: &mut slot.state,
            clock: &endpoint.clock,
            deadline,
        };
        let result =
            exchange.bound_from(asked_at).and_then(|()| talk(exchange, &mut slot.buffer, asked_at));
        match result {
            // What a server said while it was no primary any more may be known to nobody else: it
            // is no answer (R22).
            Ok(_) if endpoint.demotions.count() != demotions => Err(reply::moved()),
            Ok(value) => {
                endpoint.reach.answered();
                slot.connection = Some(connection);
                Ok(value)
            }
            Err(error) => {
                // Closed at once; and connections that were opened before this failure are not
                // trusted either.
                drop(connection);
                if error.is_timeout() && slot.state.awaits_confirmations {
                    // The server has answered. Its replicas say nothing about other connections.
                    return Err(endpoint.failed(&error, !fresh));
                }
                // Except if an extend, or a question for a map, timed out: it had only a little
                // time, which says nothing about other connections.
                if !(matches!(limit, TimeLimit::Within(_)) && error.is_timeout()) {
                    endpoint.distrust(generation, demotion::says(&error));
                }
                let failure = endpoint.failed(&error, !fresh);
                if fresh && reply::says_nothing(&error) {
                    // Connecting works, but using the connection does not: without a pause, retries
                    // would go on as fast as the network.
                    endpoint.gate.shut(&failure);
                } else {
                    endpoint.gate.doubt();
                }
                Err(failure)
            }
        }
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
            Pool::Programs(_) => {}
        }
        empty(&self.renewing);
        self.endpoint.close();
    }
}

fn understood(replies: Vec<Result<Reply, StoreError>>) -> Vec<Result<Reply, StoreError>> {
    replies.into_iter().map(|reply| reply?.understood()).collect()
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

/// The slot, unless it is in use: an extend does not wait for another thread's exchange (R9).
fn free(slot: &Mutex<Slot>) -> Option<MutexGuard<'_, Slot>> {
    match slot.try_lock() {
        Ok(free) => Some(free),
        Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
