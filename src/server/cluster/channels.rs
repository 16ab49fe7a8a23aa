//! Channels of a shard: only subscribers at the node that owns the channel's slot, and at its
//! replicas, hear what is published there.

use std::sync::{Arc, Weak};
use std::time::Instant;

use redis::RedisError;

use super::redirection::Redirection;
use super::topology::Topology;
use super::{Cluster, slot};
use crate::base::options::Confirm;
use crate::base::store_error::StoreError;
use crate::server::dial::Address;
use crate::server::endpoint::Endpoint;

impl Cluster {
    /// Whether one node owns the slots of these two names, as far as is known.
    pub(crate) fn share_a_node(&self, one: &str, other: &str) -> bool {
        let (one, other) = (slot::of(one), slot::of(other));
        let owner = |slot| self.topology.owner(slot);
        one == other || owner(one).is_some_and(|node| owner(other) == Some(node))
    }

    /// The next number above `last` whose slot is that of this key. One in 16,384 is.
    pub(crate) fn number_beside(key: &str, last: u64) -> u64 {
        let slot = slot::of(key);
        let mut number = last + 1;
        while slot::of(&number.to_string()) != slot {
            number += 1;
        }
        number
    }

    pub(crate) fn downgrade(&self) -> WeakCluster {
        WeakCluster(Arc::downgrade(&self.topology))
    }

    pub(crate) fn command_deadline(&self) -> Instant {
        self.topology.command_deadline()
    }
}

/// A cluster, for a thread that shall not keep the client alive.
pub(crate) struct WeakCluster(Weak<Topology>);

impl WeakCluster {
    /// The node that owns the slot of this channel, or one that knows the owner. `None`: the client
    /// is gone.
    pub(crate) fn node(
        &self,
        channel: &str,
    ) -> Option<Result<(Arc<Endpoint>, Address), StoreError>> {
        let cluster = Cluster { topology: self.0.upgrade()?, confirm: Confirm::NOTHING };
        let member = cluster.route(Some(slot::of(channel)));
        Some(member.map(|member| (Arc::clone(member.node.endpoint()), member.address)))
    }

    /// Remembers what an error of the node at `from` says of the owner of a slot.
    pub(crate) fn learn(&self, error: &RedisError, from: &Address) {
        let (Some(topology), Some(code)) = (self.0.upgrade(), error.code()) else { return };
        let details = error.detail().unwrap_or_default();
        if let Some(Redirection::Moved(slot, to)) = Redirection::read(code, details) {
            match to.at(from) {
                Some(owner) => topology.learn(slot, &owner),
                None => topology.forget(),
            }
        }
    }
}
