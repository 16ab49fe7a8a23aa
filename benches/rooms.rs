//! What many hold at once: readers beside writers, a batch of readers, the permits of a semaphore.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use std::path::Path;
use std::thread;
use std::time::Duration;

mod support;

use support::aims::Aims;
use support::args::Args;
use support::crowd::{Crowd, Hold, Holds, Run, longest_wait};
use support::it::{Proxy, Server, eventually};
use support::peers::{self, Driver, Peer};
use support::placement::Place;
use support::server::{self, Side};
use support::stats::{jain, median, percentile};
use support::table::{Table, thousands, us};

const HOLD_US: u64 = 1000;
const READING: Crowd = Crowd { peer: peers::OURS_READ, processes: 8, threads: 2 };
const WRITING: Crowd = Crowd { peer: peers::OURS_WRITE, processes: 2, threads: 1 };
const ONE_LOCK: &str = "distlock, one lock for all";
const PERMITS: u64 = 10;
/// Processes that want a permit.
const CALLERS: usize = 32;
/// What the proxy adds to a round trip, half of it each way.
const DELAY: Duration = Duration::from_millis(4);

fn main() {
    let args = Args::parse();
    let place = args.begin("rooms: what many hold at once, for 1 ms", Place::Free);
    let server = server::start(place);
    let theirs = if args.alone {
        Vec::new()
    } else {
        peers::built(&[peers::REDISSON, peers::REDIS_SEMAPHORE], &server.url())
    };
    let there = |peer: &Peer| {
        args.takes(peer.label)
            && (peer.is_ours() || theirs.iter().any(|built| built.driver == peer.driver))
    };
    let dir = tempfile::tempdir().unwrap();
    let (rounds, seconds) = args.pick((1, 1), (3, 3));
    let bench = Bench { server: &server, dir: dir.path(), rounds, seconds };
    let mut aims = Aims::new();
    sides(&bench, &there, &mut aims);
    batches(&server, args.pick(10, 200), place, &mut aims);
    permits(&bench, &there, &mut aims);
    aims.print();
}

struct Bench<'a> {
    server: &'a Server,
    dir: &'a Path,
    rounds: usize,
    seconds: u64,
}

/// Processes of one library, or of several, that hold under one key.
struct Row {
    label: &'static str,
    crowds: Vec<Crowd>,
    rounds: Vec<Holds>,
}

impl Row {
    fn of(label: &'static str, crowds: impl Into<Vec<Crowd>>) -> Self {
        Self { label, crowds: crowds.into(), rounds: Vec::new() }
    }

    fn processes(&self) -> usize {
        self.crowds.iter().map(|crowd| crowd.processes).sum()
    }

    fn median(&self, what: impl Fn(&Holds) -> f64) -> f64 {
        median(self.rounds.iter().map(what))
    }

    /// Of all rounds.
    fn most(&self, what: impl Fn(&Holds) -> u64) -> f64 {
        self.rounds.iter().map(what).max().unwrap_or(0) as f64
    }

    /// Its name, and what a correct library never has: `limit` exceeded, where each hold takes
    /// so much of it.
    fn named(&self, limit: u64, takes: impl Fn(&Hold) -> u64) -> String {
        match self.most(|round| at_once(&round.all, &takes)) {
            most if most > limit as f64 => format!("{} ({most} AT ONCE)", self.label),
            _ => self.label.to_owned(),
        }
    }

    fn requests(&self) -> f64 {
        self.median(|round| round.reads as f64 / round.in_time())
    }

    fn trip(&self) -> f64 {
        self.median(|round| percentile(&mut round.trips.clone(), 0.50) as f64)
    }
}

impl Bench<'_> {
    fn in_words(&self) -> String {
        format!(
            "Medians of {} rounds of {} s, every contender in turn; the longest is the longest of \
             all rounds. GET: every 2 ms over a connection of its own. Requests: what the server \
             read from clients per hold.",
            self.rounds, self.seconds
        )
    }

    /// Every row in turn.
    fn run(&self, rows: &mut [Row], key: &str) {
        let mut side = Side::new(self.server);
        let url = self.server.url();
        for round in 1..=self.rounds {
            for row in &mut *rows {
                progress!("{key}, round {round} of {}, {}", self.rounds, row.label);
                // Libraries that mean different things by a key do not share one.
                let key = format!("{key}:{}", row.label.replace([' ', '`'], "-"));
                let run =
                    Run { url: &url, at: &url, key: &key, seconds: self.seconds, dir: self.dir };
                row.rounds.push(run.of(&row.crowds, &mut side, |crowd, file, start| {
                    let (seconds, threads) = (self.seconds, crowd.threads);
                    format!("benchsleep {key} {seconds} {HOLD_US} {file} {start} {threads}")
                }));
            }
        }
    }
}

