//! Whether an acquisition costs more as the number of locks, leases, threads, processes or waiters
//! grows.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use distlock::{Client, Interrupt, RedisLock};

mod support;

use support::aims::Aims;
use support::args::Args;
use support::clock::now;
use support::contender::{Contender, Maker};
use support::contest::Contest;
use support::driver::cycles;
use support::it::{Server, eventually};
use support::peers;
use support::placement::Place;
use support::plot::{self, Line};
use support::server::{self, Side};
use support::stats::{median, percentile, slope};
use support::table::{Table, us};

/// One thing that grows.
struct Series {
    name: &'static str,
    /// Whether one thread alone wants the lock that is measured.
    alone: bool,
    counts: Vec<u64>,
    /// The cost of a lock and unlock at this count, in nanoseconds.
    measure: Box<dyn FnMut(u64) -> f64>,
    /// For each count, the result of each round.
    costs: Vec<Vec<f64>>,
}

fn main() {
    let args = Args::parse();
    let place =
        args.begin("growth: what a lock and unlock cost as there is more of something", Place::One);
    let server = Arc::new(server::start(place));
    let rounds = args.pick(1, 3);
    let mut all = series(&args, &server);
    for round in 1..=rounds {
        for series in &mut all {
            progress!("round {round} of {rounds}: {}", series.name);
            for (at, &count) in series.counts.iter().enumerate() {
                let cost = (series.measure)(count);
                series.costs[at].push(cost);
            }
        }
    }
    // A quick run also draws, but does not replace the plot of the last full run.
    let scratch = tempfile::tempdir().unwrap();
    report(&all, rounds, &args.pick(scratch.path().to_owned(), plot::kept()));
}

fn powers(most: u64) -> Vec<u64> {
    (0..).map(|power| 1 << power).take_while(|&count| count <= most).collect()
}

fn series(args: &Args, server: &Arc<Server>) -> Vec<Series> {
    let url = server.url();
    let samples = args.pick(100, 400);
    let new = |name, most, measure: Box<dyn FnMut(u64) -> f64>| {
        let counts = powers(most);
        Series {
            name,
            alone: !name.ends_with("on the lock"),
            costs: vec![Vec::new(); counts.len()],
            counts,
            measure,
        }
    };
    let millis = args.pick(200, 600);
    let (parked_on, processes_on) = (Arc::clone(server), Arc::clone(server));
    let (for_names, for_leases, for_parked) = (url.clone(), url.clone(), url.clone());
    let (for_threads, for_clients, for_processes) = (url.clone(), url.clone(), url);
    vec![
        new(
            "locks used in turn",
            args.pick(1024, 16_384),
            Box::new(move |count| locks_in_turn(&for_names, count, samples)),
        ),
        new(
            "leases held by another thread",
            args.pick(1024, 8192),
            Box::new(move |count| beside_leases(&for_leases, count, samples)),
        ),
        new(
            "threads that wait for other locks",
            args.pick(64, 1024),
            Box::new(move |count| beside_waiters(&parked_on, &for_parked, count, samples)),
        ),
        new(
            "threads on the lock",
            args.pick(32, 256),
            Box::new(move |count| contended(&Maker::new("ours", &for_threads), count, millis)),
        ),
        new(
            "clients on the lock",
            args.pick(16, 128),
            Box::new(move |count| clients(&for_clients, count, millis)),
        ),
        new(
            "processes on the lock",
            args.pick(8, 32),
            Box::new(move |count| processes(&processes_on, &for_processes, count)),
        ),
    ]
}

/// `count` names, each locked and unlocked when its turn comes.
fn locks_in_turn(url: &str, count: u64, samples: u64) -> f64 {
    let client = Client::open(url).unwrap();
    let locks: Vec<RedisLock> = (0..count).map(|at| client.lock(&format!("turn:{at}"))).collect();
    // Not in the order in which they are in memory.
    let mut at = 0;
    let mut cycle = || {
        at = (at + 7919) % locks.len();
        locks[at].lock().unwrap();
        locks[at].unlock().unwrap();
    };
    p50(&mut cycle, samples)
}

/// One lock, while a thread holds `count` others of the same client.
fn beside_leases(url: &str, count: u64, samples: u64) -> f64 {
    let client = Client::open(url).unwrap();
    let lock = client.lock("beside:leases");
    let (held, done) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let locks: Vec<RedisLock> =
                (0..count).map(|at| client.lock(&format!("held:{at}"))).collect();
            locks.iter().for_each(|lock| lock.lock().unwrap());
            held.wait();
            done.wait();
            locks.iter().for_each(|lock| lock.unlock().unwrap());
        });
        held.wait();
        let cost = p50(&mut || drop(lock.guard().unwrap()), samples);
        done.wait();
        cost
    })
}

/// One lock, while `count` threads of the same client wait for a lock that somebody else holds.
fn beside_waiters(server: &Server, url: &str, count: u64, samples: u64) -> f64 {
    Side::new(server).hold("parked");
    let client = Client::open(url).unwrap();
    let lock = client.lock("beside:waiters");
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        for _ in 0..count {
            let wait = || {
                assert!(
                    client
                        .lock("parked")
                        .lock_interruptibly(&interrupt)
                        .unwrap_err()
                        .is_interrupted()
                )
            };
            thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, wait).unwrap();
        }
        // All but one wait for their turn; that one waits at the server.
        eventually(Duration::from_secs(20), || client.waiting("parked") as u64 == count - 1);
        thread::sleep(Duration::from_millis(50));
        let cost = p50(&mut || drop(lock.guard().unwrap()), samples);
        interrupt.interrupt();
        cost
    })
}

