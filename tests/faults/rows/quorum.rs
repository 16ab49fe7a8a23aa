//! Redlock: five nodes, of which some cannot be reached.

use std::cell::{Cell, RefCell};
use std::thread;

use super::super::check;
use super::super::clock::{nanos, now};
use super::super::history::{self, Record};
use super::super::support::{Proxy, Server};
use super::super::tune::{Tune, ms};
use super::super::verdict;
use super::super::world::World;
use super::{Row, USUAL, time};

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            number: 49,
            name: "Redlock, 5 nodes: 2 killed (AOF always), stopped or silent",
            tune: |tune| {
                five(tune);
                tune.on = tune.on.max((ms(700), ms(1100)));
                tune.faulted = tune.faulted.max(ms(7000));
                // A killed node is back within a lease. Without its data that would be row 52.
                tune.server = std::mem::take(&mut tune.server).append_only();
            },
            prepare: |world| nodes(world, true),
            run: |world| away(world, 2),
            ..USUAL
        },
        Row {
            number: 50,
            name: "Redlock, 5 nodes: 3 killed, stopped or silent",
            faults: (2, 10),
            // There must be no holds.
            holds: 0,
            tune: |tune| {
                five(tune);
                tune.on = (tune.load.lease * 5 / 2, tune.load.lease * 3);
                tune.faulted = tune.faulted.max(ms(6000));
            },
            prepare: |world| nodes(world, false),
            run: |world| away(world, 3),
            under_fault: 0,
            ..USUAL
        },
        Row {
            number: 51,
            name: "Redlock, 5 nodes: rolling kill -9 and restart, AOF always",
            tune: |tune| {
                five(tune);
                tune.server = std::mem::take(&mut tune.server).append_only();
            },
            prepare: |world| nodes(world, true),
            run: |world| {
                let next = std::cell::Cell::new(0);
                world.windows(
                    |world| {
                        server(world, next.get()).kill();
                        world.faults += 1;
                    },
                    |world| {
                        server(world, next.get()).restart();
                        next.set((next.get() + 1) % 5);
                    },
                );
            },
            ..USUAL
        },
        Row {
            number: 52,
            class: 'T',
            name: "Redlock, 5 nodes: restarted empty, at once and after a delay",
            faults: (5, 20),
            tune: |tune| {
                five(tune);
                tune.faulted = tune.faulted.max(ms(6000));
                tune.healing = tune.healing.max(tune.load.lease * 5);
            },
            prepare: |world| nodes(world, false),
            run: forgetful,
            ..USUAL
        },
        Row {
            number: 53,
            class: 'T',
            name: "Redlock, 5 nodes: the clock of one jumps, by 60 s",
            tune: |tune| {
                five(tune);
                // So that a loss is seen even if the first renewal does not notice it.
                tune.load.command = tune.load.lease * 3 / 10;
                tune.healing = tune.healing.max(tune.load.lease * 5);
            },
            prepare: |world| nodes(world, false),
            run: |world| {
                let port = server(world, 4).port();
                let mut offset = 0;
                world.repeat((ms(300), ms(700)), |world| {
                    offset += 60;
                    // Forwards and backwards: a clock that is set back keeps leases for longer, and
                    // one that is set forward ends them.
                    let to = if world.random.below(3) == 0 { offset - 120 } else { offset };
                    time::set_clock(port, to);
                    world.faults +=
                        u64::from(time::clock_error(server(world, 4)).abs_diff(to) <= 1);
                });
                time::set_clock(port, 0);
            },
            ..USUAL
        },
        Row {
            number: 72,
            name: "Redlock, 5 nodes: all silent for a third of a lease, with many threads that try",
            faults: (2, 8),
            under_fault: 0,
            may_lose: false,
            tune: |tune| {
                five(tune);
                (tune.load.lease, tune.load.long_threads, tune.load.long_keys) = (ms(6000), 4, 16);
                (tune.load.threads, tune.on, tune.off) =
                    (tune.load.threads * 2, (ms(2000), ms(2000)), (ms(1500), ms(2000)));
                tune.faulted = tune.faulted.max(ms(6000));
            },
            prepare: |world| nodes(world, false),
            run: |world| {
                world.windows(
                    |world| {
                        (0..5).for_each(|index| proxy(world, index).freeze());
                        (world.is_outage, world.faults) = (true, world.faults + 1);
                    },
                    |world| (0..5).for_each(|index| proxy(world, index).thaw()),
                );
            },
            ..USUAL
        },
        Row {
            number: 73,
            name: "Redlock, 5 nodes: silent one after the other, each for longer than a lease",
            may_lose: false,
            tune: |tune| {
                five(tune);
                // So that three nodes are down, each once, during one hold. A node gets the lease
                // again once an extend that it did not answer in time would have run out, and at
                // the renewal after that: up to two leases after its return. With less than one
                // lease between two outages a third node could go before the first is back.
                (tune.load.long_leases, tune.load.long_threads, tune.load.long_keys) = (8, 2, 8);
                (tune.on, tune.off) = (
                    (tune.load.lease * 5 / 4, tune.load.lease * 5 / 4),
                    (tune.load.lease, tune.load.lease),
                );
                tune.faulted = tune.faulted.max(ms(11_000));
            },
            prepare: |world| nodes(world, false),
            run: |world| {
                let next = std::cell::Cell::new(0);
                world.windows(
                    |world| {
                        proxy(world, next.get()).freeze();
                        world.faults += 1;
                    },
                    |world| {
                        proxy(world, next.get()).thaw();
                        next.set((next.get() + 1) % 5);
                    },
                );
            },
            ..USUAL
        },
        Row {
            number: 54,
            name: "Redlock, 5 nodes: 20 clients on one key",
            // The contention is the only fault.
            faults: (0, 0),
            may_lose: false,
            tune: |tune| {
                five(tune);
                (tune.processes, tune.load.threads, tune.load.keys, tune.load.pool) = (20, 1, 1, 1);
                (tune.load.long_threads, tune.load.timed) = (0, false);
                tune.faulted = tune.faulted.max(ms(6000));
            },
            prepare: |world| nodes(world, false),
            run: contention,
            ..USUAL
        },
    ]
}

