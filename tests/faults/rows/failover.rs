//! Failovers that sentinels decide, and locks that count once replicas have confirmed them (R22 to
//! R24).

use std::thread;
use std::time::Duration;

use super::super::check;
use super::super::clock::{nanos, now};
use super::super::history::{self, Record};
use super::super::support::fake_sentinel::{self, Says};
use super::super::support::sentinels::{SERVICE, Sentinel, Sentinels, primary_port, url_of};
use super::super::support::{Proxy, Server, eventually};
use super::super::tune::{Size, Tune, ms};
use super::super::world::World;
use super::packets::{self, Namespace};
use super::{Row, USUAL, a_lease};

/// How long the servers and sentinels themselves may take for each step.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon a lock must be granted once a primary with all its replicas takes writes, or, where
/// none needs to confirm it, once the sentinels name that primary.
const GRANTED_WITHIN: Duration = Duration::from_secs(2);
/// How long a server stays stopped: longer than the sentinels need to promote another one.
const STOPPED: Duration = Duration::from_secs(4);
const STOPPED_QUICK: Duration = Duration::from_millis(2500);
/// A replica's answer that was on its way when it was stopped still counts, and a busy client notes
/// it late. The replicas are away for three times as long at least.
const ON_THE_WAY: Duration = Duration::from_millis(500);
/// How many sentinels answer in the row in which the others do not.
const ANSWERING: usize = 3;

pub fn rows() -> Vec<Row> {
    let usual = || Row {
        // A killed server forgets which tokens it had.
        known_within: None,
        waits: true,
        free_within: Some(a_lease),
        tune: |tune| confirmed(tune, 1),
        prepare: |world| watched(world, 3),
        ..USUAL
    };
    vec![
        Row {
            number: 77,
            name: "S1: Sentinel, `replicas(all)`: primary killed, restarted without its data",
            run: |world| again_and_again(world, |world, _| killed(world)),
            ..usual()
        },
        Row {
            number: 78,
            name: "S2: Sentinel, `replicas(all)`: primary stopped and continued, one process \
                   stopped with it",
            // The calls of the stopped process end late.
            punctual: false,
            run: |world| again_and_again(world, |world, _| stopped(world)),
            ..usual()
        },
        Row {
            number: 79,
            class: 'T',
            name: "S3: Sentinel, `replicas(0)`: primary killed, or stopped, in turn",
            faults: (4, 20),
            punctual: false,
            split: true,
            tune: |tune| confirmed(tune, 0),
            run: |world| {
                again_and_again(
                    world,
                    |world, round| {
                        if round % 2 == 0 { killed(world) } else { stopped(world) }
                    },
                );
            },
            ..usual()
        },
        Row {
            number: 80,
            name: "S4: six sentinels, one stopped, one killed, one with an old epoch; failovers",
            prepare: |world| {
                watched(world, 5);
                let liar = fake_sentinel::sentinel(&Says::new(&world.server, 0));
                let ports = world.sentinels.iter().map(Sentinel::port).chain([liar.port()]);
                let url = url_of(ports);
                world.at(url);
                world.fakes.push(liar);
            },
            run: partly_dead,
            ..usual()
        },
        Row {
            number: 81,
            name: "S5: primary cut off from replica and sentinels, one process on its side (nft)",
            faults: (2, 10),
            namespace: Namespace::Must,
            tune: |tune| {
                confirmed(tune, 1);
                // The processes on the primary's side reach it at another address.
                tune.server = std::mem::take(&mut tune.server).arg("bind", "127.0.0.1 127.0.0.2");
            },
            prepare: |world| {
                watched(world, 3);
                let near = format!("redis://127.0.0.2:{}/", world.server.port());
                world.first_at(near);
            },
            run: cut_off,
            ..usual()
        },
        Row {
            number: 82,
            name: "W1: `replicas(1)` of two: replicas stopped in turn, then both",
            faults: (6, 20),
            prepare: |world| replicas(world, 2),
            run: frozen_replicas,
            ..usual()
        },
    ]
}

/// Locks that this many replicas must have confirmed.
fn confirmed(tune: &mut Tune, replicas: u32) {
    (tune.load.replicas, tune.load.bait_keys) = (replicas, 0);
    // A light load, because these rows run beside each other.
    (tune.load.threads, tune.load.pause) = (4, ms(8));
    tune.server = std::mem::take(&mut tune.server).arg("repl-diskless-sync-delay", "0");
    tune.faulted = tune.faulted.max(ms(6000));
}

/// Gives the server replicas.
fn replicas(world: &mut World, count: usize) {
    for _ in 0..count {
        let master = format!("127.0.0.1 {}", world.server.port());
        let builder = Server::builder().arg("maxclients", "4000");
        let builder = builder.arg("repl-diskless-sync-delay", "0").arg("replicaof", &master);
        let replica = builder.start();
        let proxy = Proxy::start(replica.port());
        world.more.push((replica, proxy));
    }
    wait_until_whole(world);
}

