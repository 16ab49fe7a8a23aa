//! Talking over one connection: of a pool, or one that is kept for a purpose.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use super::time_limit::TimeLimit;
use super::{Node, Talk, empty};
use crate::base::error::ErrorKind;
use crate::base::locked;
use crate::base::store_error::StoreError;
use crate::server::exchange::{Exchange, Known};
use crate::server::pool::{Pool, Slot};
use crate::server::{demotion, reply};

/// The slot, unless it is in use: an extend does not wait for another thread's exchange (R9).
fn free(slot: &Mutex<Slot>) -> Option<MutexGuard<'_, Slot>> {
    match slot.try_lock() {
        Ok(free) => Some(free),
        Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Node {
    /// Talks over a pooled connection.
    pub(crate) fn pooled<T>(&self, deadline: Instant, talk: Talk<'_, T>) -> Result<T, StoreError> {
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
            Pool::Theirs(pool) => self.talk_over_theirs(pool, deadline, talk),
        }
    }

    /// Talks over a pooled connection that is open, without opening one. `None`: there is none.
    pub(super) fn over_an_open_one<T>(
        &self,
        limit: TimeLimit,
        talk: Talk<'_, T>,
    ) -> Option<Result<T, StoreError>> {
        let clock = &self.endpoint.clock;
        let generation = self.endpoint.generation();
        let is_open = |slot: &Slot| slot.connection.is_some() && slot.generation == generation;
        match &self.pool {
            Pool::Own(pool) => {
                let mut found = pool.find(|| clock.left(limit.connect_by()), is_open)?;
                Some(self.talk(found.slot(), limit, talk))
            }
            Pool::One(slot) => {
                let mut free = free(slot)?;
                let result = is_open(&free).then(|| self.talk(&mut free, limit, talk));
                drop(free);
                self.empty_if_closed(slot);
                result
            }
            Pool::Theirs(theirs) => {
                let mut connection = theirs.pool.try_get()?;
                let deadline = limit.reply_by(clock.now());
                Some(self.talk_over(theirs, &mut connection, deadline, talk))
            }
        }
    }

    /// Talks over a connection that others may be waiting for.
    pub(super) fn talk_in<T>(
        &self,
        slot: &Mutex<Slot>,
        limit: TimeLimit,
        talk: Talk<'_, T>,
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
    pub(super) fn talk<T>(
        &self,
        slot: &mut Slot,
        limit: TimeLimit,
        talk: Talk<'_, T>,
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
                slot.state = Known::default();
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
                // Except if an extend timed out: it had only a little time, which says nothing
                // about other connections.
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
}
