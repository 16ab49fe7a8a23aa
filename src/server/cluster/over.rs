//! `Over`: over which of a node's connections a call goes, and when it has ended.

use std::time::{Duration, Instant};

use super::Replies;
use crate::base::store_error::StoreError;
use crate::base::within::Within;
use crate::server::call::{Command, Reply};
use crate::server::node::Node;

/// How long a call that has its own reply waits for the map at most.
const FOR_A_MAP: Duration = Duration::from_millis(500);

/// Over which connections of the nodes a call goes, and when it has ended at the latest.
#[derive(Clone, Copy)]
pub(super) enum Over {
    /// Pooled ones.
    Pool(Instant),
    /// Those for renewal.
    Renewing { within: Within, end: Instant },
}

impl Over {
    pub(super) fn end(self) -> Instant {
        match self {
            Self::Pool(deadline) => deadline,
            Self::Renewing { end, .. } => end,
        }
    }

    pub(super) fn ask(self, node: &Node, commands: &[Command<'_>]) -> Replies {
        match self {
            Self::Pool(deadline) => node.ask_batch(commands, deadline),
            Self::Renewing { within, .. } => node.ask_renewing(
                commands,
                Within { reply: self.at_most(node, within.reply), ..within },
            ),
        }
    }

    /// Asks a node that has just answered for the map. The caller has its own reply, so it opens no
    /// connection and waits for none that others use: renewal must not (R9). `None`: there is none,
    /// or no time.
    pub(super) fn ask_for_map(
        self,
        node: &Node,
        slots: &Command<'_>,
    ) -> Option<Result<Reply, StoreError>> {
        let most = match self {
            Self::Pool(_) => FOR_A_MAP,
            // Its wait counts as the server's answer to an extend, which would get more and more
            // time.
            Self::Renewing { within, .. } => within.reply / 2,
        };
        let reply = Some(self.at_most(node, most)).filter(|reply| !reply.is_zero())?;
        match self {
            Self::Pool(_) => node.ask_over_a_free_one(slots, reply),
            Self::Renewing { .. } => node.ask_over_renewals_own(slots, reply),
        }
    }

    fn at_most(self, node: &Node, time: Duration) -> Duration {
        node.endpoint().clock.left(self.end()).min(time)
    }
}
