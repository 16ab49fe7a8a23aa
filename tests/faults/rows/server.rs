//! Faults of the server's process and of its state.

use std::cell::Cell;
use std::fs;
use std::thread;
use std::time::Duration;

use super::super::clock::{nanos, now};
use super::super::load::key_name;
use super::super::machine::cpu_time;
use super::super::support::{Fault, Rule};
use super::super::tune::{Tune, ms};
use super::super::world::World;
use super::{Row, USUAL, a_lease};

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            number: 17,
            name: "server stopped for 0.3 leases",
            may_lose: false,
            tune: |tune| {
                tune.on = (tune.load.lease * 3 / 10, tune.load.lease * 3 / 10);
                // After a wait of a whole pause, a hand-off leaves half a lease, and that must be
                // enough.
                tune.load.command = tune.load.lease;
            },
            run: stop,
            under_fault: 0,
            renewals: (20, 200),
            ..USUAL
        },
        Row {
            number: 18,
            name: "server stopped for 2 leases",
            faults: (3, 10),
            tune: |tune| {
                tune.on = (tune.load.lease * 2, tune.load.lease * 2);
                tune.faulted = tune.faulted.max(ms(7500));
            },
            run: stop,
            under_fault: 0,
            ..USUAL
        },
        Row {
            number: 20,
            name: "DEBUG SLEEP, endless script (BUSY)",
            tune: debuggable,
            prepare: |world| busy_soon(world),
            run: busy,
            under_fault: 0,
            ..USUAL
        },
        Row {
            number: 21,
            name: "SCRIPT FLUSH each 10 ms",
            may_fail: false,
            free_within: Some(a_lease),
            may_lose: false,
            may_be_unknown: false,
            run: |world| {
                world.repeat((ms(10), ms(10)), |world| {
                    world.faults += u64::from(world.command(&["SCRIPT", "FLUSH"]).is_some());
                });
            },
            ..USUAL
        },
        Row {
            number: 22,
            name: "kill -9 and restart, AOF always",
            tune: |tune| {
                tune.server = std::mem::take(&mut tune.server).append_only();
                tune.faulted = tune.faulted.max(ms(6000));
            },
            run: |world| {
                world.windows(
                    |world| {
                        world.server.kill();
                        (world.is_outage, world.faults) = (true, world.faults + 1);
                    },
                    |world| world.server.restart(),
                );
            },
            under_fault: 0,
            ..USUAL
        },
        Row {
            number: 23,
            name: "LOADING",
            faults: (2, 8),
            tune: |tune| {
                debuggable(tune);
                tune.server = std::mem::take(&mut tune.server)
                    .append_only()
                    .arg("key-load-delay", "400")
                    .arg("aof-use-rdb-preamble", "yes");
                (tune.on, tune.off) = ((ms(0), ms(0)), (ms(1200), ms(1800)));
                tune.faulted = tune.faulted.max(ms(6000));
            },
            prepare: |world| {
                world.command(&["DEBUG", "POPULATE", "3000", "filler"]);
                world.command(&["BGREWRITEAOF"]);
                thread::sleep(ms(500));
            },
            run: |world| {
                world.windows(
                    |world| {
                        // Keeps the file short: each command in it is loaded with the delay.
                        world.command(&["BGREWRITEAOF"]);
                        thread::sleep(ms(300));
                        world.server.restart_without_waiting();
                        world.is_outage = true;
                    },
                    |world| {
                        let loading = world.server.info("persistence").contains("loading:1");
                        world.faults += u64::from(loading);
                        world.server.wait_ready();
                    },
                );
            },
            under_fault: 0,
            ..USUAL
        },
        Row {
            number: 24,
            name: "OOM",
            run: |world| settings(world, ("maxmemory", "1"), ("maxmemory", "0")),
            // An unlock must still work.
            may_be_unknown: false,
            under_fault: 0,
            ..USUAL
        },
        Row {
            number: 25,
            name: "MISCONF",
            // The server needs some time to notice, and to see that it can save again.
            faults: (1, 5),
            tune: |tune| {
                (tune.on, tune.off) = ((ms(300), ms(600)), (ms(500), ms(1000)));
                tune.faulted = tune.faulted.max(ms(6000));
            },
            prepare: |world| {
                world.command(&["CONFIG", "SET", "save", "36000 100000000"]);
            },
            run: misconf,
            under_fault: 0,
            ..USUAL
        },
        Row { number: 27, name: "max clients reached", under_fault: 0, run: maxclients, ..USUAL },
        Row {
            number: 28,
            name: "NOPERM, WRONGPASS at run time",
            tune: |tune| {
                (tune.user, tune.faulted) =
                    (Some(("locker", "sesame-opens")), tune.faulted.max(ms(5000)))
            },
            prepare: user,
            under_fault: 0,
            run: acl,
            ..USUAL
        },
        Row {
            number: 37,
            name: "subscriptions killed each 100 ms; wake-ups lost and late",
            may_lose: false,
            may_be_unknown: false,
            may_fail: false,
            // A lost wake-up costs one pause, which is half of a lease at most.
            free_within: Some(|load| load.lease / 2 + ms(100)),
            known_within: Some(|load| load.lease / 2 + ms(500)),
            run: |world| {
                let mut round = 0_u64;
                world.repeat((ms(100), ms(100)), |world| {
                    round += 1;
                    late_wake_ups(world);
                    if (round / 8).is_multiple_of(2) {
                        let killed = world.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                        world.faults += u64::from(matches!(killed, Some(redis::Value::Int(1..))));
                    } else {
                        // A new subscription would make every waiter ask again.
                        let lost: Vec<_> = world
                            .links()
                            .map(|link| link.add(Rule::on("message", Fault::SwallowReply).next(1)))
                            .collect();
                        thread::sleep(ms(50));
                        for lost in lost {
                            lost.remove();
                            world.faults += lost.fired() as u64;
                        }
                    }
                });
            },
            ..USUAL
        },
    ]
}

