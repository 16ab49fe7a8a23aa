//! Servers: one, or a cluster that gives each command to the right one.

use std::sync::Arc;
use std::time::Instant;

use super::call::{Call, Command, Reply};
use super::cluster::Cluster;
use super::node::Node;
use super::script::Part;
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
    /// The one server, if there is only one.
    pub(crate) fn one(&self) -> Option<&Arc<Node>> {
        match self {
            Self::One(node) => Some(node),
            Self::Cluster(_) => None,
        }
    }

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

    /// Checks that a lock may have these keys.
    pub(crate) fn check_keys<'a>(
        &self,
        keys: impl FnOnce() -> Vec<Part<'a>>,
    ) -> Result<(), StoreError> {
        match self {
            Self::One(_) => Ok(()),
            Self::Cluster(_) => Cluster::check_keys(&keys()),
        }
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
