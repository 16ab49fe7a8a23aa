//! Many processes, one thread each, on one lock with 200 µs of work under it: how fast the lock
//! passes from one to the next, and to which one.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use std::time::Duration;

mod support;

use support::aims::Aims;
use support::args::Args;
use support::contest::{Contest, Outcome, label};
use support::it::{Proxy, Server};
use support::peers::{self, Peer};
use support::placement::Place;
use support::plot::{self, Line};
use support::server::{self, Side};
use support::stats::median;
use support::table::{Table, thousands, us};

const HOLD_US: u64 = 200;
/// What the proxy adds to a round trip, half of it each way.
const DELAY: Duration = Duration::from_millis(4);

struct Row {
    peer: Peer,
    rounds: Vec<Outcome>,
}

fn main() {
    let args = Args::parse();
    let place =
        args.begin("processes: one lock, many processes, 200 µs of work under it", Place::Free);
    let server = server::start(place);
    let mut all = vec![peers::OURS, peers::RAW_1MS];
    if !args.alone {
        let theirs = [
            peers::RSLOCK,
            peers::REDSYNC,
            peers::REDIS_PY,
            peers::JEDIS,
            peers::JEDIS_1MS,
            peers::REDISSON,
        ];
        all.extend(peers::built(&theirs, &server.url()));
    }
    all.push(peers::OURS_AGAIN);
    all.retain(|peer| args.takes(peer.label));
    let mut aims = Aims::new();
    let mut lines: Vec<Line> =
        all.iter().map(|peer| Line { name: peer.label.to_owned(), points: Vec::new() }).collect();
    let dir = tempfile::tempdir().unwrap();
    let (rounds, seconds) = args.pick((1, 1), (2, 2));
    for processes in [2, 8, 32] {
        println!("### {processes} processes, loopback\n");
        let rows = contest(&all, &server, &server.url(), processes, rounds, seconds, dir.path());
        judge_loopback(&mut aims, &rows, processes);
        for row in &rows {
            let line = lines.iter_mut().find(|line| line.name == row.peer.label);
            line.unwrap()
                .points
                .push((processes as f64, row.median(|round| round.hand_over_p50 as f64) / 1000.0));
        }
    }
    let proxy = place.of_server(|| Proxy::start(server.port()));
    proxy.set_delay(DELAY / 2, DELAY / 2);
    for processes in [2, 8, 32] {
        println!("### {processes} processes, {} ms of added delay\n", DELAY.as_millis());
        let rows = contest(&all, &server, &proxy.url(), processes, rounds, seconds, dir.path());
        judge_delayed(&mut aims, &rows, processes);
    }
    println!(
        "Medians of {rounds} rounds of {seconds} s, every contender in turn; the longest wait is \
         the longest of all. Hand-over: from the call of `unlock` to the return of \
         the next process's `lock`, where that was waiting already. Two round trips from the same \
         run, under the same load: a GET every 2 ms over a connection of its own, which \
         also waits for a core, and the call of `unlock` itself, which other libraries' drivers do \
         not tell. Barged: taken by the process that had just released. Requests: what the server \
         read from clients per acquisition. JVMs: \
         no more than eight, for want of cores, and one round.\n"
    );
    aims.print();
    println!("![hand-over by processes](plots/processes.svg)\n");
    // A quick run also draws, but does not replace the plot of the last full run.
    let scratch = tempfile::tempdir().unwrap();
    let plots = args.pick(scratch.path().to_owned(), plot::kept());
    plot::lines(
        &plots,
        "processes",
        "From unlock to the next process's lock, p50, on loopback",
        "processes",
        "µs",
        &lines,
    );
}

fn ours(rows: &[Row]) -> Option<&Row> {
    rows.iter().find(|row| row.peer.label == peers::OURS.label)
}

/// p50 and p99 of a hand-off, in round trips of the same run.
fn trips(row: &Row) -> (f64, f64) {
    let trip = row.median(|round| round.round_trip_p50 as f64);
    (
        row.median(|round| round.hand_over_p50 as f64) / trip,
        row.median(|round| round.hand_over_p99 as f64) / trip,
    )
}