pub fn stop(world: &mut World) {
    let (before, mut busiest) = (Cell::new((0, Vec::new())), 0.0_f64);
    let cpu = |world: &World| -> Vec<Duration> {
        world.clients.iter().map(|client| cpu_time(client.pid())).collect()
    };
    world.windows(
        |world| {
            world.server.stop_process();
            (world.is_outage, world.faults) = (true, world.faults + 1);
            before.set((now(), cpu(world)));
        },
        |world| {
            let (since, before) = before.take();
            let waited = (now() - since) as f64;
            for (before, after) in before.into_iter().zip(cpu(world)) {
                busiest = busiest.max(nanos(after.saturating_sub(before)) as f64 / waited);
            }
            world.server.cont();
        },
    );
    world.remarks.push(format!("CPU of a waiting process {:.0} %", busiest * 100.0));
    // The kernel counts in hundredths of a second: too coarse for a short stop.
    if world.tune.on.0 >= ms(1000) && busiest > 0.1 {
        world.late("busy while it waits (I10)");
    }
}

/// Wakes waiters by messages that come too late: grants that name an attempt before the last
/// refusal that the waiter has received. The server's entry may be one attempt ahead of that.
fn late_wake_ups(world: &mut World) {
    for key in 0..world.tune.load.all_keys() {
        let lock = key_name(key);
        let entries = world.command(&["HGETALL", &format!("{{{lock}}}:waiters")]);
        let entries: Vec<(String, String)> =
            entries.and_then(|entries| redis::from_redis_value(entries).ok()).unwrap_or_default();
        for (token, entry) in entries {
            let words: Vec<&str> = entry.split('|').collect();
            let [_, attempt, _, fences, inbox, ..] = words[..] else { continue };
            let Some(late) = attempt
                .parse::<u64>()
                .ok()
                .and_then(|attempt| attempt.checked_sub(2))
                .filter(|late| *late > 0)
            else {
                continue;
            };
            let fence = if fences == "0" { 0 } else { now() / 1000 };
            let heard = world.command(&[
                "PUBLISH",
                inbox,
                &format!("{late} {fence} {fences} {token} {lock}"),
            ]);
            world.faults += u64::from(heard == Some(redis::Value::Int(1)));
        }
    }
}

