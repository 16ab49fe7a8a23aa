//! Runs a row: its clients, its fault, and the observations during and after it. The results are
//! judged in `verdict`.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::thread;

use super::admin::Admin;
use super::check;
use super::clock::{nanos, now};
use super::history::{self, Record};
use super::machine::{Noise, memory};
use super::progress;
use super::rows::Row;
use super::samples::{Sampler, Seen};
use super::substance::Substance;
use super::support::Server;
use super::third_party::{Back, Background};
use super::tune::{Size, Tune, ms};
use super::verdict;
use super::witness::Offer;
use super::world::World;

/// What a row prints once its clients have stopped.
pub const LOAD_OVER: &str = "LOAD OVER";

/// The head of the table.
pub const HEAD: &str = "| # | class | fault | holds | holds under the fault | idle (%) | faults | \
     unknown | overlaps | lost updates | \
     stale offered / accepted | fence regressions | longest stuck (ms) | longest orphan (ms) | \
     longest wait (ms) | acquire p50 / p99 (ms) | \
     recovery (ms) | threads | descriptors | connections | keys | remarks | verdict |\n\
     |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";
/// The column with the remarks, counted from the first bar.
pub const REMARKS: usize = 22;

/// The share of its former rate that the load must reach again (I8), as the mean over this time.
/// Less, if the server answers everybody more slowly than before.
const SHARE: f64 = 0.8;
const SLICE: u64 = 1_000_000_000;

/// When the phases of a row began and ended (ns).
#[derive(Clone, Copy)]
pub struct Times {
    pub start: u64,
    pub faulted: u64,
    pub healed: u64,
    pub end: u64,
}

/// Everything that is known of a row that has run.
pub struct Facts {
    pub times: Times,
    pub holds: Vec<Record>,
    pub calls: Vec<Record>,
    pub offers: Vec<Offer>,
    /// How late the machine woke a thread that slept (ns).
    pub delay: u64,
    pub recovery: Option<u64>,
    pub seen: Seen,
    /// The connections to the server before the clients and after them.
    pub connections: (u64, u64),
    pub channels: usize,
    pub locks: usize,
    pub queues: usize,
    /// By how many KiB a process has grown.
    pub grown: u64,
    /// What the clients counted of themselves.
    pub counts: Vec<String>,
    pub logs: String,
}

/// Runs a row and gives its line.
pub fn run(row: &Row, size: Size, seed: u64) -> String {
    let mut tune = Tune::new(size);
    (row.tune)(&mut tune);
    // If servers forget, or there are several, renewal cannot be blamed for what happens to a key.
    if row.class == 'T' || !tune.load.fenced || tune.load.long_threads == 0 {
        tune.load.bait_keys = 0;
    }
    let mut world = World::new(size, tune, seed);
    world.least = least(row, size);
    (row.prepare)(&mut world);
    let facts = facts(row, &mut world);
    if let Some(dir) = std::env::var_os("FAULTS_KEEP") {
        keep(row, &world, Path::new(&dir));
    }
    verdict::line(row, &mut world, &facts)
}

/// Copies histories and logs to a directory of this try.
fn keep(row: &Row, world: &World, dir: &Path) {
    let name = |tries: u32| dir.join(format!("row-{}-{tries}", row.number));
    let to = (1..).map(name).find(|to| !to.exists()).expect("a name is free");
    let _ = fs::create_dir_all(dir);
    let _ = std::process::Command::new("cp").arg("-r").arg(world.dir()).arg(to).status();
}

/// What this row must show.
fn least(row: &Row, size: Size) -> Substance {
    let scaled = |(quick, full)| if size == Size::Quick { quick } else { full };
    Substance {
        faults: scaled(row.faults),
        holds: row.holds,
        under_fault: row.under_fault,
        renewals: scaled(row.renewals),
        losses: usize::try_from(scaled(row.losses)).expect("a small number"),
        waits: row.waits_in_conditions,
    }
}

fn facts(row: &Row, world: &mut World) -> Facts {
    let before = connections(world);
    world.start_clients();
    let (noise, patience) = (Noise::listen(), ms(1000));
    let sampler = Sampler::start(
        Admin::of(&world.server, patience),
        world.tune.load.all_keys(),
        world.pids.clone(),
    );
    let bait = Background::start(
        Admin::of(&world.server, patience),
        world.tune.load.bait(),
        world.tune.load.lease,
        world.seed_for(1),
    );
    let (times, recovery, grown) = phases(row, world, &sampler);
    let round = bait.end();
    world.remarks.extend(
        (!round.taken.is_empty())
            .then(|| format!("{} other locks taken by a third party", round.taken.len())),
    );
    round.problems.into_iter().for_each(|problem| world.red(problem));
    world.back.extend(round.back);
    let delay = noise.worst();
    let counts = stop(world);
    println!("{LOAD_OVER}");
    let seen = sampler.end();
    let stopped = now();
    let after = falls_to(before, || connections(world));
    let channels = falls_to(0, || channels(world));
    let quiet = nanos(world.tune.load.lease) + 1_000_000_000;
    let mut locks = locks(world, row);
    while locks > 0 && now() - stopped < quiet {
        thread::sleep(ms(20));
        locks = self::locks(world, row);
    }
    let queues = keys(world, "*:queue", |_| true) + keys(world, "*:waiters", |_| true);
    let logs = world.logs();
    fs::write(world.dir().join("exit"), "").expect("a file");
    (row.after)(world);
    let (mut holds, mut calls) = history::read_all(world.dir());
    let late = nanos(world.tune.load.command);
    let again = |back: &Back| {
        check::is_created_again(&holds, &calls, back.key, (back.deleted, back.seen + late))
    };
    if world.back.iter().any(again) {
        world.red("a deleted lock was created again under its old token (I12)");
    }
    let judged = world.tune.load.all_keys();
    holds.retain(|hold| hold.key < judged);
    calls.retain(|call| call.key < judged);
    let mut offers = world.resource.offers();
    offers.retain(|offer| offer.key < judged);
    let connections = (before, after);
    Facts {
        times,
        holds,
        calls,
        offers,
        delay,
        recovery,
        seen,
        connections,
        channels,
        locks,
        queues,
        grown,
        counts,
        logs,
    }
}

