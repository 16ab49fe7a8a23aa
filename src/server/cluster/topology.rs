//! The nodes of a cluster, as far as the client knows them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{ConnectionAddr, ConnectionInfo};

use super::map::Map;
use super::over::Over;
use crate::base::clock::Clock;
use crate::base::options::Confirm;
use crate::base::store_error::StoreError;
use crate::base::{locked, log};
use crate::server::call::{Command, Reply};
use crate::server::dial::Address;
use crate::server::node::Node;
use crate::server::script::Part;
use crate::server::settings::Settings;
use crate::server::shape::Shape;

/// How often the whole map is asked for at most. Twice as long after each that does not come.
const BETWEEN_MAPS: Duration = Duration::from_secs(1);
/// How often at least, by a client whose commands are answered: nodes come and go, and no command
/// is redirected because of that. If all nodes that it knows are gone, it finds no other.
const LONGEST_BETWEEN_MAPS: Duration = Duration::from_secs(60);

/// What the client knows of the nodes.
pub(super) struct Topology {
    seeds: Vec<Address>,
    /// Who we are, and whether we speak TLS; of any address.
    info: ConnectionInfo,
    settings: Settings,
    pub(super) clock: Clock,
    known: Mutex<Known>,
    /// Whether the map has to be asked for soon: a slot has moved since it was.
    is_old: AtomicBool,
    /// Locked by the thread that asks for it.
    asked: Mutex<Asked>,
    /// Where the search for a node that answers goes on.
    pub(super) next: AtomicUsize,
    /// Whether it has been said that the map is refused.
    said_refused: AtomicBool,
}

/// The last question for the map.
struct Asked {
    at: Option<Instant>,
    /// How long until it may be asked for again.
    pause: Duration,
}

struct Known {
    map: Map,
    /// Made when they are first needed, one for each kind of confirmations.
    members: Vec<Member>,
    is_closed: bool,
}

impl Known {
    fn find(&self, address: &Address, confirm: Confirm) -> Option<&Member> {
        let is_it =
            |member: &&Member| member.address == *address && member.node.confirm() == confirm;
        self.members.iter().find(is_it)
    }

    /// The number of the node at this address: the smallest that no other has, for as long as it is
    /// known.
    fn number(&self, address: &Address) -> u16 {
        let own = self.members.iter().find(|member| member.address == *address);
        let is_free = |number: &u16| self.members.iter().all(|member| member.number != *number);
        own.map(|member| member.number).or_else(|| (0..).find(is_free)).unwrap_or_default()
    }
}

/// A node, and where it is.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) address: Address,
    pub(super) node: Arc<Node>,
    number: u16,
}

impl Member {
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.node, &other.node)
    }

    /// Whether the last attempt to reach it failed.
    pub(super) fn is_down(&self) -> bool {
        self.node.endpoint().is_shut()
    }
}

impl Topology {
    pub(super) fn new(
        seeds: Vec<Address>,
        info: ConnectionInfo,
        settings: Settings,
        clock: Clock,
    ) -> Self {
        Self {
            known: Mutex::new(Known {
                map: Map::new(&seeds),
                members: Vec::new(),
                is_closed: false,
            }),
            seeds,
            info,
            settings,
            clock,
            is_old: AtomicBool::new(true),
            asked: Mutex::new(Asked { at: None, pause: BETWEEN_MAPS }),
            next: AtomicUsize::new(0),
            said_refused: AtomicBool::new(false),
        }
    }

    /// The owner of a slot, as far as it is known.
    pub(super) fn owner(&self, slot: u16) -> Option<Address> {
        locked(&self.known).map.owner(slot).cloned()
    }

    /// The node that owns a slot, as far as it is known.
    pub(super) fn member_of(
        &self,
        slot: u16,
        confirm: Confirm,
    ) -> Result<Option<Member>, StoreError> {
        let known = locked(&self.known);
        let Some(owner) = known.map.owner(slot) else { return Ok(None) };
        if let Some(member) = known.find(owner, confirm) {
            return Ok(Some(member.clone()));
        }
        let owner = owner.clone();
        drop(known);
        self.member(owner, confirm).map(Some)
    }

    /// The number of the owner of a slot, or 0.
    pub(super) fn number(&self, slot: u16) -> u16 {
        let owner = self.member_of(slot, Confirm::NOTHING).ok().flatten();
        owner.map_or(0, |member| member.number)
    }

    /// Every node that is known.
    pub(super) fn addresses(&self) -> Vec<Address> {
        locked(&self.known).map.nodes().to_vec()
    }

    pub(super) fn close(&self) {
        let mut known = locked(&self.known);
        known.is_closed = true;
        known.members.iter().for_each(|member| member.node.close());
    }

