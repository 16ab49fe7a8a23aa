//! What a thousand threads cost that wait for locks of other holders.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, Interrupt};

mod support;

use support::aims::Aims;
use support::args::Args;
use support::clock::{cpu, now};
use support::it::{eventually, thread_count};
use support::peers::{self, Peer};
use support::placement::Place;
use support::server::{self, Side};
use support::stats::median;
use support::table::{Table, thousands};

/// What the waiters cost.
struct Cost {
    /// Threads besides those that wait.
    threads: usize,
    connections: usize,
    requests: f64,
    cpu: f64,
    server_cpu: f64,
}

fn main() {
    let args = Args::parse();
    let place = args.begin("waiting: 1,000 threads blocked on locks that others hold", Place::Free);
    let server = server::start(place);
    let mut side = Side::new(&server);
    let waiters = args.pick(200, 1000);
    let seconds = args.pick(2, 10);

    let mut table = Table::new(&[
        "",
        "threads besides",
        "connections",
        "requests per second",
        "CPU of the process",
        "of the server",
        "ended within ms",
    ]);
    let idle = observe(&mut side, seconds, cpu);
    table.row(cells("nobody waits", &idle, None));
    let (mut aims, mut alike) = (Aims::new(), Vec::new());
    for (round, locks) in [1, waiters, 1].into_iter().enumerate() {
        progress!("{waiters} threads, {locks} locks");
        let (cost, ended) =
            ours(&server.url(), &mut side, waiters, locks, (args.pick(3, 55), seconds));
        let name = if locks == 1 {
            "one lock".to_owned()
        } else {
            format!("{} locks", thousands(locks as f64))
        };
        let label = match (locks, round) {
            (1, 0) => "A: distlock, one lock".to_owned(),
            (1, _) => "A': the same again".to_owned(),
            _ => format!("distlock, {name}"),
        };
        table.row(cells(&label, &cost, Some(ended)));
        if locks == 1 {
            alike.push(cost.requests);
        }
        if round < 2 {
            aims.at_most(&format!("{name}: threads of ours"), cost.threads as f64, 5.0);
            aims.at_most(&format!("{name}: connections of ours"), cost.connections as f64, 3.0);
            let (most, each) = if locks == 1 { (5.0, 1.0) } else { (1.0, locks as f64) };
            aims.at_most(
                &format!(
                    "{name}: commands per second{}",
                    if locks == 1 { "" } else { " and lock" }
                ),
                cost.requests / each,
                most,
            );
        }
    }
    if !args.alone {
        let theirs =
            [peers::RSLOCK, peers::REDSYNC, peers::REDIS_PY, peers::JEDIS, peers::REDISSON];
        for peer in peers::built(&theirs, &server.url()) {
            progress!("{waiters} threads, one lock, {}", peer.label);
            let cost = theirs_cost(&peer, &server.url(), &mut side, waiters, args.pick(2, 4));
            table.row(cells(&format!("{}, one lock", peer.label), &cost, None));
        }
    }
    table.print();
    println!(
        "{} threads wait, watched for {seconds} s (other libraries: {} s). Threads besides: those \
         that do not wait themselves. Connections: of ours, the median of 21 looks. Requests: what \
         the server read from clients. \
         CPU as share of one core. Ended within: from one `Interrupt` to the return of the last \
         thread.\n",
        thousands(waiters as f64),
        args.pick(2, 4)
    );
    println!("A' / A, requests: {:.2}.\n", alike[1] / alike[0]);
    aims.print();
}

/// Threads of this process on `locks` locks.
fn ours(
    url: &str,
    side: &mut Side,
    waiters: usize,
    locks: usize,
    (settle, seconds): (u64, u64),
) -> (Cost, Duration) {
    let client = Client::open(url).unwrap();
    // The previous client may still be closing its connections.
    eventually(Duration::from_secs(10), || side.connections() == 0);
    (0..locks).for_each(|at| side.hold(&format!("waiting:{locks}:{at}")));
    let (threads, connections) = (thread_count(), side.connections());
    let interrupt = Interrupt::new();
    let all: Vec<_> = (0..waiters)
        .map(|at| {
            let (lock, interrupt) =
                (client.lock(&format!("waiting:{locks}:{}", at % locks)), interrupt.clone());
            let wait =
                move || assert!(lock.lock_interruptibly(&interrupt).unwrap_err().is_interrupted());
            thread::Builder::new().stack_size(256 * 1024).spawn(wait).unwrap()
        })
        .collect();
    // Until each has been refused and has its place; in a full run, also until the unused
    // connections of the first rush have been closed.
    thread::sleep(Duration::from_secs(if locks > 1 { settle } else { 3 }));
    let mut cost = observe(side, seconds, cpu);
    cost.threads = thread_count() - threads - waiters;
    // Their number changes whenever several waiters ask at once.
    let looks = (0..21).map(|_| {
        thread::sleep(Duration::from_millis(100));
        (side.connections() - connections) as f64
    });
    cost.connections = median(looks) as usize;
    let start = Instant::now();
    interrupt.interrupt();
    all.into_iter().for_each(|thread| thread.join().unwrap());
    (cost, start.elapsed())
}

/// Threads of another library's driver, on one lock.
fn theirs_cost(peer: &Peer, url: &str, side: &mut Side, waiters: usize, seconds: u64) -> Cost {
    let key = format!("waiting:{}", peer.driver);
    side.hold(&key);
    let connections = side.connections();
    let mut driver = peer.start(url).unwrap();
    driver.ask("warmup 0");
    driver.tell(&format!("threads {key} {waiters} 600"));
    thread::sleep(Duration::from_secs(if peer.is_jvm { 8 } else { 5 }));
    let pid = driver.pid();
    let mut cost = observe(side, seconds, || cpu_of(pid));
    cost.threads =
        fs::read_dir(format!("/proc/{pid}/task")).unwrap().count().saturating_sub(waiters);
    cost.connections = side.connections().saturating_sub(connections);
    // Each of them would lock once before it ends.
    driver.kill();
    cost
}

fn observe(side: &mut Side, seconds: u64, cpu: impl Fn() -> u64) -> Cost {
    let (cpu_before, before, start) = (cpu(), side.counters(), now());
    thread::sleep(Duration::from_secs(seconds));
    let took = (now() - start) as f64;
    let after = side.counters();
    Cost {
        threads: 0,
        connections: 0,
        requests: after.reads_since(&before) as f64 * 1e9 / took,
        cpu: (cpu() - cpu_before) as f64 / took,
        server_cpu: (after.cpu_us - before.cpu_us) * 1000.0 / took,
    }
}

/// The CPU time of another process, in nanoseconds; the kernel counts in hundredths of a second.
fn cpu_of(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    ticks * 10_000_000
}

fn cells(label: &str, cost: &Cost, ended: Option<Duration>) -> [String; 7] {
    [
        label.to_owned(),
        format!("{}", cost.threads),
        format!("{}", cost.connections),
        if cost.requests < 10.0 {
            format!("{:.1}", cost.requests)
        } else {
            thousands(cost.requests)
        },
        format!("{:.2} %", 100.0 * cost.cpu),
        format!("{:.2} %", 100.0 * cost.server_cpu),
        ended.map_or("–".to_owned(), |ended| format!("{:.0}", ended.as_secs_f64() * 1000.0)),
    ]
}
