//! Servers, for a thread that subscribes to a channel there: it does not keep the client alive.

use std::sync::Weak;
use std::time::Duration;

use redis::RedisError;

use super::cluster::WeakCluster;
use super::demotion::DemotionWatch;
use super::dial::Address;
use super::endpoint::Endpoint;
use super::subscription::Subscription;
use crate::base::store_error::StoreError;

/// Where a thread subscribes.
pub(crate) enum Subscriber {
    One(Weak<Endpoint>),
    Cluster(WeakCluster),
}

/// A connection for a subscription.
pub(crate) struct Opened {
    pub(crate) subscription: Subscription,
    /// It has to be given up when the server has become a replica.
    pub(crate) demoted: DemotionWatch,
    /// The node of a cluster.
    pub(crate) at: Option<Address>,
}

impl Subscriber {
    /// Opens a connection to the server that has this channel now. Each call of the subscription
    /// waits for `within` at most. `None`: the client is gone.
    pub(crate) fn open(
        &self,
        channel: &str,
        within: Duration,
    ) -> Option<Result<Opened, StoreError>> {
        // The endpoint is held only to connect.
        let place = match self {
            Self::One(endpoint) => Ok((endpoint.upgrade()?, None)),
            Self::Cluster(cluster) => {
                cluster.node(channel)?.map(|(endpoint, at)| (endpoint, Some(at)))
            }
        };
        Some(place.and_then(|(endpoint, at)| {
            let demoted = endpoint.demotions();
            let subscription = Subscription::new(endpoint.open_for_itself()?, within);
            let subscription = subscription.sharded(at.is_some());
            Ok(Opened { subscription, demoted, at })
        }))
    }

    /// Called with the error of a subscription to the node at `at`: it may say who has the channel.
    pub(crate) fn learn(&self, error: &RedisError, at: Option<&Address>) {
        if let (Self::Cluster(cluster), Some(at)) = (self, at) {
            cluster.learn(error, at);
        }
    }
}
