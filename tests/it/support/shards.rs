//! A real Redis Cluster: primaries that share the slots, each perhaps with a replica.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::settings::ServerBuilder;
use super::{Server, eventually};

/// How many slots there are.
const SLOTS: u16 = 16_384;
/// How long a cluster may take to get ready. A primary says for two seconds after its start that it
/// is not.
const PATIENCE: Duration = Duration::from_secs(30);
/// For how long a replica tries to take over, and a little more.
const TAKEOVER: Duration = Duration::from_secs(6);

/// The nodes of a cluster. All of them are gone when this is dropped.
pub struct Shards {
    pub primaries: Vec<Server>,
    /// The replicas of each primary.
    pub replicas: Vec<Vec<Server>>,
}

impl Shards {
    /// So many primaries, which share the slots equally.
    pub fn start(primaries: u16) -> Shards {
        Shards::with(primaries, 0, Shards::node)
    }

    /// How a node is started.
    pub fn node() -> ServerBuilder {
        Server::builder()
            .arg("cluster-enabled", "yes")
            .arg("cluster-node-timeout", "1000")
            .arg("repl-diskless-sync-delay", "0")
    }

    /// The same with so many replicas of each primary, and other settings.
    pub fn with(primaries: u16, replicas: usize, node: impl Fn() -> ServerBuilder) -> Shards {
        let start = |count| (0..count).map(|_| node().start()).collect::<Vec<_>>();
        let shards = Shards {
            primaries: start(usize::from(primaries)),
            replicas: (0..primaries).map(|_| start(replicas)).collect(),
        };
        let primaries: Vec<_> = shards.primaries.iter().collect();
        let replicas: Vec<_> =
            shards.replicas.iter().map(|replicas| replicas.iter().collect()).collect();
        join(&primaries, &replicas);
        shards
    }

    /// The primaries, and then the replicas.
    pub fn nodes(&self) -> impl Iterator<Item = &Server> {
        self.primaries.iter().chain(self.replicas.iter().flatten())
    }

    /// `redis://` of each primary.
    pub fn urls(&self) -> Vec<String> {
        self.primaries.iter().map(Server::url).collect()
    }

    /// The place of the primary that owned this key at the start.
    pub fn place(&self, key: &str) -> usize {
        place(self.slot(key), self.primaries.len())
    }

    /// A name that begins with this and is at the primary at `place`.
    pub fn name_at(&self, place: usize, begin: &str) -> String {
        (0..).map(|n| format!("{begin}-{n}")).find(|name| self.place(name) == place).unwrap()
    }

    /// Whether its nodes have channels of their own, as since Redis 7.
    pub fn have_channels(&self) -> bool {
        let info = self.primaries[0].info("server");
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap();
        version.split('.').next().unwrap().parse::<u32>().unwrap() >= 7
    }

    /// Begins to move the slot of this key. Its keys stay where they are.
    pub fn begin_move(&self, key: &str, from: usize, to: usize) {
        begin_move(self.slot(key), &self.primaries[from], &self.primaries[to]);
    }

    /// Moves these keys.
    pub fn move_keys(&self, keys: &[&str], from: usize, to: usize) {
        move_keys(keys, &self.primaries[from], &self.primaries[to]);
    }

    /// Gives the slot of this key away, once its keys have moved. Returns when all primaries know.
    pub fn end_move(&self, key: &str, from: usize, to: usize) {
        let [from, to] = [from, to].map(|place| &self.primaries[place]);
        end_move(self.slot(key), from, to, &self.primaries.iter().collect::<Vec<_>>());
    }

    /// Moves the slot of this key with these keys.
    pub fn move_slot(&self, keys: &[&str], from: usize, to: usize) {
        self.begin_move(keys[0], from, to);
        self.move_keys(keys, from, to);
        self.end_move(keys[0], from, to);
    }

    /// Has the first replica of the primary at `place` take its place. A server that gets no votes
    /// for that gives it up after five seconds, and is asked again.
    pub fn fail_over(&self, place: usize) {
        let replica = &self.replicas[place][0];
        let mut asked: Option<Instant> = None;
        eventually(PATIENCE, || {
            let is_primary = replica.info("replication").contains("role:master");
            if !is_primary && asked.is_none_or(|asked| asked.elapsed() > TAKEOVER) {
                let _ = redis::cmd("CLUSTER").arg("FAILOVER").exec(&mut replica.connection());
                asked = Some(Instant::now());
            }
            is_primary
        });
    }

    fn slot(&self, key: &str) -> u16 {
        ask(&self.primaries[0], redis::cmd("CLUSTER").arg("KEYSLOT").arg(key))
    }
}

