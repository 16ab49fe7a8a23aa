//! Waiting in a condition, and notifying it: only in a layout with a queue.

use std::time::Instant;

use redis::Value;

use super::{ServerLeases, confirm_within, place_parts};
use crate::base::error::ErrorKind;
use crate::base::store_error::StoreError;
use crate::lease::store::{Ask, InCondition, Notify, Release};
use crate::server::call::{Call, Command, Reply, Resend};
use crate::server::reply;
use crate::server::script::Part;
use crate::store::layout::answers;

impl ServerLeases {
    pub(super) fn wait_in_condition(
        &self,
        ask: &Ask<'_>,
        condition: &str,
        release: Option<&Release<'_>>,
        leave: bool,
    ) -> Result<InCondition, StoreError> {
        let queue = self.queue().ok_or_else(StoreError::without_conditions)?;
        let place = ask.place.and_then(|place| Some((place.listen()?, place)));
        let Some((address, place)) = place else {
            return Err(StoreError::not_sent(
                ErrorKind::Unavailable,
                "conditions need wake-ups, and this client cannot receive any",
            ));
        };
        let _ = self.inbox.start(&self.node);
        let (keys, mut parts) = self.keys(ask.key);
        parts.extend([
            Part::Bytes(ask.token.as_bytes()),
            Part::millis(ask.lease),
            Part::Number(u64::from(ask.fences)),
        ]);
        parts.extend(place_parts(ask, address, place));
        parts.extend([
            Part::Text(condition),
            Part::Bytes(release.map_or(&[], |release| release.token.as_bytes())),
            Part::Number(u64::from(leave)),
        ]);
        let before = Instant::now();
        let check = || release.map_or(Ok(()), Release::check);
        let call = Call::new(Command::script(&queue.wait, keys, parts)).check(&check);
        let call = call.confirm_within(confirm_within(ask));
        let reply = self.granting.call(&call, ask.deadline)?;
        self.is_heard(before, &reply.value);
        in_condition(&reply)
    }

    pub(super) fn notify_condition(
        &self,
        what: &Notify<'_>,
        deadline: Instant,
    ) -> Result<Option<u64>, StoreError> {
        let queue = self.queue().ok_or_else(StoreError::without_conditions)?;
        let (keys, mut parts) = self.keys(what.key);
        parts.extend([
            Part::Bytes(what.token.as_bytes()),
            Part::Text(what.condition),
            Part::Number(u64::from(what.most)),
        ]);
        // If both copies run, one waiter more wakes.
        let call = Call::new(Command::script(&queue.notify, keys, parts)).resend(Resend::Always);
        let moved = reply::number(&self.node.call(&call, deadline)?.value)?;
        // -1: not ours.
        Ok(u64::try_from(moved).ok())
    }
}

/// What the script says to a waiter: see wait.lua.
fn in_condition(reply: &Reply) -> Result<InCondition, StoreError> {
    let asked_at = reply.asked_at;
    match reply::list(&reply.value)? {
        [Value::Int(0), Value::Int(_)] => Ok(InCondition::Waiting { asked_at }),
        [Value::Int(1), last, count] => {
            reply.confirmed()?;
            Ok(InCondition::Granted { asked_at, fences: answers::fences(last, count)? })
        }
        [Value::Int(2)] => Err(answers::foreign()),
        [Value::Int(3)] => Ok(InCondition::Nowhere),
        [Value::Int(4)] => Ok(InCondition::NotOurs),
        [Value::Int(5), Value::Int(remaining), Value::Int(heard)] => Ok(InCondition::Notified {
            asked_at,
            remaining: answers::left(*remaining),
            heard: *heard == 1,
        }),
        [Value::Int(6)] => Ok(InCondition::Left),
        _ => Err(reply::nonsense()),
    }
}