/// Nodes come back without the leases that they had granted. While they come back at once, overlaps
/// are counted, and judged by how soon they are noticed. After a delay of more than a lease, in
/// which everything that a node has forgotten has run out, there must be no overlaps.
fn forgetful(world: &mut World) {
    let faulted = world.tune.faulted;
    let some = |world: &mut World, count: u64| -> Vec<usize> {
        let mut left: Vec<usize> = (0..5).collect();
        (0..count).map(|_| left.remove(world.random.below(left.len() as u64) as usize)).collect()
    };
    world.windows_for(
        faulted / 2,
        |world| {
            let count = 1 + world.random.below(3);
            for index in some(world, count) {
                server(world, index).restart();
                world.faults += 1;
            }
        },
        |_| (),
    );
    let (lease, on) = (world.tune.load.lease, world.tune.on);
    // What was granted with the help of a node that forgot may go on for as long as it is renewed:
    // long holds last three leases.
    thread::sleep(lease * 4);
    let from = now();
    world.tune.on = (lease + ms(200), lease + ms(300));
    let away: RefCell<Vec<usize>> = RefCell::default();
    world.windows_for(
        faulted / 2,
        |world| {
            let count = 1 + world.random.below(2);
            for index in some(world, count) {
                server(world, index).kill();
                world.faults += 1;
                away.borrow_mut().push(index);
            }
        },
        |world| away.borrow_mut().drain(..).for_each(|index| server(world, index).restart()),
    );
    world.tune.on = on;
    // The load goes on while its files are read, one after another: holds that began before are
    // complete in them, and holds that begin meanwhile are not.
    let until = now();
    let (mut holds, _) = history::read_all(world.dir());
    holds.retain(|hold| hold.granted < until);
    let (at_once, late): (Vec<_>, Vec<_>) = holds.into_iter().partition(|hold| hold.granted < from);
    let (at_once, (late, longest)) = (check::overlaps(&at_once).0.len(), check::overlaps(&late));
    let longest = longest / 1_000_000;
    world.remarks.push(format!(
        "restarted at once: {at_once} overlaps, after a delay of more than a lease: {}",
        late.len()
    ));
    if let Some(first) = late.first() {
        let (count, first) = (late.len(), verdict::describe(first));
        world.red(format!(
            "{count} overlaps of up to {longest} ms although restarts were delayed: {first}"
        ));
    }
}

/// Clients that take each other's majority must not do so again and again.
fn contention(world: &mut World) {
    let from = now();
    world.repeat((ms(200), ms(200)), |_| ());
    let (holds, _) = history::read_all(world.dir());
    let times: Vec<u64> =
        holds.iter().map(|hold| hold.granted).filter(|granted| *granted >= from).collect();
    let rate = times.len() as f64 / ((now() - from) as f64 / 1e9);
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(u64::MAX);
    world.remarks.push(format!(
        "{rate:.0} grants per second, {} ms from one to the next at most",
        longest / 1_000_000
    ));
    // One per second is asked for; a process that the machine delays while it has the lock may keep
    // it for a lease.
    if rate < 1.0 || longest > nanos(world.tune.load.lease + ms(2000)) {
        world.late("the clients stand in each other's way (I7)");
    }
}
/// A quorum has no fences, and no commands of a caller's own.
fn five(tune: &mut Tune) {
    tune.load.fenced = false;
}