/// Runs the load undisturbed, under the fault, and after it, until the load has reached its rate
/// again or its time for that is over. Returns how long that took, and by how many KiB a process
/// has grown.
fn phases(row: &Row, world: &mut World, sampler: &Sampler) -> (Times, Option<u64>, u64) {
    let start = now();
    thread::sleep(world.tune.baseline);
    let faulted = now();
    let memory_before = memories(world);
    (row.run)(world);
    let healed = world.times.last().map_or(now(), |times| times.1);
    thread::sleep(world.tune.healing);
    let keys = world.tune.load.keys;
    let recovery_until_now = |world: &World| {
        let (mut holds, _) = history::read_all(world.dir());
        holds.retain(|hold| hold.key < keys);
        let share = SHARE / sampler.slower((start, faulted), healed);
        progress::recovery(&holds, (start, faulted), (healed, now()), share, SLICE)
    };
    let mut recovery = row.recovers.then(|| recovery_until_now(world)).flatten();
    while row.recovers && recovery.is_none() && now() - healed < 5_300_000_000 {
        thread::sleep(ms(200));
        recovery = recovery_until_now(world);
    }
    let grown = memories(world)
        .into_iter()
        .zip(memory_before)
        .map(|(after, before)| after.saturating_sub(before))
        .max()
        .unwrap_or(0);
    (Times { start, faulted, healed, end: now() }, recovery, grown)
}

/// Stops all clients, and returns what each process counted of itself. Waiters get the lock one
/// after another, so this only takes long if something is stuck.
fn stop(world: &mut World) -> Vec<String> {
    fs::write(world.dir().join("stop"), "").expect("a file");
    let (told, patience) = (now(), 35_000_000_000);
    let mut counts = Vec::new();
    for process in living(world) {
        let status = loop {
            let status = world.status(process);
            if status.contains("after") {
                break status;
            }
            if now() - told > patience {
                world.late(format!("process {process} is stuck (I10)"));
                break status;
            }
            thread::sleep(ms(10));
        };
        counts.push(status);
    }
    counts
}

/// How many KiB each client process has.
fn memories(world: &World) -> Vec<u64> {
    world.clients.iter().map(|client| memory(client.pid())).collect()
}

/// The processes that were not killed: the last one in each place.
fn living(world: &World) -> Vec<u64> {
    let alive = |process: &u64| {
        let pids: Vec<String> =
            world.clients.iter().map(|client| client.pid().to_string()).collect();
        let status = world.status(*process);
        status
            .lines()
            .find_map(|line| line.strip_prefix("pid "))
            .is_some_and(|pid| pids.iter().any(|other| other == pid))
    };
    (0..world.spawned).filter(alive).collect()
}

/// How many connections the server has, or all nodes of a cluster, without our own, and that to its
/// primary if it has become a replica.
fn connections(world: &mut World) -> u64 {
    let looking = u64::from(world.is_looking());
    let of = |server: &Server| {
        let replicates = server.info("replication").contains("master_link_status:up");
        server.client_count().saturating_sub(u64::from(replicates))
    };
    let counted = if world.is_cluster() { usize::MAX } else { 1 };
    world.servers().take(counted).map(of).sum::<u64>().saturating_sub(looking)
}

/// What is counted, once it is no more than `usual`, or after a time that is long enough for any
/// server to notice that its clients have gone. A node of a cluster keeps the connection over which
/// it has moved keys for ten seconds.
fn falls_to<N: PartialOrd>(usual: N, mut count: impl FnMut() -> N) -> N {
    let begun = now();
    loop {
        let seen = count();
        if seen <= usual || now() - begun > 20_000_000_000 {
            return seen;
        }
        thread::sleep(ms(20));
    }
}

/// How many of the locks' own channels somebody listens to, at all servers.
fn channels(world: &World) -> usize {
    let names = |server: &Server, what: &str, pattern: &str| {
        let names = redis::cmd("PUBSUB").arg(what).arg(pattern).to_owned();
        // Before Redis 7 there are no channels of a shard.
        names.query::<Vec<String>>(&mut server.connection()).map_or(0, |names| names.len())
    };
    let of = |server| {
        let each = ["distlock:*", "redisson_lock__channel:*"].into_iter();
        each.map(|pattern| {
            names(server, "CHANNELS", pattern) + names(server, "SHARDCHANNELS", pattern)
        })
        .sum::<usize>()
    };
    world.servers().map(of).sum()
}

/// How many keys of this pattern are there that satisfy `counts`, at all servers.
fn keys(world: &World, pattern: &str, counts: impl Fn(&str) -> bool) -> usize {
    let of = |server: &Server| -> usize {
        let names = redis::cmd("KEYS").arg(pattern).query(&mut server.connection());
        let names: Vec<String> = names.expect("the server answers");
        names.iter().filter(|name| counts(name)).count()
    };
    world.servers().map(of).sum()
}

/// How many of the locks' own keys are there.
fn locks(world: &World, row: &Row) -> usize {
    let own: HashSet<_> =
        (row.foreign_keys..world.tune.load.all_keys()).map(super::load::key_name).collect();
    keys(world, &super::load::key_name(0).replace('0', "*"), |name| own.contains(name))
}
