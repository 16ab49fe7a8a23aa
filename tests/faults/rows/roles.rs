//! Planned failovers: a master and its replica change roles, and no key is lost.

use std::thread;
use std::time::Duration;

use super::super::clock::{nanos, now};
use super::super::history;
use super::super::progress;
use super::super::support::{Proxy, Server, eventually};
use super::super::tune::ms;
use super::super::world::World;
use super::{Row, USUAL, a_lease};

/// How long after a failover a key may have waiters and no holder.
const AGAIN: Duration = Duration::from_millis(2000);
/// How long an inbox that is needed may stay at the old server: a process whose threads all wait
/// asks for the role after two seconds of silence, once a second.
const LEFT: Duration = Duration::from_millis(3500);
/// How long the servers themselves may take for each step, a whole copy of their data included.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn rows() -> Vec<Row> {
    vec![Row {
        number: 67,
        name: "planned failover, inboxes left at the old server",
        free_within: Some(a_lease),
        may_lose: false,
        may_be_unknown: false,
        tune: |tune| {
            // `FAILOVER` blocks writes for up to a second, until the replica next reports its
            // offset: that must cost nobody a lease or an answer.
            (tune.load.lease, tune.load.command) = (ms(3000), ms(2000));
            // Long holds, and processes whose threads mostly wait: the process that unlocks learns
            // of the failover first, and the next waiter in the queue does not know of it yet.
            tune.load.hold = ms(20);
            tune.load.bait_keys = 0;
            (tune.processes, tune.load.threads, tune.load.keys) = (tune.processes * 2, 4, 6);
            tune.server = std::mem::take(&mut tune.server).arg("repl-diskless-sync-delay", "0");
        },
        prepare: replica,
        run: failovers,
        ..USUAL
    }]
}

/// Gives the server a replica. Clients know neither of their addresses, only the proxy's.
fn replica(world: &mut World) {
    let builder = Server::builder().arg("maxclients", "4000").arg("repl-diskless-sync-delay", "0");
    let replica = builder.arg("replicaof", &format!("127.0.0.1 {}", world.server.port())).start();
    // Until then it is counted as a client.
    eventually(PATIENCE, || says(&world.server, "state=online"));
    let proxy = Proxy::start(replica.port());
    world.more.push((replica, proxy));
}

/// Fails over to the replica and back in turn. New connections go to the new master, and those to
/// the old one stay, as behind a virtual address: the waiters' inboxes receive the new master's
/// messages, because it replicates them; but the new master does not see the inboxes.
fn failovers(world: &mut World) {
    let (mut home, mut seen) = (true, Seen::default());
    world.repeat((ms(100), ms(400)), |world| {
        swap(world, home, &mut seen);
        home = !home;
    });
    // The judge checks the first one.
    if !home {
        swap(world, home, &mut seen);
    }
    // While one thread of a process holds a lock for long and the others wait for it in the
    // process, nobody needs the inbox.
    let (begun, most) = (now(), nanos(world.tune.load.lease * 3 + LEFT));
    while now() - begun < most && inboxes(&world.more[0].0) > 0 {
        thread::sleep(ms(20));
    }
    if now() - begun >= most {
        world.late(format!("an inbox stayed at the old server for {} ms", most / 1_000_000));
    }
    thread::sleep(AGAIN);
    let (holds, calls) = history::read_all(world.dir());
    seen.swaps.push((now(), now()));
    let after = |pair: &[(u64, u64)]| progress::longest_stuck(&holds, &calls, pair[0].1, pair[1].0);
    let stuck = seen.swaps.windows(2).map(after).max().unwrap_or(0);
    world.remarks.push(format!(
        "roles changed within {} ms; granted again within {} ms; {} times an inbox was left for \
         two seconds",
        seen.changed_within / 1_000_000,
        stuck / 1_000_000,
        seen.left
    ));
    if stuck > nanos(AGAIN) {
        world.late(format!(
            "a key was free, and waited for, for {} ms after a failover",
            stuck / 1_000_000
        ));
    }
}

/// When the roles began to change, and when they had changed; how long that took at most (ns); and
/// how often an inbox stayed at the old master.
#[derive(Default)]
struct Seen {
    swaps: Vec<(u64, u64)>,
    changed_within: u64,
    left: u64,
}

/// Makes the two servers change roles.
fn swap(world: &mut World, home: bool, seen: &mut Seen) {
    let (old, new) = (&world.server, &world.more[0].0);
    let (old, new) = if home { (old, new) } else { (new, old) };
    // A replica that is still loading its data is no target.
    eventually(PATIENCE, || says(new, "master_link_status:up") && says(old, "state=online"));
    let begun = now();
    // Once to the replica, and once back.
    if seen.swaps.len() % 4 < 2 {
        failover(old, new)
    } else {
        by_hand(old, new)
    }
    world.links().for_each(|link| link.set_upstream(new.port()));
    let at = now();
    seen.changed_within = seen.changed_within.max(at - begun);
    seen.swaps.push((begun, at));
    // Nobody can be granted anything while the servers themselves refuse to write.
    world.outages.push((begun, at));
    world.faults += 1;
    while now() - at < nanos(AGAIN) && inboxes(old) > 0 {
        thread::sleep(ms(5));
    }
    seen.left += u64::from(now() - at >= nanos(AGAIN));
}

/// The server pauses writes and waits for the replica by itself.
fn failover(old: &Server, new: &Server) {
    ask(old, &["FAILOVER", "TO", "127.0.0.1", &new.port().to_string()]);
    eventually(PATIENCE, || {
        says(new, "role:master")
            && says(old, "role:slave")
            && says(old, "master_failover_state:no-failover")
    });
}

fn by_hand(old: &Server, new: &Server) {
    ask(old, &["CLIENT", "PAUSE", "60000", "WRITE"]);
    eventually(PATIENCE, || offset(old) == offset(new));
    ask(new, &["REPLICAOF", "NO", "ONE"]);
    ask(old, &["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    ask(old, &["CLIENT", "UNPAUSE"]);
}

fn ask(server: &Server, words: &[&str]) -> redis::Value {
    redis::cmd(words[0])
        .arg(&words[1..])
        .query(&mut server.connection())
        .expect("the server does what it is asked")
}

fn says(server: &Server, what: &str) -> bool {
    server.info("replication").contains(what)
}

/// The replication offset of this server.
fn offset(server: &Server) -> String {
    let replication = server.info("replication");
    let line = replication.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
    line.expect("every server has one").trim().to_owned()
}

fn inboxes(server: &Server) -> usize {
    let channels = ask(server, &["PUBSUB", "CHANNELS", "distlock:inbox:*"]);
    redis::from_redis_value::<Vec<String>>(channels).expect("names").len()
}
