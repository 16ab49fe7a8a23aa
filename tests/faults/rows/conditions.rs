//! Conditions: bounded buffers between processes, and faults of the notifiers, of the waiters, and
//! of the connection between them and the server.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use super::super::buffer;
use super::super::clock::{nanos, now};
use super::super::history::{self, Outcome};
use super::super::load::Habit;
use super::super::progress;
use super::super::support::{Fault, Held, Mode, Rule};
use super::super::tune::{Size, Tune, ms};
use super::super::world::World;
use super::shower::{is_script, shower};
use super::{Row, USUAL};

/// For how long a buffer may stand still if every notification must arrive: its holder may have
/// been killed, which costs a lease and the start of another; the answer to an unlock or to a wait
/// may have been lost, which costs a command timeout or two. A waiter whose notification was lost
/// notices that after 4 s at the earliest.
const NEVER_LOST: Duration = Duration::from_millis(3500);
/// The same if a notification may have died with a waiter that held the lock: until another waiter
/// wakes by its timeout of 3 s.
const DIED_WITH_ITS_WAITER: Duration = Duration::from_millis(6500);
/// The same without such a timeout: until another waiter wakes for no reason, after 16 s at most.
const MADE_UP_FOR: Duration = Duration::from_millis(18_000);

pub fn rows() -> Vec<Row> {
    let usual = || Row {
        // A wait is no hold, but its token is known.
        known_within: None,
        waits_in_conditions: 500,
        ..USUAL
    };
    vec![
        Row {
            number: 63,
            name: "conditions: notifier killed, before, in and after notify",
            free_within: Some(|_| NEVER_LOST),
            leaves_no_queue: false,
            // Producers only notify. Producers that are killed while they wait belong to the next
            // row.
            tune: |tune| {
                buffers(tune, Habit::PollingBuffer);
                // Each kill costs a lease in which nobody begins to wait.
                tune.faulted = tune.faulted.max(ms(6000));
            },
            run: notifiers,
            after: |world| inspect(world, NEVER_LOST),
            ..usual()
        },
        Row {
            number: 64,
            name: "conditions: waiter killed, waiting or just notified",
            free_within: Some(|_| DIED_WITH_ITS_WAITER),
            leaves_no_queue: false,
            tune: |tune| {
                buffers(tune, Habit::Buffer);
                (tune.processes, tune.load.threads, tune.load.keys, tune.load.timed) =
                    (5, 1, 1, true);
                (tune.load.long_threads, tune.apart) = (0, false);
            },
            run: waiters,
            after: |world| inspect(world, DIED_WITH_ITS_WAITER * 2),
            ..usual()
        },
        Row {
            number: 76,
            name: "conditions: waiter cut off when just notified, the others not",
            free_within: Some(|_| MADE_UP_FOR),
            under_fault: 0,
            tune: |tune| {
                buffers(tune, Habit::ConsumedFirst);
                (tune.processes, tune.load.threads, tune.load.keys, tune.apart) = (4, 1, 1, true);
                tune.load.pause = ms(16);
                tune.faulted = tune.faulted.max(ms(6000));
            },
            run: cut_off,
            after: |world| inspect(world, MADE_UP_FOR),
            ..usual()
        },
        Row {
            number: 65,
            name: "conditions: cut before send, cut after send, reply swallowed, in wait and in \
                   notify",
            free_within: Some(|_| NEVER_LOST),
            tune: |tune| buffers(tune, Habit::Buffer),
            run: |world| {
                let hits = |world: &mut World| {
                    [Fault::CutBefore, Fault::CutAfter, Fault::SwallowReply]
                        [world.random.below(3) as usize]
                        .clone()
                };
                shower(
                    world,
                    (ms(50), ms(150)),
                    |command| is_wait(command) || is_notify(command),
                    hits,
                );
            },
            after: |world| inspect(world, NEVER_LOST),
            ..usual()
        },
        Row {
            number: 66,
            class: 'T',
            name: "conditions: server restarted empty while threads wait",
            faults: (2, 8),
            // Nobody can tell the waiters: each one notices with its next sign of life, after 6 s
            // at most.
            free_within: Some(|_| ms(9000)),
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
            after: |world| inspect(world, ms(9000)),
            ..usual()
        },
    ]
}