    /// The node at this address.
    pub(super) fn member(&self, address: Address, confirm: Confirm) -> Result<Member, StoreError> {
        let mut known = locked(&self.known);
        if let Some(member) = known.find(&address, confirm) {
            return Ok(member.clone());
        }
        let node = if confirm.is_wanted() {
            drop(known);
            // It knows of the server what the other one knows.
            let plain = self.member(address.clone(), Confirm::NOTHING)?;
            known = locked(&self.known);
            plain.node.confirming(confirm)
        } else {
            self.node(&address)?
        };
        if known.is_closed {
            // A call that was under way when the client was closed was redirected there.
            node.close();
        }
        if let Some(member) = known.find(&address, confirm) {
            // Another thread was faster.
            return Ok(member.clone());
        }
        let number = known.number(&address);
        let member = Member { address, node: Arc::new(node), number };
        known.members.push(member.clone());
        Ok(member)
    }

    fn node(&self, Address { host, port }: &Address) -> Result<Node, StoreError> {
        let (host, port) = (host.to_string(), *port);
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        let info = self.info.clone().set_addr(addr);
        let node = Node::new(info, None, self.settings.clone(), self.clock.clone());
        node.map_err(|error| StoreError::not_sent(error.kind(), error.to_string()).permanent())
    }

    /// A node has carried a command out: so it owns the slot, unless another is known, which may
    /// have been asked in vain.
    pub(super) fn confirm_owner(&self, slot: Option<u16>, at: &Address) {
        let map = &mut locked(&self.known).map;
        if let Some(slot) = slot.filter(|slot| map.owner(*slot).is_none()) {
            map.learn(slot..=slot, at);
        }
    }

    pub(super) fn command_deadline(&self) -> Instant {
        self.clock.now() + self.settings.command_timeout
    }

    /// Remembers the owner of a slot that has moved.
    pub(super) fn learn(&self, slot: u16, owner: &Address) {
        locked(&self.known).map.learn(slot..=slot, owner);
        self.forget();
    }

    /// The map has to be asked for.
    pub(super) fn forget(&self) {
        self.is_old.store(true, Ordering::SeqCst);
    }

    /// Asks a node that has answered what it was asked at `asked_at` for the whole map, if that is
    /// needed, and unless somebody asks, or has asked a moment before.
    pub(super) fn refresh(&self, from: &Member, asked_at: Instant, over: Over) {
        let Ok(mut asked) = self.asked.try_lock() else { return };
        let is_old = self.is_old.load(Ordering::SeqCst);
        let pause = if is_old { asked.pause } else { LONGEST_BETWEEN_MAPS };
        if asked.at.is_some_and(|at| asked_at.saturating_duration_since(at) < pause) {
            return;
        }
        let now = self.clock.now();
        // Before it is asked for: whatever moves meanwhile makes it old again.
        self.is_old.store(false, Ordering::SeqCst);
        let slots = Command::new(&[Part::Text("CLUSTER"), Part::Text("SLOTS")], Shape::Array);
        let Some(reply) = over.ask_for_map(&from.node, &slots) else {
            self.is_old.fetch_or(is_old, Ordering::SeqCst);
            return;
        };
        asked.at = Some(now);
        let map = reply
            .and_then(Reply::understood)
            .map(|reply| Map::read(&reply.value, &from.address, &self.seeds));
        match map {
            Ok(Some(map)) => {
                asked.pause = BETWEEN_MAPS;
                self.replace(map);
            }
            Err(error) if error.permanent => {
                if !self.said_refused.swap(true, Ordering::Relaxed) {
                    log::warn!(
                        "this client learns the map of the cluster slot by slot, because the \
                         server refuses CLUSTER SLOTS: {error}"
                    );
                }
            }
            Ok(None) | Err(_) => {
                asked.pause = (asked.pause * 2).min(LONGEST_BETWEEN_MAPS);
                self.forget();
            }
        }
    }

    /// Takes this map for the present one, and closes the connections to nodes that are not in it.
    fn replace(&self, map: Map) {
        let Known { map: known, members, .. } = &mut *locked(&self.known);
        *known = map;
        members.retain(|member| {
            let stays = known.nodes().contains(&member.address);
            if !stays {
                member.node.close();
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    /// Where locks are looked after by node, the number stands for the node (R9).
    #[test]
    fn a_node_keeps_its_number_while_others_come_and_go() {
        let at = |host: &str| Address { host: host.into(), port: 1 };
        let info = "redis://seed:1".into_connection_info().expect("a URL");
        let topology = Topology::new(vec![at("seed")], info, Settings::default(), Clock::default());
        let numbers = |owners: &[&str]| -> Vec<u16> {
            let mut map = Map::new(&topology.seeds);
            (0..).zip(owners).for_each(|(slot, owner)| map.learn(slot..=slot, &at(owner)));
            topology.replace(map);
            (0..).zip(owners).map(|(slot, _)| topology.number(slot)).collect()
        };
        assert_eq!(topology.number(7), 0, "not known");
        assert_eq!(numbers(&["a", "b", "a", "c"]), [0, 1, 0, 2]);
        assert_eq!(numbers(&["c", "b", "a"]), [2, 1, 0]);
        assert_eq!(numbers(&["c", "d", "b"]), [2, 0, 1], "a is gone, and its number is free");
    }
}
