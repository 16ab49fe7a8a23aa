//! Faults between client and server, by the proxy.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::super::check;
use super::super::clock::{nanos, now};
use super::super::history::{self, Record};
use super::super::support::{Fault, Held, Mode, Planned, Proxy, Rule};
use super::super::tune::{Size, ms};
use super::super::world::World;
use super::packets::{self, Namespace};
use super::shower::{Pause, any, clear_rules, is_acquire, is_extend, shower};
use super::{Row, USUAL, a_lease};

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            number: 1,
            name: "none",
            faults: (0, 0),
            free_within: Some(a_lease),
            may_lose: false,
            may_be_unknown: false,
            may_fail: false,
            // A million holds would take longer than the other rows together: only a soak has that
            // many.
            tune: |tune| tune.direct = true,
            run: |world| world.repeat((ms(100), ms(100)), |_| ()),
            fair: true,
            ..USUAL
        },
        Row {
            number: 2,
            name: "cut before send",
            free_within: Some(a_lease),
            may_be_unknown: false,
            run: |world| shower(world, (ms(60), ms(150)), any, |_| Fault::CutBefore),
            ..USUAL
        },
        Row {
            number: 4,
            name: "cut after send",
            // A withdrawn attempt is gone after a moment; a key may be hit several times in a row.
            free_within: Some(|_| ms(3000)),
            // An attempt that nobody withdraws lasts for its whole lease.
            tune: |tune| tune.load.lease = ms(5000),
            run: |world| shower(world, OFTEN, any, |_| Fault::CutAfter),
            ..USUAL
        },
        Row {
            number: 5,
            name: "acquire reply swallowed",
            // An orphan that nobody withdraws lasts for its whole lease. A withdrawn orphan is gone
            // after a command timeout and a moment; a key may be hit several times in a row.
            free_within: Some(|_| ms(3000)),
            tune: |tune| tune.load.lease = ms(5000),
            run: |world| shower(world, SELDOM, is_acquire, |_| Fault::SwallowReply),
            ..USUAL
        },
        Row {
            number: 7,
            name: "renewal reply swallowed, 1 of 2",
            free_within: Some(a_lease),
            may_lose: false,
            // Long holds lead to renewals.
            tune: |tune| (tune.load.long_threads, tune.load.long_keys) = (6, 24),
            run: |world| {
                // A missing reply costs the replies of all extends that were sent together. Each of
                // them has been sent again before the next fault.
                let apart = nanos(world.tune.load.lease / 3 + world.tune.load.command);
                let every_other = || {
                    let last = AtomicU64::new(0);
                    move |command: &[Vec<u8>]| {
                        let is_due =
                            is_extend(command) && now() - last.load(Ordering::SeqCst) > apart;
                        if is_due {
                            last.store(now(), Ordering::SeqCst);
                        }
                        is_due
                    }
                };
                let swallow =
                    |link: &Proxy| link.add(Rule::any(Fault::SwallowReply).when(every_other()));
                let planned: Vec<Planned> = world.links().map(swallow).collect();
                world.repeat((ms(100), ms(100)), |world| {
                    world.faults = planned.iter().map(|planned| planned.fired() as u64).sum()
                });
                clear_rules(world);
            },
            renewals: (50, 500),
            ..USUAL
        },
        Row {
            number: 8,
            name: "reply delayed beyond timeout",
            // Several faults in a row may hit the same key.
            free_within: Some(|load| a_lease(load) * 2),
            run: |world| {
                shower(world, SELDOM, any, |world| {
                    Fault::DelayReply(world.tune.load.command + ms(100))
                })
            },
            ..USUAL
        },
        Row {
            number: 9,
            name: "garbled, truncated, oversized replies",
            // Several faults in a row may hit the same key.
            free_within: Some(|load| a_lease(load) * 2),
            in_step: false,
            run: |world| shower(world, OFTEN, any, nonsense),
            ..USUAL
        },
        Row {
            number: 10,
            name: "silence of 0.5 to 3 leases (proxy, nft), late copies of acquires",
            namespace: Namespace::IfPossible,
            faults: (3, 10),
            tune: |tune| {
                tune.on = (tune.load.lease / 2, tune.load.lease * 3);
                tune.faulted = tune.faulted.max(ms(8000));
            },
            // The kernel sends data that was lost in the silence again, when nobody expects it any
            // more; the longer the silence, the later. Its effect is undone by the next withdrawal,
            // which may use a connection that the silence has broken.
            known_within: Some(|load| load.lease / 2 + load.command * 2),
            run: blackhole,
            ..USUAL
        },
        Row {
            number: 13,
            name: "latency 20 ± 20 ms, 200 ms, more than a lease",
            faults: (3, 3),
            // With many keys most locks have not been seen contended, and are asked for by a bare
            // `SET` first.
            tune: |tune| {
                (tune.load.command, tune.load.keys) = (tune.load.lease * 2, tune.load.keys * 16);
                // These go over connections of the pool, and each takes some time.
                (tune.load.threads, tune.load.pool) = (tune.load.threads * 4, tune.load.pool * 3);
                tune.faulted = tune.faulted.max(ms(14_000));
                // An attempt that is under way for longer than a lease may create a key again that
                // a third party has deleted meanwhile: renewal is not to blame for that.
                tune.load.bait_keys = 0;
            },
            run: latency,
            ..USUAL
        },
        Row {
            number: 15,
            name: "refused connections, storms of RST",
            // A rate cannot be measured in a moment.
            tune: |tune| {
                (tune.on, tune.off) =
                    (tune.on.max((ms(700), ms(1000))), tune.off.max((ms(500), ms(800))))
            },
            run: refused,
            ..USUAL
        },
        Row {
            number: 16,
            name: "accepts and stays silent",
            run: |world| {
                world.windows(
                    |world| {
                        world.choose();
                        cut_off(world, Mode::Silent);
                    },
                    |world| {
                        world.links().for_each(|link| link.set_mode(Mode::Forward));
                        // Connections that were accepted meanwhile stay silent for ever.
                        world.cut_all();
                    },
                );
            },
            ..USUAL
        },
        Row {
            number: 71,
            name: "one process cut off, and the others not",
            faults: (4, 20),
            under_fault: 1000,
            tune: |tune| {
                (tune.on, tune.off) = (
                    (tune.load.lease / 2, tune.load.lease * 5 / 2),
                    (tune.load.lease / 2, tune.load.lease),
                );
                tune.faulted = tune.faulted.max(ms(7000));
            },
            // The cut-off process can withdraw what it has left there when it is back; otherwise
            // that ends with its lease.
            known_within: Some(|load| load.lease),
            run: one_apart,
            ..USUAL
        },
        Row {
            number: 26,
            name: "MOVED, ASK, CLUSTERDOWN, TRYAGAIN, CROSSSLOT, READONLY, NOREPLICAS",
            run: odd_replies,
            ..USUAL
        },
    ]
}