/// Gives the server a replica, and sentinels that all clients ask.
fn watched(world: &mut World, sentinels: usize) {
    replicas(world, 1);
    let builder = Sentinels::builder().sentinels(sentinels);
    // With Redis's own timers, a primary that is back takes writes for ten seconds.
    let builder = if world.size == Size::Quick { builder } else { builder.default_timers() };
    world.sentinels = builder.watch(world.server.port());
    world.at(url_of(world.sentinels.iter().map(Sentinel::port)));
}

/// When a failover began, when another server took writes, and when most sentinels named it: no
/// client can know of it before.
struct Failover {
    begun: u64,
    promoted: u64,
    named: u64,
}

/// Fails over again and again, and waits each time until one primary has all replicas.
fn again_and_again(world: &mut World, mut act: impl FnMut(&mut World, u64) -> Failover) {
    let (mut round, mut ready) = (0, Vec::new());
    world.repeat((ms(400), ms(1000)), |world| {
        let Failover { begun, promoted, named } = act(world, round);
        wait_until_whole(world);
        if world.tune.load.replicas > 0 {
            // A replica that has just got its data confirms nothing for up to a second.
            server(world, primary(world)).wait_for_replicas(world.tune.load.replicas as usize);
        }
        let end = if world.tune.load.replicas > 0 { now() } else { named };
        world.outages.push((begun, end));
        world.cut_offs.push((begun, now()));
        ready.push((promoted - begun, end));
        (world.faults, round) = (world.faults + 1, round + 1);
    });
    judge_grants(world, &ready);
}

/// How soon after each failover a lock was granted.
fn judge_grants(world: &mut World, ready: &[(u64, u64)]) {
    thread::sleep(GRANTED_WITHIN);
    let (holds, _) = history::read_all(world.dir());
    let granted_within = |at: u64| {
        holds.iter().map(|hold| hold.granted).filter(|granted| *granted >= at).min().map(|g| g - at)
    };
    let slowest = ready.iter().map(|(_, at)| granted_within(*at).unwrap_or(u64::MAX)).max();
    let longest = ready.iter().map(|(took, _)| *took).max().unwrap_or(0);
    let slowest = slowest.unwrap_or(u64::MAX);
    world.remarks.push(format!(
        "promoted within {} ms; granted within {} ms of the end of the outage",
        longest / 1_000_000,
        slowest / 1_000_000
    ));
    if slowest > nanos(GRANTED_WITHIN) {
        world.late(format!("no grant for {} ms after a failover", slowest / 1_000_000));
    }
}

/// The primary is killed. It comes back empty, and takes itself for a primary until the sentinels
/// make it a replica.
fn killed(world: &mut World) -> Failover {
    let (begun, old) = (now(), primary(world));
    server(world, old).kill();
    let promoted = wait_until_promoted(world, old);
    server(world, old).restart();
    Failover { begun, promoted, named: wait_until_named(world, old) }
}

/// The primary is stopped, and one process with it, which is still connected to it afterwards. When
/// both go on, the primary still takes itself for one.
fn stopped(world: &mut World) -> Failover {
    let least = if world.size == Size::Quick { STOPPED_QUICK } else { STOPPED };
    let (begun, old) = (now(), primary(world));
    world.clients[0].stop();
    server(world, old).stop_process();
    let (promoted, named) = (wait_until_promoted(world, old), wait_until_named(world, old));
    thread::sleep(Duration::from_nanos((begun + nanos(least)).saturating_sub(now())));
    server(world, old).cont();
    world.clients[0].cont();
    Failover { begun, promoted, named }
}

/// Sentinels that answer only in part: one is stopped, one is gone, and one goes on naming the
/// first primary, with the first epoch.
fn partly_dead(world: &mut World) {
    world.sentinels[ANSWERING].stop_process();
    world.sentinels[ANSWERING + 1].kill();
    again_and_again(world, |world, _| {
        let (begun, old) = (now(), primary(world));
        by_command(world);
        let (promoted, named) = (wait_until_promoted(world, old), wait_until_named(world, old));
        Failover { begun, promoted, named }
    });
    world.sentinels[ANSWERING].cont();
}

/// The primary's packets to and from everybody but the first process are dropped, until the
/// sentinels have promoted the replica. Afterwards they fail back.
fn cut_off(world: &mut World) {
    let mut alone = Vec::new();
    again_and_again(world, |world, _| {
        let (begun, port) = (now(), world.server.port());
        packets::apply(&format!(
            "table inet faults {{\n chain arriving {{ type filter hook input priority 0;\n  ip \
             daddr 127.0.0.1 tcp dport {port} counter drop\n  ip saddr 127.0.0.1 tcp sport {port} \
             counter drop\n }}\n}}\n"
        ));
        let (promoted, named) = (wait_until_promoted(world, 0), wait_until_named(world, 0));
        thread::sleep(ms(1000));
        alone.push((begun, now()));
        packets::apply("delete table inet faults\n");
        wait_until_whole(world);
        by_command(world);
        wait_until_promoted(world, 1);
        Failover { begun, promoted, named }
    });
    judge_silence(world, &alone);
}

