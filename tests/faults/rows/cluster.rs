//! A Redis Cluster of three shards whose nodes fail, cannot hear each other, or send clients astray
//! (R25).

use std::thread;
use std::time::Duration;

use distlock::testing::slot_of_name;

use super::super::clock::{nanos, now};
use super::super::history::{self, Outcome, Record};
use super::super::load::key_name;
use super::super::support::settings::ServerBuilder;
use super::super::support::shards::{self, Shards};
use super::super::support::{Fault, Proxy, Rule, Server, eventually};
use super::super::tune::{Tune, ms};
use super::super::world::World;
use super::packets::{self, Namespace};
use super::{Row, USUAL, a_lease};

/// How many primaries there are.
pub(super) const SHARDS: usize = 3;
/// How long the servers themselves may take for each step.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a primary stays stopped once its replica has taken over.
const STOPPED: Duration = Duration::from_millis(500);
/// How soon a lock must be granted once its shard has a primary with a replica again.
const GRANTED_WITHIN: Duration = Duration::from_secs(2);

pub fn rows() -> Vec<Row> {
    let usual = || Row { tune: nodes_of, prepare: |world| start(world, 0), ..USUAL };
    vec![
        Row {
            number: 83,
            name: "C1: Cluster, `replicas(1)`: a primary killed, or stopped, in turn",
            faults: (4, 20),
            // A killed server forgets which tokens it had.
            known_within: None,
            free_within: Some(a_lease),
            may_lose: false,
            waits: true,
            tune: |tune| {
                nodes_of(tune);
                // Until a replica has taken over and has a replica itself, no extend counts.
                (tune.load.lease, tune.load.long_leases) = (ms(15_000), 1);
                (tune.load.replicas, tune.load.bait_keys) = (1, 0);
                (tune.load.threads, tune.load.pause) = (4, ms(8));
            },
            prepare: |world| start(world, 1),
            run: failovers,
            ..usual()
        },
        Row {
            number: 86,
            name: "C4: Cluster: nodes cut off from each other, until all refuse (nft)",
            faults: (2, 6),
            under_fault: 0,
            namespace: Namespace::Must,
            run: bus_cut,
            ..usual()
        },
        Row {
            number: 87,
            name: "C5: Cluster: MOVED and ASK in circles, MOVED to the dead, a wrong map",
            faults: (8, 30),
            tune: |tune| {
                nodes_of(tune);
                tune.faulted = tune.faulted.max(ms(5000));
            },
            prepare: |world| {
                start(world, 0);
                announce_proxies(world);
            },
            run: astray,
            ..usual()
        },
    ]
}

pub(super) fn nodes_of(tune: &mut Tune) {
    tune.server = node();
    // A command that a slow machine answers late must cost no lease.
    tune.load.lease *= 2;
}

fn node() -> ServerBuilder {
    // A shard without a primary does not stop the others.
    Shards::node().arg("maxclients", "4000").arg("cluster-require-full-coverage", "no")
}

/// Gives the server two more primaries, and each so many replicas: the replicas of the first
/// primary come first.
pub(super) fn start(world: &mut World, replicas: usize) {
    for _ in 1..SHARDS * (1 + replicas) {
        let server = node().start();
        let proxy = Proxy::start(server.port());
        world.more.push((server, proxy));
    }
    let all: Vec<&Server> = world.servers().collect();
    let (primaries, others) = all.split_at(SHARDS);
    let of = |place: usize| others[place * replicas..][..replicas].to_vec();
    shards::join(primaries, &(0..SHARDS).map(of).collect::<Vec<_>>());
    let ports: Vec<u16> = primaries.iter().map(|node| node.port()).collect();
    use_nodes(world, &ports);
}

fn use_nodes(world: &mut World, ports: &[u16]) {
    let nodes: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    world.at(format!("redis+cluster://{}", nodes.join(",")));
}

pub(super) fn server(world: &World, place: usize) -> &Server {
    world.servers().nth(place).expect("a node of this row")
}

/// The shard of a key, where no slot has moved.
pub(super) fn shard_of(key: u64) -> usize {
    shards::place(slot_of_name(&key_name(key)), SHARDS)
}

/// One shard after another fails over, and its former primary becomes a replica.
fn failovers(world: &mut World) {
    let mut failed = Vec::new();
    world.repeat((ms(1000), ms(1500)), |world| {
        let begun = now();
        let shard = usize::try_from(world.random.below(SHARDS as u64)).expect("a small number");
        let (first, second) = (shard, SHARDS + shard);
        let (old, new) =
            if is_primary(server(world, first)) { (first, second) } else { (second, first) };
        let (old, new) = (server(world, old), server(world, new));
        if failed.len() % 2 == 0 {
            old.kill();
            eventually(PATIENCE, || is_primary(new));
            // Without its data.
            old.restart();
        } else {
            old.stop_process();
            eventually(PATIENCE, || is_primary(new));
            thread::sleep(STOPPED);
            old.cont();
        }
        eventually(PATIENCE, || {
            !is_primary(old) && says(new, "state=online") && world.servers().all(shards::is_ok)
        });
        failed.push((shard, begun, now()));
        world.cut_offs.push((begun, now()));
        world.faults += 1;
    });
    judge_locks(world, &failed);
}

fn is_primary(node: &Server) -> bool {
    says(node, "role:master")
}

