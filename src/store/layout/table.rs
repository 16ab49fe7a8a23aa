//! What makes a layout: its keys, its scripts, and whom a release tells.

use crate::base::error::{Error, Result};
use crate::base::key::Key;
use crate::base::options::LockOptions;
use crate::server::script::{Part, Script};

/// A layout, as data: `ServerLeases` does the same with each.
pub(crate) struct Table {
    /// The keys that a lock's scripts are given, those of the lease itself first.
    pub(crate) keys: &'static [Name],
    /// How many of them the lease itself has. Extending needs no others, nor does asking who holds
    /// the lock.
    pub(crate) lease_keys: usize,
    /// The fence counter, if the scripts are given it for fenced locks only: then a user without
    /// fences needs no permission for it.
    pub(crate) counter: Option<Name>,
    /// Whether the lock's value is the token alone: then `SET key token NX PX lease` is all of an
    /// uncontended acquire without a fence.
    pub(crate) holds_token: bool,
    /// Whether each lease takes a share of the lock, which stands in its token.
    pub(crate) has_shares: bool,
    /// Keys, token, lease in ms, whether a lease that has the token is ours, how many fences if
    /// there are any in this layout; and of a waiter that queues: inbox, attempt, how long it is
    /// alive in ms, first lease in ms.
    pub(crate) acquire: Script,
    /// Keys, token; channel and command to publish if there is a channel.
    pub(crate) release: Script,
    /// As `release`, for a lock that is kept for a while, with that time in ms behind the token; in
    /// a layout with a queue also with the keys of the lease alone.
    pub(crate) keep: Option<Script>,
    /// Keys of the lease, token, lease in ms.
    pub(crate) extend: Script,
    /// Keys, with the counter if the lock is fenced, or those of the lease; whether it is fenced.
    pub(crate) inspect: Script,
    /// Keys; channel and command to publish if there is a channel; the share of the leases that
    /// are to end if there are shares.
    pub(crate) force: Script,
    /// Keys, token, the token that gets the lease, lease in ms. Only with shares.
    pub(crate) exchange: Option<Script>,
    pub(crate) wakes: Wakes,
    /// Why locks cannot have fences, if they cannot.
    pub(crate) no_fences: Option<&'static str>,
    /// Why locks cannot have a caller's own value, if they cannot.
    pub(crate) no_owner: Option<&'static str>,
    /// Whether tokens have the form `uuid:number`.
    pub(crate) numbered_tokens: bool,
}

impl Table {
    pub(crate) fn supports(&self, options: &LockOptions) -> Result<()> {
        if !self.has_shares && !options.share.is_whole() {
            return Err(Error::unsupported(
                "a semaphore or a read-write lock needs the plain layout",
            ));
        }
        if let (Some(why), Some(_)) = (self.no_owner, &options.owner) {
            return Err(Error::invalid(why));
        }
        if options.has_at_least() && self.keep.is_none() {
            return Err(Error::unsupported("at_least needs the plain layout or Redisson's"));
        }
        if let (Some(why), true) = (self.no_fences, options.fenced) {
            return Err(Error::unsupported(why));
        }
        Ok(())
    }
}

/// Whom a release tells.
pub(crate) enum Wakes {
    /// Nobody: waiters poll.
    Nobody,
    /// Everybody who listens at a channel of the lock.
    Channel(Name),
    /// The first waiter in the lock's queue, through its client's inbox.
    Queue(Box<QueueScripts>),
}

/// What only a layout with a queue can do.
pub(crate) struct QueueScripts {
    /// Keys of the lease, token, lease in ms, whether a lease that has the token is ours: acquires
    /// without a look at the queue.
    pub(crate) acquire_alone: Script,
    /// Keys of the lease, token: releases without a look at the queue.
    pub(crate) release_alone: Script,
    /// Keys, token.
    pub(crate) withdraw: Script,
    /// Keys, token, lease in ms, how many fences, inbox, attempt, how long it is alive in ms, first
    /// lease in ms, the condition, the token to release or nothing, whether to leave.
    pub(crate) wait: Script,
    /// Keys, token, condition, at most how many.
    pub(crate) notify: Script,
}

/// The name of a key or channel, made from that of the lock. All names of a lock share its slot.
#[derive(Clone, Copy)]
pub(crate) enum Name {
    /// The lock's own.
    Lock,
    /// A companion of ours.
    Companion(&'static str),
    /// As Redisson derives names: this prefix, then the lock's name, in braces unless it has some.
    Redisson(&'static str),
}

impl Name {
    pub(crate) fn of<'a>(self, key: &'a Key) -> Part<'a> {
        match self {
            Self::Lock => Part::Text(key.as_str()),
            Self::Companion(suffix) => Part::Joined(key.stem(), suffix),
            Self::Redisson(prefix) if key.as_str().contains('{') => {
                Part::Joined(prefix, key.as_str())
            }
            Self::Redisson(prefix) => Part::Braced(prefix, key.as_str()),
        }
    }
}

/// A script whose parts stand in these files.
macro_rules! script {
    ($shape:expr, $($file:literal),+) => {
        $crate::server::script::Script::new($shape, concat!($(include_str!($file)),+))
    };
}
pub(super) use script;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_a_lock_follow_redisson() {
        let name = |prefix, key: &str| {
            let key = Key::new(key.into());
            Name::Redisson(prefix).of(&key).text().into_owned()
        };
        assert_eq!(name("redisson_lock__channel:", "orders"), "redisson_lock__channel:{orders}");
        assert_eq!(name("redisson_lock__channel:", "a{b}c"), "redisson_lock__channel:a{b}c");
        assert_eq!(name("redisson_lock_token:", "a{b"), "redisson_lock_token:a{b");
    }
}
