//! What a lock on a majority of five nodes costs, in round trips to one of them: with all nodes
//! healthy, one silent, and two dead.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use std::time::Duration;

use distlock::Client;

mod support;

use support::aims::Aims;
use support::args::Args;
use support::clock::now;
use support::it::{Proxy, Server};
use support::placement::Place;
use support::server;
use support::stats::{median, percentile};
use support::table::{Table, us};

const NODES: usize = 5;
/// How much each node's proxy adds to a round trip, half of it each way.
const DELAY: Duration = Duration::from_millis(5);

/// Five nodes, each behind a slow line.
struct Nodes {
    servers: Vec<Server>,
    proxies: Vec<Proxy>,
}

/// A contender and its times.
struct Row {
    label: &'static str,
    measure: fn(&Nodes, u64) -> Took,
    rounds: Vec<Took>,
}

/// In nanoseconds.
struct Took {
    /// The first call, which opens the connections.
    first: f64,
    /// The first call after the change to the nodes.
    after: f64,
    p50: f64,
    p99: f64,
    unlock_p50: f64,
}

fn main() {
    let args = Args::parse();
    let place = args.begin("redlock: five nodes, 5 ms of added delay to each", Place::Free);
    let nodes = Nodes::start(place);
    let row = |label, measure| Row { label, measure, rounds: Vec::new() };
    let mut rows = [
        row("A: GET from one node", round_trip),
        row("one node, `lock`", one_node),
        row("redlock, all well", |nodes, n| redlock(nodes, n, |_| ())),
        row("redlock, one silent from the start", |nodes, n| {
            nodes.servers[1].stop_process();
            redlock(nodes, n, |_| ())
        }),
        row("redlock, one falls silent", |nodes, n| {
            redlock(nodes, n, |nodes| nodes.servers[1].stop_process())
        }),
        row("redlock, two dead from the start", |nodes, n| {
            nodes.kill_two();
            redlock(nodes, n, |_| ())
        }),
        row("redlock, two die", |nodes, n| redlock(nodes, n, Nodes::kill_two)),
        row("A': the same again", round_trip),
    ];
    let (rounds, samples) = args.pick((1, 15), (5, 50));
    for round in 1..=rounds {
        for row in &mut rows {
            progress!("round {round} of {rounds}, {}", row.label);
            let took = (row.measure)(&nodes, samples);
            row.rounds.push(took);
            nodes.mend();
        }
    }
    report(&rows, rounds, samples);
}

impl Nodes {
    fn start(place: Place) -> Self {
        let servers: Vec<Server> = (0..NODES).map(|_| server::start(place)).collect();
        let proxies: Vec<Proxy> =
            servers.iter().map(|server| place.of_server(|| Proxy::start(server.port()))).collect();
        proxies.iter().for_each(|proxy| proxy.set_delay(DELAY / 2, DELAY / 2));
        Self { servers, proxies }
    }

    fn kill_two(&self) {
        self.servers[1].kill();
        self.servers[3].kill();
    }

    /// Makes all nodes healthy and empty. A restart begins with a kill, which also ends a frozen
    /// server.
    fn mend(&self) {
        for proxy in &self.proxies {
            proxy.cut_all();
        }
        self.servers.iter().for_each(Server::restart);
    }
}

fn round_trip(nodes: &Nodes, samples: u64) -> Took {
    let mut connection =
        redis::Client::open(nodes.proxies[0].url()).unwrap().get_connection().unwrap();
    let mut get = || {
        let start = now();
        redis::cmd("GET").arg("round-trip").exec(&mut connection).unwrap();
        now() - start
    };
    let first = get() as f64;
    let mut all: Vec<u64> = (0..samples).map(|_| get()).collect();
    Took {
        first,
        after: f64::NAN,
        p50: percentile(&mut all, 0.5) as f64,
        p99: percentile(&mut all, 0.99) as f64,
        unlock_p50: f64::NAN,
    }
}

fn one_node(nodes: &Nodes, samples: u64) -> Took {
    locks(&Client::open(&nodes.proxies[0].url()).unwrap(), samples, || ())
}

/// A majority; `then` is applied to the nodes once the client is connected to all of them.
fn redlock(nodes: &Nodes, samples: u64, then: fn(&Nodes)) -> Took {
    let client = Client::redlock(nodes.proxies.iter().map(Proxy::url)).unwrap();
    locks(&client, samples, || then(nodes))
}

fn locks(client: &Client, samples: u64, then: impl FnOnce()) -> Took {
    let lock = client.lock("redlock");
    let cycle = || {
        let start = now();
        lock.lock().unwrap();
        let locked = now();
        lock.unlock().unwrap();
        (locked - start, now() - locked)
    };
    let opened = cycle().0;
    then();
    let after = cycle().0;
    let (mut locking, mut unlocking): (Vec<u64>, Vec<u64>) = (0..samples).map(|_| cycle()).unzip();
    Took {
        first: opened as f64,
        after: after as f64,
        p50: percentile(&mut locking, 0.5) as f64,
        p99: percentile(&mut locking, 0.99) as f64,
        unlock_p50: percentile(&mut unlocking, 0.5) as f64,
    }
}

fn report(rows: &[Row], rounds: u64, samples: u64) {
    let mut table = Table::new(&[
        "",
        "p50 µs",
        "p99 µs",
        "p50",
        "first call",
        "call after the failure",
        "unlock p50",
    ]);
    for row in rows {
        let of = |what: fn(&Took) -> f64| median(row.rounds.iter().map(what));
        let ratio = |what: fn(&Took) -> f64| {
            let pairs = row.rounds.iter().zip(&rows[0].rounds);
            let ratio = median(pairs.map(|(took, trip)| what(took) / trip.p50));
            if ratio.is_nan() { "–".to_owned() } else { format!("{ratio:.2}") }
        };
        table.row([
            row.label.to_owned(),
            us(of(|took| took.p50)),
            us(of(|took| took.p99)),
            ratio(|took| took.p50),
            ratio(|took| took.first),
            ratio(|took| took.after),
            ratio(|took| took.unlock_p50),
        ]);
    }
    table.print();
    println!(
        "{rounds} rounds, in each {samples} locks of every contender in turn. What has no unit is \
         in round trips: p50 of that round's A. The first call also opens \
         the connections, and says on each who it is; the call after the failure is the first of a \
         connected client whose nodes have just fallen silent or died \
         (where they have not, it is simply the second). Neither is in the percentiles.\n"
    );
    aims(rows);
}

fn aims(rows: &[Row]) {
    let trips = |label: &str, what: fn(&Took) -> f64| {
        let row = rows.iter().find(|row| row.label == label);
        row.map_or(f64::NAN, |row| {
            median(row.rounds.iter().zip(&rows[0].rounds).map(|(took, trip)| what(took) / trip.p50))
        })
    };
    let mut aims = Aims::new();
    for label in [
        "redlock, all well",
        "redlock, one silent from the start",
        "redlock, one falls silent",
        "redlock, two dead from the start",
        "redlock, two die",
    ] {
        aims.at_most(&format!("{label}: p50, round trips"), trips(label, |took| took.p50), 1.15);
        if label.ends_with("silent") || label.ends_with("die") {
            aims.at_most(
                &format!("{label}: its first call, round trips"),
                trips(label, |took| took.after),
                1.15,
            );
        }
    }
    aims.print();
}
