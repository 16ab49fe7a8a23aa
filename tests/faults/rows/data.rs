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
            // Long holds come and go; so does the rate, over so short a time as one of them.
            tune: |tune| (tune.load.long, tune.healing) = (tune.load.long * 60, tune.healing.max(tune.load.lease * 5)),
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
        Row {
            number: 47,
            class: 'T',
            name: "eviction, volatile-lru and allkeys-lru",
            // While there is no room, what is not evicted is refused.
            tune: |tune| (tune.load.long, tune.healing) = (tune.load.long * 30, tune.healing.max(tune.load.lease * 5)),
            run: eviction,
            ..USUAL
        },
        Row { number: 48, class: 'T', name: "failover to a server without the keys", run: failover, ..USUAL },
    ]
}

/// A key that has the same token for a while, so that what its renewal does can be seen; if there is none, any.
fn held_for_long(world: &mut World) -> u64 {
    let mut key = 0;
    for _ in 0..10 {
        key = world.random.below(world.tune.load.keys);
        let token = world.command(&["GET", &key_name(key)]);
        std::thread::sleep(ms(10));
        if matches!(token, Some(redis::Value::BulkString(_))) && world.command(&["GET", &key_name(key)]) == token {
            break;
        }
    }
    key
}

/// An overwritten key must stay what it was made: no renewal may create it anew, no release delete it.
fn third_party(world: &mut World) {
    world.repeat((ms(20), ms(120)), |world| {
        let key = held_for_long(world);
        let name = key_name(key);
        world.faults += 1;
        if world.random.below(2) == 0 {
            let token = world.command(&["GET", &name]);
            if world.command(&["DEL", &name]) == Some(redis::Value::Int(1)) {
                world.taken.push((key, now()));
                std::thread::sleep(world.tune.load.lease / 2);
                if token != Some(redis::Value::Nil) && world.command(&["GET", &name]) == token {
                    world.problems.push("a deleted lock was created again under its old token (I12)".into());
                }
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

/// The server runs out of memory for a moment, and makes room with what is not for ever: the locks, their queues and their fences.
fn eviction(world: &mut World) {
    let evicted = |world: &World| -> u64 {
        let stats = world.server.info("stats");
        let line = stats.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
        line.and_then(|count| count.trim().parse().ok()).expect("a count of evicted keys")
    };
    let mut by_policy = [0, 0];
    world.repeat((ms(150), ms(400)), |world| {
        let which = world.random.below(2) as usize;
        world.command(&["CONFIG", "SET", "maxmemory-policy", ["volatile-lru", "allkeys-lru"][which]]);
        let before = evicted(world);
        world.command(&["CONFIG", "SET", "maxmemory", "1"]);
        std::thread::sleep(ms(20));
        world.command(&["CONFIG", "SET", "maxmemory", "0"]);
        let at = now();
        world.taken.extend((0..world.tune.load.keys).map(|key| (key, at)));
        let keys = evicted(world) - before;
        by_policy[which] += keys;
        world.faults += u64::from(keys > 0);
    });
    world.remarks.push(format!(
        "{} keys evicted by volatile-lru, {} by allkeys-lru; the client does not look at the policy when it starts",
        by_policy[0], by_policy[1]
    ));
    if by_policy.contains(&0) {
        world.problems.push("a policy evicted nothing".into());
    }
}
