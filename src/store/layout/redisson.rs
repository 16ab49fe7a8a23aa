//! Redisson's layout: a hash with one field, `<uuid>:<thread>`, and how often that thread holds the
//! lock.
//!
//! Redisson's own clients take such a lock for one of theirs, and tell us of a release as they tell
//! each other. Holds are counted in this process only, so the count here is always 1.

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
use crate::store::server::inbox::Inbox;
use crate::store::server::node::Node;
use crate::store::server::script::{Part, Script};
use crate::store::server::shape::Shape;

/// Leases in Redisson's layout on one server.
pub(crate) struct Redisson {
    node: Arc<Node>,
    inbox: Arc<Inbox>,
    acquire: Script,
    release: Script,
    extend: Script,
    inspect: Script,
    force: Script,
}

impl Redisson {
    pub(crate) fn new(node: Arc<Node>, inbox: Arc<Inbox>) -> Self {
        Self {
            node,
            inbox,
            acquire: Script::new(
                Shape::Array,
                concat!(include_str!("redisson/common.lua"), include_str!("redisson/acquire.lua")),
            ),
            release: Script::new(Shape::Number, include_str!("redisson/release.lua")),
            extend: Script::new(Shape::Number, include_str!("redisson/extend.lua")),
            inspect: Script::new(
                Shape::Array,
                concat!(include_str!("redisson/common.lua"), include_str!("redisson/inspect.lua")),
            ),
            force: Script::new(
                Shape::Number,
                concat!(include_str!("redisson/common.lua"), include_str!("redisson/force.lua")),
            ),
        }
    }

    fn release_parts<'a>(key: &'a Key, token: &'a Token, channel: &'a str) -> Vec<Part<'a>> {
        vec![Part::Text(key.as_str()), Part::Text(token.as_str()), Part::Text(channel)]
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

/// Where a release of this lock is published.
fn channel(key: &Key) -> String {
    beside("redisson_lock__channel", key)
}

/// A name that Redisson derives from a lock's: the braces put it into the lock's slot.
fn beside(prefix: &str, key: &Key) -> String {
    let key = key.as_str();
    if key.contains('{') { format!("{prefix}:{key}") } else { format!("{prefix}:{{{key}}}") }
}

impl LeaseStore for Redisson {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        // Named only where it is used, so that a user without fences needs no permission for it.
        let counter = (ask.fences > 0).then(|| beside("redisson_lock_token", ask.key));
        let mut parts = vec![Part::Text(ask.key.as_str())];
        parts.extend(counter.as_deref().map(Part::Text));
        let keys = parts.len();
        parts.extend([
            Part::Text(ask.token.as_str()),
            Part::millis(ask.lease),
            Part::Number(u64::from(ask.may_be_mine)),
            Part::Number(u64::from(ask.fences)),
        ]);
        let answer = self
            .node
            .script(&self.acquire, keys, &parts, ask.deadline)
            .and_then(answers::answer)?;
        if let (Answer::Refused { .. }, Some(place)) = (&answer, ask.place)
            && place.listen().is_some()
        {
            // It has begun to listen just now, or before.
            let _ = self.inbox.start(&self.node);
            self.inbox.hurry(&self.node, ask.deadline);
        }
        Ok(answer)
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
        let channel = channel(what.key);
        let parts = Self::release_parts(what.key, what.token, &channel);
        let answer = self.node.script_if(what.may_be_sent, &self.release, 1, &parts, deadline);
        answers::gone(answer.map(|reply| reply.value))
    }

    fn withdraw(&self, what: &[Withdraw<'_>], deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        // There is no queue to leave.
        let channels: Vec<String> = what.iter().map(|what| channel(what.key)).collect();
        let parts = what
            .iter()
            .zip(&channels)
            .map(|(what, channel)| Self::release_parts(what.key, what.token, channel));
        let answers = self.node.pooled_in_bulk(&self.release, 1, parts, deadline);
        answers.into_iter().map(answers::gone).collect()
    }

    fn listen(&self, key: &Key, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        self.inbox.listen_at(&self.node, channel(key).into(), token, bell)
    }

    fn abilities(&self) -> Abilities {
        Abilities { wakes: true, conditions: false, undoes_attempts: false }
    }

    fn inspect(&self, key: &Key, deadline: Instant) -> Result<Option<Holder>, StoreError> {
        let reply = again_if_stale(|| {
            self.node.script(&self.inspect, 1, &[Part::Text(key.as_str())], deadline)
        })?;
        answers::holder(reply.value)
    }

    fn force_release(&self, key: &Key, deadline: Instant) -> Result<bool, StoreError> {
        let reply = self.node.script_once(
            &self.force,
            1,
            &[Part::Text(key.as_str()), Part::Text(&channel(key))],
            deadline,
        )?;
        answers::yes(&reply.value)
    }

    fn supports(&self, _options: &LockOptions) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_a_lock_follow_redisson() {
        assert_eq!(channel(&Key::new("orders".into())), "redisson_lock__channel:{orders}");
        assert_eq!(channel(&Key::new("a{b}c".into())), "redisson_lock__channel:a{b}c");
        assert_eq!(
            beside("redisson_lock_token", &Key::new("a{b".into())),
            "redisson_lock_token:a{b"
        );
    }
}
