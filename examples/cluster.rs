//! Workers count in twelve accounts, each under a lock of its own, in a Redis Cluster of three
//! shards. Meanwhile slots move to another shard and back, and one primary is killed and replaced
//! by its replica. No count is lost: with `replicas(1)`, a lock counts only once the replica has
//! it, too. While one shard is down, the others go on.
//!
//! ```text
//! cargo run --example cluster
//! cargo run --example cluster -- --workers 8 --seconds 5
//! ```
//!
//! It starts three primaries of its own, and a replica of each.
mod support;

use std::io::{self, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use distlock::{Client, LockOptions, RedisLock};
use support::servers::{Counter, PATIENCE, Redis, Servers, wait_until};
use support::{Failure, end};

const ACCOUNTS: u32 = 12;
const SHARDS: usize = 3;

/// Counts under the locks of a cluster while slots move and a primary is killed: no count is lost.
///
/// Needs redis-server. REDIS_URL is not used.
#[derive(Parser)]
struct Args {
    /// How many workers: each has a client of its own, as if it ran on another machine, and a
    /// thread for each shard
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=50))]
    workers: u16,
    /// How long they count before anything happens, and after each thing that does
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

fn main() -> ExitCode {
    env_logger::init();
    end(run(&Args::parse()))
}

struct Account {
    /// Also the name of its lock.
    name: String,
    /// The shard that owned its slot at the start.
    shard: usize,
    counter: Counter,
}

/// What the workers have in common.
struct Work {
    accounts: Vec<Account>,
    over: AtomicBool,
}

impl Work {
    fn count(account: &Account, lock: &RedisLock) -> Result<(), Failure> {
        // Not for long: one of the locks is held by somebody else during the failover.
        let Some(guard) = lock.try_guard(Duration::from_millis(50))? else { return Ok(()) };
        account.counter.add_one(&guard, || Ok(()))?;
        Ok(guard.release()?)
    }

    /// Counts until the end, in a thread for each shard: one that waits for a shard that is down
    /// does not stop the others.
    fn work(&self, url: &str) -> Result<(), Failure> {
        let client = open(url)?;
        thread::scope(|scope| {
            for shard in 0..SHARDS {
                let accounts: Vec<&Account> = self.of(shard).collect();
                let client = &client;
                scope.spawn(move || self.work_in(&accounts, client));
            }
        });
        Ok(client.close(PATIENCE)?)
    }

    /// Goes on after every error: a call that was under way when a primary died has no certain
    /// answer.
    fn work_in(&self, accounts: &[&Account], client: &Client) {
        while !self.over.load(Ordering::SeqCst)
            && let Some(account) = fastrand::choice(accounts)
        {
            if let Err(error) = Self::count(account, &client.lock(&account.name)) {
                log::info!("a worker goes on after an error: {error}");
            }
        }
    }

    /// The accounts that began in this shard.
    fn of(&self, shard: usize) -> impl Iterator<Item = &Account> {
        self.accounts.iter().filter(move |account| account.shard == shard)
    }

    /// How often somebody has counted in the accounts of each shard.
    fn counted(&self) -> [u64; SHARDS] {
        std::array::from_fn(|shard| self.of(shard).map(|account| account.counter.counted()).sum())
    }

    /// Waits until somebody has counted further in each of these shards.
    fn wait_beyond(&self, before: [u64; SHARDS], shards: Range<usize>) -> Result<(), Failure> {
        wait_until("somebody counts", || {
            let now = self.counted();
            shards.clone().all(|shard| now[shard] > before[shard])
        })
    }
}

fn open(url: &str) -> Result<Client, Failure> {
    Ok(Client::builder(url).lock_options(LockOptions::new().replicas(1)).build()?)
}

/// With full coverage, the default, every node refuses all commands once it knows that a primary is
/// down: the other shards would stop, too.
const NODE: &str = "save \"\"\nrepl-diskless-sync-delay 0\ncluster-enabled yes\n\
                    cluster-node-timeout 1000\ncluster-require-full-coverage no\n";

/// The nodes: those that are primaries at the start, and then the replica of each.
struct Cluster {
    servers: Servers,
}

