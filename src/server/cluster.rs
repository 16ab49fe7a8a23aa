//! A Redis Cluster: each command goes to the node that owns the slot of its key.
//!
//! A node that does not own the slot says who does, and has not carried the command out (R25). So
//! the client learns the map from the nodes' own words: one slot from each `MOVED`, and then the
//! whole map by `CLUSTER SLOTS`, from the node that has just answered, at most once a second. If
//! the owner cannot be reached, the client asks another node, which knows of a failover.
//!
//! A replica redirects every command, so it does no harm among the seeds, and a primary that was
//! demoted is left at the first answer.

mod map;
mod open;
mod redirection;
mod slot;
mod topology;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use super::call::{Call, Command, Reply};
use super::dial::Address;
use super::node::Node;
use crate::base::error::ErrorKind;
use crate::base::key::Key;
use crate::base::options::Confirm;
use crate::base::store_error::StoreError;
use crate::base::within::Within;
pub(crate) use open::{in_url, open};
use redirection::Redirection;
use topology::{Member, Topology};

/// How many redirections a call follows.
const MOST_REDIRECTIONS: usize = 5;

/// A Redis Cluster, for commands that need the same confirmations. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Cluster {
    topology: Arc<Topology>,
    confirm: Confirm,
}

/// A command of a batch that has no answer yet.
struct Open {
    /// Its place in the batch.
    index: usize,
    member: Member,
    asking: bool,
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

    /// Checks that the companions of a key share its slot.
    pub(crate) fn check_key(key: &Key) -> Result<(), StoreError> {
        if slot::of(key.as_str().as_bytes()) == slot::of(key.stem().as_bytes()) {
            return Ok(());
        }
        let message = "in a cluster, the name of a lock has no } but that of a hash tag, as in \
                       {orders}:42";
        Err(StoreError::not_sent(ErrorKind::InvalidInput, message).permanent())
    }

    /// Sends a command to the owner of its slot, and reads the reply.
    pub(crate) fn call(&self, call: &Call<'_>, deadline: Instant) -> Result<Reply, StoreError> {
        let slot = slot_of(&call.command);
        let (mut member, mut asking) = (self.route(slot)?, false);
        let mut unreached: Option<(Member, StoreError)> = None;
        for _ in 0..=MOST_REDIRECTIONS {
            match unreached {
                Some((at, error)) if at.is(&member) => return Err(error),
                _ => {}
            }
            match member.node.ask(&call.again(asking), deadline) {
                Ok(reply) => match Redirection::of(&reply.value) {
                    None => return reply.understood(),
                    Some(to) => {
                        (member, asking) = self.follow(to, &member, deadline)?;
                    }
                },
                // Another node knows who owns the slot now.
                Err(error) if !error.may_have_run && error.kind == ErrorKind::Unavailable => {
                    let other = self.another(Some(&member))?;
                    unreached = Some((std::mem::replace(&mut member, other), error));
                    asking = false;
                }
                Err(error) => return Err(error),
            }
        }
        Err(unreached.map_or_else(too_many, |(_, error)| error))
    }