/// Four more nodes beside the one that every row has.
fn nodes(world: &mut World, append_only: bool) {
    let mut urls = vec![world.tune.load.url.clone()];
    for _ in 0..4 {
        let builder = Server::builder();
        let server = if append_only { builder.append_only() } else { builder }.start();
        let proxy = Proxy::start(server.port());
        urls.push(proxy.url());
        world.more.push((server, proxy));
    }
    world.at(urls.join(","));
}

fn server(world: &World, index: usize) -> &Server {
    if index == 0 { &world.server } else { &world.more[index - 1].0 }
}

fn proxy(world: &World, index: usize) -> &Proxy {
    if index == 0 { &world.proxy } else { &world.more[index - 1].1 }
}

/// Takes `count` nodes down at a time, each time other nodes, and each in its own way.
fn away(world: &mut World, count: usize) {
    let gone: RefCell<Vec<(usize, u64)>> = RefCell::default();
    // From when until when all of them were away, which takes a busy machine a while.
    let since = Cell::new(0);
    let (mut picks, mut spans) = (Vec::new(), Vec::new());
    world.windows(
        |world| {
            let mut left: Vec<usize> = (0..5).collect();
            for _ in 0..count {
                let index = left.remove(world.random.below(left.len() as u64) as usize);
                let how = world.random.below(3);
                match how {
                    0 => server(world, index).kill(),
                    1 => server(world, index).stop_process(),
                    _ => proxy(world, index).freeze(),
                }
                gone.borrow_mut().push((index, how));
            }
            picks.push(gone.borrow().clone());
            since.set(now());
            (world.is_outage, world.faults) = (count > 2, world.faults + 1);
        },
        |world| {
            spans.push((since.get(), now()));
            for (index, how) in gone.borrow_mut().drain(..) {
                match how {
                    0 => server(world, index).restart(),
                    1 => server(world, index).cont(),
                    _ => proxy(world, index).thaw(),
                }
            }
        },
    );
    thread::sleep(ms(100));
    let (holds, _) = history::read_all(world.dir());
    for ((since, to), picked) in spans.into_iter().zip(picks) {
        let from = since + if count > 2 { nanos(world.tune.load.lease) } else { 0 };
        let granted = holds
            .iter()
            .filter(|hold| (from..to).contains(&hold.granted) && check::has_a_window(hold))
            .count();
        if count > 2 && granted > 0 {
            world.red(format!("{granted} grants without a majority"));
        }
        if count == 2 && granted == 0 && to > from + nanos(ms(200)) {
            world.late(format!(
                "no grant with a majority, for {} ms (nodes 0 killed, 1 stopped, 2 silent: \
                 {picked:?})",
                (to - from) / 1_000_000
            ));
        }
    }
    judge_attempts(world, count, &holds);
}

/// How long one attempt takes while some nodes are away.
fn judge_attempts(world: &mut World, count: usize, holds: &[Record]) {
    let command = nanos(world.tune.load.command);
    // Attempts without a timeout, which were granted at once or not at all.
    let waits = |during: &dyn Fn(u64) -> bool| -> Vec<u64> {
        let tries = holds.iter().filter(|hold| hold.timeout == 1 && during(hold.called));
        let mut waits: Vec<u64> = tries.map(|hold| hold.granted - hold.called).collect();
        waits.sort_unstable();
        waits
    };
    let all = waits(&|_| true);
    let away = waits(&|called| {
        world.times.iter().any(|(from, to)| (*from..to.saturating_sub(command)).contains(&called))
    });
    if let Some(p99) = all.get(all.len() * 99 / 100) {
        world.remarks.push(format!("p99 of one attempt {} ms", p99 / 1_000_000));
        if count == 2 && *p99 > command + nanos(ms(20)) {
            world.late("a slow node delays the majority");
        }
    }
    // Only few attempts find a node that has just become silent: later ones leave it out.
    if let Some(p95) = away.get(away.len() * 95 / 100).filter(|_| count == 2) {
        world.remarks.push(format!("p95 while nodes are away {} ms", p95 / 1_000_000));
        // A caller waits for a silent node as long as the lease allows, which is about a fifth of
        // it.
        if *p95 > nanos(world.tune.load.lease / 10) {
            world.late("a silent node delays the majority");
        }
    }
}
