//! Lock and unlock with nobody in the way: contenders in turn, each compared with the first.

use distlock::RedisLock;

use super::clock::now;
use super::contender::{Contender, Raw};
use super::peers::{Driver, Peer};
use super::stats::{in_turn, median, percentile};
use super::table::{Table, us};
use crate::progress;

/// A contender.
pub struct Row {
    pub label: &'static str,
    run: Run,
    /// p50 and p99 of each round, in nanoseconds.
    rounds: Vec<(f64, f64)>,
}

enum Run {
    Here(Box<dyn FnMut()>),
    /// A process, and the key that it locks.
    There(Driver, String),
}

impl Row {
    /// In this process.
    pub fn here(label: &'static str, cycle: impl FnMut() + 'static) -> Self {
        Self { label, run: Run::Here(Box::new(cycle)), rounds: Vec::new() }
    }

    pub fn lock(label: &'static str, lock: RedisLock) -> Self {
        Self::here(label, move || {
            lock.lock().unwrap();
            lock.unlock().unwrap();
        })
    }

    pub fn raw(label: &'static str, mut raw: Raw) -> Self {
        Self::here(label, move || {
            raw.lock();
            raw.unlock();
        })
    }

    /// In a process of its own, warmed up for so many milliseconds.
    pub fn peer(label: &'static str, peer: &Peer, url: &str, key: &str, warmup: u64) -> Self {
        progress!("warming up {}", peer.label);
        let mut driver = peer.start(url).unwrap();
        driver.ask(&format!("warmup {warmup}"));
        driver.ask(&format!("bench {key} 100"));
        // From now on before each measurement.
        driver.ask("warmup 20");
        Self { label, run: Run::There(driver, key.to_owned()), rounds: Vec::new() }
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
            Run::There(driver, key) => {
                let answer = driver.ask(&format!("bench {key} {samples}"));
                (answer[0] as f64, answer[1] as f64)
            }
        }
    }
}

/// Measures all of them in turn, and prints the table. The first one is A.
pub fn run(rows: &mut [Row], rounds: usize, samples: u64) {
    for round in 0..rounds {
        progress!("round {} of {rounds}", round + 1);
        for row in in_turn(rows, round) {
            let measured = row.measure(samples);
            row.rounds.push(measured);
        }
    }
    let Some(first) = rows.first() else { return };
    let mut table = Table::new(&["", "p50 µs", "p99 µs", "/ A", "over A µs"]);
    for row in &*rows {
        let pairs = row.rounds.iter().zip(&first.rounds);
        table.row([
            row.label.to_owned(),
            us(median(row.rounds.iter().map(|round| round.0))),
            us(median(row.rounds.iter().map(|round| round.1))),
            format!("{:.3}", ratio(rows, row.label, first.label)),
            us(median(pairs.map(|(own, its)| own.0 - its.0))),
        ]);
    }
    table.print();
    println!(
        "{rounds} rounds, in each {samples} cycles of every contender in turn. p50 and p99 are \
         medians over the rounds of that round's; the ratio and what comes on top of A are \
         medians over the rounds of the comparison with that round's A. A' shows the noise.\n"
    );
}

/// The median over the rounds of what one costs, in units of another.
pub fn ratio(rows: &[Row], label: &str, to: &str) -> f64 {
    let of = |label| rows.iter().find(|row| row.label == label);
    let (Some(row), Some(to)) = (of(label), of(to)) else { return f64::NAN };
    median(row.rounds.iter().zip(&to.rounds).map(|(own, its)| own.0 / its.0))
}
