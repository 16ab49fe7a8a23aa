//! What Sentinel costs while nothing fails, and what confirmations by a replica cost: a primary,
//! one replica, three sentinels.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use distlock::{Client, LockOptions, RedisLock};

mod support;

use support::aims::Aims;
use support::args::Args;
use support::clock::now;
use support::contender::{Contender, Raw};
use support::it::Server;
use support::it::sentinels::Sentinels;
use support::peers::{self, Driver};
use support::placement::Place;
use support::stats::{in_turn, median, percentile};
use support::table::{Table, us};

const STRAIGHT: &str = "A: distlock, straight at the primary";
const AGAIN: &str = "A': the same again";
const SENTINEL: &str = "distlock, Sentinel";
const RAW: &str = "raw `SET NX PX`, compare-and-delete";
const RAW_WAIT: &str = "raw, `SET NX PX` and `WAIT 1`";
const CONFIRMED: &str = "distlock, Sentinel, `replicas(1)`";
const REDISSON: &str = "Redisson, Sentinel (it waits for the replica, too)";

struct Row {
    label: &'static str,
    run: Run,
    /// p50 and p99 of each round, in nanoseconds.
    rounds: Vec<(f64, f64)>,
}

enum Run {
    Here(Box<dyn FnMut()>),
    There(Driver),
}

impl Row {
    fn new(label: &'static str, run: Run) -> Self {
        Self { label, run, rounds: Vec::new() }
    }

    fn lock(label: &'static str, lock: RedisLock) -> Self {
        let cycle = move || {
            lock.lock().unwrap();
            lock.unlock().unwrap();
        };
        Self::new(label, Run::Here(Box::new(cycle)))
    }

    /// p50 and p99 of this many cycles.
    fn measure(&mut self, samples: u64) -> (f64, f64) {
        match &mut self.run {
            Run::Here(cycle) => {
                (0..samples / 10).for_each(|_| cycle());
                let mut before = now();
                let mut took: Vec<u64> = (0..samples)
                    .map(|_| {
                        cycle();
                        let after = now();
                        let took = after - before;
                        before = after;
                        took
                    })
                    .collect();
                (percentile(&mut took, 0.50) as f64, percentile(&mut took, 0.99) as f64)
            }
            Run::There(driver) => {
                let answer = driver.ask(&format!("bench redisson:cycle {samples}"));
                (answer[0] as f64, answer[1] as f64)
            }
        }
    }
}

fn main() {
    let args = Args::parse();
    let place = args.begin("failover: Sentinel and confirmations, while nothing fails", Place::One);
    let all = place.of_server(|| {
        Sentinels::builder()
            .server(|| Server::builder().arg("maxclients", "10000"))
            .default_timers()
            .start()
    });
    let mut rows = ours(&all);
    if !args.alone {
        rows.extend(redisson(&all.url(), args.pick(1500, 5000)));
    }
    rows.retain(|row| row.label == STRAIGHT || args.takes(row.label));
    let (rounds, samples) = args.pick((10, 200), (40, 500));
    for round in 0..rounds {
        progress!("round {} of {rounds}", round + 1);
        for row in in_turn(&mut rows, round) {
            let measured = row.measure(samples);
            row.rounds.push(measured);
        }
    }
    report(&rows, rounds, samples);
}

fn ours(all: &Sentinels) -> Vec<Row> {
    let primary = all.servers[0].url();
    let straight = Client::open(&primary).unwrap();
    let watched = Client::open(&all.url()).unwrap();
    let confirmed = LockOptions::new().replicas(1);
    let mut raw = Raw::new(&primary, "raw", None);
    let mut raw_confirmed = Raw::new(&primary, "raw:confirmed", None);
    vec![
        Row::lock(STRAIGHT, straight.lock("straight")),
        Row::lock(SENTINEL, watched.lock("watched")),
        Row::new(
            RAW,
            Run::Here(Box::new(move || {
                raw.lock();
                raw.unlock();
            })),
        ),
        Row::new(
            RAW_WAIT,
            Run::Here(Box::new(move || {
                raw_confirmed.lock_confirmed();
                raw_confirmed.unlock();
            })),
        ),
        Row::lock(CONFIRMED, watched.lock_with("confirmed", confirmed).unwrap()),
        Row::lock(AGAIN, straight.lock("again")),
    ]
}

/// In a process of its own, warmed up.
fn redisson(url: &str, warmup: u64) -> Option<Row> {
    let peer = peers::built(&[peers::REDISSON], url).pop()?;
    progress!("warming up {}", peer.label);
    let mut driver = peer.start(url)?;
    driver.ask(&format!("warmup {warmup}"));
    Some(Row::new(REDISSON, Run::There(driver)))
}

fn report(rows: &[Row], rounds: usize, samples: u64) {
    let mut table = Table::new(&["", "p50 µs", "p99 µs", "/ A", "over A µs"]);
    let ratio = |label: &str, to: &str| -> f64 {
        let of = |label| rows.iter().find(|row| row.label == label);
        let (Some(row), Some(to)) = (of(label), of(to)) else { return f64::NAN };
        median(row.rounds.iter().zip(&to.rounds).map(|(own, its)| own.0 / its.0))
    };
    let over =
        |row: &Row| median(row.rounds.iter().zip(&rows[0].rounds).map(|(own, its)| own.0 - its.0));
    for row in rows {
        table.row([
            row.label.to_owned(),
            us(median(row.rounds.iter().map(|round| round.0))),
            us(median(row.rounds.iter().map(|round| round.1))),
            format!("{:.3}", ratio(row.label, STRAIGHT)),
            us(over(row)),
        ]);
    }
    table.print();
    println!(
        "{rounds} rounds, in each {samples} cycles of every contender in turn. p50 and p99 are \
         medians over the rounds of that round's; the ratio and what comes on top of A are \
         medians over the rounds of the comparison with that round's A. A' shows the noise.\n"
    );
    let mut aims = Aims::new();
    aims.at_most("through Sentinel, times straight", ratio(SENTINEL, STRAIGHT), 1.02);
    aims.at_most("`replicas(1)`, times raw with `WAIT`", ratio(CONFIRMED, RAW_WAIT), 1.15);
    aims.at_most("`replicas(1)`, times Redisson", ratio(CONFIRMED, REDISSON), 1.0);
    aims.print();
}