/// How much was taken at once at most, where each hold takes so much.
fn at_once(holds: &[Hold], takes: impl Fn(&Hold) -> u64) -> u64 {
    let mut events: Vec<(u64, bool, u64)> = holds
        .iter()
        .flat_map(|hold| {
            let takes = takes(hold);
            [(hold.acquired, true, takes), (hold.unlock_called, false, takes)]
        })
        .collect();
    // At the same nanosecond, who leaves comes before who enters.
    events.sort_unstable();
    let (mut taken, mut most) = (0, 0);
    for (_, enters, takes) in events {
        taken = if enters { taken + takes } else { taken - takes };
        most = most.max(taken);
    }
    most
}

/// Readers, and a few writers.
fn sides(bench: &Bench<'_>, there: &impl Fn(&Peer) -> bool, aims: &mut Aims) {
    println!("### 16 readers in 8 processes, 2 writers\n");
    let of = |reading: Peer, writing: Peer| {
        [Crowd { peer: reading, ..READING }, Crowd { peer: writing, ..WRITING }]
    };
    let mut rows = vec![
        Row::of("distlock", of(peers::OURS_READ, peers::OURS_WRITE)),
        Row::of(ONE_LOCK, of(peers::OURS, peers::OURS)),
        Row::of("Redisson", of(peers::REDISSON_READ, peers::REDISSON_WRITE)),
        Row::of("A': distlock again", of(peers::OURS_READ, peers::OURS_WRITE)),
    ];
    rows.retain(|row| there(&row.crowds[0].peer));
    bench.run(&mut rows, "sides");
    let reads = |hold: &Hold| hold.process < READING.processes;
    let per_second = |row: &Row, reading: bool| {
        let counts = |hold: &&Hold, end| reads(hold) == reading && hold.acquired < end;
        let of = |round: &Holds| round.all.iter().filter(|hold| counts(hold, round.end)).count();
        row.median(|round| of(round) as f64 / bench.seconds as f64)
    };
    let wait = |round: &Holds, reading: bool| {
        longest_wait(round.all.iter().filter(|hold| reads(hold) == reading))
    };
    let longest_read = |round: &Holds| {
        let span = |hold: &Hold| hold.unlock_called - hold.acquired;
        round.all.iter().filter(|hold| reads(hold)).map(span).max().unwrap_or(0)
    };
    let mut table = Table::new(&[
        "",
        "reads per second",
        "writes per second",
        "a writer's longest wait ms",
        "a reader's longest wait ms",
        "longest read ms",
        "GET p50 µs",
        "requests each",
    ]);
    for row in &rows {
        // As much as all readers take together; a lock for all is full with one.
        let all = (READING.processes * READING.threads) as u64;
        let is_shared = row.label != ONE_LOCK;
        table.row([
            row.named(all, |hold| if is_shared && reads(hold) { 1 } else { all }),
            thousands(per_second(row, true)),
            thousands(per_second(row, false)),
            format!("{:.1}", row.most(|round| wait(round, false)) / 1e6),
            format!("{:.1}", row.most(|round| wait(round, true)) / 1e6),
            format!("{:.1}", row.most(longest_read) / 1e6),
            us(row.trip()),
            format!("{:.2}", row.requests()),
        ]);
    }
    table.print();
    println!(
        "{} Readers and writers sleep for 1 ms while they hold. A reader's process has two \
         threads, which share leases; the writers are processes of their own. Longest read: from \
         the return of `lock` to the call of `unlock`.\n",
        bench.in_words()
    );
    let find = |label: &str| rows.iter().find(|row| row.label == label);
    let Some(own) = find("distlock") else { return };
    aims.at_most(
        "a writer's longest wait, without the longest read of the round and 2 round trips, ms",
        (own.most(|round| wait(round, false).saturating_sub(longest_read(round)))
            - 2.0 * own.trip())
            / 1e6,
        5.0,
    );
    let mutex = find(ONE_LOCK).map_or(f64::NAN, |row| per_second(row, true));
    aims.at_least("reads, times those under one lock", per_second(own, true) / mutex, 3.0);
}

/// From a writer's release until the last of those who wait to read is in.
fn batches(server: &Server, rounds: usize, place: Place, aims: &mut Aims) {
    const READERS: usize = 31;
    println!("### {READERS} readers let in at once\n");
    let proxy = place.of_server(|| Proxy::start(server.port()));
    proxy.set_delay(DELAY / 2, DELAY / 2);
    let mut table = Table::new(&[
        "",
        "one reader, p50 µs",
        "the first of 31, p50 µs",
        "the last of 31, p50 µs",
        "the last of 31 / one",
    ]);
    for (label, url) in [("loopback", server.url()), ("4 ms of added delay", proxy.url())] {
        progress!("batches, {label}");
        let mut batch = Batch::start(server, &url, READERS);
        let (mut one, mut first, mut last) = (Vec::new(), Vec::new(), Vec::new());
        // The first ones open what stays open.
        let warmup = 5;
        for round in 0..warmup + rounds {
            let (alone, all) = (batch.let_in(1), batch.let_in(READERS));
            if round >= warmup {
                one.push(alone[0]);
                first.push(all[0]);
                last.push(all[READERS - 1]);
            }
        }
        let ratio = median(one.iter().zip(&last).map(|(one, last)| *last as f64 / *one as f64));
        table.row([
            label.to_owned(),
            us(percentile(&mut one, 0.50) as f64),
            us(percentile(&mut first, 0.50) as f64),
            us(percentile(&mut last, 0.50) as f64),
            format!("{ratio:.2}"),
        ]);
        aims.at_most(&format!("{label}: 31 readers, times the hand-over of one"), ratio, 2.0);
    }
    table.print();
    println!(
        "Medians of {rounds} rounds. From the writer's call of `unlock` to the return of a \
         reader's `lock`, where every reader is a process that was waiting before.\n"
    );
}