impl Cluster {
    fn start() -> Result<Self, Failure> {
        let mut servers = Servers::none()?;
        for place in 0..2 * SHARDS {
            servers.start(&format!("node-{place}"), NODE)?;
        }
        let cluster = Self { servers };
        let nodes = &cluster.servers.all;
        let (primaries, replicas) = nodes.split_at(SHARDS);
        for (place, primary) in primaries.iter().enumerate() {
            let share = 16_384 * place / SHARDS..16_384 * (place + 1) / SHARDS;
            // One by one: Redis 6.2 takes no ranges.
            let slots: Vec<String> = share.map(|slot| slot.to_string()).collect();
            let mut add = vec!["CLUSTER", "ADDSLOTS"];
            add.extend(slots.iter().map(String::as_str));
            primary.ask::<()>(&add)?;
            // Two nodes that begin with the same epoch would have to agree first.
            let epoch = (place + 1).to_string();
            primary.ask::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch])?;
        }
        let first = nodes[0].port.to_string();
        for node in &nodes[1..] {
            node.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &first])?;
        }
        let all_say = |what: &str| nodes.iter().all(|node| node.says(&["CLUSTER", "INFO"], what));
        let known = format!("cluster_known_nodes:{}\r\n", nodes.len());
        wait_until("the nodes know each other", || all_say(&known))?;
        for (primary, replica) in primaries.iter().zip(replicas) {
            let id = id(primary)?;
            wait_until("a node becomes a replica", || {
                replica.ask::<()>(&["CLUSTER", "REPLICATE", &id]).is_ok()
            })?;
        }
        wait_until("the replicas have their data", || {
            let is_up = |node: &Redis| node.says(&["INFO", "replication"], "state=online");
            all_say("cluster_state:ok") && primaries.iter().all(is_up)
        })?;
        Ok(cluster)
    }

    /// What a client is opened with: some nodes, by which it finds the others.
    fn url(&self) -> String {
        let nodes = &self.servers.all;
        format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", nodes[0].port, nodes[1].port)
    }

    /// The node that owns the slot of this key, once all nodes that run say the same, and none of
    /// them says `not`.
    fn owner(&self, key: &str, not: Option<u16>) -> Result<usize, Failure> {
        let running = || self.servers.all.iter().filter(|node| node.is_running());
        let mut owner = None;
        wait_until("the nodes agree on an owner", || {
            let mut named = running().map(|node| named_owner(node, key));
            owner = named.next().flatten().filter(|&port| Some(port) != not);
            owner.is_some() && named.all(|other| other == owner)
        })?;
        let place = self.servers.all.iter().position(|node| Some(node.port) == owner);
        Ok(place.ok_or("a stranger owns a slot")?)
    }

    /// Moves the slot of this lock, with its keys, to the shard that owns the slot of the other.
    fn move_slot(&self, lock: &str, other: &str) -> Result<(), Failure> {
        let [from, to] = [lock, other].map(|key| self.owner(key, None));
        let [from, to] = [&self.servers.all[from?], &self.servers.all[to?]];
        let slot = from.ask::<u16>(&["CLUSTER", "KEYSLOT", lock])?.to_string();
        let (old, new) = (id(from)?, id(to)?);
        to.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &old])?;
        from.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &new])?;
        let (port, patience) = (to.port.to_string(), PATIENCE.as_millis().to_string());
        loop {
            let keys: Vec<String> = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])?;
            if keys.is_empty() {
                break;
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", &patience, "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            from.ask::<()>(&migrate)?;
        }
        // The other primaries are told as well: until they have heard which of the two owns it by
        // the newer word, they may believe the old one.
        let is_other = |node: &&Redis| ![to.port, from.port].contains(&node.port);
        let is_primary = |node: &&Redis| node.says(&["INFO", "replication"], "role:master");
        let others = self.servers.all.iter().filter(is_other).filter(is_primary);
        for node in [to, from].into_iter().chain(others) {
            node.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &new])?;
        }
        self.owner(lock, Some(from.port)).map(|_| ())
    }
}

fn id(node: &Redis) -> redis::RedisResult<String> {
    node.ask(&["CLUSTER", "MYID"])
}

/// The port of the node that owns the slot of this key, as this node says.
fn named_owner(node: &Redis, key: &str) -> Option<u16> {
    match node.ask::<u64>(&["EXISTS", key]) {
        Ok(_) => Some(node.port),
        // "MOVED 866 127.0.0.1:7000"
        Err(error) => error.redirect_node()?.0.rsplit(':').next()?.parse().ok(),
    }
}

