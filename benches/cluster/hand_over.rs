//! A lock passes from process to process, on one server and in the cluster.

use std::path::Path;

use crate::progress;
use crate::support::aims::Aims;
use crate::support::args::Args;
use crate::support::contest::{Contest, Outcome, label};
use crate::support::it::Server;
use crate::support::it::shards::Shards;
use crate::support::peers::{self, Peer};
use crate::support::placement::Place;
use crate::support::server::{self, Side};
use crate::support::stats::median;
use crate::support::table::{Table, thousands, us};
use crate::{Three, url};

const ONE: &str = "A: hand-over, distlock, one server";
const AGAIN: &str = "A': the same again";
const CLUSTER: &str = "hand-over, distlock, cluster";
pub const REDISSON: &str = "hand-over, Redisson, cluster";

const HOLD_US: u64 = 200;

struct Row {
    label: &'static str,
    peer: Peer,
    /// For the clients.
    url: String,
    /// The node that has the key.
    at: String,
    key: String,
    side: Side,
    rounds: Vec<Outcome>,
}

pub fn run(args: &Args, place: Place, three: &Three, redisson: Option<&Peer>, aims: &mut Aims) {
    if ![CLUSTER, REDISSON].iter().any(|label| args.takes(label)) {
        return;
    }
    println!("### Hand-over\n");
    let server = server::start(place);
    let mut rows = vec![
        Row::one_server(ONE, &server),
        Row::in_cluster(CLUSTER, peers::OURS, three),
        Row::one_server(AGAIN, &server),
    ];
    rows.extend(redisson.map(|&peer| Row::in_cluster(REDISSON, peer, three)));
    rows.retain(|row| row.label == ONE || args.takes(row.label));
    let dir = tempfile::tempdir().unwrap();
    let (rounds, seconds) = args.pick((1, 1), (5, 2));
    for processes in [2, 8] {
        println!("{processes} processes:\n");
        if processes > 2 && args.quick {
            // Eight JVMs need half a minute.
            rows.retain(|row| !row.peer.is_jvm);
        }
        contest(&mut rows, processes, rounds, seconds, dir.path());
        report(&rows);
        judge(aims, &rows, processes);
    }
    println!(
        "Medians of {rounds} rounds of {seconds} s, every contender in turn, with {HOLD_US} µs of \
         work under the lock. Hand-over: from the call of `unlock` to the return of the next \
         process's `lock`, where that was waiting already. GET: every 2 ms from the node that has \
         the lock, over a connection of its own. Requests: what all servers together read from \
         clients per acquisition. JVMs: one round.\n"
    );
}

impl Row {
    fn one_server(label: &'static str, server: &Server) -> Self {
        let (url, side) = (server.url(), Side::new(server));
        let (at, key) = (url.clone(), "ours".to_owned());
        Self { label, peer: peers::OURS, url, at, key, side, rounds: Vec::new() }
    }

    fn in_cluster(label: &'static str, peer: Peer, shards: &Shards) -> Self {
        let node = 1;
        Self {
            label,
            peer,
            url: url(shards),
            at: shards.primaries[node].url(),
            key: shards.name_at(node, peer.driver),
            side: Side::of(shards.nodes()),
            rounds: Vec::new(),
        }
    }

    fn median(&self, what: fn(&Outcome) -> f64) -> f64 {
        median(self.rounds.iter().map(what))
    }
}

fn contest(rows: &mut [Row], processes: usize, rounds: usize, seconds: u64, dir: &Path) {
    rows.iter_mut().for_each(|row| row.rounds.clear());
    for round in 1..=rounds {
        // A JVM needs ten seconds to be ready and runs for two: so only one round.
        for row in rows.iter_mut().filter(|row| round == 1 || !row.peer.is_jvm) {
            progress!("{processes} processes, round {round} of {rounds}, {}", row.label);
            let (url, at) = (&row.url, &row.at);
            let contest = Contest { url, at, processes, seconds, hold_us: HOLD_US, dir };
            row.rounds.push(contest.run(&row.peer, &mut row.side, &row.key));
        }
    }
}

/// p50 of a hand-over, in round trips of the same run.
fn trips(round: &Outcome) -> f64 {
    round.hand_over_p50 as f64 / round.round_trip_p50 as f64
}

fn report(rows: &[Row]) {
    let mut table = Table::new(&[
        "",
        "per second",
        "hand-over p50 µs",
        "p99 µs",
        "GET p50 µs",
        "p50 / GET",
        "longest wait ms",
        "requests each",
    ]);
    for row in rows {
        let longest = row.rounds.iter().map(|round| round.longest_wait).max().unwrap_or(0);
        table.row([
            label(row.label, &row.rounds),
            thousands(row.median(|round| round.rate)),
            us(row.median(|round| round.hand_over_p50 as f64)),
            us(row.median(|round| round.hand_over_p99 as f64)),
            us(row.median(|round| round.round_trip_p50 as f64)),
            format!("{:.2}", row.median(trips)),
            format!("{:.1}", longest as f64 / 1e6),
            format!("{:.3}", row.median(|round| round.requests)),
        ]);
    }
    table.print();
}

fn judge(aims: &mut Aims, rows: &[Row], processes: usize) {
    let one = &rows[0];
    let Some(cluster) = rows.iter().find(|row| row.label == CLUSTER) else { return };
    let ratio = |what: fn(&Outcome) -> f64| {
        let pairs = cluster.rounds.iter().zip(&one.rounds);
        median(pairs.map(|(cluster, one)| what(cluster) / what(one)))
    };
    aims.at_most(
        &format!("hand-over, {processes} processes: p50, cluster / one server"),
        // In time: the probe's GET finds a core awake now and then, and varies by half between
        // rounds in which a hand-over does not.
        ratio(|round| round.hand_over_p50 as f64),
        1.05,
    );
    aims.at_most(
        &format!("hand-over, {processes} processes: requests each, cluster / one server"),
        ratio(|round| round.requests),
        1.05,
    );
}