const OFTEN: Pause = (Duration::from_millis(20), Duration::from_millis(100));
/// For faults that cost their thread, and all waiters of its lock, a whole command timeout.
pub const SELDOM: Pause = (Duration::from_millis(100), Duration::from_millis(250));

/// Ends the connections of the processes that the present fault hits, and handles new ones in this
/// mode.
fn cut_off(world: &mut World, mode: Mode) {
    world.links().for_each(|link| link.set_mode(mode));
    world.faults += world.cut_all().max(1) as u64;
}

fn nonsense(world: &mut World) -> Fault {
    match world.random.below(4) {
        0 => Fault::GarbleReply,
        1 => Fault::TruncateReply,
        2 => Fault::ReplaceReply(b"$536870913\r\n".to_vec()),
        _ => Fault::ReplaceReply(b"*3\r\n:1\r\n$1\r\nx\r\n:-9\r\n".to_vec()),
    }
}

/// An unplugged cable; and requests that reach the server only long after their clients have given
/// up.
fn blackhole(world: &mut World) {
    let held: Arc<std::sync::Mutex<Vec<(u64, Held)>>> = Arc::default();
    let (put, take) = (Arc::clone(&held), held);
    let by_packets = Cell::new(0);
    world.windows(
        |world| {
            world.choose();
            let aim = world.links().last().expect("there is one");
            let caught = aim.add(Rule::any(Fault::HoldRequest).when(is_acquire).next(2));
            thread::sleep(ms(30));
            for _ in 0..caught.fired() {
                let late = now() + nanos(world.draw((ms(600), ms(3000))));
                put.lock().unwrap().push((late, caught.wait_held(ms(1000))));
                world.faults += 1;
            }
            caught.remove();
            // If the kernel drops the packets, it may still send an abandoned request again, and
            // nobody learns of the end of a connection.
            if packets::in_namespace() && world.random.below(2) == 0 {
                packets::drop_packets(world, 100);
                by_packets.set(by_packets.get() + 1);
            } else {
                world.links().for_each(Proxy::freeze);
            }
            world.faults += 1;
        },
        |world| {
            world.links().for_each(Proxy::thaw);
            if packets::in_namespace() {
                packets::drop_packets(world, 0);
            }
            let mut held = take.lock().unwrap();
            for (late, copy) in std::mem::take(&mut *held) {
                if late <= now() { copy.release() } else { held.push((late, copy)) }
            }
        },
    );
    let left: Vec<_> = std::mem::take(&mut *take.lock().unwrap());
    left.into_iter().for_each(|(_, copy)| copy.release());
    if packets::in_namespace() {
        packets::forget_half_open(world);
    }
    world.remarks.push(match packets::missing().filter(|_| !packets::in_namespace()) {
        Some(why) => format!("by the proxy alone: {why}"),
        None => format!("{} times by nft", by_packets.get()),
    });
}

