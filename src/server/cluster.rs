//! A Redis Cluster: each command goes to the node that owns the slot of its key.
//!
//! A node that does not own the slot says who does, and has not carried the command out (R25). So
//! the client learns the map from the nodes' own words: one slot from each `MOVED`, and the whole
//! map by `CLUSTER SLOTS`, from a node that has just answered: after the first command, and after a
//! `MOVED`, at most once a second. If a node cannot carry a command out, the client asks another
//! one, which knows of a failover.
//!
//! A replica redirects every command, so it does no harm among the seeds, and a primary that was
//! demoted is left at the first answer.

mod channels;
mod map;
mod open;
mod over;
mod redirection;
mod shares;
mod slot;
mod topology;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::call::{Call, Command, Reply};
use super::dial::Address;
use super::script::Part;
use crate::base::error::ErrorKind;
use crate::base::key::hash_tag;
use crate::base::options::Confirm;
use crate::base::store_error::StoreError;
use crate::base::within::Within;
pub(crate) use channels::WeakCluster;
pub(crate) use open::{in_url, open};
use over::Over;
use redirection::Redirection;
use shares::{Open, at_once, by_node};
use topology::{Member, Topology};

/// How many redirections a call follows.
const MOST_REDIRECTIONS: usize = 5;

/// A Redis Cluster, for commands that need the same confirmations. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cluster {
    topology: Arc<Topology>,
    confirm: Confirm,
}

/// Where a command that has no answer yet is asked.
struct At {
    member: Member,
    asking: bool,
    /// The first node that could not carry it out, and why.
    unserved: Option<(Member, StoreError)>,
}

impl At {
    fn first(member: Member) -> Self {
        Self { member, asking: false, unserved: None }
    }

    /// Why no node has carried the command out.
    fn error(&mut self) -> StoreError {
        self.unserved.take().map_or_else(too_many, |(_, error)| error)
    }
}

type Replies = Vec<Result<Reply, StoreError>>;

impl Cluster {
    fn new(topology: Topology) -> Self {
        Self { topology: Arc::new(topology), confirm: Confirm::NOTHING }
    }

    /// The same cluster, for grants and extends that replicas have to confirm.
    pub(crate) fn confirming(&self, confirm: Confirm) -> Self {
        Self { topology: Arc::clone(&self.topology), confirm }
    }

    pub(crate) fn confirm(&self) -> Confirm {
        self.confirm
    }

    /// The number of the node that owns the slot of this name, or 0 if it is not known. Numbers are
    /// small. A node keeps its number for as long as it is known.
    pub(crate) fn shard(&self, name: &str) -> u16 {
        self.topology.number(slot::of(name))
    }