fn says(node: &Server, what: &str) -> bool {
    node.try_info("replication").is_ok_and(|replication| replication.contains(what))
}

/// `failed`: which shard, when it failed, and when it was whole again. Soon afterwards its locks
/// must be granted again, and meanwhile nothing may happen to those of the others.
fn judge_locks(world: &mut World, failed: &[(usize, u64, u64)]) {
    thread::sleep(GRANTED_WITHIN);
    let (holds, calls) = history::read_all(world.dir());
    let granted_within = |(shard, _, whole): &(usize, u64, u64)| {
        let of_shard = holds.iter().filter(|hold| shard_of(hold.key) == *shard);
        let granted = of_shard.map(|hold| hold.granted).filter(|granted| granted >= whole);
        granted.min().map_or(u64::MAX, |granted| granted - whole)
    };
    let slowest = failed.iter().map(granted_within).max().unwrap_or(u64::MAX) / 1_000_000;
    let longest = failed.iter().map(|(_, from, to)| to - from).max().unwrap_or(0) / 1_000_000;
    world.remarks.push(format!(
        "a shard was whole again within {longest} ms, and granted locks within {slowest} ms of that"
    ));
    if slowest > nanos(GRANTED_WITHIN) / 1_000_000 {
        world.late(format!("no grant for {slowest} ms after a failover"));
    }
    let is_harmed = |record: &&Record| {
        use Outcome::{Lost, Unavailable, Unknown};
        let ended = |(_, from, to): &&(usize, u64, u64)| (*from..*to).contains(&record.ended);
        failed.iter().find(ended).is_some_and(|(shard, ..)| *shard != shard_of(record.key))
            && matches!(record.outcome, Lost | Unknown | Unavailable)
    };
    let harmed = holds.iter().chain(&calls).filter(is_harmed).count();
    if harmed > 0 {
        world.late(format!("{harmed} calls at the other shards failed (R9)"));
    }
}

/// The nodes do not hear each other, and after a while they refuse everybody.
fn bus_cut(world: &mut World) {
    let ports: Vec<_> = world.servers().map(|node| (node.port() + 10_000).to_string()).collect();
    let ports = ports.join(", ");
    world.windows(
        |world| {
            packets::apply(&format!(
                "table inet faults {{\n chain arriving {{ type filter hook input priority 0;\n  \
                 tcp dport {{ {ports} }} counter drop\n  tcp sport {{ {ports} }} counter drop\n \
                 }}\n}}\n"
            ));
            eventually(PATIENCE, || !world.servers().any(shards::is_ok));
            (world.is_outage, world.faults) = (true, world.faults + 1);
        },
        |world| {
            packets::apply("delete table inet faults\n");
            eventually(PATIENCE, || world.servers().all(shards::is_ok));
        },
    );
}

/// Lets the nodes name proxies instead of themselves, to clients and to each other.
fn announce_proxies(world: &mut World) {
    let proxies = proxies(world);
    for (node, port) in world.servers().zip(&proxies) {
        let set = redis::cmd("CONFIG").arg("SET").arg("cluster-announce-port").arg(port).to_owned();
        set.exec(&mut node.connection()).expect("it is a node");
    }
    let names_all = |node: &Server| {
        let map = redis::cmd("CLUSTER").arg("NODES").query::<String>(&mut node.connection());
        map.is_ok_and(|map| proxies.iter().all(|port| map.contains(&format!(":{port}@"))))
    };
    eventually(PATIENCE, || world.servers().all(names_all));
    use_nodes(world, &proxies);
}

/// The port of the proxy in front of each node.
fn proxies(world: &World) -> Vec<u16> {
    links(world).map(Proxy::port).collect()
}

fn links(world: &World) -> impl Iterator<Item = &Proxy> {
    std::iter::once(&world.proxy).chain(world.more.iter().map(|(_, proxy)| proxy))
}

/// In turn: all nodes send everything on to the next one; one sends everything to a dead node; one
/// says that its keys are being moved to another, which sends them back; and the map says that one
/// node has all slots.
fn astray(world: &mut World) {
    let ports = proxies(world);
    world.windows(
        |world| {
            let kind = world.faults % 4;
            for (place, link) in links(world).enumerate() {
                let next = ports[(place + 1) % SHARDS];
                match kind {
                    0 => redirect(world, link, "MOVED", next),
                    1 if place == 1 => redirect(world, link, "MOVED", 1),
                    2 if place == 1 => redirect(world, link, "ASK", next),
                    3 => _ = link.add(wrong_map(ports[2])),
                    _ => {}
                }
            }
            (world.is_outage, world.faults) = (kind == 0, world.faults + 1);
        },
        |world| links(world).for_each(Proxy::clear_rules),
    );
}

/// Answers every acquire, extend and release of the locks by a redirection.
fn redirect(world: &World, link: &Proxy, says: &str, port: u16) {
    for name in (0..world.tune.load.all_keys()).map(key_name) {
        let answer = format!("-{says} {} 127.0.0.1:{port}\r\n", slot_of_name(&name));
        let is_about =
            move |command: &[Vec<u8>]| command.iter().any(|word| word == name.as_bytes());
        link.add(Rule::any(Fault::Answer(answer.into_bytes())).when(is_about));
    }
}

fn wrong_map(port: u16) -> Rule {
    let all = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
    Rule::on("CLUSTER", Fault::Answer(all.into_bytes()))
}
