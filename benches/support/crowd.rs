//! Processes that hold under one key for some seconds: every hold, by the clock that they share.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::clock::{now, sleep_until};
use super::peers::{Driver, Peer};
use super::server::Side;

/// Processes of one contender.
#[derive(Clone, Copy)]
pub struct Crowd {
    pub peer: Peer,
    pub processes: usize,
    /// In each process.
    pub threads: usize,
}

/// Where and for how long.
pub struct Run<'a> {
    pub url: &'a str,
    /// The server that has the key.
    pub at: &'a str,
    pub key: &'a str,
    pub seconds: u64,
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
    /// Counted through all crowds.
    pub process: usize,
}

/// What came of it.
pub struct Holds {
    /// In the order of their beginnings.
    pub all: Vec<Hold>,
    pub start: u64,
    pub end: u64,
    /// How often the server read from these clients.
    pub reads: u64,
    /// How long a GET over a separate connection took at the same time.
    pub trips: Vec<u64>,
}

impl Run<'_> {
    /// `command` is what a process of a crowd is told: with its file, and the start.
    pub fn of(
        &self,
        crowds: &[Crowd],
        side: &mut Side,
        command: impl Fn(&Crowd, &str, u64) -> String,
    ) -> Holds {
        let members: Vec<&Crowd> =
            crowds.iter().flat_map(|crowd| (0..crowd.processes).map(move |_| crowd)).collect();
        let mut drivers: Vec<Driver> =
            members.iter().map(|crowd| crowd.peer.start(self.url).unwrap()).collect();
        // Many JVMs at once need some time until the waiting path is compiled.
        let warmup = if crowds.iter().any(|crowd| crowd.peer.is_jvm) {
            3000 + 250 * members.len() as u64
        } else {
            300 + 10 * members.len() as u64
        };
        let start = now() + warmup * 1_000_000;
        let end = start + self.seconds * 1_000_000_000;
        let file = |process: usize| self.dir.join(format!("{process}"));
        for (process, (driver, crowd)) in drivers.iter_mut().zip(&members).enumerate() {
            driver.tell(&command(crowd, &file(process).display().to_string(), start));
        }
        sleep_until(start);
        let before = side.counters();
        let trips = round_trips(self.at, &format!("{{{}}}:round-trip", self.key), || now() < end);
        let after = side.counters();
        drivers.iter_mut().for_each(|driver| drop(driver.answer()));
        let mut all: Vec<Hold> =
            (0..members.len()).flat_map(|process| read(&file(process), process)).collect();
        all.sort_unstable_by_key(|hold| hold.acquired);
        let reads = after.reads_since(&before).saturating_sub(trips.len() as u64);
        Holds { all, start, end, reads, trips }
    }
}

impl Holds {
    /// How many began before the end.
    pub fn in_time(&self) -> f64 {
        self.all.iter().filter(|hold| hold.acquired < self.end).count() as f64
    }

    /// How many holds each process had.
    pub fn shares(&self, processes: usize) -> Vec<u64> {
        let mut shares = vec![0; processes];
        self.all.iter().for_each(|hold| shares[hold.process] += 1);
        shares
    }
}

/// The longest of these waits, in nanoseconds.
pub fn longest_wait<'a>(holds: impl IntoIterator<Item = &'a Hold>) -> u64 {
    holds.into_iter().map(|hold| hold.acquired - hold.lock_called).max().unwrap_or(0)
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
