//! What the checkers find in the history of a row.

use super::check;
use super::clock::nanos;
use super::history::Record;
use super::judge::Facts;
use super::load::{Habit, Kind, Load};
use super::model;
use super::progress;
use super::rooms::WRITER;
use super::rows::Row;
use super::substance::{Substance, windows};
use super::tune::ms;
use super::world::World;

/// A slice of time without a grant is idle.
const SLICE: u64 = 250_000_000;
/// How long the clients may take to reach a server that is back.
const RECONNECT: u64 = 250_000_000;

/// What the checkers found in a history.
pub struct Findings {
    pub overlaps: Vec<(Record, Record)>,
    /// The longest time in which two owners believed in their holds.
    pub overlap: u64,
    pub lost_updates: usize,
    pub regressions: usize,
    pub stale: (usize, usize),
    /// How many timed calls were late, by how much at most, and how many were early.
    pub timing: (usize, u64, usize),
    /// Without keys in Redisson's layout, and with them.
    pub stuck: (u64, u64),
    pub orphans: Vec<u64>,
    /// The longest wait of all, and the longest one for locks that nobody holds for long.
    pub wait: (u64, u64),
    pub unnoticed: u64,
    /// (samples that no order explains, samples)
    pub model: (usize, usize),
    pub false_releases: Vec<(Record, Record)>,
    pub idle: (usize, usize),
    /// See [`progress::longest_run`].
    pub run: usize,
    /// See [`progress::overtakers`]: of the semaphores, where each thread has a place of its own.
    pub overtakers: f64,
    /// See [`check::crowded`].
    pub crowded: usize,
    pub shown: Substance,
}

impl Findings {
    pub fn new(row: &Row, world: &World, facts: &Facts) -> Findings {
        let (holds, calls, load) = (&facts.holds, &facts.calls, &world.tune.load);
        let times = facts.times;
        let (overlaps, overlap) = check::overlaps(holds);
        // The kernel rounds the timeout of a socket up, by an eighth at most: one of 2.3 s ends up
        // to 256 ms late.
        let slack = nanos(load.command * 9 / 8 + ms(100)) + facts.delay;
        let shown = Substance::of(
            world.faults,
            (holds, calls),
            (times.faulted, times.healed),
            &windows(&world.times, &world.outages),
        );
        Findings {
            overlap,
            lost_updates: check::lost_updates(holds),
            regressions: check::fence_regressions(holds, row.class == 'T'),
            stale: check::stale_writes(holds, &facts.offers),
            timing: progress::timing(holds, calls, slack),
            stuck: stuck(world, facts),
            orphans: orphans(world, facts),
            wait: (progress::longest_wait(holds), longest_short_wait(load, holds)),
            unnoticed: check::longest_unnoticed(holds, &world.taken),
            model: if overlaps.is_empty() { model::unexplained(holds, 4) } else { (0, 0) },
            overlaps,
            false_releases: check::false_releases(holds),
            idle: progress::idle(
                holds,
                (times.faulted, times.healed),
                &longer(&world.outages),
                SLICE,
            ),
            run: longest_run(load, holds),
            overtakers: overtakers(load, holds),
            crowded: check::crowded(holds),
            shown,
        }
    }

    pub fn idle_percent(&self) -> usize {
        self.idle.0 * 100 / self.idle.1.max(1)
    }
}

/// The outages, each with the time that clients may take to connect again.
pub fn longer(outages: &[(u64, u64)]) -> Vec<(u64, u64)> {
    outages.iter().map(|(from, to)| (*from, to + RECONNECT)).collect()
}

/// Two threads of a process may pass a lease to each other 16 times before another process gets its
/// turn. If each holds for up to three leases, that alone is longer than the limit for starvation,
/// so there the holds in a row are counted.
fn longest_short_wait(load: &Load, holds: &[Record]) -> u64 {
    let long = load.keys..load.all_keys();
    let short: Vec<Record> =
        holds.iter().filter(|hold| !long.contains(&hold.key)).cloned().collect();
    progress::longest_wait(&short)
}

/// For the keys whose waiters are in a queue.
fn longest_run(load: &Load, holds: &[Record]) -> usize {
    let queued = |hold: &&Record| {
        !matches!(load.kind(hold.key), Kind::Unqueued | Kind::Redisson | Kind::Room)
    };
    progress::longest_run(&holds.iter().filter(queued).cloned().collect::<Vec<_>>())
}

fn overtakers(load: &Load, holds: &[Record]) -> f64 {
    let short = |hold: &&Record| load.habit == Habit::Rooms && hold.key < load.keys;
    let permits = |hold: &&Record| short(hold) && hold.room < WRITER;
    progress::overtakers(&holds.iter().filter(permits).cloned().collect::<Vec<_>>())
}

/// The longest time in which a key had a waiter, no holder, and a server that both could reach.
fn stuck(world: &World, facts: &Facts) -> (u64, u64) {
    let load = &world.tune.load;
    // A client that is cut off cannot lock, whether the lock is free or not.
    let cut_off = |record: &Record, until: u64| {
        let first = world.has_apart() && record.owner < 10_000;
        first
            && world
                .times
                .iter()
                .any(|(from, to)| *from < until && record.called < to + nanos(load.command))
    };
    let of = |kinds: fn(Kind) -> bool| {
        let chosen = |record: &&Record| kinds(load.kind(record.key));
        let waited = |hold: Record| {
            if cut_off(&hold, hold.granted) {
                Record { called: hold.granted, ..hold }
            } else {
                hold
            }
        };
        let holds: Vec<Record> = facts.holds.iter().filter(chosen).cloned().map(waited).collect();
        let calls: Vec<Record> = facts
            .calls
            .iter()
            .filter(chosen)
            .filter(|call| !cut_off(call, call.ended))
            .cloned()
            .collect();
        let spans = check::without(&world.outages, facts.times.start, facts.times.end);
        spans
            .into_iter()
            .map(|(from, to)| progress::longest_stuck(&holds, &calls, from, to))
            .max()
            .unwrap_or(0)
    };
    (of(|kind| kind != Kind::Redisson), of(|kind| kind == Kind::Redisson))
}

/// How long the server had tokens that nobody alive knew of, outside the outages.
fn orphans(world: &World, facts: &Facts) -> Vec<u64> {
    let slack = nanos(ms(50)) + facts.delay;
    let spans = check::without(&world.outages, facts.times.start, facts.times.end);
    let within = |(from, to): (u64, u64)| {
        check::orphans(&facts.seen.tokens, &facts.holds, (from, to), slack)
    };
    spans.into_iter().flat_map(within).collect()
}