fn run(args: &Args) -> Result<bool, Failure> {
    let mut cluster = Cluster::start()?;
    let accounts = (1..=ACCOUNTS).map(|number| {
        let name = format!("account:{number}");
        let counter = Counter::create(cluster.servers.dir().join(&name))?;
        let shard = cluster.owner(&name, None)? % SHARDS;
        Ok::<_, Failure>(Account { name, shard, counter })
    });
    let accounts = accounts.collect::<Result<Vec<_>, _>>()?;
    let work = Work { accounts, over: AtomicBool::new(false) };
    let (start, url) = (Instant::now(), cluster.url());
    let say = |what: &str| {
        let (seconds, [a, b, c]) = (start.elapsed().as_secs_f64(), work.counted());
        writeln!(io::stdout(), "  {seconds:5.1} s  {a:>7} {b:>7} {c:>7}  {what}")
    };
    let [a, b, c] = std::array::from_fn(|shard| work.of(shard).count());
    writeln!(
        io::stdout(),
        "Workers: {}; three shards with {a}, {b} and {c} accounts, each a primary and a replica\n\
         \x20   time  counted in the accounts of each shard",
        args.workers
    )?;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..args.workers).map(|_| scope.spawn(|| work.work(&url))).collect();
        let pause = Duration::from_secs(args.seconds);
        let told = tell_of_slots(&cluster, &work, pause, &say)
            .and_then(|()| tell_of_failover(&mut cluster, &work, pause, &say));
        work.over.store(true, Ordering::SeqCst);
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        told
    })?;
    let mut found = 0;
    for account in &work.accounts {
        found += account.counter.in_file()?;
    }
    let counted: u64 = work.counted().iter().sum();
    writeln!(io::stdout(), "Counted: {counted}. In the files: {found}")?;
    Ok(found == counted)
}

/// Moves the slots of two locks from the first shard to the second, and back.
fn tell_of_slots(
    cluster: &Cluster,
    work: &Work,
    pause: Duration,
    say: &impl Fn(&str) -> io::Result<()>,
) -> Result<(), Failure> {
    let first = |shard| work.of(shard).next().ok_or("a shard has no account");
    let (home, away) = (first(0)?, first(1)?);
    work.wait_beyond([0; SHARDS], 0..SHARDS)?;
    say("the first counts")?;
    thread::sleep(pause);
    let moving: Vec<&Account> = work.of(0).skip(1).take(2).collect();
    for (target, place) in [(away, "moved to the second"), (home, "moved back to the first")] {
        for account in &moving {
            cluster.move_slot(&account.name, &target.name)?;
        }
        say(&format!("the slots of {} locks have {place} shard", moving.len()))?;
        let before: Vec<u64> = moving.iter().map(|account| account.counter.counted()).collect();
        wait_until("somebody counts under the locks that have moved", || {
            moving.iter().zip(&before).all(|(account, &before)| account.counter.counted() > before)
        })?;
        thread::sleep(pause);
    }
    Ok(())
}

/// Kills the primary of the last shard, which its replica replaces, and brings it back as a
/// replica.
fn tell_of_failover(
    cluster: &mut Cluster,
    work: &Work,
    pause: Duration,
    say: &impl Fn(&str) -> io::Result<()>,
) -> Result<(), Failure> {
    let account = work.of(SHARDS - 1).next().ok_or("a shard has no account")?;
    let client = open(&cluster.url())?;
    // Held during the failover: if the lock was lost, others would count, and the write below would
    // undo it. The lease is longer than all that follows can take.
    let options = LockOptions::new().replicas(1).lease(PATIENCE * 6);
    let guard = client.lock_with(&account.name, options)?.guard()?;
    // A lock that another process hands over has a lease of 3 s, until the first renewal.
    wait_until("the lock is renewed", || guard.remaining() > PATIENCE * 5)?;
    let held = account.counter.add_one(&guard, || {
        let killed = cluster.owner(&account.name, None)?;
        let port = cluster.servers.all[killed].port;
        cluster.servers.kill(killed)?;
        say("the primary of the third shard is killed")?;
        work.wait_beyond(work.counted(), 0..SHARDS - 1)?;
        cluster.owner(&account.name, Some(port))?;
        say("the other primaries have elected its replica")?;
        let before = work.counted();
        cluster.servers.start_again(killed, NODE)?;
        let back = &cluster.servers.all[killed];
        wait_until("the killed node is a replica", || {
            back.says(&["INFO", "replication"], "master_link_status:up")
        })?;
        say("the killed node is back, as a replica")?;
        work.wait_beyond(before, 0..SHARDS)?;
        Ok(say("the new primary grants locks, and its replica confirms them")?)
    });
    held?;
    guard.release()?;
    thread::sleep(pause);
    client.close(PATIENCE)?;
    Ok(say("the end")?)
}
