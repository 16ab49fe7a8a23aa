//! A real Redis Cluster: primaries that share the slots, each perhaps with a replica.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::settings::ServerBuilder;
use super::{Server, eventually};

/// How many slots there are.
const SLOTS: u16 = 16_384;
/// How long a cluster may take to get ready. A primary says for two seconds after its start that it
/// is not.
const PATIENCE: Duration = Duration::from_secs(30);

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
        for (place, primary) in (0..).zip(&shards.primaries) {
            // Redis 6.2 takes no ranges.
            let slots: Vec<_> = share(place, primaries).collect();
            ask::<()>(primary, redis::cmd("CLUSTER").arg("ADDSLOTS").arg(slots));
            // Two nodes that begin with the same epoch would have to agree first.
            let epoch = redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(place + 1).to_owned();
            ask::<()>(primary, &epoch);
        }
        let first = shards.primaries[0].cluster_port();
        for node in shards.nodes().skip(1) {
            let meet = redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(first).to_owned();
            ask::<()>(node, &meet);
        }
        let count = shards.nodes().count();
        for node in shards.nodes() {
            eventually(PATIENCE, || info(node, "cluster_known_nodes") == Some(count.to_string()));
        }
        for (primary, replicas) in shards.primaries.iter().zip(&shards.replicas) {
            let id: String = ask(primary, redis::cmd("CLUSTER").arg("MYID"));
            for replica in replicas {
                let of = redis::cmd("CLUSTER").arg("REPLICATE").arg(&id).to_owned();
                // It has to know the primary for one.
                eventually(PATIENCE, || of.query::<()>(&mut replica.connection()).is_ok());
            }
        }
        for node in shards.nodes() {
            eventually(PATIENCE, || info(node, "cluster_state").as_deref() == Some("ok"));
        }
        shards.primaries.iter().filter(|_| replicas > 0).for_each(|primary| {
            eventually(PATIENCE, || {
                primary.info("replication").matches("state=online").count() == replicas
            });
        });
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
        let slot: u16 = ask(&self.primaries[0], redis::cmd("CLUSTER").arg("KEYSLOT").arg(key));
        let primaries = u16::try_from(self.primaries.len()).unwrap();
        (0..primaries).position(|place| share(place, primaries).contains(&slot)).unwrap()
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
        self.set_slot(key, to, "IMPORTING", from);
        self.set_slot(key, from, "MIGRATING", to);
    }

    /// Moves these keys.
    pub fn move_keys(&self, keys: &[&str], from: usize, to: usize) {
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(self.primaries[to].port()).arg("").arg(0).arg(5000);
        ask::<()>(&self.primaries[from], migrate.arg("KEYS").arg(keys));
    }

    /// Gives the slot of this key away, once its keys have moved. Returns when both nodes know.
    pub fn end_move(&self, key: &str, from: usize, to: usize) {
        for at in [to, from] {
            self.set_slot(key, at, "NODE", to);
        }
        let owns = |at: usize| {
            let asked =
                redis::cmd("EXISTS").arg(key).query::<u32>(&mut self.primaries[at].connection());
            asked.is_ok()
        };
        eventually(PATIENCE, || owns(to) && !owns(from));
    }

    /// Moves the slot of this key with these keys.
    pub fn move_slot(&self, keys: &[&str], from: usize, to: usize) {
        self.begin_move(keys[0], from, to);
        self.move_keys(keys, from, to);
        self.end_move(keys[0], from, to);
    }

    fn set_slot(&self, key: &str, at: usize, what: &str, node: usize) {
        let slot: u16 = ask(&self.primaries[0], redis::cmd("CLUSTER").arg("KEYSLOT").arg(key));
        let id: String = ask(&self.primaries[node], redis::cmd("CLUSTER").arg("MYID"));
        let mut set = redis::cmd("CLUSTER");
        ask::<()>(&self.primaries[at], set.arg("SETSLOT").arg(slot).arg(what).arg(id));
    }
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
