//! Servers: one, or a cluster that gives each command to the right one.

use std::sync::Arc;
use std::time::Instant;

use super::call::{Call, Command, Reply};
use super::cluster::Cluster;
use super::node::Node;
use super::script::Part;
use super::shape::Shape;
use super::subscriber::Subscriber;
use crate::base::options::Confirm;
use crate::base::store_error::StoreError;
use crate::base::within::Within;

/// Where commands go. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Servers {
    One(Arc<Node>),
    /// Each command has at least one key, and all of its keys share a slot.
    Cluster(Cluster),
}

impl Servers {
    /// The same servers, for grants and extends that replicas have to confirm.
    pub(crate) fn confirming(&self, confirm: Confirm) -> Self {
        match self {
            Self::One(node) => Self::One(Arc::new(node.confirming(confirm))),
            Self::Cluster(cluster) => Self::Cluster(cluster.confirming(confirm)),
        }
    }

    /// Who has to confirm its grants and extends.
    pub(crate) fn confirm(&self) -> Confirm {
        match self {
            Self::One(node) => node.confirm(),
            Self::Cluster(cluster) => cluster.confirm(),
        }
    }

    /// Checks that a lock of this name may have these keys.
    pub(crate) fn check_keys<'a>(
        &self,
        name: &str,
        keys: impl FnOnce() -> Vec<Part<'a>>,
    ) -> Result<(), StoreError> {
        match self {
            Self::One(_) => Ok(()),
            Self::Cluster(_) => Cluster::check_keys(name, keys),
        }
    }

    /// The number of the node that owns the slot of this name, or 0.
    pub(crate) fn shard(&self, name: &str) -> u16 {
        match self {
            Self::One(_) => 0,
            Self::Cluster(cluster) => cluster.shard(name),
        }
    }

    /// Whether these two names are at one node, as far as is known.
    pub(crate) fn share_a_node(&self, one: &str, other: &str) -> bool {
        match self {
            Self::One(_) => true,
            Self::Cluster(cluster) => cluster.share_a_node(one, other),
        }
    }

    /// The name of a channel at the node that has this key. In a cluster it begins with a number
    /// above `last`, which becomes that number: so no two are the same.
    pub(crate) fn channel_beside(&self, key: &str, last: &mut u64, id: &str) -> String {
        match self {
            Self::One(_) => id.to_owned(),
            Self::Cluster(_) => {
                *last = Cluster::number_beside(key, *last);
                format!("{{{last}}}:{id}")
            }
        }
    }

    /// For a thread that subscribes to a channel, and shall not keep the client alive.
    pub(crate) fn subscriber(&self) -> Subscriber {
        match self {
            Self::One(node) => Subscriber::One(Arc::downgrade(node.endpoint())),
            Self::Cluster(cluster) => Subscriber::Cluster(cluster.downgrade()),
        }
    }

    /// How a message is published that the subscribers of one node hear.
    pub(crate) fn publish_command(&self) -> &'static str {
        match self {
            Self::One(_) => "PUBLISH",
            Self::Cluster(_) => "SPUBLISH",
        }
    }

    /// Publishes a message, but gives up after the command timeout: nobody depends on it.
    pub(crate) fn publish(&self, channel: &str, message: &str, deadline: Instant) {
        let command_deadline = match self {
            Self::One(node) => node.endpoint().command_deadline(),
            Self::Cluster(cluster) => cluster.command_deadline(),
        };
        let parts = [Part::Text(self.publish_command()), Part::Text(channel), Part::Text(message)];
        let call = Call::new(Command::with_key(&parts, Shape::Number));
        let _ = self.call(&call, deadline.min(command_deadline));
    }

    /// Sends a command, and reads its reply.
    pub(crate) fn call(&self, call: &Call<'_>, deadline: Instant) -> Result<Reply, StoreError> {
        match self {
            Self::One(node) => node.call(call, deadline),
            Self::Cluster(cluster) => cluster.call(call, deadline),
        }
    }

    /// Sends many commands at once, and reads the reply to each, or why there is none.
    pub(crate) fn batch(
        &self,
        commands: &[Command<'_>],
        deadline: Instant,
    ) -> Vec<Result<Reply, StoreError>> {
        match self {
            Self::One(node) => node.batch(commands, deadline),
            Self::Cluster(cluster) => cluster.batch(commands, deadline),
        }
    }

    /// The same over connections that only renewal uses.
    pub(crate) fn renew(
        &self,
        commands: &[Command<'_>],
        within: Within,
    ) -> Vec<Result<Reply, StoreError>> {
        match self {
            Self::One(node) => node.renew(commands, within),
            Self::Cluster(cluster) => cluster.renew(commands, within),
        }
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        match self {
            Self::One(node) => node.ping(deadline),
            Self::Cluster(cluster) => cluster.ping(deadline),
        }
    }

    /// Closes what is idle. `false`: a thread has not ended by `deadline`.
    pub(crate) fn close(&self, deadline: Instant) -> bool {
        match self {
            Self::One(node) => {
                node.close();
                node.endpoint().stop_watching(deadline)
            }
            Self::Cluster(cluster) => {
                cluster.close();
                true
            }
        }
    }
}
