//! Many processes on one lock: their holds, put in one order, and the results from that order.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::clock::{now, sleep_until};
use super::peers::{Driver, Peer};
use super::server::Side;
use super::stats::{jain, percentile};

/// What to run.
pub struct Contest<'a> {
    pub url: &'a str,
    /// The server that has the lock.
    pub at: &'a str,
    pub processes: usize,
    pub seconds: u64,
    /// How long each hold lasts.
    pub hold_us: u64,
    /// A directory for files of the drivers.
    pub dir: &'a Path,
}

/// One hold, in CLOCK_MONOTONIC nanoseconds.
pub struct Hold {
    pub acquired: u64,
    pub unlock_called: u64,
    pub lock_called: u64,
    /// How long unlock took. Only our own drivers report it.
    pub unlocking: Option<u64>,
    pub process: usize,
}

/// The pairs of consecutive holds of which the second is of another process, which was waiting
/// already. `holds` are in order.
pub fn hand_overs(holds: &[Hold]) -> impl Iterator<Item = (&Hold, &Hold)> {
    holds.windows(2).map(|pair| (&pair[0], &pair[1])).filter(|(last, next)| {
        next.process != last.process && next.lock_called < last.unlock_called
    })
}

/// The results. Times are in nanoseconds.
pub struct Outcome {
    pub rate: f64,
    /// From the call of unlock to the return of the next process's lock, if that was already
    /// waiting.
    pub hand_over_p50: u64,
    pub hand_over_p99: u64,
    /// The share of holds by the process that had released last.
    pub barged: f64,
    pub longest_wait: u64,
    pub jain: f64,
    /// What the server read from clients per acquisition.
    pub requests: f64,
    /// A GET over a separate connection at the same time.
    pub round_trip_p50: u64,
    pub unlock_p50: Option<u64>,
    /// Holds that began before the last one had ended. A correct lock has none.
    pub overlaps: usize,
}

/// What stands for these rounds in a table: two processes must never have held the lock at once.
pub fn label(name: &str, rounds: &[Outcome]) -> String {
    match rounds.iter().map(|round| round.overlaps).sum::<usize>() {
        0 => name.to_owned(),
        overlaps => format!("{name} ({overlaps} OVERLAPS)"),
    }
}

impl Contest<'_> {
    pub fn run(&self, peer: &Peer, side: &mut Side, key: &str) -> Outcome {
        let mut drivers: Vec<Driver> =
            (0..self.processes).map(|_| peer.start(self.url).unwrap()).collect();
        // Many JVMs at once need some time until the waiting path is compiled.
        let warmup = if peer.is_jvm {
            3000 + 250 * self.processes as u64
        } else {
            300 + 10 * self.processes as u64
        };
        let start = now() + warmup * 1_000_000;
        let end = start + self.seconds * 1_000_000_000;
        let file = |process: usize| self.dir.join(format!("{process}"));
        for (process, driver) in drivers.iter_mut().enumerate() {
            let (seconds, hold_us, file) = (self.seconds, self.hold_us, file(process));
            driver.tell(&format!("benchcs {key} {seconds} {hold_us} {} {start}", file.display()));
        }
        sleep_until(start);
        let before = side.counters();
        let mut trips = round_trips(self.at, &format!("{{{key}}}:round-trip"), || now() < end);
        let probed = trips.len() as u64;
        let after = side.counters();
        drivers.iter_mut().for_each(|driver| drop(driver.answer()));
        let mut holds: Vec<Hold> =
            (0..self.processes).flat_map(|process| read(&file(process), process)).collect();
        holds.sort_unstable_by_key(|hold| hold.acquired);
        let mut shares = vec![0; self.processes];
        holds.iter().for_each(|hold| shares[hold.process] += 1);
        let pairs = || holds.windows(2).map(|pair| (&pair[0], &pair[1]));
        let mut hand_overs: Vec<u64> = hand_overs(&holds)
            .map(|(last, next)| next.acquired.saturating_sub(last.unlock_called))
            .collect();
        let mut unlocks: Vec<u64> = holds.iter().filter_map(|hold| hold.unlocking).collect();
        let in_time = holds.iter().filter(|hold| hold.acquired < end).count() as f64;
        Outcome {
            rate: in_time / self.seconds as f64,
            hand_over_p50: percentile(&mut hand_overs, 0.50),
            hand_over_p99: percentile(&mut hand_overs, 0.99),
            barged: pairs().filter(|(last, next)| next.process == last.process).count() as f64
                / holds.len().max(1) as f64,
            longest_wait: holds
                .iter()
                .map(|hold| hold.acquired - hold.lock_called)
                .max()
                .unwrap_or(0),
            jain: jain(&shares),
            requests: (after.reads_since(&before).saturating_sub(probed)) as f64 / in_time,
            round_trip_p50: percentile(&mut trips, 0.50),
            unlock_p50: (!unlocks.is_empty()).then(|| percentile(&mut unlocks, 0.50)),
            overlaps: pairs().filter(|(last, next)| next.acquired < last.unlock_called).count(),
        }
    }
}

/// Asks for this key every 2 ms, over a connection of its own, while `goes_on`: how long each
/// answer took.
pub fn round_trips(url: &str, key: &str, goes_on: impl Fn() -> bool) -> Vec<u64> {
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let mut trips = Vec::new();
    while goes_on() {
        let asked = now();
        redis::cmd("GET").arg(key).exec(&mut connection).unwrap();
        trips.push(now() - asked);
        thread::sleep(Duration::from_millis(2));
    }
    trips
}

fn read(file: &Path, process: usize) -> Vec<Hold> {
    let text = fs::read_to_string(file).unwrap();
    let hold = |line: &str| {
        let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
        let mut next = || numbers.next();
        Hold {
            acquired: next().unwrap(),
            unlock_called: next().unwrap(),
            lock_called: next().unwrap(),
            unlocking: next(),
            process,
        }
    };
    text.lines().map(hold).collect()
}
