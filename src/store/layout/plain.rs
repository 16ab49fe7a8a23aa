//! The plain layout: a string key that holds the token.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use super::answers;
use crate::base::bell::Bell;
use crate::base::error::{Error, ErrorKind};
use crate::base::key::Key;
use crate::base::options::LockOptions;
use crate::lease::store::{
    Abilities, Answer, Ask, End, Extend, Gone, Holder, InCondition, LeaseStore, Listening, Notify,
    Place, Release, StoreError, Withdraw, Within,
};
use crate::lease::token::Token;
use crate::store::server::ask::again_if_stale;
use crate::store::server::inbox::Inbox;
use crate::store::server::node::Node;
use crate::store::server::reply;
use crate::store::server::script::{Part, Script};
use crate::store::server::shape::Shape;

/// No waiter counts as alive for longer without asking again, however long its pause.
const LONGEST_PLACE: Duration = Duration::from_secs(24 * 60 * 60);

/// Leases in the plain layout on one server.
pub(crate) struct Plain {
    node: Arc<Node>,
    inbox: Arc<Inbox>,
    /// Whether it has been said that the server does not say who listens.
    may_not_ask: AtomicBool,
    acquire: Script,
    release: Script,
    withdraw: Script,
    extend: Script,
    inspect: Script,
    force: Script,
    wait: Script,
    notify: Script,
}

impl Plain {
    pub(crate) fn new(node: Arc<Node>, inbox: Arc<Inbox>) -> Self {
        Self {
            node,
            inbox,
            may_not_ask: AtomicBool::new(false),
            acquire: Script::new(
                Shape::Array,
                concat!(
                    include_str!("plain/acquire_uncontended.lua"),
                    include_str!("plain/queue.lua"),
                    include_str!("plain/acquire.lua")
                ),
            ),
            release: Script::new(
                Shape::Number,
                concat!(
                    include_str!("plain/release_uncontended.lua"),
                    include_str!("plain/queue.lua"),
                    include_str!("plain/release.lua")
                ),
            ),
            withdraw: Script::new(
                Shape::Number,
                concat!(include_str!("plain/queue.lua"), include_str!("plain/withdraw.lua")),
            ),
            extend: Script::new(Shape::Number, include_str!("plain/extend.lua")),
            inspect: Script::new(Shape::Array, include_str!("plain/inspect.lua")),
            force: Script::new(
                Shape::Number,
                concat!(include_str!("plain/queue.lua"), include_str!("plain/force.lua")),
            ),
            wait: Script::new(
                Shape::Array,
                concat!(include_str!("plain/queue.lua"), include_str!("plain/wait.lua")),
            ),
            notify: Script::new(
                Shape::Number,
                concat!(include_str!("plain/queue.lua"), include_str!("plain/notify.lua")),
            ),
        }
    }

    pub(crate) fn inbox(&self) -> Arc<Inbox> {
        Arc::clone(&self.inbox)
    }

    /// `SET key token NX PX lease`: the whole of an uncontended acquire.
    fn set(&self, ask: &Ask<'_>) -> Result<Option<Answer>, StoreError> {
        let reply = self.node.command(
            &[
                Part::Text("SET"),
                Part::Text(ask.key.as_str()),
                Part::Text(ask.token.as_str()),
                Part::Text("NX"),
                Part::Text("PX"),
                Part::millis(ask.lease),
            ],
            Shape::Set,
            ask.deadline,
        )?;
        match reply.value {
            Value::Okay => Ok(Some(Answer::Granted { asked_at: reply.asked_at, fences: None })),
            Value::Nil => Ok(None),
            _ => Err(reply::nonsense()),
        }
    }

    /// The script: acquires, or looks closer, and queues where there is a place to take.
    fn ask(&self, ask: &Ask<'_>, place: Option<(&str, &dyn Place)>) -> Result<Answer, StoreError> {
        let [lock, fence, queue, waiters] = keys(ask.key);
        let token = Part::Text(ask.token.as_str());
        let (mine, fences) =
            (Part::Number(u64::from(ask.may_be_mine)), Part::Number(u64::from(ask.fences)));
        let simply = [lock, fence, queue, waiters, token, Part::millis(ask.lease), mine, fences];
        let Some((address, place)) = place else {
            return answers::answer(self.node.script(&self.acquire, 4, &simply, ask.deadline)?);
        };
        let alive_for = Part::millis(place.alive_for().min(LONGEST_PLACE));
        let place = [
            Part::Text(address),
            Part::Number(ask.attempt),
            alive_for,
            Part::millis(place.first_lease()),
        ];
        let before = Instant::now();
        let _ = self.inbox.start(&self.node);
        let reply = self.node.script(
            &self.acquire,
            4,
            &[&simply[..], &place[..]].concat(),
            ask.deadline,
        )?;
        self.is_heard(before, &reply.value);
        answers::answer(reply)
    }