/// The median time of `cycle`.
fn p50(cycle: &mut (impl FnMut() + Send), samples: u64) -> f64 {
    struct Cycle<'a, F>(&'a mut F);
    impl<F: FnMut() + Send> Contender for Cycle<'_, F> {
        fn lock(&mut self) {
            (self.0)();
        }
        fn unlock(&mut self) {}
    }
    let mut cycle = Cycle(cycle);
    cycles(&mut cycle, samples / 4);
    percentile(&mut cycles(&mut cycle, samples), 0.5) as f64
}

/// `count` threads of one client, all on one lock: the total time per acquisition.
fn contended(maker: &Maker, count: u64, millis: u64) -> f64 {
    contest((0..count).map(|_| maker.make("threads")).collect(), millis)
}

/// `count` clients with a thread each, as if each were a process: all but one of them queue at the
/// server.
fn clients(url: &str, count: u64, millis: u64) -> f64 {
    let makers: Vec<Maker> = (0..count).map(|_| Maker::new("ours", url)).collect();
    contest(makers.iter().map(|maker| maker.make("clients")).collect(), millis)
}

/// Nanoseconds per acquisition if all `contenders` want the same lock all the time.
fn contest(contenders: Vec<Box<dyn Contender>>, millis: u64) -> f64 {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (ready, started) = mpsc::channel();
    thread::scope(|scope| {
        let expected = contenders.len();
        for mut contender in contenders {
            let (ready, done, stop) = (ready.clone(), &done, &stop);
            let run = move || {
                contender.lock();
                contender.unlock();
                ready.send(()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    contender.lock();
                    contender.unlock();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            };
            thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, run).unwrap();
        }
        started.iter().take(expected).for_each(drop);
        let (from, start) = (done.load(Ordering::Relaxed), now());
        thread::sleep(Duration::from_millis(millis));
        let cost = (now() - start) as f64 / (done.load(Ordering::Relaxed) - from).max(1) as f64;
        stop.store(true, Ordering::Relaxed);
        cost
    })
}

/// `count` processes with nothing to do under the lock.
fn processes(server: &Server, url: &str, count: u64) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let contest = Contest {
        url,
        at: url,
        processes: usize::try_from(count).unwrap(),
        seconds: 1,
        hold_us: 0,
        dir: dir.path(),
    };
    1e9 / contest.run(&peers::OURS, &mut Side::new(server), "processes").rate
}

fn report(all: &[Series], rounds: u64, plots: &Path) {
    let most = all.iter().map(|series| series.counts.len()).max().unwrap_or(0);
    let columns: Vec<String> = (0..most).map(|power| format!("{}", 1_u64 << power)).collect();
    let mut heading = vec!["µs per acquisition with …"];
    heading.extend(columns.iter().map(String::as_str));
    heading.extend(["slope", "from 4 on", "A' / A"]);
    let mut aims = Aims::new();
    let mut table = Table::new(&heading);
    let mut lines = Vec::new();
    for series in all {
        let costs: Vec<f64> =
            series.costs.iter().map(|rounds| median(rounds.iter().copied())).collect();
        let points: Vec<(f64, f64)> = series
            .counts
            .iter()
            .zip(&costs)
            .map(|(&count, &cost)| (count as f64, cost / 1000.0))
            .collect();
        let mut cells = vec![series.name.to_owned()];
        cells.extend((0..most).map(|at| costs.get(at).map_or(String::new(), |&cost| us(cost))));
        cells.push(format!("{:+.3}", slope(&points)));
        cells.push(format!("{:+.3}", slope(&points[2..])));
        // The first round against the last: how much of a difference is noise.
        let again = series.costs.iter().filter_map(|rounds| Some(rounds.last()? / rounds.first()?));
        cells.push(if rounds > 1 { format!("{:.2}", median(again)) } else { "–".to_owned() });
        // If all want the same lock, contention begins at two, and that is not counted as growth.
        let (from, measured) =
            if series.alone { ("", slope(&points)) } else { (", from 4 on", slope(&points[2..])) };
        // Processes share one core here, so what grows with their number is the switching between
        // them. It is measured, but it is no aim.
        if !series.name.starts_with("processes") {
            aims.at_most(&format!("{}: slope{from}", series.name), measured, 0.05);
        }
        table.row(cells);
        lines.push(Line { name: series.name.to_owned(), points });
    }
    table.print();
    println!(
        "Medians of {rounds} rounds. The slope is that of log cost over log count: 0 is flat, 1 is \
         in proportion; from one to two, contention begins, so it is also given \
         from 4 on. A' / A: the last round over the first, the median over the counts. The first \
         three rows: p50 of one lock and unlock. The others: time per acquisition where all want \
         the same lock all the time.\n\n\
         ![cost per acquisition](plots/growth.svg)\n"
    );
    aims.print();
    plot::lines(plots, "growth", "Cost of an acquisition", "how many", "µs", &lines);
}
