//! Workers count under one lock while the Redis primary is killed. Sentinels promote its replica,
//! the workers' clients follow, and no count is lost: with `replicas(1)` of one replica, a lock
//! counts only once the replica has it, too.
//!
//! ```text
//! cargo run --example failover
//! cargo run --example failover -- --workers 8 --seconds 5
//! ```
//!
//! It starts a primary, a replica and three sentinels of its own.
mod support;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use distlock::{Client, LockOptions, RedisLock};
use support::servers::{Counter, Redis, Servers, wait_until};
use support::{Failure, end};

const SERVICE: &str = "counting";

/// Counts under a lock while the primary is killed and replaced: no count is lost.
///
/// Needs redis-server. REDIS_URL is not used.
#[derive(Parser)]
struct Args {
    /// How many workers: threads here, each with a client of its own, as if it ran on another
    /// machine
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=50))]
    workers: u16,
    /// How long they count before the primary is killed, and after locks are granted again
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

fn main() -> ExitCode {
    env_logger::init();
    end(run(&Args::parse()))
}

/// What the workers have in common.
struct Work {
    counter: Counter,
    over: AtomicBool,
}

impl Work {
    fn count(&self, lock: &RedisLock) -> Result<(), Failure> {
        let guard = lock.guard()?;
        self.counter.add_one(&guard, || Ok(()))?;
        Ok(guard.release()?)
    }

    /// Counts until the end, through every error: a call that was under way when the primary died
    /// has no certain answer.
    fn work(&self, url: &str) -> Result<(), Failure> {
        let options = LockOptions::new().lease(Duration::from_secs(3)).replicas(1);
        let client = Client::builder(url).lock_options(options).build()?;
        let lock = client.lock("counter");
        while !self.over.load(Ordering::SeqCst) {
            if let Err(error) = self.count(&lock) {
                log::info!("a worker goes on after an error: {error}");
            }
        }
        Ok(client.close(Duration::from_secs(5))?)
    }

    /// Waits until somebody has counted further than this.
    fn wait_beyond(&self, count: u64) -> Result<(), Failure> {
        wait_until("somebody counts", || self.counter.counted() > count)
    }
}

const SERVER: &str = "save \"\"\nrepl-diskless-sync-delay 0\n";

fn replica_of(port: u16) -> String {
    format!("{SERVER}replicaof 127.0.0.1 {port}\n")
}

/// The places of the servers. The sentinels that watch them follow.
const PRIMARY: usize = 0;
const REPLICA: usize = 1;
const SENTINELS: usize = 2;

/// Starts a primary, its replica, and the sentinels.
fn start() -> Result<Servers, Failure> {
    let mut servers = Servers::none()?;
    servers.start("primary", SERVER)?;
    let primary = servers.all[PRIMARY].port;
    servers.start("replica", &replica_of(primary))?;
    wait_until("the replica has its data", || {
        servers.all[PRIMARY].says(&["INFO", "replication"], "state=online")
    })?;
    let monitor = format!(
        "sentinel monitor {SERVICE} 127.0.0.1 {primary} 2\nsentinel down-after-milliseconds \
         {SERVICE} 1000\nsentinel failover-timeout {SERVICE} 5000\n"
    );
    for i in 1..=3 {
        servers.start(&format!("sentinel-{i}"), &monitor)?;
    }
    let knows = |sentinel: &Redis, field: &str, count: &str| {
        let words: Vec<String> = sentinel.ask(&["SENTINEL", "MASTER", SERVICE]).unwrap_or_default();
        words.chunks(2).any(|pair| pair == [field, count])
    };
    wait_until("the sentinels know each other", || {
        servers.all[SENTINELS..].iter().all(|sentinel| {
            knows(sentinel, "num-other-sentinels", "2") && knows(sentinel, "num-slaves", "1")
        })
    })?;
    Ok(servers)
}

/// What a client is opened with.
fn url(servers: &Servers) -> String {
    let hosts: Vec<String> = servers.all[SENTINELS..]
        .iter()
        .map(|sentinel| format!("127.0.0.1:{}", sentinel.port))
        .collect();
    format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
}

/// The port of the primary, as this sentinel says.
fn named_primary(sentinel: &Redis) -> Option<u16> {
    let named = sentinel.ask::<(String, String)>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
    named.ok()?.1.parse().ok()
}

fn run(args: &Args) -> Result<bool, Failure> {
    let mut servers = start()?;
    let counter = Counter::create(servers.dir().join("count.txt"))?;
    let work = Work { counter, over: AtomicBool::new(false) };
    let (start, url) = (Instant::now(), url(&servers));
    let say = |what: &str| {
        let (seconds, counted) = (start.elapsed().as_secs_f64(), work.counter.counted());
        writeln!(io::stdout(), "  {seconds:5.1} s  {counted:>7}  {what}")
    };
    writeln!(
        io::stdout(),
        "Workers: {}; a primary, a replica and three sentinels\n    time  counted",
        args.workers
    )?;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..args.workers).map(|_| scope.spawn(|| work.work(&url))).collect();
        let told = tell(args, &mut servers, &work, &say);
        work.over.store(true, Ordering::SeqCst);
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        told
    })?;
    let (counted, found) = (work.counter.counted(), work.counter.in_file()?);
    writeln!(io::stdout(), "Counted: {counted}. In the file: {found}")?;
    Ok(found == counted)
}

/// Kills the primary in the middle of the work, and brings it back as a replica.
fn tell(
    args: &Args,
    servers: &mut Servers,
    work: &Work,
    say: &impl Fn(&str) -> io::Result<()>,
) -> Result<(), Failure> {
    let pause = Duration::from_secs(args.seconds);
    work.wait_beyond(0)?;
    say("the first count")?;
    thread::sleep(pause);
    servers.kill(PRIMARY)?;
    say("the primary is killed")?;
    let new = servers.all[REPLICA].port;
    wait_until("the sentinels name another primary", || {
        servers.all[SENTINELS..].iter().all(|sentinel| named_primary(sentinel) == Some(new))
    })?;
    say("the sentinels have promoted its replica")?;
    let before = work.counter.counted();
    servers.start_again(PRIMARY, &replica_of(new))?;
    say("the killed server is back, as a replica")?;
    work.wait_beyond(before)?;
    say("the new primary grants locks, and its replica confirms them")?;
    thread::sleep(pause);
    Ok(say("the end")?)
}
