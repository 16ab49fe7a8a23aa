//! What an uncontended lock and unlock costs, compared with the two bare commands that it needs at
//! least, and with other libraries.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use std::hint::black_box;

use distlock::{Client, LockOptions};

mod support;

use support::aims::Aims;
use support::args::Args;
use support::clock::now;
use support::contender::{Contender, Raw};
use support::peers::{self, Driver};
use support::placement::Place;
use support::server::{self, Side};
use support::stats::{in_turn, median, percentile};
use support::table::{Table, us};

/// Re-entries are too short to be timed one by one.
const REENTRIES: u64 = 1000;

/// One row of the table.
struct Row {
    label: String,
    run: Run,
    /// p50 and p99 of each round, in nanoseconds.
    rounds: Vec<(f64, f64)>,
    reads: f64,
}

enum Run {
    /// In this process: one call is one sample, of this many cycles.
    Here(Box<dyn FnMut()>, u64),
    There {
        driver: Driver,
        key: String,
    },
}

impl Row {
    fn here(label: &str, cycle: impl FnMut() + 'static) -> Self {
        Self::new(label, Run::Here(Box::new(cycle), 1))
    }

    fn new(label: &str, run: Run) -> Self {
        Self { label: label.to_owned(), run, rounds: Vec::new(), reads: 0.0 }
    }

    /// `n` samples: p50 and p99.
    fn measure(&mut self, n: u64) -> (f64, f64) {
        match &mut self.run {
            Run::Here(cycle, each) => {
                // The last contender has left its state in caches and in the branch predictor.
                (0..n / 10).for_each(|_| cycle());
                let mut before = now();
                let mut samples = Vec::with_capacity(usize::try_from(n).unwrap());
                for _ in 0..n {
                    cycle();
                    let after = now();
                    samples.push(after - before);
                    before = after;
                }
                let each = *each as f64;
                (
                    percentile(&mut samples, 0.50) as f64 / each,
                    percentile(&mut samples, 0.99) as f64 / each,
                )
            }
            Run::There { driver, key } => {
                let answer = driver.ask(&format!("bench {key} {n}"));
                (answer[0] as f64, answer[1] as f64)
            }
        }
    }

    /// How often the server reads from the client per cycle.
    fn count(&mut self, side: &mut Side) {
        const N: u64 = 200;
        if let Run::There { driver, .. } = &mut self.run {
            driver.ask("warmup 0");
        }
        let before = side.counters();
        let cycles = match &mut self.run {
            Run::Here(cycle, each) => {
                (0..N).for_each(|_| cycle());
                N * *each
            }
            Run::There { driver, key } => {
                driver.ask(&format!("bench {key} {N}"));
                N
            }
        };
        self.reads = side.counters().reads_since(&before) as f64 / cycles as f64;
    }
}

fn main() {
    let args = Args::parse();
    let place = args.begin("lock_cycle: lock and unlock, with nobody in the way", Place::One);
    let server = server::start(place);
    let mut rows = ours(&server.url());
    if !args.alone {
        rows.extend(theirs(&server.url(), args.pick(1500, 5000)));
    }
    let second = rows.remove(1);
    rows.push(second);
    // A always runs: the others are compared with it.
    rows.retain(|row| row.label.starts_with("A:") || args.takes(&row.label));

    let (rounds, samples) = args.pick((10, 200), (40, 500));
    for round in 0..rounds {
        progress!("round {} of {rounds}", round + 1);
        for row in in_turn(&mut rows, round) {
            let measured = row.measure(samples);
            row.rounds.push(measured);
        }
    }
    let mut side = Side::new(&server);
    rows.iter_mut().for_each(|row| row.count(&mut side));
    report(&rows, rounds, samples);
}

/// Everything in this process: A, A' and ours.
fn ours(url: &str) -> Vec<Row> {
    let raw = |key: &str| {
        let mut raw = Raw::new(url, key, None);
        move || {
            raw.lock();
            raw.unlock();
        }
    };
    let client = Client::open(url).unwrap();
    let (plain, again) = (client.lock("ours"), client.lock("ours:again"));
    let (guarded, claimed) = (client.lock("ours:guarded"), client.lock("ours:claimed"));
    let fenced = client.lock_with("ours:fenced", LockOptions::new().fenced()).unwrap();
    let permits = client.semaphore("ours:permits", 10);
    // Beside a thousand others.
    let crowded = client.semaphore("ours:crowded", 2000);
    let others = crowded.acquire_many(1000).unwrap();
    let catalogue = client.rw_lock("ours:catalogue");
    // Each with a lease of its own.
    let alone = LockOptions::new().local_hand_offs(0);
    let library = client.rw_lock_with("ours:library", alone).unwrap();
    let readers: Vec<_> = (0..1000).map(|_| library.read_lock().claim().unwrap()).collect();
    again.lock().unwrap();
    let again = move || {
        for _ in 0..REENTRIES {
            black_box(&again).lock().unwrap();
            black_box(&again).unlock().unwrap();
        }
    };
    vec![
        Row::here("A: raw `SET NX PX`, compare-and-delete", raw("raw:a")),
        Row::here("A': the same again", raw("raw:b")),
        Row::here("distlock `lock`, `unlock`", move || {
            plain.lock().unwrap();
            plain.unlock().unwrap();
        }),
        Row::here("distlock, fenced", move || {
            fenced.lock().unwrap();
            fenced.unlock().unwrap();
        }),
        Row::here("distlock `guard`", move || drop(guarded.guard().unwrap())),
        Row::here("distlock `claim`", move || drop(claimed.claim().unwrap())),
        Row::here("distlock permit", move || drop(permits.acquire().unwrap())),
        Row::here("distlock permit beside 1,000", move || {
            black_box(&others);
            drop(crowded.acquire().unwrap());
        }),
        Row::here("distlock `read`", move || drop(catalogue.read().unwrap())),
        Row::here("distlock `read` beside 1,000", move || {
            black_box(&readers);
            drop(library.read().unwrap());
        }),
        Row::new("distlock, re-entrant", Run::Here(Box::new(again), REENTRIES)),
    ]
}

