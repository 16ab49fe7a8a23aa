//! Lock and unlock with nobody in the way: through the cluster, straight at one of its nodes, and
//! on a server that is no node.

use distlock::{Client, RedisLock};

use crate::support::aims::Aims;
use crate::support::args::Args;
use crate::support::clock::cpu;
use crate::support::contender::Raw;
use crate::support::cycles::{self, Row, ratio};
use crate::support::it::Server;
use crate::support::it::shards::Shards;
use crate::support::peers::Peer;
use crate::support::placement::Place;
use crate::support::server::{self, Side};
use crate::support::stats::{in_turn, median};
use crate::support::table::Table;
use crate::url;

const STRAIGHT: &str = "A: cycle, distlock, straight at the node";
const AGAIN: &str = "A': the same again";
const CLUSTER: &str = "cycle, distlock, cluster";
const ONE: &str = "cycle, distlock, a server that is no node";
const RAW: &str = "cycle, raw `SET NX PX`, compare-and-delete, straight at the node";
pub const REDISSON: &str = "cycle, Redisson, cluster";

/// The node that has all names of this section.
const NODE: usize = 1;

pub fn run(args: &Args, place: Place, redisson: Option<&Peer>, aims: &mut Aims) {
    if ![CLUSTER, ONE, RAW, REDISSON].iter().any(|label| args.takes(label)) {
        return;
    }
    println!("### Cycle\n\n{}.\n", place.in_words());
    let shards = place.of_server(|| Shards::start(3));
    let server = server::start(place);
    shards.nodes().for_each(hide_the_cluster);
    let node = &shards.primaries[NODE];
    let straight = Client::open(&of_user(node)).unwrap();
    let cluster = Client::cluster(shards.nodes().map(of_user)).unwrap();
    let one = Client::open(&server.url()).unwrap();
    let name = |begin| shards.name_at(NODE, begin);
    let mut rows = vec![
        Row::lock(STRAIGHT, straight.lock(&name("straight"))),
        Row::lock(CLUSTER, cluster.lock(&name("cluster"))),
        Row::lock(ONE, one.lock(&name("one"))),
        Row::raw(RAW, Raw::new(&of_user(node), &name("raw"), None)),
        Row::lock(AGAIN, straight.lock(&name("again"))),
    ];
    if let Some(peer) = redisson {
        let key = name("redisson");
        rows.push(Row::peer(REDISSON, peer, &url(&shards), &key, args.pick(1500, 5000)));
    }
    rows.retain(|row| row.label == STRAIGHT || args.takes(row.label));
    let (rounds, samples) = args.pick((10, 200), (40, 500));
    cycles::run(&mut rows, rounds, samples);
    let mut sides = [
        Cpu::new(STRAIGHT, straight.lock(&name("straight")), node),
        Cpu::new(CLUSTER, cluster.lock(&name("cluster")), node),
        Cpu::new(ONE, one.lock(&name("one")), &server),
    ];
    let (rounds, cycles) = args.pick((3, 500), (10, 5000));
    for round in 0..rounds {
        in_turn(&mut sides, round).for_each(|side| side.measure(cycles));
    }
    report(&sides, rounds, cycles);
    aims.at_most("cycle: cluster, times straight", ratio(&rows, CLUSTER, STRAIGHT), 1.03);
}

/// `Client::open` asks a server whether it is part of a cluster, and refuses it then. So this
/// section has a user who may not ask.
fn hide_the_cluster(node: &Server) {
    let mut set = redis::cmd("ACL");
    set.arg("SETUSER").arg("bench").arg(&["on", ">bench", "~*", "&*", "+@all", "-cluster|info"]);
    set.exec(&mut node.connection()).unwrap();
}

fn of_user(node: &Server) -> String {
    node.url_with("bench", "bench")
}

/// Who pays for a cycle: the client or the server.
struct Cpu {
    label: &'static str,
    lock: RedisLock,
    side: Side,
    /// CPU per cycle of this process and of the server, in microseconds.
    rounds: Vec<(f64, f64)>,
}

impl Cpu {
    fn new(label: &'static str, lock: RedisLock, server: &Server) -> Self {
        Self { label, lock, side: Side::new(server), rounds: Vec::new() }
    }

    fn measure(&mut self, cycles: u32) {
        let (server, client) = (self.side.counters().cpu_us, cpu());
        for _ in 0..cycles {
            self.lock.lock().unwrap();
            self.lock.unlock().unwrap();
        }
        let client = (cpu() - client) as f64 / 1000.0;
        let server = self.side.counters().cpu_us - server;
        self.rounds.push((client / f64::from(cycles), server / f64::from(cycles)));
    }
}

fn report(all: &[Cpu], rounds: usize, cycles: u32) {
    let mut table = Table::new(&["", "CPU of the client µs", "CPU of the server µs"]);
    for one in all {
        let of = |what: fn(&(f64, f64)) -> f64| median(one.rounds.iter().map(what));
        table.row([
            one.label.to_owned(),
            format!("{:.2}", of(|round| round.0)),
            format!("{:.2}", of(|round| round.1)),
        ]);
    }
    table.print();
    println!("Per cycle: medians of {rounds} rounds of {cycles} cycles.\n");
}