/// One producer and one consumer for each of eight buffers, in a process each.
fn buffers(tune: &mut Tune, habit: Habit) {
    (tune.processes, tune.load.threads, tune.load.keys, tune.load.lease) = (2, 8, 8, ms(1000));
    (tune.load.habit, tune.load.timed, tune.load.hold) = (habit, false, Duration::from_micros(300));
    (tune.load.long_threads, tune.apart) = (0, false);
    // Long enough that the faster one finds nothing to do, and waits. Otherwise both would wait in
    // the lock's own queue, and nobody in a condition.
    tune.load.pause = ms(8);
}

/// The script that waits has ten arguments behind its five keys, the eighth is the condition.
fn is_wait(command: &[Vec<u8>]) -> bool {
    is_script(command, b"5") && command.len() == 18
}

fn is_wait_of_a_consumer(command: &[Vec<u8>]) -> bool {
    is_wait(command) && command[15] == b"not-empty"
}

/// The script that notifies has three arguments, the second is the condition.
fn is_notify(command: &[Vec<u8>]) -> bool {
    is_script(command, b"5") && command.len() == 11
}

fn is_notify_to_a_consumer(command: &[Vec<u8>]) -> bool {
    is_notify(command) && command[9] == b"not-empty"
}

fn often(world: &World) -> (Duration, Duration) {
    if world.size == Size::Quick { (ms(100), ms(400)) } else { (ms(1000), ms(2000)) }
}

/// The producers' process is killed at any moment; while a notification is on its way to the
/// server, which runs it after the sender's death, or never; and after it has been run.
fn notifiers(world: &mut World) {
    world.tune.load.habit = Habit::Poll;
    let within = Cell::new(0);
    let pause = often(world);
    world.repeat(pause, |world| {
        let fault = match world.random.below(3) {
            0 => None,
            1 => Some(Fault::HoldRequest),
            _ => Some(Fault::HoldReply),
        };
        let held = fault.and_then(|fault| catch(world, fault, is_notify));
        within.set(within.get() + u64::from(held.is_some()));
        world.replace_client(0);
        world.faults += 1;
        if let Some(held) = held
            && world.random.below(2) == 0
        {
            held.release();
        }
    });
    world.remarks.push(format!("{} times while it notified", within.get()));
}

/// Waits a moment for a command to be held.
fn catch(world: &World, fault: Fault, aim: fn(&[Vec<u8>]) -> bool) -> Option<Held> {
    let planned = world.proxy.add(Rule::any(fault).when(aim).next(1));
    let begun = now();
    while planned.fired() == 0 && now() - begun < 300_000_000 {
        thread::sleep(ms(1));
    }
    planned.remove();
    (planned.fired() > 0).then(|| planned.wait_held(ms(1000)))
}

/// Which of these consumers' processes began to wait first, or last. They begin one after another,
/// under the lock.
fn waiting(world: &World, consumers: impl Iterator<Item = usize>, last: bool) -> usize {
    let (holds, _) = history::read_all(world.dir());
    let begun = |process: u64| {
        holds
            .iter()
            .filter(|hold| hold.owner / 10_000 == process && hold.outcome == Outcome::Ok)
            .map(|hold| hold.ended)
            .max()
    };
    let order = |index: &usize| {
        world.process_of(*index).and_then(begun).unwrap_or(if last { 0 } else { u64::MAX })
    };
    if last { consumers.max_by_key(order) } else { consumers.min_by_key(order) }
        .expect("there are consumers")
}

/// Consumers are killed: at any moment, when one of them has the lock and some wait; when one has
/// been notified and its notifier still has the lock; and when one has asked to wait, and that
/// reaches the server only after its death. In the last two cases nobody dies with the lock, and so
/// the item that is in the buffer, or is put into it, must be taken before another consumer comes,
/// and before one of those that wait looks by itself.
fn waiters(world: &mut World) {
    world.tune.load.habit = Habit::Consume;
    let just_in_time = Cell::new((0, 0));
    // A consumer that dies with the only lock keeps it for a lease, and that must not be most of
    // the time.
    let (least, most) = often(world);
    let pause = (least.max(ms(400)), most.max(ms(800)));
    world.repeat(pause, |world| {
        let (notified, waits) = just_in_time.get();
        let (held, last) = match world.random.below(4) {
            0 => (None, false),
            1 => (catch(world, Fault::HoldRequest, is_wait_of_a_consumer), true),
            _ => (catch(world, Fault::HoldReply, is_notify_to_a_consumer), false),
        };
        world.faults += 1;
        let Some(held) = held else {
            let index = 1 + world.random.below(world.tune.processes - 1);
            return world.replace_client(usize::try_from(index).expect("a few processes"));
        };
        just_in_time.set(if last { (notified, waits + 1) } else { (notified + 1, waits) });
        let victim = waiting(world, 1..world.clients.len(), last);
        world.clients.remove(victim).kill_and_keep_dir();
        // Its connections end, and the server notices that.
        thread::sleep(ms(20));
        held.release();
        if !goes_on_within(world, ms(2000)) {
            let what = if last { "asked to wait" } else { "had been notified" };
            world.late(format!("nobody came after one that {what} was killed"));
        }
        world.add_client();
    });
    let (notified, waits) = just_in_time.get();
    world.remarks.push(format!(
        "{notified} times when one had just been notified, {waits} times when one had just asked \
         to wait"
    ));
}

