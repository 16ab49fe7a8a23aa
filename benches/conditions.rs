//! How long it takes from a notification until its waiter returns, in another process.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use distlock::Client;

mod support;

use support::aims::Aims;
use support::args::Args;
use support::clock::now;
use support::crowd::round_trips;
use support::it::{Proxy, Server, eventually};
use support::peers::{self, Driver};
use support::placement::Place;
use support::server;
use support::stats::{median, percentile};
use support::table::{Table, us};

/// What the proxy adds to a round trip, half of it each way.
const DELAY: Duration = Duration::from_millis(4);

/// This many processes over such a line: the first one notifies, and all others wait.
struct Row {
    label: String,
    url: String,
    processes: usize,
    notifications: usize,
    rounds: Vec<Outcome>,
}

/// In nanoseconds.
struct Outcome {
    unlock_p50: f64,
    unlock_p99: f64,
    notify_p50: f64,
    notify_p99: f64,
    trip_p50: f64,
    /// The call of unlock.
    released_p50: f64,
    /// Returns in excess of one for each notification.
    surplus: f64,
}

fn main() {
    let args = Args::parse();
    let place = args.begin(
        "conditions: from a notification to the return of the waiter, in another process",
        Place::Free,
    );
    let server = server::start(place);
    let proxy = place.of_server(|| Proxy::start(server.port()));
    proxy.set_delay(DELAY / 2, DELAY / 2);
    let rounds = args.pick(1, 3);
    let mut rows = Vec::new();
    for (line, url, notifications) in [
        ("loopback".to_owned(), server.url(), args.pick(100, 1000)),
        (format!("{} ms of added delay", DELAY.as_millis()), proxy.url(), args.pick(20, 150)),
    ] {
        for processes in [2, 32] {
            for a in ["A", "A'"] {
                let label = format!("{a}: {processes} processes, {line}");
                rows.push(Row {
                    label,
                    url: url.clone(),
                    processes,
                    notifications,
                    rounds: Vec::new(),
                });
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    for round in 1..=rounds {
        for (at, row) in rows.iter_mut().enumerate() {
            progress!("round {round} of {rounds}, {}", row.label);
            row.rounds.push(row.run(&server, &format!("conditions:{at}:{round}"), dir.path()));
        }
    }
    report(&rows, rounds);
}

impl Row {
    fn run(&self, server: &Server, key: &str, dir: &Path) -> Outcome {
        let waiters = self.processes - 1;
        let file = |process: usize| dir.join(format!("{process}"));
        let drivers: Vec<Driver> = (0..waiters)
            .map(|process| {
                let mut driver = peers::OURS.start(&self.url).unwrap();
                driver.tell(&format!("condition {key} {}", file(process).display()));
                driver
            })
            .collect();
        let mut side = server.connection();
        let mut waiting = || {
            redis::cmd("ZCARD")
                .arg(format!("{{{key}}}:conditions"))
                .query::<usize>(&mut side)
                .unwrap()
        };
        let client = Client::open(&self.url).unwrap();
        let lock = client.lock(key);
        let condition = lock.new_condition("bench").unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (url, stop) = (self.url.clone(), Arc::clone(&over));
        let probe = thread::spawn(move || {
            round_trips(&url, "round-trip", || !stop.load(Ordering::Relaxed))
        });
        // The first wait of each waiter opens its inbox, and is not counted.
        let (mut notified, mut unlocks, mut first) = (Vec::new(), Vec::new(), 0);
        for at in 0..waiters * 2 + self.notifications {
            eventually(Duration::from_secs(30), || waiting() == waiters);
            lock.lock().unwrap();
            let notify_called = now();
            condition.notify_one().unwrap();
            let unlock_called = now();
            lock.unlock().unwrap();
            let unlocked = now();
            if at < waiters * 2 {
                first = unlocked;
            } else {
                notified.push((notify_called, unlock_called));
                unlocks.push(unlocked - unlock_called);
            }
        }
        // Each waiter wrote its line before it waited again.
        eventually(Duration::from_secs(30), || waiting() == waiters);
        over.store(true, Ordering::Relaxed);
        let mut trips = probe.join().unwrap();
        drivers.into_iter().for_each(Driver::kill);
        let mut returned: Vec<u64> =
            (0..waiters).flat_map(|process| read(&file(process))).collect();
        returned.sort_unstable();
        // The waiter of each notification has returned before the next one was given.
        let from = notified.first().map_or(first, |pair| pair.0);
        returned.retain(|&at| at > from);
        let pairs = || notified.iter().zip(&returned);
        let mut by_unlock: Vec<u64> =
            pairs().map(|((_, unlock), returned)| returned.saturating_sub(*unlock)).collect();
        let mut by_notify: Vec<u64> =
            pairs().map(|((notify, _), returned)| returned.saturating_sub(*notify)).collect();
        Outcome {
            unlock_p50: percentile(&mut by_unlock, 0.50) as f64,
            unlock_p99: percentile(&mut by_unlock, 0.99) as f64,
            notify_p50: percentile(&mut by_notify, 0.50) as f64,
            notify_p99: percentile(&mut by_notify, 0.99) as f64,
            trip_p50: percentile(&mut trips, 0.50) as f64,
            released_p50: percentile(&mut unlocks, 0.50) as f64,
            surplus: returned.len() as f64 - notified.len() as f64,
        }
    }

    fn median(&self, what: impl Fn(&Outcome) -> f64) -> f64 {
        median(self.rounds.iter().map(what))
    }
}

fn read(file: &Path) -> Vec<u64> {
    fs::read_to_string(file).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

fn report(rows: &[Row], rounds: usize) {
    let mut table = Table::new(&[
        "",
        "from unlock p50 µs",
        "p99 µs",
        "GET p50 µs",
        "unlock p50 µs",
        "from unlock p50 / GET",
        "p99 / GET",
        "from notify p50 / GET",
        "p99 / GET",
        "A' / A, p50",
        "woken for nothing",
    ]);
    let mut aims = Aims::new();
    for pair in rows.chunks(2) {
        for row in pair {
            let ratio =
                |what: fn(&Outcome) -> f64| row.median(move |round| what(round) / round.trip_p50);
            let again =
                row.median(|round| round.unlock_p50) / pair[0].median(|round| round.unlock_p50);
            table.row([
                row.label.clone(),
                us(row.median(|round| round.unlock_p50)),
                us(row.median(|round| round.unlock_p99)),
                us(row.median(|round| round.trip_p50)),
                us(row.median(|round| round.released_p50)),
                format!("{:.2}", ratio(|round| round.unlock_p50)),
                format!("{:.2}", ratio(|round| round.unlock_p99)),
                format!("{:.2}", ratio(|round| round.notify_p50)),
                format!("{:.2}", ratio(|round| round.notify_p99)),
                format!("{again:.2}"),
                format!("{:.0}", row.rounds.iter().map(|round| round.surplus).sum::<f64>()),
            ]);
            if row.label.starts_with("A:") {
                let (p50, p99) =
                    if row.label.contains("loopback") { (2.0, 5.0) } else { (1.05, 1.6) };
                let label = row.label.trim_start_matches("A: ");
                aims.at_most(
                    &format!("{label}: from unlock p50, round trips"),
                    ratio(|round| round.unlock_p50),
                    p50,
                );
                aims.at_most(
                    &format!("{label}: from unlock p99, round trips"),
                    ratio(|round| round.unlock_p99),
                    p99,
                );
            }
        }
    }
    table.print();
    println!(
        "Medians of {rounds} rounds of {} notifications on loopback and {} with delay, every row \
         in turn. One process locks, notifies one waiter and unlocks; all others \
         wait, and wait again once they have returned. From unlock, from notify: from that call to \
         the return of the waiter's `wait`, which has the lock \
         again then. The round trip of the same run is a GET every 2 ms, over a connection of its \
         own. The way in is a hand-over, so the aims are those of `processes`.\n",
        rows.first().map_or(0, |row| row.notifications),
        rows.last().map_or(0, |row| row.notifications)
    );
    aims.print();
}
