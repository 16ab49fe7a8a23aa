//! The locks' own data: foreign, deleted, overwritten, lost.

use super::super::clock::now;
use super::super::load::key_name;
use super::super::world::{World, ms};
use super::{Row, USUAL};

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            number: 29,
            name: "foreign data under a key (WRONGTYPE)",
            foreign_keys: 2,
            may_lose: false,
            may_be_unknown: false,
            prepare: |world| {
                for key in 0..2 {
                    world.command(&["HSET", &key_name(key), "somebody", "else's"]);
                }
            },
            run: |world| {
                world.repeat((ms(50), ms(50)), |world| {
                    for key in 0..2 {
                        let value = world.command(&["HGETALL", &key_name(key)]);
                        let whole = matches!(&value, Some(redis::Value::Array(parts)) if parts.len() == 2);
                        if !whole || world.command(&["PTTL", &key_name(key)]) != Some(redis::Value::Int(-1)) {
                            world.problems.push("foreign data was touched (I12)".into());
                        }
                        world.faults += 1;
                    }
                });
            },
            ..USUAL
        },
        Row {
            number: 45,
            class: 'T',
            name: "keys deleted or overwritten by a third party",
            tune: |tune| tune.load.long *= 4,
            run: third_party,
            ..USUAL
        },
        Row {
            number: 46,
            class: 'T',
            name: "FLUSHALL, restart empty",
            run: |world| {
                world.repeat((ms(150), ms(400)), |world| {
                    let at = now();
                    if world.random.below(3) == 0 {
                        world.server.restart();
                    } else {
                        world.command(&["FLUSHALL"]);
                    }
                    let at = if now() - at > 20_000_000 { now() } else { at };
                    world.taken.extend((0..world.tune.load.keys).map(|key| (key, at)));
                    world.faults += 1;
                });
            },
            ..USUAL
        },
        Row { number: 48, class: 'T', name: "failover to a server without the keys", run: failover, ..USUAL },
    ]
}

/// An overwritten key must stay what it was made: no renewal may create it anew, no release delete it.
fn third_party(world: &mut World) {
    world.repeat((ms(20), ms(120)), |world| {
        let key = world.random.below(world.tune.load.keys);
        let name = key_name(key);
        world.faults += 1;
        if world.random.below(2) == 0 {
            if world.command(&["DEL", &name]) == Some(redis::Value::Int(1)) {
                world.taken.push((key, now()));
            }
            return;
        }
        world.command(&["SET", &name, "foreign", "PX", "600"]);
        world.taken.push((key, now()));
        std::thread::sleep(ms(300));
        match (world.command(&["GET", &name]), world.command(&["PTTL", &name])) {
            (Some(redis::Value::BulkString(value)), Some(redis::Value::Int(rest))) if value == b"foreign" && rest <= 300 => {}
            // A machine under load may have slept through its end.
            (_, Some(redis::Value::Int(-2))) => {}
            other => world.problems.push(format!("a foreign value was touched (I12): {other:?}")),
        }
    });
}

/// To a server with nothing on it, and back again to one that has been emptied meanwhile.
fn failover(world: &mut World) {
    let other = super::super::support::Server::start();
    let mut away = false;
    world.repeat((ms(300), ms(600)), |world| {
        away = !away;
        if !away {
            world.command(&["FLUSHALL"]);
        }
        world.proxy.set_upstream(if away { other.port() } else { world.server.port() });
        world.proxy.cut_all();
        let at = now();
        if !away {
            let _: redis::RedisResult<()> = redis::cmd("FLUSHALL").query(&mut other.connection());
        }
        world.taken.extend((0..world.tune.load.keys).map(|key| (key, at)));
        world.faults += 1;
    });
    world.proxy.set_upstream(world.server.port());
    world.proxy.cut_all();
}
