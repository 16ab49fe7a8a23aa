//! The timestamp layout: a string key that holds the deadline in epoch milliseconds, the oldest
//! form of all.
//!
//! A deadline does not say whose it is. Ours go with a mark, a companion key that names the
//! deadline and the token, so that a lost reply, a late release or a withdrawal is told apart from
//! a later lease as in any other layout. Against an old client, which knows only the deadline,
//! nothing helps.

use std::sync::Arc;
use std::time::Instant;

use super::answers;
use crate::base::bell::Bell;
use crate::base::error::Error;
use crate::base::key::Key;
use crate::base::options::LockOptions;
use crate::lease::store::{
    Abilities, Answer, Ask, End, Extend, Gone, Holder, LeaseStore, Listening, Release, StoreError,
    Withdraw, Within,
};
use crate::lease::token::Token;
use crate::store::server::ask::again_if_stale;
use crate::store::server::node::Node;
use crate::store::server::script::{Part, Script};
use crate::store::server::shape::Shape;

/// Leases in the timestamp layout on one server.
pub(crate) struct Timestamp {
    node: Arc<Node>,
    acquire: Script,
    release: Script,
    extend: Script,
    inspect: Script,
    force: Script,
}

macro_rules! script {
    ($shape:expr, $file:literal) => {
        Script::new($shape, concat!(include_str!("timestamp/common.lua"), include_str!($file)))
    };
}

impl Timestamp {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            acquire: script!(Shape::Array, "timestamp/acquire.lua"),
            release: script!(Shape::Number, "timestamp/release.lua"),
            extend: script!(Shape::Number, "timestamp/extend.lua"),
            inspect: script!(Shape::Array, "timestamp/inspect.lua"),
            force: script!(Shape::Number, "timestamp/force.lua"),
        }
    }

    fn extend_parts<'a>(lease: &Extend<'a>, end: End) -> Vec<Part<'a>> {
        let [lock, mark] = keys(lease.key);
        vec![
            lock,
            mark,
            Part::Text(lease.token.as_str()),
            Part::millis(lease.lease),
            Part::Number(u64::from(end == End::Exactly)),
        ]
    }
}

/// The lock and our mark, in one slot.
fn keys(key: &Key) -> [Part<'_>; 2] {
    [Part::Text(key.as_str()), Part::Joined(key.stem(), "owner")]
}

impl LeaseStore for Timestamp {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        let [lock, mark] = keys(ask.key);
        let mine = Part::Number(u64::from(ask.may_be_mine));
        let parts = [lock, mark, Part::Text(ask.token.as_str()), Part::millis(ask.lease), mine];
        self.node.script(&self.acquire, 2, &parts, ask.deadline).and_then(answers::answer)
    }

    fn extend(&self, leases: &[Extend<'_>], within: Within) -> Vec<Result<bool, StoreError>> {
        let calls = leases.iter().map(|lease| Self::extend_parts(lease, End::NotBefore));
        let answers = self.node.script_in_bulk(&self.extend, 2, calls, within);
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
            End::Exactly => self.node.script_once(&self.extend, 2, &parts, deadline),
            End::NotBefore => {
                again_if_stale(|| self.node.script(&self.extend, 2, &parts, deadline))
            }
        };
        answers::or_not_ours(answer.and_then(|reply| answers::yes(&reply.value)), false)
    }

    fn release(&self, what: &Release<'_>, deadline: Instant) -> Result<Gone, StoreError> {
        let [lock, mark] = keys(what.key);
        let parts = [lock, mark, Part::Text(what.token.as_str())];
        let answer = self.node.script_if(what.may_be_sent, &self.release, 2, &parts, deadline);
        let released =
            answers::or_not_ours(answer.and_then(|reply| answers::yes(&reply.value)), false)?;
        Ok(if released { Gone::Released } else { Gone::NotOurs })
    }

    fn withdraw(&self, what: &[Withdraw<'_>], deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        // There is no queue to leave.
        what.iter().map(|what| self.release(&Release::of(what.key, what.token), deadline)).collect()
    }

    fn listen(&self, _key: &Key, _token: &Token, _bell: &Arc<Bell>) -> Option<Listening> {
        // Old clients tell nobody of a release.
        None
    }

    fn abilities(&self) -> Abilities {
        Abilities { wakes: false, conditions: false, undoes_attempts: false }
    }

    fn inspect(&self, key: &Key, deadline: Instant) -> Result<Option<Holder>, StoreError> {
        let reply = again_if_stale(|| self.node.script(&self.inspect, 2, &keys(key), deadline))?;
        answers::holder(reply.value)
    }

    fn force_release(&self, key: &Key, deadline: Instant) -> Result<bool, StoreError> {
        let reply = self.node.script_once(&self.force, 2, &keys(key), deadline)?;
        answers::yes(&reply.value)
    }

    fn supports(&self, options: &LockOptions) -> Result<(), Error> {
        if options.fenced {
            return Err(Error::unsupported(
                "the timestamp layout has no fences: its old clients do not use them",
            ));
        }
        Ok(())
    }
}
