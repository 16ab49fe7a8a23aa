//! What a row has left behind, and the most that it had open at a time (I9).

use super::findings::longer;
use super::judge::Facts;
use super::load::Habit;
use super::problems::Class::{Late, Red};
use super::problems::{Problem, those};
use super::rows::Row;
use super::samples::Peak;
use super::world::World;

/// I9, and I10, after the clients have closed.
pub fn of_leaks(row: &Row, facts: &Facts) -> Vec<Problem> {
    let mut problems = those([
        (facts.connections.1 > facts.connections.0, Red, "connections leaked (I9)".into()),
        (facts.channels > 0, Red, "a subscription leaked (I9)".into()),
        (facts.locks > 0, Red, format!("{} orphans (I4)", facts.locks)),
        // A caller whose last command was not answered in time leaves its place for three seconds.
        (
            row.leaves_no_queue && facts.queues > 0,
            Late,
            format!("{} queue keys left (I9)", facts.queues),
        ),
    ]);
    for status in &facts.counts {
        // The server is back, and answers; but closing has its time.
        if status.lines().any(|line| line.starts_with("after ") && line.ends_with(" false")) {
            problems.push((Late, "close failed at the end (I10)".into()));
        }
        if let ([threads, descriptors, ..], [threads_after, descriptors_after, failed]) =
            (&numbers(status, "before")[..], &numbers(status, "after")[..])
        {
            problems.extend(those([
                (
                    threads_after > threads,
                    Red,
                    format!("threads: {threads} before, {threads_after} after (I9)"),
                ),
                // One descriptor for the file of the counters, which is being written.
                (
                    *descriptors_after > descriptors + 1,
                    Red,
                    format!("descriptors: {descriptors} before, {descriptors_after} after (I9)"),
                ),
                (*failed > 0, Red, "a thread panicked (I10)".into()),
            ]));
        }
    }
    problems
}

/// A process opens at most four connections at a time, each on a thread of its own; the same number
/// may have been given up, and not have ended yet.
const CONNECTING: u64 = 4;

/// I9, while the clients ran.
pub fn of_peaks(row: &Row, world: &World, facts: &Facts) -> Vec<Problem> {
    let (times, load) = (facts.times, &world.tune.load);
    let (usual, peak) = (
        facts.seen.most(times.start, times.faulted),
        facts.seen.peak(times.faulted, times.end, &longer(&world.cut_offs)),
    );
    // What a process may have open besides its pool: renewal's connection, the inbox's, and one
    // more of each that is just being replaced. In a cluster, at each node.
    let nodes = if world.is_cluster() { 1 + world.more.len() as u64 } else { 1 };
    let own = (u64::from(load.pool) + 4) * nodes;
    // A process has one place in a queue, and each of its threads one in that of a semaphore. One
    // that was cut off may have left another there, for three seconds.
    let places = if load.habit == Habit::Rooms { load.threads } else { 1 };
    // Before the fault the pools need not be full yet. If the machine was so busy that no sample
    // was taken before the fault, there is nothing to compare with.
    let known = usual.threads > 0;
    let most = Peak {
        connections: world.tune.processes * own + 3,
        queued: world.tune.processes * places * 2 + 2,
        threads: usual.threads + 2 * CONNECTING,
        descriptors: usual.descriptors + own,
    };
    // What lasted for a second: without samples in between, it may have come and gone.
    those([
        (
            world.more.is_empty() && !world.half_open && peak.connections > most.connections,
            Late,
            format!("{} connections at a time (I9)", peak.connections),
        ),
        (
            row.leaves_no_queue && peak.queued > most.queued,
            Late,
            format!("{} waiters in a queue of {} processes (I9)", peak.queued, most.queued),
        ),
        (
            known && peak.threads > most.threads,
            Late,
            format!("{} threads, and {} before the fault (I9)", peak.threads, usual.threads),
        ),
        (
            known && peak.descriptors > most.descriptors,
            Late,
            format!(
                "{} descriptors, and {} before the fault (I9)",
                peak.descriptors, usual.descriptors
            ),
        ),
    ])
}

/// The value that a process wrote after this word in its status.
pub fn numbers(status: &str, word: &str) -> Vec<u64> {
    let line = status.lines().find(|line| line.starts_with(word)).unwrap_or_default();
    line.split(' ').skip(1).take(3).filter_map(|number| number.parse().ok()).collect()
}