    /// Has the inbox look where it is, if a waiter was told that it is not heard. `asked_at`:
    /// before anything was sent, and not by the client's clock, which a test may advance.
    fn is_heard(&self, asked_at: Instant, answer: &Value) {
        let Value::Array(words) = answer else { return };
        match words.as_slice() {
            [Value::Int(0 | 5), .., Value::Int(0)] => self.inbox.is_not_heard(asked_at),
            [Value::Int(0 | 5), .., Value::Int(2)]
                if !self.may_not_ask.swap(true, Ordering::Relaxed) =>
            {
                log::warn!("this user may not call PUBSUB NUMSUB, so waiters poll");
            }
            _ => {}
        }
    }

    fn withdraw_parts<'a>(what: &Withdraw<'a>) -> Vec<Part<'a>> {
        let [lock, fence, queue, waiters] = keys(what.key);
        vec![
            lock,
            fence,
            queue,
            waiters,
            Part::Text(what.token.as_str()),
            Part::Text(what.condition.unwrap_or_default()),
        ]
    }

    fn extend_parts<'a>(lease: &Extend<'a>, end: End) -> Vec<Part<'a>> {
        let exactly = Part::Number(u64::from(end == End::Exactly));
        let mut parts = vec![
            Part::Text(lease.key.as_str()),
            Part::Text(lease.token.as_str()),
            Part::millis(lease.lease),
            exactly,
        ];
        parts.extend(lease.settles.then(|| Part::Joined(lease.key.stem(), "owed")));
        parts
    }
}

/// The keys of a lock, all in one slot.
fn keys(key: &Key) -> [Part<'_>; 4] {
    let stem = key.stem();
    [
        Part::Text(key.as_str()),
        Part::Joined(stem, "fence"),
        Part::Joined(stem, "queue"),
        Part::Joined(stem, "waiters"),
    ]
}