struct Batch {
    writer: Driver,
    readers: Vec<Driver>,
    side: redis::Connection,
}

impl Batch {
    const KEY: &str = "batch";

    fn start(server: &Server, url: &str, readers: usize) -> Self {
        Self {
            writer: peers::OURS_WRITE.start(url).unwrap(),
            readers: (0..readers).map(|_| peers::OURS_READ.start(url).unwrap()).collect(),
            side: server.connection(),
        }
    }

    /// How long after the writer's call each of so many readers was in, in order.
    fn let_in(&mut self, readers: usize) -> Vec<u64> {
        let (wait, release) =
            (format!("wait {} 30000", Self::KEY), format!("release {}", Self::KEY));
        self.writer.ask(&wait);
        let readers = &mut self.readers[..readers];
        readers.iter_mut().for_each(|reader| reader.tell(&wait));
        let queue = redis::cmd("ZCARD").arg(format!("{{{}}}:queue", Self::KEY)).to_owned();
        eventually(Duration::from_secs(30), || {
            queue.query::<usize>(&mut self.side).unwrap() == readers.len()
        });
        // What the last of them does before it sleeps.
        thread::sleep(Duration::from_millis(10));
        let called = self.writer.ask(&release)[0];
        let mut after: Vec<u64> =
            readers.iter_mut().map(|reader| reader.answer()[0] - called).collect();
        readers.iter_mut().for_each(|reader| drop(reader.ask(&release)));
        after.sort_unstable();
        after
    }
}

/// The permits of a semaphore, more wanted than there are.
fn permits(bench: &Bench<'_>, there: &impl Fn(&Peer) -> bool, aims: &mut Aims) {
    println!("### {PERMITS} permits, {CALLERS} who want one\n");
    let each = |peer: Peer| [Crowd { peer, processes: CALLERS, threads: 1 }];
    // Fewer processes, for want of cores.
    let few = |peer: Peer| [Crowd { peer, processes: CALLERS / 4, threads: 4 }];
    let mut rows = vec![
        Row::of("distlock", each(peers::OURS_PERMIT)),
        Row::of("redis-semaphore", each(peers::REDIS_SEMAPHORE)),
        Row::of("distlock, 8 processes of 4 threads", few(peers::OURS_PERMIT)),
        Row::of("Redisson, 8 processes of 4 threads", few(peers::REDISSON_PERMIT)),
        Row::of("A': distlock again", each(peers::OURS_PERMIT)),
    ];
    rows.retain(|row| there(&row.crowds[0].peer));
    bench.run(&mut rows, "permits");
    let jain = |row: &Row| row.median(|round| jain(&round.shares(row.processes())));
    let mut table = Table::new(&[
        "",
        "holds per second",
        "permits in use",
        "longest wait ms",
        "Jain",
        "GET p50 µs",
        "requests each",
    ]);
    for row in &rows {
        table.row([
            row.named(PERMITS, |_| 1),
            thousands(row.median(|round| round.in_time() / bench.seconds as f64)),
            format!("{:.1} %", 100.0 * row.median(in_use)),
            format!("{:.1}", row.most(|round| longest_wait(&round.all)) / 1e6),
            format!("{:.4}", jain(row)),
            us(row.trip()),
            format!("{:.2}", row.requests()),
        ]);
    }
    table.print();
    println!(
        "{} Whoever holds sleeps for 1 ms. In use: from the return of `acquire` to the call of \
         `release`, of what the permits could be in use together. Jain: over the processes.\n",
        bench.in_words()
    );
    let Some(own) = rows.iter().find(|row| row.label == "distlock") else { return };
    let wait = |row: &Row| row.most(|round| longest_wait(&round.all));
    let theirs = rows.iter().filter(|row| !row.crowds[0].peer.is_ours()).map(wait);
    let shortest = theirs.reduce(f64::min).unwrap_or(f64::NAN);
    aims.at_least("permits in use, of the time", own.median(in_use), 0.95);
    aims.at_most("permits: requests per hold", own.requests(), 2.2);
    aims.at_least("permits: Jain's index", jain(own), 0.999);
    aims.at_least(
        "permits: the longest wait, how many times shorter than the shortest of a peer",
        shortest / wait(own),
        5.0,
    );
}

/// The share of the time that the permits were in use.
fn in_use(round: &Holds) -> f64 {
    let within = |hold: &Hold| hold.unlock_called.min(round.end).saturating_sub(hold.acquired);
    let used: u64 = round.all.iter().map(within).sum();
    used as f64 / (PERMITS * (round.end - round.start)) as f64
}