/// Each replica is stopped in turn, and then both.
fn frozen_replicas(world: &mut World) {
    let mut alone = Vec::new();
    let (mut round, pause) = (0, (ms(200), ms(400)));
    world.repeat(pause, |world| {
        let chosen = match round % 3 {
            2 => 1..3,
            one => one + 1..one + 2,
        };
        let begun = now();
        chosen.clone().for_each(|place| server(world, place).stop_process());
        let stopped = now();
        thread::sleep(world.tune.load.lease * 3 / 2);
        let end = now();
        chosen.clone().for_each(|place| server(world, place).cont());
        if chosen.len() == 2 {
            alone.push((stopped, end));
            world.outages.push((begun, now()));
        }
        (world.faults, round) = (world.faults + 1, round + 1);
    });
    judge_silence(world, &alone);
}

/// Nobody may be granted a lock while no replica can confirm it. A lease that was confirmed before
/// may pass from thread to thread of its process.
fn judge_silence(world: &mut World, alone: &[(u64, u64)]) {
    let (mut holds, _) = history::read_all(world.dir());
    holds.sort_by_key(|hold| (hold.key, hold.granted));
    let process = |hold: &Record| hold.owner / 10_000;
    let passed_on = |before: &Record, hold: &Record| {
        before.key == hold.key
            && process(before) == process(hold)
            && (hold.fence == 0 || hold.fence == before.fence + 1)
    };
    let is_alone = |hold: &Record| {
        alone.iter().any(|(from, to)| (from + nanos(ON_THE_WAY)..*to).contains(&hold.granted))
            && check::has_a_window(hold)
    };
    let fresh = holds
        .windows(2)
        .filter(|pair| is_alone(&pair[1]) && !passed_on(&pair[0], &pair[1]))
        .filter(|pair| !world.has_apart() || process(&pair[1]) == 0)
        .count();
    world.remarks.push(format!("{} times no replica could confirm anything", alone.len()));
    if fresh > 0 {
        world.red(format!("{fresh} grants that nobody can have confirmed (R24)"));
    }
}

/// The place of the present primary among the servers.
fn primary(world: &World) -> usize {
    let answering = &world.sentinels[..ANSWERING];
    let mut place = None;
    eventually(PATIENCE, || {
        let port = primary_port(answering);
        place = world.servers().position(|server| Some(server.port()) == port);
        place.is_some()
    });
    place.expect("it was found")
}

fn server(world: &World, place: usize) -> &Server {
    world.servers().nth(place).expect("a server of this row")
}

fn by_command(world: &World) {
    // They refuse for a while after the failover before.
    eventually(PATIENCE, || {
        world.sentinels[0].try_ask::<()>(&["SENTINEL", "FAILOVER", SERVICE]).is_ok()
    });
}

/// Returns once another server than the one at this place takes writes, and says when that was.
fn wait_until_promoted(world: &World, old: usize) -> u64 {
    eventually(PATIENCE, || {
        let others = world.servers().enumerate().filter(|(place, _)| *place != old);
        others.into_iter().any(|(_, server)| says(server, "role:master"))
    });
    now()
}

/// Returns once most sentinels name another primary than the server at this place, and says when
/// that was. They do so some time after one of them has promoted it.
fn wait_until_named(world: &World, old: usize) -> u64 {
    let (old, answering) = (server(world, old).port(), &world.sentinels[..ANSWERING]);
    eventually(PATIENCE, || {
        let named = answering.iter().filter_map(Sentinel::primary);
        named.filter(|port| *port != old).count() > ANSWERING / 2
    });
    now()
}

/// Returns once one server is the primary of all others, and the sentinels name it.
fn wait_until_whole(world: &World) {
    let replicas = world.servers().count() - 1;
    let is_whole = |server: &Server| {
        let replication = server.try_info("replication").unwrap_or_default();
        let online = replication.matches("state=online").count();
        replication.contains("role:master") && online == replicas
    };
    eventually(PATIENCE, || {
        let mut primaries = world.servers().filter(|server| !says(server, "role:slave"));
        let (Some(primary), None) = (primaries.next(), primaries.next()) else { return false };
        let answering = world.sentinels.iter().take(ANSWERING);
        is_whole(primary)
            && answering.map(Sentinel::primary).all(|named| named == Some(primary.port()))
    });
}

fn says(server: &Server, what: &str) -> bool {
    server.try_info("replication").is_ok_and(|replication| replication.contains(what))
}
