//! One lock and the threads of one process: how often and how evenly they get it, and how long the
//! unluckiest waits.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use std::thread;
use std::time::Duration;

mod support;

use support::aims::Aims;
use support::args::Args;
use support::peers::{self, Driver, Peer};
use support::placement::Place;
use support::plot::{self, Line};
use support::server::{self, Side};
use support::stats::{jain, median};
use support::table::{Table, thousands};

/// One contender.
struct Row {
    peer: Peer,
    driver: Driver,
    rounds: Vec<Round>,
}

struct Round {
    rate: f64,
    least: f64,
    most: f64,
    jain: f64,
    longest_ms: f64,
    requests: f64,
}

fn main() {
    let args = Args::parse();
    let place = args
        .begin("threads: one lock, the threads of one process, nothing to do under it", Place::One);
    let server = server::start(place);
    let url = server.url();
    let mut side = Side::new(&server);
    let mut all = vec![peers::OURS, peers::OURS_APART, peers::OURS_READ, peers::RAW_1MS];
    if !args.alone {
        all.extend(peers::built(
            &[
                peers::REDISSON,
                peers::REDISSON_READ,
                peers::JEDIS,
                peers::JEDIS_1MS,
                peers::RSLOCK,
                peers::REDSYNC,
                peers::REDIS_PY,
            ],
            &url,
        ));
    }
    all.push(peers::OURS_AGAIN);
    all.retain(|peer| args.takes(peer.label));
    let (rounds, seconds) = args.pick((1, 1), (2, 3));
    let alone = single(&mut side, &peers::OURS, &url, seconds);
    let mut lines: Vec<Line> =
        all.iter().map(|peer| Line { name: peer.label.to_owned(), points: Vec::new() }).collect();
    let mut aims = Aims::new();
    for threads in [2, 8, 32] {
        let mut rows: Vec<Row> = all
            .iter()
            .map(|&peer| Row { peer, driver: peer.start(&url).unwrap(), rounds: Vec::new() })
            .collect();
        for row in rows.iter_mut().filter(|row| row.peer.is_jvm) {
            progress!("{threads} threads, warming up {}", row.peer.label);
            row.driver.ask(&format!("warmup {}", args.pick(1000, 3000)));
            row.driver.ask(&format!("threads warm {threads} 1"));
        }
        for round in 1..=rounds {
            for row in &mut rows {
                progress!("{threads} threads, round {round} of {rounds}, {}", row.peer.label);
                row.driver.ask("warmup 200");
                row.measure(&mut side, threads, seconds);
            }
        }
        report(&rows, threads, alone);
        judge(&mut aims, &rows, threads, alone);
        for (line, row) in lines.iter_mut().zip(&rows) {
            line.points.push((threads as f64, row.median(|round| round.rate)));
        }
    }
    println!(
        "Medians of {rounds} rounds of {seconds} s, every contender in turn; the longest wait is \
         the longest of all. Least and most: a thread's share, where an even \
         one is 1. Requests: what the server read from clients per acquisition. One thread of ours \
         alone: {} per second.\n",
        thousands(alone)
    );
    aims.print();
    println!("![acquisitions per second by threads](plots/threads.svg)\n");
    // A quick run also draws, but does not replace the plot of the last full run.
    let scratch = tempfile::tempdir().unwrap();
    plot::lines(
        &args.pick(scratch.path().to_owned(), plot::kept()),
        "threads",
        "One lock, the threads of one process",
        "threads",
        "acquisitions per second",
        &lines,
    );
}

fn judge(aims: &mut Aims, rows: &[Row], threads: u64, alone: f64) {
    let rate = |row: &Row| row.median(|round| round.rate);
    let of = |label: &str| rows.iter().find(|row| row.peer.label == label).map_or(f64::NAN, rate);
    let ours = of(peers::OURS.label);
    let Some(own) = rows.iter().find(|row| row.peer.label == peers::OURS.label) else { return };
    if threads == 8 {
        let theirs = rows.iter().filter(|row| !row.peer.is_ours() && !row.peer.reads()).map(rate);
        aims.at_least("8 threads: times Redisson's rate", ours / of(peers::REDISSON.label), 40.0);
        aims.at_least(
            "8 threads: times the fastest peer's rate",
            ours / theirs.reduce(f64::max).unwrap_or(f64::NAN),
            4.0,
        );
        aims.at_least("8 threads: times one thread of ours", ours / alone, 5.0);
        aims.at_least(
            "8 threads that read: times Redisson's rate",
            of(peers::OURS_READ.label) / of(peers::REDISSON_READ.label),
            20.0,
        );
        let reading = rows.iter().find(|row| row.peer.label == peers::OURS_READ.label);
        aims.at_least(
            "8 threads that read: reads per round trip",
            reading.map_or(f64::NAN, |row| 1.0 / row.median(|round| round.requests)),
            6.0,
        );
    }
    aims.at_least(
        &format!("{threads} threads: the least share, of an even one"),
        own.median(|round| round.least),
        0.95,
    );
    aims.at_most(
        &format!("{threads} threads: the largest share, of an even one"),
        own.median(|round| round.most),
        1.05,
    );
}

/// One thread's rate.
fn single(side: &mut Side, peer: &Peer, url: &str, seconds: u64) -> f64 {
    let mut row = Row { peer: *peer, driver: peer.start(url).unwrap(), rounds: Vec::new() };
    row.measure(side, 1, seconds);
    row.rounds[0].rate
}

impl Row {
    fn measure(&mut self, side: &mut Side, threads: u64, seconds: u64) {
        let key = format!("{}:{threads}", self.peer.driver);
        self.driver.tell(&format!("threads {key} {threads} {seconds}"));
        // In the middle of the run, when every thread is working.
        thread::sleep(Duration::from_millis(400));
        let before = side.counters();
        let middle = Duration::from_millis(seconds * 1000 - 400);
        thread::sleep(middle);
        let reads = side.counters().reads_since(&before) as f64 / middle.as_secs_f64();
        let answer = self.driver.answer();
        let shares = &answer[4..];
        let rate = answer[0] as f64 / seconds as f64;
        let even = answer[0] as f64 / threads as f64;
        self.rounds.push(Round {
            rate,
            least: answer[1] as f64 / even,
            most: answer[2] as f64 / even,
            jain: jain(shares),
            longest_ms: answer[3] as f64 / 1000.0,
            requests: reads / rate,
        });
    }

    fn median(&self, what: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(what))
    }
}

fn report(rows: &[Row], threads: u64, alone: f64) {
    println!("### {threads} threads\n");
    let ours = rows.first().map_or(f64::NAN, |row| row.median(|round| round.rate));
    let mut table = Table::new(&[
        "",
        "per second",
        "ours is … times",
        "least",
        "most",
        "Jain",
        "longest wait ms",
        "requests each",
    ]);
    for row in rows {
        let rate = row.median(|round| round.rate);
        table.row([
            row.peer.label.to_owned(),
            thousands(rate),
            format!("{:.2}", ours / rate),
            format!("{:.2}", row.median(|round| round.least)),
            format!("{:.2}", row.median(|round| round.most)),
            format!("{:.4}", row.median(|round| round.jain)),
            format!("{:.1}", row.rounds.iter().map(|round| round.longest_ms).fold(0.0, f64::max)),
            format!("{:.2}", row.median(|round| round.requests)),
        ]);
    }
    table.print();
    println!("Ours with {threads} threads: {:.1} times one thread of ours.\n", ours / alone);
}
