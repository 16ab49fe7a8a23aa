//! The map of a cluster: which node owns a slot, as far as this client knows.

use std::sync::Arc;

use redis::Value;

use super::slot::SLOTS;
use crate::server::dial::Address;
use crate::server::reply;

/// Which node owns a slot.
pub(super) struct Map {
    /// The nodes that own slots, their replicas, and the seeds.
    nodes: Vec<Address>,
    /// For each slot the index of its node, or [`NOBODY`].
    owners: Box<[u16]>,
}

const NOBODY: u16 = u16::MAX;

impl Map {
    /// Knows no owner.
    pub(super) fn new(seeds: &[Address]) -> Self {
        Self { nodes: seeds.to_vec(), owners: vec![NOBODY; usize::from(SLOTS)].into() }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Address> {
        let index = self.owners.get(usize::from(slot)).filter(|index| **index != NOBODY)?;
        self.nodes.get(usize::from(*index))
    }

    pub(super) fn nodes(&self) -> &[Address] {
        &self.nodes
    }

    /// Remembers the owner of these slots.
    pub(super) fn learn(&mut self, slots: std::ops::RangeInclusive<u16>, owner: &Address) {
        let Ok(index) = u16::try_from(self.index(owner)) else { return };
        let (first, last) = (usize::from(*slots.start()), usize::from(*slots.end()));
        if let Some(owners) = self.owners.get_mut(first..=last.min(self.owners.len() - 1)) {
            owners.fill(index);
        }
    }

    /// The index of a node, which is added if it is new.
    fn index(&mut self, node: &Address) -> usize {
        let known = self.nodes.iter().position(|known| known == node);
        known.unwrap_or_else(|| {
            self.nodes.push(node.clone());
            self.nodes.len() - 1
        })
    }

    /// The map in a reply to `CLUSTER SLOTS` of the node at `from`. `None`: it knows no owner of
    /// any slot, or the reply cannot be understood.
    pub(super) fn read(reply: &Value, from: &Address, seeds: &[Address]) -> Option<Self> {
        let mut map = Self::new(seeds);
        let ranges = reply::list(reply).ok()?;
        for range in ranges {
            let [first, last, owner, replicas @ ..] = reply::list(range).ok()? else {
                return None;
            };
            let slot = |value| reply::number(value).ok().and_then(|slot| u16::try_from(slot).ok());
            let (first, last) = (slot(first)?, slot(last)?);
            if first > last || last >= SLOTS {
                return None;
            }
            map.learn(first..=last, &node(owner, from)?);
            // After a failover that the client has missed, one of them knows the new owner.
            for replica in replicas {
                map.index(&node(replica, from)?);
            }
        }
        (!ranges.is_empty()).then_some(map)
    }
}

/// A node in a reply to `CLUSTER SLOTS`: host, port, id, and since Redis 7 a list of names and
/// values. No host, or an empty one: that of the node which was asked. `?`: the node announces a
/// name that it does not have, and the list has its address.
fn node(value: &Value, from: &Address) -> Option<Address> {
    let parts = reply::list(value).ok()?;
    let host = match parts.first()? {
        Value::Nil => String::new(),
        host => reply::text(host).ok()?,
    };
    let port = u16::try_from(reply::number(parts.get(1)?).ok()?).ok()?;
    let host = match &*host {
        "?" => parts.get(3).and_then(ip).unwrap_or_default(),
        _ => host,
    };
    let host = if host.is_empty() { Arc::clone(&from.host) } else { host.into() };
    Some(Address { host, port })
}

fn ip(names: &Value) -> Option<String> {
    let names = reply::list(names).ok()?;
    let pair = names.chunks_exact(2).find(|pair| reply::bytes(&pair[0]).ok() == Some(b"ip"));
    reply::text(&pair?[1]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.into(), port }
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn range(first: i64, last: i64, node: Vec<Value>) -> Value {
        Value::Array(vec![Value::Int(first), Value::Int(last), Value::Array(node)])
    }

    #[test]
    fn a_map_is_learned_slot_by_slot_or_read_whole() {
        let seed = at("seed", 1);
        let mut map = Map::new(std::slice::from_ref(&seed));
        assert_eq!(map.owner(7), None);
        map.learn(7..=7, &at("a", 2));
        assert_eq!((map.owner(7), map.owner(8)), (Some(&at("a", 2)), None));
        let meta = vec![bulk("ip"), bulk("10.0.0.9")];
        let reply = Value::Array(vec![
            range(0, 5460, vec![bulk("10.0.0.1"), Value::Int(1), bulk("id")]),
            range(5461, 5461, vec![Value::Nil, Value::Int(2), bulk("id")]),
            range(5462, 5462, vec![bulk(""), Value::Int(3), bulk("id")]),
            range(5463, 16383, vec![bulk("?"), Value::Int(4), bulk("id"), Value::Array(meta)]),
        ]);
        let map = Map::read(&reply, &at("asked", 9), &[seed]).expect("a map");
        for (slot, owner) in [
            (0, at("10.0.0.1", 1)),
            (5460, at("10.0.0.1", 1)),
            (5461, at("asked", 2)),
            (5462, at("asked", 3)),
            (16383, at("10.0.0.9", 4)),
        ] {
            assert_eq!(map.owner(slot), Some(&owner), "{slot}");
        }
        assert_eq!(map.nodes().len(), 5);
    }

    #[test]
    fn what_is_no_map_is_none() {
        let node = || vec![bulk("h"), Value::Int(1)];
        for reply in [
            Value::Okay,
            Value::Array(Vec::new()),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16384, node())]),
            Value::Array(vec![range(2, 1, node())]),
            Value::Array(vec![range(-1, 1, node())]),
            Value::Array(vec![range(0, 1, vec![bulk("h")])]),
            Value::Array(vec![range(0, 1, vec![bulk("h"), Value::Int(65_536)])]),
        ] {
            assert!(Map::read(&reply, &at("h", 1), &[]).is_none(), "{reply:?}");
        }
    }
}