    /// Sends many commands at once, each to the owner of its slot, and reads the reply to each, or
    /// why there is none. No node waits for another.
    pub(crate) fn batch(&self, commands: &[Command<'_>], deadline: Instant) -> Replies {
        self.batch_over(commands, deadline, &|node, commands| node.ask_batch(commands, deadline))
    }

    /// The same over the nodes' connections for renewal.
    pub(crate) fn renew(&self, commands: &[Command<'_>], within: Within) -> Replies {
        let clock = &self.topology.clock;
        let end = within.end(clock.now());
        self.batch_over(commands, end, &|node, commands| {
            let within = Within { reply: within.reply.min(clock.left(end)), ..within };
            node.ask_renewing(commands, within)
        })
    }

    fn batch_over(
        &self,
        commands: &[Command<'_>],
        deadline: Instant,
        ask: &(dyn Fn(&Node, &[Command<'_>]) -> Replies + Sync),
    ) -> Replies {
        let mut replies: Replies = Vec::new();
        replies.resize_with(commands.len(), || Err(too_many()));
        let mut open = Vec::new();
        for (index, command) in commands.iter().enumerate() {
            match self.route(slot_of(command)) {
                Ok(member) => open.push(Open { index, member, asking: false }),
                Err(error) => replies[index] = Err(error),
            }
        }
        for _ in 0..=MOST_REDIRECTIONS {
            let mut redirected = Vec::new();
            for (asked, answers) in at_once(by_node(open), commands, ask) {
                for (Open { index, member, .. }, answer) in asked.into_iter().zip(answers) {
                    let to = answer.as_ref().ok().and_then(|reply| Redirection::of(&reply.value));
                    let Some(to) = to else {
                        replies[index] = answer.and_then(Reply::understood);
                        continue;
                    };
                    match self.follow(to, &member, deadline) {
                        Ok((member, asking)) => redirected.push(Open { index, member, asking }),
                        Err(error) => replies[index] = Err(error),
                    }
                }
            }
            if redirected.is_empty() {
                break;
            }
            open = redirected;
        }
        replies
    }

    pub(crate) fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        self.another(None)?.node.ping(deadline)
    }

    /// Closes the idle connections to every node.
    pub(crate) fn close(&self) {
        self.topology.close();
    }

    /// The node to ask first: the owner of the slot, or a node that knows the owner.
    fn route(&self, slot: Option<u16>) -> Result<Member, StoreError> {
        let owner = slot.and_then(|slot| self.topology.owner(slot));
        match owner.map(|owner| self.member(owner)).transpose()? {
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

    /// Where a redirection leads, and whether the command has to ask there.
    fn follow(
        &self,
        to: Redirection,
        from: &Member,
        deadline: Instant,
    ) -> Result<(Member, bool), StoreError> {
        match to {
            Redirection::Moved(slot, host, port) => {
                let owner = redirection::address(host, port, &from.address);
                self.topology.learn(slot, &owner);
                self.topology.refresh(from, deadline);
                Ok((self.member(owner)?, false))
            }
            Redirection::Ask(host, port) => {
                let owner = redirection::address(host, port, &from.address);
                Ok((self.member(owner)?, true))
            }
            Redirection::TryAgain => Err(StoreError::not_sent(
                ErrorKind::Unavailable,
                "the lock is moving to another node of the cluster",
            )),
        }
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
    slot::of(name.as_bytes())
}

fn slot_of(command: &Command<'_>) -> Option<u16> {
    command.key().map(|key| slot::of(key.text().as_bytes()))
}

fn too_many() -> StoreError {
    let message = "the cluster redirected the command too often";
    StoreError::not_sent(ErrorKind::Unavailable, message)
}

/// The commands that go to each node.
fn by_node(open: Vec<Open>) -> Vec<Vec<Open>> {
    let mut groups: Vec<Vec<Open>> = Vec::new();
    for one in open {
        match groups.iter_mut().find(|group| group[0].member.is(&one.member)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

/// Asks each node for its commands, all nodes at once: one that is silent delays no other (R9).
fn at_once(
    groups: Vec<Vec<Open>>,
    commands: &[Command<'_>],
    ask: &(dyn Fn(&Node, &[Command<'_>]) -> Replies + Sync),
) -> Vec<(Vec<Open>, Replies)> {
    let ask = |group: &[Open]| {
        let asked: Vec<_> = group.iter().map(|one| commands[one.index].again(one.asking)).collect();
        group.first().map_or_else(Vec::new, |one| ask(&one.member.node, &asked))
    };
    let ask = &ask;
    let answers: Vec<_> = thread::scope(|scope| {
        let Some((first, others)) = groups.split_first() else { return Vec::new() };
        let started: Vec<_> = others
            .iter()
            .map(|group| {
                let thread = thread::Builder::new().name("distlock-shard".into());
                (group, thread.spawn_scoped(scope, move || ask(group)))
            })
            .collect();
        let mut answers = vec![ask(first)];
        answers.extend(started.into_iter().map(|(group, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // No thread could be started.
            Err(_) => ask(group),
        }));
        answers
    });
    groups.into_iter().zip(answers).collect()
}
