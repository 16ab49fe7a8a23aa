//! The locks' own data: foreign, deleted, overwritten, lost.

use super::super::clock::now;
use super::super::load::{Kind, key_name};
use super::super::third_party;
use super::super::tune::ms;
use super::super::world::World;
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
                        let left = world.command(&["PTTL", &key_name(key)]);
                        let (Some(value), Some(left)) = (value, left) else { continue };
                        let whole =
                            matches!(&value, redis::Value::Array(parts) if parts.len() == 2);
                        if !whole || left != redis::Value::Int(-1) {
                            world.red("foreign data was touched (I12)");
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
            // Some holds end before the loss is noticed, and unlock; others go on until it is.
            // Mostly nobody waits for them. The number of renewals is so large that an error in one
            // of a hundred is seen.
            tune: |tune| {
                tune.load.hold = ms(40);
                (tune.load.long_threads, tune.load.long_keys) = (16, 64);
                // Otherwise a holder that never notices would hardly be later than one whose
                // renewal has to be repeated.
                tune.load.command = tune.load.lease * 3 / 10;
            },
            run: third_parties,
            ..USUAL
        },
        Row {
            number: 46,
            class: 'T',
            name: "FLUSHALL, restart empty, fence counters deleted",
            run: |world| {
                world.repeat((ms(150), ms(400)), |world| {
                    // The waiters of the locks that are lost now.
                    world.learn_secrets();
                    let at = now();
                    match world.random.below(4) {
                        0 => world.server.restart(),
                        1 => {
                            // The locks and their waiters stay.
                            let counters: Vec<String> =
                                (0..world.tune.load.all_keys()).flat_map(counters).collect();
                            let words: Vec<&str> = std::iter::once("DEL")
                                .chain(counters.iter().map(String::as_str))
                                .collect();
                            let deleted = world.command(&words);
                            world.faults +=
                                u64::from(matches!(deleted, Some(redis::Value::Int(1..))));
                            return;
                        }
                        _ => {
                            world.command(&["FLUSHALL"]);
                        }
                    }
                    let at = if now() - at > 20_000_000 { now() } else { at };
                    world.taken.extend((0..world.tune.load.all_keys()).map(|key| (key, at)));
                    world.faults += 1;
                });
            },
            ..USUAL
        },
        Row {
            number: 47,
            class: 'T',
            name: "eviction, volatile-lru and allkeys-lru",
            // While there is no room, writes are refused if nothing can be evicted.
            tune: |tune| {
                tune.healing = tune.healing.max(tune.load.lease * 5);
                // Otherwise a holder that never notices would hardly be later than one whose
                // renewal has to be repeated.
                tune.load.command = tune.load.lease * 3 / 10;
            },
            run: eviction,
            ..USUAL
        },
        Row {
            number: 48,
            class: 'T',
            name: "failover to a server without the keys",
            run: failover,
            ..USUAL
        },
    ]
}

/// The fence counters that a key may have.
fn counters(key: u64) -> [String; 2] {
    let name = key_name(key);
    [format!("{{{name}}}:fence"), format!("redisson_lock_token:{{{name}}}")]
}

/// Many keys at a time: of the long holds, and a few of the short ones.
fn third_parties(world: &mut World) {
    let load = world.tune.load.clone();
    let is_string = |key: &u64| load.kind(*key) != Kind::Redisson;
    world.repeat((ms(20), ms(120)), |world| {
        let mut keys = third_party::shuffled(&mut world.random, (0..load.keys).filter(is_string));
        keys.truncate(6);
        keys.extend(third_party::shuffled(
            &mut world.random,
            (load.keys..load.all_keys()).filter(is_string),
        ));
        let round = third_party::take(&keys, load.lease, &mut |words| world.command(words));
        world.faults += round.taken.len() as u64;
        world.taken.extend(round.taken);
        world.back.extend(round.back);
        round.problems.into_iter().for_each(|problem| world.red(problem));
    });
}

/// Moves the clients to an empty server, and back to one that has been emptied meanwhile.
fn failover(world: &mut World) {
    let other = super::super::support::Server::start();
    let mut away = false;
    world.repeat((ms(300), ms(600)), |world| {
        away = !away;
        if !away {
            world.command(&["FLUSHALL"]);
        }
        let port = if away { other.port() } else { world.server.port() };
        world.links().for_each(|link| link.set_upstream(port));
        world.cut_all();
        let at = now();
        if !away {
            let _: redis::RedisResult<()> = redis::cmd("FLUSHALL").query(&mut other.connection());
        }
        world.taken.extend((0..world.tune.load.all_keys()).map(|key| (key, at)));
        world.faults += 1;
    });
    world.links().for_each(|link| link.set_upstream(world.server.port()));
    world.cut_all();
}

/// The server runs out of memory for a moment, and makes room by evicting keys with a TTL: the
/// locks, their queues and their fences.
fn eviction(world: &mut World) {
    let evicted = |world: &World| -> u64 {
        let stats = world.server.info("stats");
        let line = stats.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
        line.and_then(|count| count.trim().parse().ok()).expect("a count of evicted keys")
    };
    let mut by_policy = [0, 0];
    world.repeat((ms(150), ms(400)), |world| {
        let which = world.random.below(2) as usize;
        world.command(&[
            "CONFIG",
            "SET",
            "maxmemory-policy",
            ["volatile-lru", "allkeys-lru"][which],
        ]);
        let before = evicted(world);
        world.command(&["CONFIG", "SET", "maxmemory", "1"]);
        std::thread::sleep(ms(20));
        world.command(&["CONFIG", "SET", "maxmemory", "0"]);
        let at = now();
        world.taken.extend((0..world.tune.load.all_keys()).map(|key| (key, at)));
        let keys = evicted(world) - before;
        by_policy[which] += keys;
        world.faults += u64::from(keys > 0);
    });
    world.remarks.push(format!(
        "{} keys evicted by volatile-lru, {} by allkeys-lru; the client does not look at the \
         policy when it starts",
        by_policy[0], by_policy[1]
    ));
    if by_policy.contains(&0) {
        world.little("a policy evicted nothing");
    }
}