fn judge_loopback(aims: &mut Aims, rows: &[Row], processes: usize) {
    let Some(own) = ours(rows) else { return };
    let theirs = || rows.iter().filter(|row| !row.peer.is_ours());
    let rate = |row: &Row| row.median(|round| round.rate);
    if processes == 8 {
        let redisson = rows
            .iter()
            .find(|row| row.peer.driver == peers::REDISSON.driver)
            .map_or(f64::NAN, rate);
        aims.at_least("8 processes: times Redisson's rate", rate(own) / redisson, 6.0);
    }
    if processes != 32 {
        return;
    }
    let (p50, p99) = trips(own);
    let shortest = theirs().map(Row::longest_wait).reduce(f64::min).unwrap_or(f64::NAN);
    let fastest = theirs().map(rate).reduce(f64::max).unwrap_or(f64::NAN);
    aims.at_most("32, loopback: hand-over p50, round trips", p50, 2.0);
    aims.at_most("32, loopback: hand-over p99, round trips", p99, 5.0);
    aims.at_most("32, loopback: requests per acquisition", own.median(|round| round.requests), 2.1);
    aims.at_least("32, loopback: Jain's index", own.median(|round| round.jain), 0.999);
    aims.at_least(
        "32, loopback: the longest wait, how many times shorter than the shortest of a polling \
         peer",
        shortest / own.longest_wait(),
        5.0,
    );
    aims.at_least("32, loopback: times the fastest peer's rate", rate(own) / fastest, 1.0);
}

fn judge_delayed(aims: &mut Aims, rows: &[Row], processes: usize) {
    let Some(own) = ours(rows).filter(|_| processes == 32) else { return };
    let (p50, p99) = trips(own);
    aims.at_most("32, 4 ms of delay: hand-over p50, round trips", p50, 1.05);
    aims.at_most("32, 4 ms of delay: hand-over p99, round trips", p99, 1.6);
    aims.at_most(
        "32, 4 ms of delay: requests per acquisition",
        own.median(|round| round.requests),
        2.1,
    );
    aims.at_least("32, 4 ms of delay: Jain's index", own.median(|round| round.jain), 0.999);
}

impl Row {
    fn median(&self, what: impl Fn(&Outcome) -> f64) -> f64 {
        median(self.rounds.iter().map(what))
    }

    /// In nanoseconds, of all rounds.
    fn longest_wait(&self) -> f64 {
        self.rounds.iter().map(|round| round.longest_wait as f64).fold(0.0, f64::max)
    }
}

fn contest(
    all: &[Peer],
    server: &Server,
    url: &str,
    processes: usize,
    rounds: usize,
    seconds: u64,
    dir: &std::path::Path,
) -> Vec<Row> {
    let mut side = Side::new(server);
    let contest = Contest { url, at: url, processes, seconds, hold_us: HOLD_US, dir };
    let fits = |peer: &&Peer| !peer.is_jvm || processes <= 8;
    let mut rows: Vec<Row> =
        all.iter().filter(fits).map(|&peer| Row { peer, rounds: Vec::new() }).collect();
    for round in 1..=rounds {
        // A JVM needs ten seconds to be ready and runs for two: so only one round.
        for row in rows.iter_mut().filter(|row| round == 1 || !row.peer.is_jvm) {
            progress!("{processes} processes, round {round} of {rounds}, {}", row.peer.label);
            row.rounds.push(contest.run(&row.peer, &mut side, row.peer.driver));
        }
    }
    let mut table = Table::new(&[
        "",
        "per second",
        "hand-over p50 µs",
        "p99 µs",
        "GET p50 µs",
        "unlock p50 µs",
        "p50 / GET",
        "p99 / GET",
        "p50 / unlock",
        "barged",
        "longest wait ms",
        "Jain",
        "requests each",
    ]);
    for row in &rows {
        let of = |what: fn(&Outcome) -> f64| row.median(what);
        let (p50, p99) =
            (of(|round| round.hand_over_p50 as f64), of(|round| round.hand_over_p99 as f64));
        let (trip, unlock) = (
            of(|round| round.round_trip_p50 as f64),
            of(|round| round.unlock_p50.map_or(f64::NAN, |took| took as f64)),
        );
        table.row([
            label(row.peer.label, &row.rounds),
            thousands(of(|round| round.rate)),
            us(p50),
            us(p99),
            us(trip),
            us(unlock),
            format!("{:.2}", p50 / trip),
            format!("{:.2}", p99 / trip),
            if unlock.is_nan() { "–".to_owned() } else { format!("{:.2}", p50 / unlock) },
            format!("{:.0} %", 100.0 * of(|round| round.barged)),
            format!("{:.1}", row.longest_wait() / 1e6),
            format!("{:.4}", of(|round| round.jain)),
            format!("{:.2}", of(|round| round.requests)),
        ]);
    }
    table.print();
    rows
}
