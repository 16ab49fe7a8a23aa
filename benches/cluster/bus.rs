//! How many packets a hand-off costs between the nodes, by their own count.

use std::thread;
use std::time::Duration;

use distlock::{Client, RedisLock};

use crate::Three;
use crate::progress;
use crate::support::aims::Aims;
use crate::support::args::Args;
use crate::support::clock::now;
use crate::support::contest::hand_overs;
use crate::support::crowd::Hold;
use crate::support::it::Server;
use crate::support::it::shards::Shards;
use crate::support::placement::Place;
use crate::support::table::Table;

const LABEL: &str = "bus packets, distlock";

/// How long each hold lasts: so long that the other client waits by then.
const HOLD: Duration = Duration::from_millis(2);

/// What the nodes have sent each other, and how many messages scripts have published.
#[derive(Clone, Copy)]
struct Counted {
    shard_packets: u64,
    other_packets: u64,
    published: u64,
}

pub fn run(args: &Args, place: Place, three: &Three, aims: &mut Aims) {
    if !args.takes(LABEL) {
        return;
    }
    println!("### Bus packets\n");
    if !three.have_channels() {
        println!("Left out: before Redis 7, nodes have no channels of their own.\n");
        return;
    }
    let mut table = Table::new(&[
        "primaries",
        "replicas of each",
        "hand-offs",
        "`SPUBLISH` each",
        "packets to the shard each",
        "packets to all each",
    ]);
    let times = args.pick(100, 1000);
    let start =
        |primaries, replicas| place.of_server(|| Shards::with(primaries, replicas, Shards::node));
    measure(three, times, &mut table, aims);
    measure(&start(3, 1), times, &mut table, aims);
    measure(&start(6, 0), times, &mut table, aims);
    table.print();
    println!(
        "Two clients pass one lock to and fro. Hand-offs: how often a client got the lock from the \
         other that it was waiting for. Packets: `cluster_stats_messages_publishshard_sent` and \
         `…_publish_sent` of all nodes; each is one message to one other node. What a hand-off \
         costs on the bus is one packet for each replica of the shard. The aim leaves 0.05 for \
         messages that other waits of the same clients cause.\n"
    );
}

/// One cluster.
fn measure(shards: &Shards, times: usize, table: &mut Table, aims: &mut Aims) {
    let (primaries, replicas) = (shards.primaries.len(), shards.replicas[0].len());
    progress!("hand-offs: {primaries} primaries, {replicas} replicas of each");
    let clients = [0; 2].map(|_| Client::cluster(shards.urls()).unwrap());
    let locks = clients.each_ref().map(|client| client.lock("bus"));
    // Opens the inboxes.
    pass(&locks, 5);
    let before = count(shards);
    let passed = pass(&locks, times) as f64;
    let after = count(shards);
    let each = |what: fn(&Counted) -> u64| (what(&after) - what(&before)) as f64 / passed;
    let packets = each(|counted| counted.shard_packets);
    table.row([
        format!("{primaries}"),
        format!("{replicas}"),
        format!("{passed}"),
        format!("{:.3}", each(|counted| counted.published)),
        format!("{packets:.3}"),
        format!("{:.3}", each(|counted| counted.other_packets)),
    ]);
    aims.at_most(
        &format!("bus packets per hand-off: {primaries} primaries, {replicas} replicas of each"),
        packets + each(|counted| counted.other_packets),
        replicas as f64 + 0.05,
    );
}

/// Each client takes the lock so many times, and waits while the other has it. How often it passed
/// to the one that waited.
fn pass(locks: &[RedisLock; 2], times: usize) -> usize {
    let hold = |process, lock: &RedisLock| {
        let lock_called = now();
        lock.lock().unwrap();
        let acquired = now();
        thread::sleep(HOLD);
        let unlock_called = now();
        lock.unlock().unwrap();
        Hold { acquired, unlock_called, lock_called, unlocking: None, process }
    };
    let hold = &hold;
    let mut holds: Vec<Hold> = thread::scope(|scope| {
        let one = |(process, lock)| {
            scope.spawn(move || (0..times).map(|_| hold(process, lock)).collect::<Vec<_>>())
        };
        let all: Vec<_> = locks.iter().enumerate().map(one).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    holds.sort_unstable_by_key(|hold| hold.acquired);
    hand_overs(&holds).count()
}

fn count(shards: &Shards) -> Counted {
    let sum = |of: &dyn Fn(&Server) -> u64| shards.nodes().map(of).sum();
    Counted {
        shard_packets: sum(&|node| sent(node, "publishshard")),
        other_packets: sum(&|node| sent(node, "publish")),
        published: sum(&|node| node.command_count("spublish")),
    }
}

/// How many packets of this kind a node has sent to others. A node does not list what is 0.
fn sent(node: &Server, kind: &str) -> u64 {
    let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut node.connection()).unwrap();
    let name = format!("cluster_stats_messages_{kind}_sent:");
    let value = info.lines().find_map(|line| line.strip_prefix(&name));
    value.map_or(0, |value| value.parse().unwrap())
}