    /// Checks that the keys of a lock share a slot. They do if its name has a hash tag, which is
    /// theirs, too; and if it has no braces, for then its companions have it in braces.
    pub(crate) fn check_keys<'a>(
        name: &str,
        keys: impl FnOnce() -> Vec<Part<'a>>,
    ) -> Result<(), StoreError> {
        let share = |keys: Vec<Part<'_>>| {
            let slot = slot::of(name);
            keys.iter().all(|key| slot::of(&key.text()) == slot)
        };
        if hash_tag(name).is_some() || !name.contains(['{', '}']) || share(keys()) {
            return Ok(());
        }
        let message = "in a cluster, the only braces in the name of a lock are those of a hash \
                       tag, as in {orders}:42";
        Err(StoreError::not_sent(ErrorKind::InvalidInput, message).permanent())
    }

    /// Sends a command to the owner of its slot, and reads the reply.
    pub(crate) fn call(&self, call: &Call<'_>, deadline: Instant) -> Result<Reply, StoreError> {
        let slot = slot_of(&call.command);
        let over = Over::Pool(deadline);
        let mut at = At::first(self.route(slot)?);
        for _ in 0..=MOST_REDIRECTIONS {
            let answer = at.member.node.ask(&call.again(at.asking), deadline);
            if let Some(reply) = self.step(&mut at, answer, over) {
                if let Ok(Reply { asked_at, .. }) = reply {
                    if !at.asking {
                        self.topology.confirm_owner(slot, &at.member.address);
                    }
                    self.topology.refresh(&at.member, asked_at, over);
                }
                return reply;
            }
        }
        Err(at.error())
    }

    /// Sends many commands at once, each to the owner of its slot, and reads the reply to each, or
    /// why there is none. No node waits for another.
    pub(crate) fn batch(&self, commands: &[Command<'_>], deadline: Instant) -> Replies {
        self.batch_over(commands, Over::Pool(deadline))
    }

    /// The same over the nodes' connections for renewal.
    pub(crate) fn renew(&self, commands: &[Command<'_>], within: Within) -> Replies {
        let end = within.end(self.topology.clock.now());
        self.batch_over(commands, Over::Renewing { within, end })
    }

    fn batch_over(&self, commands: &[Command<'_>], over: Over) -> Replies {
        let mut replies: Replies = Vec::new();
        replies.resize_with(commands.len(), || Err(too_many()));
        let mut open = Vec::new();
        for (index, command) in commands.iter().enumerate() {
            match self.route(slot_of(command)) {
                Ok(member) => open.push(Open { index, at: At::first(member) }),
                Err(error) => replies[index] = Err(error),
            }
        }
        let mut answered = None;
        for _ in 0..=MOST_REDIRECTIONS {
            let mut again = Vec::new();
            for (asked, answers) in at_once(by_node(open), commands, over) {
                for (Open { index, mut at }, answer) in asked.into_iter().zip(answers) {
                    match self.step(&mut at, answer, over) {
                        None => again.push(Open { index, at }),
                        Some(Ok(reply)) => {
                            answered = Some((at.member, reply.asked_at));
                            replies[index] = Ok(reply);
                        }
                        Some(error) => replies[index] = error,
                    }
                }
            }
            open = again;
            if open.is_empty() {
                break;
            }
        }
        for Open { index, mut at } in open {
            replies[index] = Err(at.error());
        }
        if let Some((member, asked_at)) = answered {
            self.topology.refresh(&member, asked_at, over);
        }
        replies
    }

    /// What a node's answer means: the reply to the command, or, with `None`, that the command has
    /// not run and is to be asked where `at` leads now.
    fn step(
        &self,
        at: &mut At,
        answer: Result<Reply, StoreError>,
        over: Over,
    ) -> Option<Result<Reply, StoreError>> {
        let result = self.understand(at, answer, over);
        if result.is_none() && self.topology.clock.left(over.end()).is_zero() {
            // A healthy connection would be given up for a call that has no time.
            return Some(Err(at.error()));
        }
        result
    }

    fn understand(
        &self,
        at: &mut At,
        answer: Result<Reply, StoreError>,
        over: Over,
    ) -> Option<Result<Reply, StoreError>> {
        let refused = match answer {
            Ok(reply) => match Redirection::of(&reply.value) {
                Some(to) => return self.follow(to, at, over).err().map(Err),
                None => match reply.understood() {
                    Err(error) if error.kind == ErrorKind::Unavailable => error,
                    reply => return Some(reply),
                },
            },
            Err(error) => error,
        };
        // Another node knows who owns the slot now, if this one is down, is no part of the cluster
        // any more, or does not let us in.
        let is_the_nodes = matches!(
            refused.kind,
            ErrorKind::Unavailable | ErrorKind::Denied | ErrorKind::Unsupported
        );
        if refused.may_have_run || !is_the_nodes {
            return Some(Err(refused));
        }
        match self.another(Some(&at.member)) {
            Ok(other) if !other.is(&at.member) => {
                let member = std::mem::replace(&mut at.member, other);
                at.asking = false;
                at.unserved.get_or_insert((member, refused));
                None
            }
            _ => {
                at.unserved.get_or_insert((at.member.clone(), refused));
                Some(Err(at.error()))
            }
        }
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        let mut member = self.another(None)?;
        let mut first = None;
        for _ in 0..=MOST_REDIRECTIONS {
            match member.node.ping(deadline) {
                Ok(()) => return Ok(()),
                Err(error) => first.get_or_insert(error),
            };
            if self.topology.clock.left(deadline).is_zero() {
                break;
            }
            member = self.another(Some(&member))?;
        }
        Err(first.unwrap_or_else(too_many))
    }

    /// Closes the idle connections to every node.
    pub(crate) fn close(&self) {
        self.topology.close();
    }

    /// The node to ask first: the owner of the slot, or a node that knows the owner.
    fn route(&self, slot: Option<u16>) -> Result<Member, StoreError> {
        let owner = slot.map(|slot| self.topology.member_of(slot, self.confirm)).transpose()?;
        match owner.flatten() {
            Some(owner) if !owner.is_down() => Ok(owner),
            owner => self.another(owner.as_ref()),
        }
    }

    /// A node that is not down, if there is one, and not this one, if there is another.
    fn another(&self, than: Option<&Member>) -> Result<Member, StoreError> {
        let nodes = self.topology.addresses();
        let first = self.topology.next.fetch_add(1, Ordering::Relaxed);
        let mut best = None;
        for at in 0..nodes.len() {
            let member = self.member(nodes[first.wrapping_add(at) % nodes.len()].clone())?;
            if than.is_some_and(|than| than.is(&member)) {
                continue;
            }
            if !member.is_down() {
                return Ok(member);
            }
            best.get_or_insert(member);
        }
        best.or_else(|| than.cloned()).ok_or_else(too_many)
    }

    /// Goes where a redirection leads.
    fn follow(&self, to: Redirection, at: &mut At, over: Over) -> Result<(), StoreError> {
        let (member, asking) = match to {
            Redirection::Moved(slot, to) => match to.at(&at.member.address) {
                Some(owner) => {
                    self.topology.learn(slot, &owner);
                    (self.member(owner)?, false)
                }
                // The map has its address.
                None => {
                    self.topology.forget();
                    self.topology.refresh(&at.member, self.topology.clock.now(), over);
                    (self.route(Some(slot))?, false)
                }
            },
            Redirection::Ask(to) => {
                let owner = to.at(&at.member.address).ok_or_else(is_moving)?;
                (self.member(owner)?, true)
            }
            Redirection::TryAgain => return Err(StoreError { moving: true, ..is_moving() }),
        };
        match at.unserved.take() {
            Some((down, error)) if down.is(&member) => return Err(error),
            unserved => at.unserved = unserved,
        }
        (at.member, at.asking) = (member, asking);
        Ok(())
    }

    /// The node at this address.
    fn member(&self, address: Address) -> Result<Member, StoreError> {
        self.topology.member(address, self.confirm)
    }
}

/// The slot of a name, for tests.
#[cfg(feature = "testing")]
#[must_use]
pub fn slot_of_name(name: &str) -> u16 {
    slot::of(name)
}

fn slot_of(command: &Command<'_>) -> Option<u16> {
    command.key().map(|key| slot::of(&key.text()))
}

fn is_moving() -> StoreError {
    let message = "the slot is moving to another node of the cluster";
    StoreError::not_sent(ErrorKind::Unavailable, message)
}

fn too_many() -> StoreError {
    let message = "the cluster redirected the command too often, or too late";
    StoreError::not_sent(ErrorKind::Unavailable, message)
}