/// Each in a process of its own, warmed up.
fn theirs(url: &str, jvm_warmup: u64) -> Vec<Row> {
    let all = [
        peers::JEDIS,
        peers::REDISSON,
        peers::RSLOCK,
        peers::REDSYNC,
        peers::REDIS_PY,
        peers::REDLOCK,
    ];
    let mut rows = Vec::new();
    let mut add = |label: &str, mut driver: Driver, key: String, warmup: u64| {
        progress!("warming up {label}");
        driver.ask(&format!("warmup {warmup}"));
        driver.ask(&format!("bench {key} 100"));
        driver.ask("warmup 20");
        rows.push(Row::new(label, Run::There { driver, key }));
    };
    for peer in peers::built(&all, url) {
        let warmup = if peer.is_jvm { jvm_warmup } else { 300 };
        let label = peer.label.split(',').next().unwrap();
        add(label, peer.start(url).unwrap(), format!("{}:cycle", peer.driver), warmup);
        if peer.driver == "redisson" {
            let mut driver = peer.start(url).unwrap();
            driver.ask("lock redisson:again 600000");
            add("Redisson, re-entrant", driver, "redisson:again".to_owned(), warmup);
        }
    }
    rows
}

fn report(rows: &[Row], rounds: usize, samples: u64) {
    let raw = &rows[0].rounds;
    let mut table = Table::new(&[
        "",
        "p50 µs",
        "p99 µs",
        "/ raw",
        "over raw µs",
        "p50 of the rounds µs",
        "requests",
    ]);
    for row in rows {
        let p50 = || row.rounds.iter().map(|round| round.0);
        let pairs = || row.rounds.iter().zip(raw);
        let (least, most) = (p50().fold(f64::INFINITY, f64::min), p50().fold(0.0, f64::max));
        table.row([
            row.label.clone(),
            us(median(p50())),
            us(median(row.rounds.iter().map(|round| round.1))),
            format!("{:.3}", median(pairs().map(|(own, raw)| own.0 / raw.0))),
            us(median(pairs().map(|(own, raw)| own.0 - raw.0))),
            format!("{} – {}", us(least), us(most)),
            format!("{:.2}", row.reads),
        ]);
    }
    table.print();
    println!(
        "{rounds} rounds, in each {samples} cycles of every contender in turn. p50 and p99 are \
         medians over the rounds of that round's; the ratio and what comes on \
         top of raw are medians over the rounds of the comparison with that round's A. A' shows \
         the noise. Requests: what the server read from the client per cycle.\n"
    );
    aims(rows);
}

fn aims(rows: &[Row]) {
    let p50 = |row: &Row| median(row.rounds.iter().map(|round| round.0));
    let row = |label: &str| rows.iter().find(|row| row.label == label);
    let over = |label: &str, other: &str| match (row(label), row(other)) {
        (Some(row), Some(other)) => {
            median(row.rounds.iter().zip(&other.rounds).map(|(own, other)| own.0 / other.0))
        }
        _ => f64::NAN,
    };
    let over_raw = |label: &str| over(label, &rows[0].label);
    let of = |label: &str| row(label).map_or(f64::NAN, p50);
    let peers = rows.iter().filter(|row| matches!(row.run, Run::There { .. })).map(p50);
    let fastest = peers.reduce(f64::min).unwrap_or(f64::NAN);
    let mut aims = Aims::new();
    aims.at_most("plain, times the raw pair", over_raw("distlock `lock`, `unlock`"), 1.03);
    aims.at_most("fenced, times the raw pair", over_raw("distlock, fenced"), 1.10);
    aims.at_most("re-entrant, ns", of("distlock, re-entrant"), 60.0);
    aims.at_most(
        "a claim, times `lock` and `unlock`",
        over("distlock `claim`", "distlock `lock`, `unlock`"),
        1.01,
    );
    aims.at_most("a permit, times the raw pair", over_raw("distlock permit"), 1.30);
    aims.at_most(
        "a permit beside 1,000, times one alone",
        over("distlock permit beside 1,000", "distlock permit"),
        1.03,
    );
    aims.at_most("a read, times the raw pair", over_raw("distlock `read`"), 1.30);
    aims.at_most(
        "a read beside 1,000, times one alone",
        over("distlock `read` beside 1,000", "distlock `read`"),
        1.03,
    );
    aims.at_most("plain, times the fastest peer", of("distlock `lock`, `unlock`") / fastest, 1.0);
    aims.print();
}
