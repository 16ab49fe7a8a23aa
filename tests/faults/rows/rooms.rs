//! Read-write locks and semaphores under the faults of rows 1, 5, 18 and 30. In the second, the
//! replies to releases and downgrades are swallowed, too.

use std::time::Duration;

use super::super::clock::nanos;
use super::super::history::{self, Record};
use super::super::load::Habit;
use super::super::progress;
use super::super::rooms::WRITER;
use super::super::support::Fault;
use super::super::tune::{Tune, ms};
use super::super::world::World;
use super::network::SELDOM;
use super::shower::{is_acquire, is_script, shower};
use super::{Row, USUAL, clients, server};

/// How long a waiter may take to notice that those before it in the queue are gone.
const PAUSES: Duration = Duration::from_secs(6);

pub fn rows() -> Vec<Row> {
    // A set of tokens is not sampled: an orphan keeps others out, and is seen by that.
    let usual = || Row { known_within: None, ..USUAL };
    vec![
        Row {
            number: 89,
            name: "read-write locks and semaphores: none",
            faults: (0, 0),
            // Whoever fits gets in at once, and not only when the next one leaves.
            free_within: Some(|load| load.lease / 10),
            may_lose: false,
            may_be_unknown: false,
            may_fail: false,
            fair: true,
            tune: |tune| {
                rooms(tune);
                tune.direct = true;
            },
            run: |world| world.repeat((ms(100), ms(100)), |_| ()),
            after: |world| inspect(world, ms(1000)),
            ..usual()
        },
        Row {
            number: 90,
            name: "read-write locks and semaphores: a swallowed reply",
            free_within: Some(|_| ms(3000)),
            tune: |tune| {
                rooms(tune);
                tune.load.lease = ms(5000);
            },
            run: |world| shower(world, SELDOM, begins_or_ends, |_| Fault::SwallowReply),
            after: |world| inspect(world, ms(5000)),
            ..usual()
        },
        Row {
            number: 91,
            name: "read-write locks and semaphores: server stopped for 2 leases",
            faults: (3, 10),
            under_fault: 0,
            tune: |tune| {
                rooms(tune);
                tune.on = (tune.load.lease * 2, tune.load.lease * 2);
                tune.faulted = tune.faulted.max(ms(7500));
            },
            run: server::stop,
            after: |world| inspect(world, world.tune.load.lease * 2 + PAUSES),
            ..usual()
        },
        Row {
            number: 92,
            name: "read-write locks and semaphores: client killed (-9)",
            faults: (4, 12),
            leaves_no_queue: false,
            tune: |tune| {
                rooms(tune);
                tune.load.lease = ms(1000);
            },
            run: clients::kill,
            after: |world| inspect(world, world.tune.load.lease + PAUSES),
            ..usual()
        },
    ]
}

/// The scripts that release and that exchange have five keys, too, and one argument or three.
fn begins_or_ends(command: &[Vec<u8>]) -> bool {
    is_acquire(command) || is_script(command, b"5") && matches!(command.len(), 9 | 11)
}

/// Several processes for each key: two threads of each for one of short holds, so that they share
/// leases, and one for one of long holds.
fn rooms(tune: &mut Tune) {
    (tune.load.habit, tune.load.hold) = (Habit::Rooms, ms(4));
    (tune.processes, tune.load.threads, tune.load.keys) = (tune.processes * 2 + 2, 8, 4);
    (tune.load.long_threads, tune.load.long_keys, tune.load.bait_keys) = (4, 4, 0);
    tune.load.long_leases = 1;
    // No process is cut off alone: whoever waits may be what others wait behind.
    tune.apart = false;
}

/// How full the rooms were: a row in which nobody had company has shown nothing. `most`: how long a
/// writer may wait for readers and writers of short holds, those that have died among them.
fn inspect(world: &mut World, most: Duration) {
    let (holds, _) = history::read_all(world.dir());
    let is_read = |hold: &&Record| hold.room == WRITER && hold.share < WRITER;
    let reads: Vec<&Record> = holds.iter().filter(is_read).filter(|read| read.inside > 0).collect();
    let permits: Vec<&Record> =
        holds.iter().filter(|hold| hold.room < WRITER && hold.inside > 0).collect();
    let keys = world.tune.load.keys;
    let writes = || holds.iter().filter(|hold| hold.share == WRITER);
    let wait = progress::longest_wait(
        &writes().filter(|write| write.key < keys).cloned().collect::<Vec<_>>(),
    );
    let percent = |part: usize, all: usize| part * 100 / all.max(1);
    let company = percent(reads.iter().filter(|read| read.beside > 0).count(), reads.len());
    let filled =
        percent(permits.iter().filter(|hold| hold.inside == hold.room).count(), permits.len());
    world.remarks.push(format!(
        "{} reads, {company} % of them beside another process's, {} at a time; {} writes, after {} \
         ms at most; {} acquisitions of permits, {filled} % of them of the last ones",
        reads.len(),
        reads.iter().map(|read| read.inside).max().unwrap_or(0),
        writes().count(),
        wait / 1_000_000,
        permits.len()
    ));
    // Each row has a second of undisturbed load at least.
    if company < 20 || filled < 5 {
        world.little("too few had company");
    }
    if wait > nanos(most) {
        world.late(format!("a writer waited for {} ms (I7)", wait / 1_000_000));
    }
}
