//! Redlock: five nodes, of which some are away.

use std::cell::RefCell;
use std::thread;

use super::super::clock::{nanos, now};
use super::super::history;
use super::super::support::{Proxy, Server};
use super::super::world::{Tune, World, ms};
use super::{Row, USUAL};

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            number: 49,
            name: "Redlock, 5 nodes: 2 killed, stopped or silent",
            tune: |tune| {
                five(tune);
                // A long hold that everybody waits for would look like nodes that grant nothing.
                tune.load.long = 0;
                tune.on = tune.on.max((ms(700), ms(1100)));
                tune.faulted = tune.faulted.max(ms(7000));
            },
            prepare: |world| nodes(world, false),
            run: |world| away(world, 2),
            ..USUAL
        },
        Row {
            number: 50,
            name: "Redlock, 5 nodes: 3 killed, stopped or silent",
            faults: (3, 10),
            // There must be none.
            holds: 0,
            tune: |tune| {
                five(tune);
                tune.on = (tune.load.lease * 5 / 2, tune.load.lease * 3);
                tune.faulted = tune.faulted.max(ms(9000));
            },
            prepare: |world| nodes(world, false),
            run: |world| away(world, 3),
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
    ]
}

/// A quorum has no fences, and no commands of a caller's own.
fn five(tune: &mut Tune) {
    tune.load.fenced = false;
}

/// Four more nodes beside the one that every row has.
fn nodes(world: &mut World, append_only: bool) {
    for _ in 0..4 {
        let builder = Server::builder();
        let server = if append_only { builder.append_only() } else { builder }.start();
        let proxy = Proxy::start(server.port());
        world.tune.load.url += &format!(",{}", proxy.url());
        world.more.push((server, proxy));
    }
}

fn server(world: &World, index: usize) -> &Server {
    if index == 0 { &world.server } else { &world.more[index - 1].0 }
}

fn proxy(world: &World, index: usize) -> &Proxy {
    if index == 0 { &world.proxy } else { &world.more[index - 1].1 }
}

/// Has `count` nodes go away at a time, each time others, and each in its own way.
fn away(world: &mut World, count: usize) {
    let gone: RefCell<Vec<(usize, u64)>> = RefCell::default();
    let mut picks = Vec::new();
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
            world.faults += 1;
            picks.push(gone.borrow().clone());
        },
        |world| {
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
    let lease = nanos(world.tune.load.lease);
    let command = nanos(world.tune.load.command);
    let (holds, _) = history::read_all(world.dir());
    for ((from, to), picked) in world.times.clone().into_iter().zip(picks) {
        // The first nodes may be brought back before the last: only what lies well inside counts.
        let (from, to) = (from + if count > 2 { lease } else { 0 }, to.saturating_sub(nanos(ms(400))));
        let granted = holds.iter().filter(|hold| (from..to.min(now())).contains(&hold.granted)).count();
        if count > 2 && granted > 0 {
            world.problems.push(format!("{granted} grants without a majority"));
        }
        if count == 2 && granted == 0 && to > from + nanos(ms(200)) {
            world.problems.push(format!(
                "no grant with a majority, for {} ms (nodes 0 killed, 1 stopped, 2 silent: {picked:?})",
                (to - from) / 1_000_000
            ));
        }
    }
    // Those that were granted at once or not at all.
    let waits = |during: &dyn Fn(u64) -> bool| -> Vec<u64> {
        let tries = holds.iter().filter(|hold| hold.timeout == 1 && during(hold.called));
        let mut waits: Vec<u64> = tries.map(|hold| hold.granted - hold.called).collect();
        waits.sort_unstable();
        waits
    };
    let all = waits(&|_| true);
    let away = waits(&|called| world.times.iter().any(|(from, to)| (*from..to.saturating_sub(command)).contains(&called)));
    if let Some(p99) = all.get(all.len() * 99 / 100) {
        world.remarks.push(format!("p99 of one attempt {} ms", p99 / 1_000_000));
        if count == 2 && *p99 > command + nanos(ms(20)) {
            world.problems.push("a slow node delays the majority".into());
        }
    }
    if let Some(half) = away.get(away.len() / 2).filter(|_| count == 2) {
        world.remarks.push(format!("p50 while nodes are away {} ms", half / 1_000_000));
        // Whoever waits for a silent node waits for as long as a lease leaves time for, which is about a fifth of it.
        if *half > nanos(world.tune.load.lease / 10) {
            world.problems.push("a silent node delays the majority".into());
        }
    }
}