/// Silent, refused or cut, for half a lease to two and a half.
fn one_apart(world: &mut World) {
    let mut round = 0_usize;
    world.windows(
        |world| {
            world.choose_first();
            match round % 3 {
                0 => world.links().for_each(Proxy::freeze),
                1 => cut_off(world, Mode::Refuse),
                _ => cut_off(world, Mode::Silent),
            }
            (round, world.faults) = (round + 1, world.faults + 1);
        },
        |world| {
            world.links().for_each(Proxy::thaw);
            world.links().for_each(|link| link.set_mode(Mode::Forward));
            world.cut_all();
        },
    );
}

fn latency(world: &mut World) {
    let part = world.tune.faulted / 8;
    let more_than_a_lease = world.tune.load.lease / 2 + ms(100);
    // The close of a connection is as late as all other packets.
    world.half_open = true;
    // Most of a quick run is the last part, in which nothing may be granted: it has to last for a
    // few round trips.
    let parts = if world.size == Size::Quick { [2, 1, 5] } else { [3, 2, 3] };
    for ((each_way, jitter), parts) in
        [(ms(5), ms(15)), (ms(100), ms(0)), (more_than_a_lease, ms(0))].into_iter().zip(parts)
    {
        let from = now();
        delay(world, each_way, jitter);
        world.faults += 1;
        thread::sleep(part * parts);
        world.times.push((from, now()));
    }
    let (from, to) = *world.times.last().expect("three parts");
    world.outages.push((from, to));
    delay(world, Duration::ZERO, Duration::ZERO);
    // Earlier grants, and hand-offs within a process, may go on until the lease ends.
    let settled = from + nanos(world.tune.load.lease * 2);
    let (holds, _) = history::read_all(world.dir());
    let granted = |hold: &&Record| (settled..to).contains(&hold.granted);
    let granted = holds.iter().filter(granted).filter(|hold| check::has_a_window(hold)).count();
    if granted > 0 {
        world.red(format!("{granted} grants under a latency of more than a lease"));
    }
}

fn delay(world: &World, each_way: Duration, jitter: Duration) {
    for link in world.links() {
        link.set_delay(each_way, each_way);
        link.set_jitter(jitter);
    }
}

fn refused(world: &mut World) {
    world.links().for_each(|link| link.set_resets(true));
    let mut attempts = Vec::new();
    let before = std::cell::Cell::new((0, 0));
    let times = std::sync::Mutex::new(&mut attempts);
    world.windows(
        |world| {
            world.choose();
            before.set((accepted(world), now()));
            let mode = if world.random.below(2) == 0 { Mode::Refuse } else { Mode::Close };
            cut_off(world, mode);
        },
        |world| {
            let (before, since) = before.get();
            let seconds = (now() - since) as f64 / 1e9;
            let processes = if world.only_first { 1 } else { world.tune.processes };
            let rate = (accepted(world) - before) as f64 / processes as f64 / seconds;
            world.links().for_each(|link| link.set_mode(Mode::Forward));
            times.lock().unwrap().push(rate);
        },
    );
    world.only_first = false;
    world.links().for_each(|link| link.set_resets(false));
    let most = attempts.iter().copied().fold(0.0, f64::max);
    world.remarks.push(format!("at most {most:.0} connection attempts per second and process"));
    let (seconds, all): (f64, f64) = (attempts.len() as f64, attempts.iter().sum());
    if all / seconds > 20.0 {
        world
            .late(format!("{:.0} connection attempts per second and process (I10)", all / seconds));
    }
}

fn accepted(world: &World) -> usize {
    world.links().map(Proxy::accepted).sum()
}

fn odd_replies(world: &mut World) {
    const REPLIES: [&str; 8] = [
        "-MOVED 866 127.0.0.1:1\r\n",
        "-ASK 866 127.0.0.1:1\r\n",
        "-CLUSTERDOWN The cluster is down\r\n",
        "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        "-CROSSSLOT Keys in request don't hash to the same slot\r\n",
        "-READONLY You can't write against a read only replica.\r\n",
        "-NOREPLICAS Not enough good replicas to write.\r\n",
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
    ];
    shower(world, OFTEN, any, |world| {
        Fault::Answer(REPLIES[world.random.below(8) as usize].as_bytes().to_vec())
    });
}
