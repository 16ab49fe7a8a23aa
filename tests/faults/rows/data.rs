//! The locks' own data: foreign, deleted, overwritten, lost.

use super::super::clock::{nanos, now};
use super::super::load::key_name;
use super::super::world::{World, ms};
use super::{Row, USUAL, a_lease};

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            number: 29,
            name: "foreign data under a key (WRONGTYPE)",
            // One with fences, and one without.
            foreign_keys: 4,
            free_within: Some(a_lease),
            may_lose: false,
            may_be_unknown: false,
            prepare: |world| {
                for key in 0..4 {
                    world.command(&["HSET", &key_name(key), "somebody", "else's"]);
                }
            },
            run: |world| {
                world.repeat((ms(50), ms(50)), |world| {
                    for key in 0..4 {
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
            // Some holds end before the loss is noticed, and unlock; others go on until it is. Mostly nobody waits for them.
            tune: |tune| {
                (tune.load.hold, tune.load.long) = (ms(40), tune.load.long.max(6000));
                tune.load.keys *= 4;
                // Or a holder that never notices would hardly be later than one whose renewal has to be repeated.
                tune.load.command = tune.load.lease * 3 / 10;
            },
            run: third_party,
            ..USUAL
        },
        Row {
            number: 46,
            class: 'T',
            name: "FLUSHALL, restart empty, fence counters deleted",
            run: |world| {
                world.repeat((ms(150), ms(400)), |world| {
                    // Those of the locks that are lost now.
                    world.learn_secrets();
                    let at = now();
                    match world.random.below(4) {
                        0 => world.server.restart(),
                        1 => {
                            // The locks, and who waits for them, stay.
                            let counters: Vec<String> =
                                (0..world.tune.load.keys).map(|key| format!("{{{}}}:fence", key_name(key))).collect();
                            let words: Vec<&str> = std::iter::once("DEL").chain(counters.iter().map(String::as_str)).collect();
                            let deleted = world.command(&words);
                            world.faults += u64::from(matches!(deleted, Some(redis::Value::Int(1..))));
                            return;
                        }
                        _ => {
                            world.command(&["FLUSHALL"]);
                        }
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
            tune: |tune| {
                (tune.load.long, tune.healing) = (tune.load.long.max(3000), tune.healing.max(tune.load.lease * 5));
                // Or a holder that never notices would hardly be later than one whose renewal has to be repeated.
                tune.load.command = tune.load.lease * 3 / 10;
            },
            run: eviction,
            ..USUAL
        },
        Row { number: 48, class: 'T', name: "failover to a server without the keys", run: failover, ..USUAL },
    ]
}

/// A key that has the same token for a while, so that what its holder does can be seen; if there is none, any. None of `but`.
fn held_for_long(world: &mut World, but: &[u64]) -> u64 {
    let mut key = 0;
    for _ in 0..10 {
        // Also where none is held: one that is deleted and overwritten at the same time would look as if a client had done it.
        key = loop {
            let any = world.random.below(world.tune.load.keys);
            if !but.contains(&any) {
                break any;
            }
        };
        let token = world.command(&["GET", &key_name(key)]);
        std::thread::sleep(ms(10));
        let is_held = matches!(token, Some(redis::Value::BulkString(_))) && world.command(&["GET", &key_name(key)]) == token;
        if is_held {
            break;
        }
    }
    key
}

/// A deleted key must not come back, and an overwritten one must stay what it was made: no renewal may create or extend it, no release delete
/// it. Several at a time, because each has to be looked at for longer than a renewal takes to come.
fn third_party(world: &mut World) {
    let (look, foreign) = (world.tune.load.lease * 2 / 5, world.tune.load.lease * 4 / 5);
    world.repeat((ms(20), ms(120)), |world| {
        let (mut keys, mut deleted, mut overwritten) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2 {
            keys.push(held_for_long(world, &keys));
            let key = keys[keys.len() - 1];
            let token = world.command(&["GET", &key_name(key)]);
            if matches!(token, Some(redis::Value::BulkString(_))) && world.command(&["DEL", &key_name(key)]) == Some(redis::Value::Int(1)) {
                world.taken.push((key, now()));
                deleted.push((key, token));
            }
            keys.push(held_for_long(world, &keys));
            let (key, before) = (keys[keys.len() - 1], now());
            world.command(&["SET", &key_name(key), "foreign", "PX", &foreign.as_millis().to_string()]);
            world.taken.push((key, now()));
            overwritten.push((key, before, now()));
        }
        world.faults += (deleted.len() + overwritten.len()) as u64;
        std::thread::sleep(look);
        for (key, token) in deleted {
            if world.command(&["GET", &key_name(key)]) == token {
                world.problems.push("a deleted lock was created again under its old token (I12)".into());
            }
        }
        for (key, before, after) in overwritten {
            // A server under load looks at its clock some time before it answers. A renewal would leave more than is allowed for that.
            let most = nanos(foreign + look / 4).saturating_sub(now() - after) / 1_000_000;
            let left = world.command(&["PTTL", &key_name(key)]);
            let value = world.command(&["GET", &key_name(key)]);
            let whole = matches!((&value, &left), (Some(redis::Value::BulkString(value)), Some(redis::Value::Int(left)))
                if value == b"foreign" && u64::try_from(*left).is_ok_and(|left| left <= most));
            // On a machine under load it may have ended by itself before it was looked at.
            if !whole && now() - before < nanos(foreign) {
                world.problems.push(format!("a foreign value was touched (I12): {value:?}, {left:?} ms left"));
            }
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