/// Servers before 7.0 do not know the setting, and do not start with it: so it is only used where
/// it is needed.
fn debuggable(tune: &mut Tune) {
    tune.server = std::mem::take(&mut tune.server).arg("enable-debug-command", "local");
}

fn busy_soon(world: &mut World) {
    world.command(&["CONFIG", "SET", "busy-reply-threshold", "50"]);
}

fn busy(world: &mut World) {
    let mut killer = world.server.connection();
    let mut scripted = false;
    world.windows(
        |world| {
            scripted = !scripted;
            (world.is_outage, world.faults) = (true, world.faults + 1);
            // The connection is closed at once: the server has read the command before it sees the
            // end.
            let mut sleeper = world.server.connection();
            let mut send = |words: &[&str]| {
                let mut command = redis::Cmd::new();
                words.iter().for_each(|word| {
                    command.arg(word);
                });
                let _ = sleeper.send_packed_command(&command.get_packed_command());
            };
            if scripted {
                send(&["EVAL", "while true do end", "0"]);
            } else {
                send(&["DEBUG", "SLEEP", "0.3"]);
            }
        },
        |_| {
            // Also answered while a script is running.
            let _: redis::RedisResult<redis::Value> =
                redis::cmd("SCRIPT").arg("KILL").query(&mut killer);
        },
    );
}

/// One setting while the fault lasts, another while it does not.
fn settings(world: &mut World, on: (&str, &str), off: (&str, &str)) {
    world.windows(
        |world| {
            world.is_outage = true;
            world.faults += u64::from(world.command(&["CONFIG", "SET", on.0, on.1]).is_some());
        },
        |world| {
            world.command(&["CONFIG", "SET", off.0, off.1]);
        },
    );
}

/// A directory where the dump should go makes every save fail.
fn misconf(world: &mut World) {
    let dump = world.server.dir().join("dump.rdb");
    let in_the_way = dump.clone();
    world.windows(
        |world| {
            let _ = fs::remove_file(&in_the_way);
            fs::create_dir_all(in_the_way.join("in the way")).expect("a directory");
            world.command(&["BGSAVE"]);
            world.is_outage = true;
            let start = now();
            while !world.server.info("persistence").contains("rdb_last_bgsave_status:err")
                && now() - start < 2_000_000_000
            {
                thread::sleep(ms(10));
            }
            world.faults +=
                u64::from(world.server.info("persistence").contains("rdb_last_bgsave_status:err"));
        },
        |world| {
            fs::remove_dir_all(&dump).expect("it was there");
            let start = now();
            while !world.server.info("persistence").contains("rdb_last_bgsave_status:ok")
                && now() - start < 10_000_000_000
            {
                world.command(&["BGSAVE"]);
                thread::sleep(ms(20));
            }
        },
    );
}

fn maxclients(world: &mut World) {
    // The driver's own connection is opened before there is no room for it.
    world.command(&["PING"]);
    world.windows(
        |world| {
            world.command(&["CONFIG", "SET", "maxclients", "3"]);
            world.cut_all();
            (world.is_outage, world.faults) = (true, world.faults + 1);
        },
        |world| {
            world.command(&["CONFIG", "SET", "maxclients", "4000"]);
        },
    );
}

fn user(world: &mut World) {
    world.command(&["ACL", "SETUSER", "locker", "on", ">sesame-opens", "~*", "&*", "+@all"]);
}

fn acl(world: &mut World) {
    let mut password = false;
    world.windows(
        |world| {
            password = !password;
            (world.is_outage, world.faults) = (true, world.faults + 1);
            if password {
                world.command(&["ACL", "SETUSER", "locker", "resetpass", ">another"]);
                world.command(&["CLIENT", "KILL", "USER", "locker"]);
            } else {
                world.command(&["ACL", "SETUSER", "locker", "-evalsha", "-eval"]);
            }
        },
        |world| {
            world.command(&["ACL", "SETUSER", "locker", "resetpass", ">sesame-opens", "+@all"]);
        },
    );
}