/// Makes a cluster of these primaries, which share the slots equally, and of the replicas of each.
/// Returns once it is ready.
pub fn join(primaries: &[&Server], replicas: &[Vec<&Server>]) {
    let count = u16::try_from(primaries.len()).unwrap();
    for (place, primary) in (0..).zip(primaries) {
        // Redis 6.2 takes no ranges.
        let slots: Vec<_> = share(place, count).collect();
        ask::<()>(primary, redis::cmd("CLUSTER").arg("ADDSLOTS").arg(slots));
        // Two nodes that begin with the same epoch would have to agree first.
        let epoch = redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(place + 1).to_owned();
        ask::<()>(primary, &epoch);
    }
    let nodes = || primaries.iter().chain(replicas.iter().flatten());
    let first = primaries[0].cluster_port();
    let meet = || {
        let meet = redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(first).to_owned();
        nodes().skip(1).for_each(|node| ask::<()>(node, &meet));
        Instant::now()
    };
    let (known, mut met) = (nodes().count().to_string(), meet());
    for node in nodes() {
        eventually(PATIENCE, || {
            // A node gives a handshake up that takes longer than the node timeout, for good.
            if met.elapsed() > PATIENCE / 6 {
                met = meet();
            }
            info(node, "cluster_known_nodes").as_ref() == Some(&known)
        });
    }
    for (primary, replicas) in primaries.iter().zip(replicas) {
        for replica in replicas {
            let of = redis::cmd("CLUSTER").arg("REPLICATE").arg(id(primary)).to_owned();
            // It has to know the primary for one.
            eventually(PATIENCE, || of.query::<()>(&mut replica.connection()).is_ok());
        }
    }
    nodes().for_each(|node| eventually(PATIENCE, || is_ok(node)));
    for (primary, replicas) in primaries.iter().zip(replicas).filter(|(_, of)| !of.is_empty()) {
        eventually(PATIENCE, || {
            primary.info("replication").matches("state=online").count() == replicas.len()
        });
    }
}

/// Whether this node takes the cluster for whole.
pub fn is_ok(node: &Server) -> bool {
    info(node, "cluster_state").as_deref() == Some("ok")
}

/// Begins to move a slot. Its keys stay where they are.
pub fn begin_move(slot: u16, from: &Server, to: &Server) {
    set_slot(slot, to, "IMPORTING", from);
    set_slot(slot, from, "MIGRATING", to);
}

/// Moves these keys.
pub fn move_keys<K: redis::ToRedisArgs>(keys: &[K], from: &Server, to: &Server) {
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(to.port()).arg("").arg(0).arg(5000);
    ask::<()>(from, migrate.arg("KEYS").arg(keys));
}

/// Moves what a node has in this slot: new keys are made at the other node.
pub fn move_all_keys(slot: u16, from: &Server, to: &Server) {
    let left = || keys(slot, from);
    while let keys @ [_, ..] = &left()[..] {
        move_keys(keys, from, to);
    }
}

/// The keys that a node has in this slot.
pub fn keys(slot: u16, node: &Server) -> Vec<String> {
    ask(node, redis::cmd("CLUSTER").arg("GETKEYSINSLOT").arg(slot).arg(100))
}

/// Gives a slot away, once its keys have moved. Returns when all primaries know.
///
/// They must know it from the new owner. One that was told, and that the slot moves to next, before
/// the new owner's message reaches it, takes this message for a newer claim: then the slot has no
/// owner. Redis 7.0 does that, see <https://github.com/redis/redis/pull/12564>.
pub fn end_move(slot: u16, from: &Server, to: &Server, primaries: &[&Server]) {
    assert_eq!(keys(slot, from), [""; 0], "it would delete them");
    set_slot(slot, to, "NODE", to);
    eventually(PATIENCE, || agree(primaries));
    // Now it only forgets that the slot was moving.
    set_slot(slot, from, "NODE", to);
}

/// Whether these nodes know the same: who has which slots, by which epoch.
fn agree(nodes: &[&Server]) -> bool {
    let map = |node: &&Server| {
        let nodes: String = ask(node, redis::cmd("CLUSTER").arg("NODES"));
        let of = |line: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let slots = words[8..].iter().filter(|word| !word.starts_with('[')).cloned();
            (words[0].clone(), words[6].clone(), slots.collect::<Vec<_>>())
        };
        nodes.lines().map(of).collect::<BTreeSet<_>>()
    };
    let mut maps = nodes.iter().map(map);
    let first = maps.next();
    maps.all(|map| Some(map) == first)
}

fn set_slot(slot: u16, at: &Server, what: &str, node: &Server) {
    ask::<()>(at, redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(what).arg(id(node)));
}

fn id(node: &Server) -> String {
    ask(node, redis::cmd("CLUSTER").arg("MYID"))
}

/// Which of so many primaries owned this slot at the start.
pub fn place(slot: u16, primaries: usize) -> usize {
    let primaries = u16::try_from(primaries).unwrap();
    (0..primaries).position(|place| share(place, primaries).contains(&slot)).unwrap()
}

/// The slots of one of so many primaries.
fn share(place: u16, primaries: u16) -> RangeInclusive<u16> {
    let begin = |place| u32::from(SLOTS) * u32::from(place) / u32::from(primaries);
    let (first, end) = (begin(place), begin(place + 1));
    u16::try_from(first).unwrap()..=u16::try_from(end - 1).unwrap()
}

/// A line of CLUSTER INFO.
fn info(node: &Server, name: &str) -> Option<String> {
    let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut node.connection()).ok()?;
    info.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.to_owned()))
}

fn ask<T: redis::FromRedisValue>(node: &Server, command: &redis::Cmd) -> T {
    command.query(&mut node.connection()).unwrap()
}
