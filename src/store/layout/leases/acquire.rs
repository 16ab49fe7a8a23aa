//! How a lease is asked for.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::Value;

use super::ServerLeases;
use crate::base::key::Key;
use crate::base::log;
use crate::base::store_error::StoreError;
use crate::lease::store::{Answer, Ask, Place};
use crate::server::call::{Call, Command};
use crate::server::reply;
use crate::server::script::{Part, Script};
use crate::server::shape::Shape;
use crate::store::layout::answers;

/// No waiter counts as alive for longer without asking again, however long its pause.
const LONGEST_PLACE: Duration = Duration::from_secs(24 * 60 * 60);

impl ServerLeases {
    /// `SET key token NX PX lease`: the whole of an uncontended acquire.
    fn set(&self, ask: &Ask<'_>) -> Result<Option<Answer>, StoreError> {
        let parts = [
            Part::Text("SET"),
            Part::Text(ask.key.as_str()),
            Part::Bytes(ask.token.as_bytes()),
            Part::Text("NX"),
            Part::Text("PX"),
            Part::millis(ask.lease),
        ];
        let call = acquiring(ask, Command::with_key(&parts, Shape::Set));
        let reply = self.granting.call(&call, ask.deadline)?;
        match reply.value {
            Value::Okay => {
                reply.confirmed()?;
                Ok(Some(Answer::Granted { asked_at: reply.asked_at, fences: None }))
            }
            Value::Nil => Ok(None),
            _ => Err(reply::nonsense()),
        }
    }

    /// The script: acquires, or looks closer, and queues where there is a place to take.
    pub(super) fn ask(
        &self,
        ask: &Ask<'_>,
        place: Option<(&str, Place<'_>)>,
    ) -> Result<Answer, StoreError> {
        let (mut keys, mut parts) = self.keys(ask.key);
        if let Some(counter) = self.table.counter.filter(|_| ask.fences > 0) {
            parts.push(counter.of(ask.key));
            keys += 1;
        }
        parts.extend([
            Part::Bytes(ask.token.as_bytes()),
            Part::millis(ask.lease),
            Part::Number(u64::from(ask.may_be_mine)),
        ]);
        parts.extend(self.has_fences().then(|| Part::Number(u64::from(ask.fences))));
        let address = place.map(|(address, _)| address);
        if let Some((address, place)) = place {
            parts.extend(place_parts(ask, address, place));
            self.inboxes.start(address);
        }
        let before = Instant::now();
        let call = acquiring(ask, Command::script(&self.table.acquire, keys, parts));
        let reply = self.granting.call(&call, ask.deadline).map_err(answers::half_way)?;
        if let Some(address) = address {
            self.is_heard(ask.key, address, before, &reply.value);
        }
        answers::answer(&reply)
    }

    pub(super) fn try_acquire_queued(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        if !ask.contended {
            // In the simplest way first, without listening for anything: most likely it is granted.
            let simple = self.table.holds_token && ask.fences == 0;
            let answer = if simple { self.set(ask)? } else { Some(self.ask(ask, None)?) };
            match answer {
                Some(answer @ Answer::Granted { .. }) => return Ok(answer),
                Some(refused) if ask.place.is_none() => return Ok(refused),
                // A hash refuses `SET NX` as a held lock does, and the rest of the lease is not
                // known: the script looks closer.
                _ => {}
            }
        }
        let answer = self.ask(ask, ask.place.and_then(|place| Some(((place.listen)()?, place))));
        match (answer, self.queue()) {
            (Err(error), Some(queue)) if error.moving && ask.fences == 0 => {
                self.ask_alone(&queue.acquire_alone, ask)
            }
            (answer, _) => answer,
        }
    }

    /// Acquires, and looks at nothing but the lease. The queue waits until its slot has moved.
    fn ask_alone(&self, script: &Script, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        let (keys, mut parts) = self.lease_keys(ask.key);
        parts.extend([
            Part::Bytes(ask.token.as_bytes()),
            Part::millis(ask.lease),
            Part::Number(u64::from(ask.may_be_mine)),
        ]);
        let call = acquiring(ask, Command::script(script, keys, parts));
        answers::answer(&self.granting.call(&call, ask.deadline)?)
    }

    /// Makes the inbox check its subscription if the server does not see it. `asked_at`:
    /// before anything was sent, and not by the client's clock, which a test may advance.
    pub(super) fn is_heard(&self, key: &Key, address: &str, asked_at: Instant, answer: &Value) {
        let Value::Array(words) = answer else { return };
        match words.as_slice() {
            [Value::Int(0 | 5), .., Value::Int(0)] => {
                self.inboxes.is_not_heard(key, address, asked_at);
            }
            [Value::Int(0 | 5), .., Value::Int(2)]
                if !self.may_not_ask.swap(true, Ordering::Relaxed) =>
            {
                log::warn!("the server does not say who listens to a channel, so waiters poll");
            }
            _ => {}
        }
    }
}

/// What a waiter leaves in the queue.
pub(super) fn place_parts<'a>(ask: &Ask<'_>, address: &'a str, place: Place<'_>) -> [Part<'a>; 4] {
    [
        Part::Text(address),
        Part::Number(ask.attempt),
        Part::millis(place.alive_for.min(LONGEST_PLACE)),
        Part::millis(place.first_lease),
    ]
}

/// A call that acquires. Renewal waits more than twice as long for confirmations: so a lease that
/// was granted over slow replicas can be kept.
pub(super) fn acquiring<'a>(ask: &Ask<'_>, command: Command<'a>) -> Call<'a> {
    Call::new(command).confirm_within(ask.lease / 10)
}
