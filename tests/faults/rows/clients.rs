//! Faults of the clients' processes and threads, and many of them.

use super::super::clock::{nanos, now};
use super::super::load::Habit;
use super::super::support::process::Guarded;
use super::super::tune::ms;
use super::super::world::World;
use super::quota::Quota;
use super::{Row, USUAL, a_lease, at_once};

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            number: 30,
            name: "client killed (-9)",
            free_within: Some(a_lease),
            leaves_no_queue: false,
            // A lock that a dead process held is free after a lease, and until then every caller
            // waits for it.
            tune: |tune| (tune.load.lease, tune.load.keys) = (ms(1000), tune.load.keys * 4),
            run: kill,
            faults: (4, 12),
            ..USUAL
        },
        Row {
            number: 31,
            name: "panic while holding, 5 % of holds",
            may_fail: false,
            free_within: Some(at_once),
            may_lose: false,
            may_be_unknown: false,
            tune: |tune| tune.load.habit = Habit::Panic,
            run: habit,
            ..USUAL
        },
        Row {
            number: 32,
            name: "thread ends without unlock, 5 % of holds",
            may_fail: false,
            free_within: Some(at_once),
            may_lose: false,
            may_be_unknown: false,
            tune: |tune| tune.load.habit = Habit::Leak,
            run: habit,
            ..USUAL
        },
        Row {
            number: 68,
            name: "a child is forked while its parent holds",
            may_fail: false,
            may_lose: false,
            may_be_unknown: false,
            // While a process forks it does nothing else, and its child has its descriptors.
            punctual: false,
            recovers: false,
            faults: (30, 300),
            tune: |tune| {
                (tune.load.habit, tune.load.lease, tune.faulted) =
                    (Habit::Fork, ms(3000), tune.faulted.max(ms(5000)));
            },
            run: forks,
            ..USUAL
        },
        Row {
            number: 34,
            class: 'P',
            name: "client stopped for 2 leases",
            offers_stale: true,
            faults: (3, 10),
            punctual: false,
            tune: |tune| {
                tune.on = (tune.load.lease * 2, tune.load.lease * 2);
                tune.faulted = tune.faulted.max(ms(7500));
                tune.load.hold *= 3;
            },
            run: stop,
            ..USUAL
        },
        Row {
            number: 35,
            name: "client stopped for 0.5 leases",
            may_lose: false,
            punctual: false,
            tune: |tune| tune.on = (tune.load.lease / 2, tune.load.lease / 2),
            // A stopped process does not know what it was handed.
            known_within: Some(|load| load.lease / 2 + ms(500)),
            run: stop,
            ..USUAL
        },
        Row {
            number: 36,
            class: 'P',
            name: "CPU starvation, 5 % of one CPU for each process",
            punctual: false,
            // Long enough, and with leases short enough, that some are lost: these losses must be
            // told.
            tune: |tune| {
                tune.load.lease = ms(120);
                (tune.load.long_threads, tune.load.command) = (4, ms(100));
                tune.load.long_keys = 16;
                tune.on = (ms(1000), ms(1500));
                tune.faulted = tune.faulted.max(ms(8000));
            },
            run: starve,
            losses: (3, 30),
            ..USUAL
        },
        Row {
            number: 40,
            name: "1000 waiters on one key",
            may_fail: false,
            free_within: Some(a_lease),
            faults: (0, 0),
            may_lose: false,
            may_be_unknown: false,
            // One key, one holder: the rate is that of the hand-offs, and the same in all phases.
            tune: |tune| {
                (tune.processes, tune.load.threads, tune.load.keys) = (4, 250, 1);
                (tune.load.hold, tune.load.long_threads, tune.load.timed) = (ms(0), 0, false);
                (tune.direct, tune.faulted) = (true, tune.faulted.max(ms(6000)));
            },
            run: waiters,
            fair: true,
            ..USUAL
        },
        Row {
            number: 41,
            name: "pool of one connection, 100 threads",
            may_fail: false,
            free_within: Some(a_lease),
            faults: (0, 0),
            may_lose: false,
            may_be_unknown: false,
            tune: |tune| (tune.processes, tune.load.threads, tune.load.pool) = (2, 100, 1),
            run: habit,
            fair: true,
            ..USUAL
        },
    ]
}