impl LeaseStore for Plain {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        if !ask.contended {
            // In the simplest way first, without listening for anything: most likely it is granted.
            let answer = if ask.fences == 0 { self.set(ask)? } else { Some(self.ask(ask, None)?) };
            match answer {
                Some(answer @ Answer::Granted { .. }) => return Ok(answer),
                Some(refused) if ask.place.is_none() => return Ok(refused),
                // A hash refuses `SET NX` as a held lock does, and the rest of the lease is not
                // known: the script looks closer.
                _ => {}
            }
        }
        self.ask(ask, ask.place.and_then(|place| Some((place.listen()?, place))))
    }

    fn extend(&self, leases: &[Extend<'_>], within: Within) -> Vec<Result<bool, StoreError>> {
        let calls = leases.iter().map(|lease| Self::extend_parts(lease, End::NotBefore));
        let answers = self.node.script_in_bulk(&self.extend, 1, calls, within);
        answers
            .into_iter()
            .map(|answer| {
                answers::or_not_ours(answer.and_then(|value| answers::yes(&value)), false)
            })
            .collect()
    }

    fn move_end(
        &self,
        lease: &Extend<'_>,
        end: End,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let parts = Self::extend_parts(lease, end);
        let answer = match end {
            End::Exactly => self.node.script_once(&self.extend, 1, &parts, deadline),
            End::NotBefore => {
                again_if_stale(|| self.node.script(&self.extend, 1, &parts, deadline))
            }
        };
        answers::or_not_ours(answer.and_then(|reply| answers::yes(&reply.value)), false)
    }

    fn release(&self, what: &Release<'_>, deadline: Instant) -> Result<Gone, StoreError> {
        let [lock, fence, queue, waiters] = keys(what.key);
        let parts = [lock, fence, queue, waiters, Part::Text(what.token.as_str()), Part::Number(1)];
        let parts = if what.settles { &parts } else { &parts[..5] };
        let answer = self.node.script_if(what.may_be_sent, &self.release, 4, parts, deadline);
        answers::gone(answer.map(|reply| reply.value))
    }

    fn withdraw(&self, what: &[Withdraw<'_>], deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        let answers = self.node.pooled_in_bulk(
            &self.withdraw,
            4,
            what.iter().map(Self::withdraw_parts),
            deadline,
        );
        answers.into_iter().map(answers::gone).collect()
    }

    fn listen(&self, _key: &Key, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        self.inbox.listen(&self.node, token, bell)
    }

    fn abilities(&self) -> Abilities {
        Abilities { wakes: true, conditions: true, undoes_attempts: false }
    }

    fn wait_in(
        &self,
        ask: &Ask<'_>,
        condition: &str,
        release: Option<&Release<'_>>,
        leave: bool,
    ) -> Result<InCondition, StoreError> {
        let place = ask.place.and_then(|place| Some((place.listen()?, place)));
        let Some((address, place)) = place else {
            return Err(StoreError::not_sent(
                ErrorKind::Unavailable,
                "conditions need wake-ups, and this client cannot receive any",
            ));
        };
        let _ = self.inbox.start(&self.node);
        let [lock, fence, queue, waiters] = keys(ask.key);
        let stem = format!("{}condition:{condition}:", ask.key.stem());
        let before = Instant::now();
        let may_be_sent = || release.is_none_or(|release| (release.may_be_sent)());
        let reply = self.node.script_if(
            &may_be_sent,
            &self.wait,
            6,
            &[
                lock,
                fence,
                queue,
                waiters,
                Part::Joined(&stem, "queue"),
                Part::Joined(&stem, "waiters"),
                Part::Text(ask.token.as_str()),
                Part::millis(ask.lease),
                Part::Number(u64::from(ask.fences)),
                Part::Text(address),
                Part::Number(ask.attempt),
                Part::millis(place.alive_for().min(LONGEST_PLACE)),
                Part::millis(place.first_lease()),
                Part::Text(release.map_or("", |release| release.token.as_str())),
                Part::Number(u64::from(leave)),
            ],
            ask.deadline,
        )?;
        self.is_heard(before, &reply.value);
        let asked_at = reply.asked_at;
        match reply::list(reply.value)?.as_slice() {
            [Value::Int(0), Value::Int(_)] => Ok(InCondition::Waiting { asked_at }),
            [Value::Int(1), last, count] => {
                Ok(InCondition::Granted { asked_at, fences: answers::fences(last, count)? })
            }
            [Value::Int(2)] => Err(answers::foreign()),
            [Value::Int(3)] => Ok(InCondition::NotIn),
            [Value::Int(4)] => Ok(InCondition::NotOurs),
            [Value::Int(5), Value::Int(remaining), Value::Int(heard)] => {
                Ok(InCondition::Notified {
                    asked_at,
                    remaining: answers::left(*remaining),
                    heard: *heard == 1,
                })
            }
            _ => Err(reply::nonsense()),
        }
    }

    fn notify(&self, what: &Notify<'_>, deadline: Instant) -> Result<Option<u64>, StoreError> {
        let [lock, fence, queue, waiters] = keys(what.key);
        let (token, condition, most) = (
            Part::Text(what.token.as_str()),
            Part::Text(what.condition),
            Part::Number(u64::from(what.most)),
        );
        let parts =
            [lock, fence, queue, waiters, token, condition, most, Part::Number(what.number)];
        // Under the same number it may be sent again.
        let answer = again_if_stale(|| self.node.script(&self.notify, 4, &parts, deadline));
        let moved = answers::or_not_ours(answer.and_then(|reply| reply::number(&reply.value)), -1)?;
        // -1: not ours.
        Ok(u64::try_from(moved).ok())
    }

    fn inspect(&self, key: &Key, deadline: Instant) -> Result<Option<Holder>, StoreError> {
        let reply = again_if_stale(|| {
            self.node.script(&self.inspect, 1, &[Part::Text(key.as_str())], deadline)
        })?;
        answers::holder(reply.value)
    }

    fn force_release(&self, key: &Key, deadline: Instant) -> Result<bool, StoreError> {
        let [lock, fence, queue, waiters] = keys(key);
        let reply =
            self.node.script_once(&self.force, 4, &[lock, fence, queue, waiters], deadline)?;
        answers::yes(&reply.value)
    }

    fn supports(&self, _options: &LockOptions) -> Result<(), Error> {
        Ok(())
    }
}
