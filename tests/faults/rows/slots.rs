//! A Redis Cluster of three shards whose slots move under load, and stay half moved (R25).

use std::cell::RefCell;

use distlock::testing::slot_of_name;

use super::super::clock::now;
use super::super::load::{Kind, key_name};
use super::super::support::Server;
use super::super::support::shards::{self, begin_move, end_move, keys, move_all_keys, move_keys};
use super::super::tune::ms;
use super::super::world::World;
use super::cluster::{SHARDS, nodes_of, server, shard_of, start};
use super::{Row, USUAL};

pub fn rows() -> Vec<Row> {
    let usual =
        || Row { may_lose: false, tune: nodes_of, prepare: |world| start(world, 0), ..USUAL };
    vec![
        Row {
            number: 84,
            name: "C2: Cluster: 200 slots moved to and fro, those of all locks among them",
            faults: (200, 5000),
            run: |world| asked_for_maps(world, reshard),
            ..usual()
        },
        Row {
            number: 85,
            name: "C3: Cluster: slots half moved for 2 s, or 10 s, with some of their keys",
            faults: (4, 10),
            free_within: Some(|_| ms(2000)),
            tune: |tune| {
                nodes_of(tune);
                let length = if tune.load.lease < ms(4000) { ms(2000) } else { ms(10_000) };
                tune.on = (length, length);
                tune.faulted = tune.faulted.max(length * 6);
            },
            run: |world| asked_for_maps(world, half_moved),
            ..usual()
        },
        Row {
            number: 88,
            name: "C6: Cluster: subscriptions killed each 100 ms, slots moved",
            free_within: Some(|load| load.lease / 2 + ms(500)),
            known_within: Some(|load| load.lease / 2 + ms(500)),
            run: |world| asked_for_maps(world, unheard),
            ..usual()
        },
    ]
}

/// A slot, and the place of the node that has it.
type At = (u16, usize);

/// Begins to move a slot to the next node, with some of its keys: those with these numbers.
fn begin_to_move(world: &World, (slot, place): At, with: impl Fn(usize) -> bool) {
    let [from, to, _] = from(world, place);
    begin_move(slot, from, to);
    let some = keys(slot, from).into_iter().enumerate().filter(|(number, _)| with(*number));
    let some: Vec<String> = some.map(|(_, key)| key).collect();
    if !some.is_empty() {
        move_keys(&some, from, to);
    }
}

/// Moves the other keys, and the slot.
fn complete(world: &World, (slot, place): &mut At) {
    let primaries = from(world, *place);
    let [from, to, _] = primaries;
    move_all_keys(*slot, from, to);
    end_move(*slot, from, to, &primaries);
    *place = (*place + 1) % SHARDS;
}

/// The slots of all locks, and others, at the node that has each of them.
fn slots(world: &World) -> Vec<At> {
    let keys = world.tune.load.all_keys() + world.tune.load.bait_keys;
    let of_locks: Vec<u16> = (0..keys).map(|key| slot_of_name(&key_name(key))).collect();
    let others = (0..).map(|n| n * 67).filter(|slot| !of_locks.contains(slot));
    let all = of_locks.iter().copied().chain(others.take(200 - of_locks.len()));
    all.map(|slot| (slot, shards::place(slot, SHARDS))).collect()
}

/// The primaries, from this one on.
fn from(world: &World, place: usize) -> [&Server; SHARDS] {
    [0, 1, 2].map(|more| server(world, (place + more) % SHARDS))
}

/// Runs a fault, and counts how often the nodes were asked for their map: at most once a second by
/// each client.
fn asked_for_maps(world: &mut World, fault: fn(&mut World)) {
    let asked = |world: &World| -> u64 {
        world.servers().map(|node| node.command_count("cluster|slots")).sum()
    };
    let (before, begun) = (asked(world), now());
    fault(world);
    let (maps, took) = (asked(world) - before, now() - begun);
    world.remarks.push(format!("{maps} maps in {} ms", took / 1_000_000));
    if maps == 0 {
        world.little("no map was counted: Redis does that from version 7 on");
    }
    if maps > (took / 1_000_000_000 + 1) * world.tune.processes {
        world.red("a client asked for the map more than once a second (R25)");
    }
}

fn reshard(world: &mut World) {
    let mut slots = slots(world);
    world.repeat((ms(0), ms(2)), |world| {
        let next = usize::try_from(world.faults).expect("a count") % slots.len();
        begin_to_move(world, slots[next], |_| false);
        complete(world, &mut slots[next]);
        world.faults += 1;
    });
}

/// Every other time only the slots of locks without fences: what needs the lock's key alone goes on
/// meanwhile.
fn half_moved(world: &mut World) {
    let keys = world.tune.load.all_keys();
    let at = |key| (slot_of_name(&key_name(key)), shard_of(key));
    let slots: RefCell<Vec<_>> = RefCell::new((0..keys).map(at).collect());
    let is_moving = |world: &World, key| {
        let only_bare = world.faults % 2 == 1;
        !only_bare || world.tune.load.kind(key) == Kind::Bare
    };
    world.windows(
        |world| {
            world.faults += 1;
            let drawn = world.random.next();
            for key in (0..keys).filter(|key| is_moving(world, *key)) {
                let at = slots.borrow()[key as usize];
                begin_to_move(world, at, |number| drawn >> ((number as u64 + key) % 64) & 1 == 1);
            }
            // A fence is drawn from another key than the lock's.
            world.is_outage = world.faults % 2 == 0;
        },
        |world| {
            for key in (0..keys).filter(|key| is_moving(world, *key)) {
                complete(world, &mut slots.borrow_mut()[key as usize]);
            }
        },
    );
}

fn unheard(world: &mut World) {
    let mut slots = slots(world);
    let locks = usize::try_from(world.tune.load.all_keys()).expect("a count");
    let mut round = 0;
    world.repeat((ms(60), ms(90)), |world| {
        let kill = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").to_owned();
        let killed = |node: &Server| kill.query::<u64>(&mut node.connection()).expect("a number");
        world.faults += world.servers().map(killed).sum::<u64>();
        let next = round % locks;
        begin_to_move(world, slots[next], |_| false);
        complete(world, &mut slots[next]);
        round += 1;
    });
}