/// Whether two more items are taken.
fn goes_on_within(world: &World, most: Duration) -> bool {
    let (begun, before) = (now(), buffer::count_taken(world.dir(), 0));
    while buffer::count_taken(world.dir(), 0) < before + 2 {
        if now() - begun > nanos(most) {
            return false;
        }
        thread::sleep(ms(2));
    }
    true
}

/// The consumer of the first process has been notified, its notifier still has the lock, and now
/// its connections end, or nothing goes through them any more. If they end, the server sees it, and
/// another consumer is notified instead. If nothing goes through, the consumer is handed the lock,
/// and its notification is lost: another consumer wakes for no reason.
fn cut_off(world: &mut World) {
    let consumers = [0].into_iter().chain(2..world.clients.len());
    let counts = Cell::new((0, 0));
    // A consumer that is frozen with the lock keeps it for a lease, and that must not be most of
    // the time.
    let (least, most) = often(world);
    world.repeat((least.max(ms(400)), most.max(ms(600))), |world| {
        let Some(held) = catch(world, Fault::HoldReply, is_notify_to_a_consumer) else { return };
        // No other consumer is about to ask by itself: all others wait.
        let line = ["ZLEXCOUNT", "{fault:0}:conditions", "[9:not-empty:", "(9:not-empty::"];
        let others = world.command(&line);
        let all_wait = others == Some(redis::Value::Int(world.clients.len() as i64 - 2));
        if !all_wait || waiting(world, consumers.clone(), false) != 0 {
            return held.release();
        }
        world.choose_first();
        let from = now();
        let ends = world.faults % 4 != 3;
        if ends {
            world.apart.set_mode(Mode::Refuse);
            world.apart.cut_all();
            // The server notices that.
            thread::sleep(ms(20));
        } else {
            world.apart.freeze();
        }
        world.faults += 1;
        held.release();
        let (ended, frozen) = counts.get();
        counts.set(if ends { (ended + 1, frozen) } else { (ended, frozen + 1) });
        if !goes_on_within(world, if ends { ms(2000) } else { MADE_UP_FOR }) {
            world.late(format!(
                "nobody came after one that had been notified was {}",
                if ends { "cut off" } else { "frozen" }
            ));
        }
        world.apart.thaw();
        world.apart.set_mode(Mode::Forward);
        world.cut_offs.push((from, now()));
        if !ends {
            // Nobody takes anything until another wakes.
            world.outages.push((from, now()));
        }
    });
    let (ended, frozen) = counts.get();
    world
        .remarks
        .push(format!("{ended} times when its connections ended, {frozen} times when they froze"));
}

/// No item is lost, none doubled, and nobody waits in vain.
fn inspect(world: &mut World, most: Duration) {
    let (through, problems) = buffer::inspect(world.dir(), world.tune.load.keys);
    world.remarks.push(format!("{through} items"));
    let (holds, _) = history::read_all(world.dir());
    // A waiter whose notification was lost waits until its time is over, even if the others go on
    // without it.
    let longest = progress::longest_wait(&holds);
    if longest > nanos(most) {
        world.late(format!("somebody waited in vain for {} ms", longest / 1_000_000));
    }
    let tainted = holds.iter().filter(|hold| hold.tainted != 0).count();
    if tainted == 0 {
        problems.into_iter().for_each(|problem| world.red(problem));
    } else {
        // The validity ended between its check and the write: the buffer, a file, cannot refuse
        // such a write.
        world.remarks.push(format!(
            "{tainted} writes in a lease that had just ended: {}",
            problems.join(", ")
        ));
    }
}