/// One process after another is killed, and another takes its place.
pub fn kill(world: &mut World) {
    let quick = world.size == super::super::tune::Size::Quick;
    let pause = if quick { (ms(900), ms(1300)) } else { (ms(3000), ms(3000)) };
    world.repeat(pause, |world| {
        let index = world.random.below(world.tune.processes) as usize;
        world.replace_client(index);
        world.faults += 1;
    });
}

/// The fault is the habit of the clients.
fn habit(world: &mut World) {
    world.repeat((ms(500), ms(500)), |world| {
        let (holds, _) = super::super::history::read_all(world.dir());
        world.faults = holds
            .iter()
            .filter(|hold| hold.outcome == super::super::history::Outcome::Abandoned)
            .count() as u64;
    });
}

fn forks(world: &mut World) {
    world.repeat((ms(500), ms(500)), |world| {
        let (_, calls) = super::super::history::read_all(world.dir());
        world.faults = calls
            .iter()
            .filter(|call| call.outcome == super::super::history::Outcome::Forked)
            .count() as u64;
    });
}

fn stop(world: &mut World) {
    let index = std::cell::Cell::new(0);
    world.windows(
        |world| {
            index.set(world.random.below(world.tune.processes) as usize);
            world.clients[index.get()].stop();
            world.faults += 1;
        },
        |world| world.clients[index.get()].cont(),
    );
}

/// With the kernel's quota if we may set one; otherwise each process may run for 5 ms of every 100
/// ms, which is harder.
fn starve(world: &mut World) {
    let pids: Vec<u32> = world.clients.iter().map(|client| client.pid()).collect();
    let groups: Vec<Quota> = pids.iter().filter_map(|pid| Quota::over(*pid)).collect();
    if groups.len() == pids.len() {
        world.remarks.push(format!("by {}", groups[0].means));
        world.windows(
            |world| {
                groups.iter().for_each(|group| group.limit(true));
                world.faults += 1;
            },
            |_| groups.iter().for_each(|group| group.limit(false)),
        );
        return;
    }
    world
        .remarks
        .push("no quota can be set here: by SIGSTOP and SIGCONT, 5 ms of each 100 ms".into());
    world.windows(
        |world| {
            world.faults += 1;
            let until = now() + nanos(world.draw(world.tune.on));
            while now() < until {
                world.clients.iter_mut().for_each(Guarded::stop);
                std::thread::sleep(ms(95));
                world.clients.iter_mut().for_each(Guarded::cont);
                std::thread::sleep(ms(5));
            }
        },
        |_| (),
    );
}

fn waiters(world: &mut World) {
    let clients = world.server.client_count();
    // The connections of the pool, of renewal and of the subscription, and the one of the driver.
    let most = world.tune.processes * (u64::from(world.tune.load.pool) + 2) + 1;
    if clients > most {
        world.late(format!("{clients} connections, {most} at most"));
    }
    let grants = |world: &World| super::super::history::read_all(world.dir()).0.len() as u64;
    let before = (world.server.commands_processed_by_clients(), grants(world));
    world.repeat((ms(200), ms(200)), |_| ());
    let (commands, holds) =
        (world.server.commands_processed_by_clients() - before.0, grants(world) - before.1);
    // Commands inside scripts are counted by the server as well.
    let each = commands as f64 / holds.max(1) as f64;
    world.remarks.push(format!("{each:.1} commands per hold, those in scripts counted"));
    if each > 10.0 {
        world.late("more than 10 commands per hand-off");
    }
}
