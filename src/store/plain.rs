//! The plain layout: a string key that holds the token.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use super::node::Node;
use super::reply;
use super::wire::{Part, Script};
use crate::base::bell::Bell;
use crate::base::error::{Error, ErrorKind};
use crate::base::options::LockOptions;
use crate::lease::key::Key;
use crate::lease::store::{Answer, Ask, End, Extend, Gone, Holder, LeaseStore, Listening, StoreError};
use crate::lease::token::Token;

/// Fence counters outlive their locks by this long. When one is gone, the server's clock takes its place (R16).
const FENCE_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Leases in the plain layout on one server.
pub(super) struct Plain {
    node: Arc<Node>,
    acquire: Script,
    release: Script,
    extend: Script,
    inspect: Script,
    force: Script,
}

impl Plain {
    pub(super) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            acquire: Script::new(include_str!("lua/acquire.lua")),
            release: Script::new(include_str!("lua/release.lua")),
            extend: Script::new(include_str!("lua/extend.lua")),
            inspect: Script::new(include_str!("lua/inspect.lua")),
            force: Script::new(include_str!("lua/force.lua")),
        }
    }

    /// `SET key token NX PX lease`: the whole of an uncontended acquire.
    fn set(&self, ask: &Ask<'_>) -> Result<Option<Instant>, StoreError> {
        let reply = self.node.command(
            &[
                Part::Text("SET"),
                Part::Text(ask.key.as_str()),
                Part::Text(ask.token.as_str()),
                Part::Text("NX"),
                Part::Text("PX"),
                Part::millis(ask.lease),
            ],
            ask.deadline,
        )?;
        match reply.value {
            Value::Okay => Ok(Some(reply.asked_at)),
            Value::Nil => Ok(None),
            _ => Err(reply::nonsense()),
        }
    }

    fn ask(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        let reply = self.node.script(
            &self.acquire,
            2,
            &[
                Part::Text(ask.key.as_str()),
                Part::Joined(ask.key.stem(), "fence"),
                Part::Text(ask.token.as_str()),
                Part::millis(ask.lease),
                Part::Number(u64::from(ask.may_be_mine)),
                Part::Number(u64::from(ask.fences)),
                Part::millis(FENCE_LIFE),
            ],
            ask.deadline,
        )?;
        let asked_at = reply.asked_at;
        let words = reply::list(reply.value)?;
        match words.as_slice() {
            [Value::Int(1), Value::Nil] => Ok(Answer::Granted { asked_at, fence: None }),
            [Value::Int(1), fence] => {
                let fence = u64::try_from(reply::number(fence)?).map_err(|_| reply::nonsense())?;
                Ok(Answer::Granted { asked_at, fence: Some(fence) })
            }
            [Value::Int(0), Value::Int(remaining)] => Ok(Answer::Refused { asked_at, remaining: left(*remaining) }),
            [Value::Int(2)] => Err(foreign()),
            _ => Err(reply::nonsense()),
        }
    }

    fn extend_parts<'a>(lease: &Extend<'a>, end: End) -> Vec<Part<'a>> {
        vec![
            Part::Text(lease.key.as_str()),
            Part::Text(lease.token.as_str()),
            Part::millis(lease.lease),
            Part::Number(u64::from(end == End::Exactly)),
        ]
    }
}

/// The rest of a lease, as `PTTL` says it.
fn left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

fn foreign() -> StoreError {
    StoreError::not_sent(ErrorKind::WrongType, "the key holds data of another type").permanent()
}

/// A key of another type is certainly not our lease.
fn or_not_ours<T>(result: Result<T, StoreError>, not_ours: T) -> Result<T, StoreError> {
    match result {
        Err(error) if error.kind == ErrorKind::WrongType => Ok(not_ours),
        result => result,
    }
}

fn yes(value: &Value) -> Result<bool, StoreError> {
    match value {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        _ => Err(reply::nonsense()),
    }
}

impl LeaseStore for Plain {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        if !ask.contended
            && ask.fences == 0
            && let Some(asked_at) = self.set(ask)?
        {
            return Ok(Answer::Granted { asked_at, fence: None });
        }
        // Contended, fenced, or just refused. A hash refuses `SET NX` as a held lock does, and the rest of the lease is not known: the script looks closer.
        self.ask(ask)
    }

    fn extend(&self, leases: &[Extend<'_>], deadline: Instant) -> Vec<Result<bool, StoreError>> {
        let calls = leases.iter().map(|lease| Self::extend_parts(lease, End::NotBefore));
        let answers = self.node.script_in_bulk(&self.extend, 1, calls, deadline);
        answers.into_iter().map(|answer| or_not_ours(answer.and_then(|value| yes(&value)), false)).collect()
    }

    fn end_in(&self, lease: &Extend<'_>, end: End, deadline: Instant) -> Result<bool, StoreError> {
        let answer = self.node.script(&self.extend, 1, &Self::extend_parts(lease, end), deadline);
        or_not_ours(answer.and_then(|reply| yes(&reply.value)), false)
    }

    fn release(&self, key: &Key, token: &Token, deadline: Instant) -> Result<Gone, StoreError> {
        let parts = [Part::Text(key.as_str()), Part::Text(token.as_str())];
        let answer = self.node.script(&self.release, 1, &parts, deadline);
        let released = or_not_ours(answer.and_then(|reply| yes(&reply.value)), false)?;
        Ok(if released { Gone::Released } else { Gone::NotOurs })
    }

    fn withdraw(&self, key: &Key, token: &Token, deadline: Instant) -> Result<Gone, StoreError> {
        self.release(key, token, deadline)
    }

    fn listen(&self, _key: &Key, _token: &Token, _bell: &Arc<Bell>) -> Option<Listening> {
        None
    }

    fn queues(&self) -> bool {
        false
    }

    fn inspect(&self, key: &Key, deadline: Instant) -> Result<Option<Holder>, StoreError> {
        let reply = self.node.script(&self.inspect, 1, &[Part::Text(key.as_str())], deadline)?;
        match reply::list(reply.value)?.as_slice() {
            [] => Ok(None),
            [token, Value::Int(remaining)] => Ok(Some(Holder { token: reply::text(token)?, remaining: left(*remaining) })),
            _ => Err(reply::nonsense()),
        }
    }

    fn force_release(&self, key: &Key, deadline: Instant) -> Result<bool, StoreError> {
        let reply = self.node.script(&self.force, 1, &[Part::Text(key.as_str())], deadline)?;
        yes(&reply.value)
    }

    fn supports(&self, _options: &LockOptions) -> Result<(), Error> {
        Ok(())
    }
}
