//! Conditions: bounded buffers between processes, and faults of those who notify, of those who wait, and of what is between them and the server.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use super::super::buffer;
use super::super::check;
use super::super::clock::{nanos, now};
use super::super::history;
use super::super::load::Habit;
use super::super::support::{Fault, Planned, Rule};
use super::super::world::{Size, Tune, World, ms};
use super::network::{is_script, shower};
use super::{Row, USUAL};

/// For how long a buffer may stand still where every notification must arrive: its holder may have been killed, which costs a lease; the answer to an
/// unlock or to a wait may have been lost, which costs a command timeout or two.
const NEVER_LOST: Duration = Duration::from_secs(4);

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            number: 63,
            name: "conditions: notifier killed, before, in and after notify",
            stuck: Some(NEVER_LOST),
            leaves_no_queue: false,
            // Producers only ever notify: one that is killed while it waits is the next row's.
            tune: |tune| buffers(tune, Habit::PollingBuffer),
            run: notifiers,
            after: inspect,
            ..USUAL
        },
        Row {
            number: 64,
            name: "conditions: waiter killed, waiting or just notified",
            // One that dies with the lock, and before it did anything, takes its notification along. The docs say so, and this load waits with a timeout.
            stuck: Some(buffer::SHORT.saturating_add(NEVER_LOST)),
            leaves_no_queue: false,
            tune: |tune| {
                buffers(tune, Habit::Buffer);
                tune.load.timed = true;
            },
            run: waiters,
            after: inspect,
            ..USUAL
        },
        Row {
            number: 65,
            name: "conditions: cut before send, cut after send, reply swallowed, in wait and in notify",
            stuck: Some(NEVER_LOST),
            tune: |tune| buffers(tune, Habit::Buffer),
            run: |world| {
                let hits =
                    |world: &mut World| [Fault::CutBefore, Fault::CutAfter, Fault::SwallowReply][world.random.below(3) as usize].clone();
                shower(world, (ms(50), ms(150)), |command| is_wait(command) || is_notify(command), hits);
            },
            after: inspect,
            ..USUAL
        },
        Row {
            number: 66,
            class: 'T',
            name: "conditions: server restarted empty while threads wait",
            faults: (2, 8),
            // Nobody can tell those who wait: each finds out when it next shows a sign of life, after 6 s at most.
            stuck: Some(ms(6000).saturating_add(NEVER_LOST)),
            tune: |tune| {
                buffers(tune, Habit::Buffer);
                tune.faulted = tune.faulted.max(ms(6000));
            },
            run: |world| {
                world.repeat((ms(2000), ms(5000)), |world| {
                    world.server.restart();
                    let at = now();
                    world.taken.extend((0..world.tune.load.keys).map(|key| (key, at)));
                    world.faults += 1;
                });
            },
            after: inspect,
            ..USUAL
        },
    ]
}

fn buffers(tune: &mut Tune, habit: Habit) {
    (tune.processes, tune.load.threads, tune.load.keys) = (4, 4, 2);
    (tune.load.habit, tune.load.timed, tune.load.hold) = (habit, false, Duration::from_micros(300));
}

/// The script that enters a condition has six keys.
fn is_wait(command: &[Vec<u8>]) -> bool {
    is_script(command, b"6")
}

/// The script that notifies has four keys, as others have, and three arguments, as none of them.
fn is_notify(command: &[Vec<u8>]) -> bool {
    is_script(command, b"4") && command.len() == 10
}

/// Kills a process, whose place another takes. Even ones are producers, odd ones consumers.
fn kill(world: &mut World, index: u64, habit: Habit) {
    world.tune.load.habit = habit;
    world.replace_client(usize::try_from(index).expect("a few processes"));
    world.faults += 1;
}

/// Kills one of these, whichever.
fn kill_one(world: &mut World, first: u64, habit: Habit) {
    let index = world.random.below(world.tune.processes / 2) * 2 + first;
    kill(world, index, habit);
}

fn often(world: &World) -> (Duration, Duration) {
    if world.size == Size::Quick { (ms(100), ms(400)) } else { (ms(1000), ms(2000)) }
}

/// Waits a moment for a fault to happen.
fn happens(planned: &Planned) -> bool {
    let begun = now();
    while planned.fired() == 0 && now() - begun < 300_000_000 {
        thread::sleep(ms(1));
    }
    planned.remove();
    planned.fired() > 0
}

/// Some at any moment; some while their notification is on its way to the server, which runs it when they are dead, or never; some when it has been run.
fn notifiers(world: &mut World) {
    let within = Cell::new(0);
    let pause = often(world);
    world.repeat(pause, |world| {
        let fault = match world.random.below(3) {
            0 => return kill_one(world, 0, Habit::Poll),
            1 => Fault::HoldRequest,
            _ => Fault::HoldReply,
        };
        let planned = world.proxy.add(Rule::any(fault).when(is_notify).next(1));
        if !happens(&planned) {
            return;
        }
        within.set(within.get() + 1);
        let held = planned.wait_held(ms(1000));
        // Whichever of them it was.
        for index in (0..world.tune.processes).step_by(2) {
            kill(world, index, Habit::Poll);
        }
        if world.random.below(2) == 0 {
            held.release();
        }
    });
    world.remarks.push(format!("{} times while it notified", within.get()));
}

/// Some at any moment, which most of them spend waiting; some just when one of them has been notified.
fn waiters(world: &mut World) {
    let notified = Cell::new(0);
    let pause = often(world);
    world.repeat(pause, |world| {
        if world.random.below(2) == 0 {
            // The notifier waits for its answer meanwhile, and so keeps the lock.
            let planned = world.proxy.add(Rule::any(Fault::DelayReply(ms(30))).when(is_notify).next(1));
            notified.set(notified.get() + u64::from(happens(&planned)));
        }
        kill_one(world, 1, Habit::Consume);
    });
    world.remarks.push(format!("{} times when one had just been notified", notified.get()));
}

/// No item is lost, none doubled, and nobody waits in vain.
fn inspect(world: &mut World) {
    let (through, problems) = buffer::inspect(world.dir(), world.tune.load.keys);
    world.remarks.push(format!("{through} items"));
    let (holds, _) = history::read_all(world.dir());
    // One whose notification was lost waits until its time is over, also where the others go on without it.
    let longest = check::longest_wait(&holds);
    if longest > nanos(ms(6000) + NEVER_LOST) {
        world.problems.push(format!("somebody waited in vain for {} ms", longest / 1_000_000));
    }
    let tainted = holds.iter().filter(|hold| hold.tainted != 0).count();
    if tainted == 0 {
        world.problems.extend(problems);
    } else {
        // Validity ended between the look at it and the write: what the buffer, which is a file, cannot refuse.
        world.remarks.push(format!("{tainted} writes in a lease that had just ended: {}", problems.join(", ")));
    }
}
