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
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use clap::Parser;
use distlock::{Client, LockOptions, RedisLock};
use support::{Failure, Process, Sandbox, end};

const SERVICE: &str = "counting";
const PATIENCE: Duration = Duration::from_secs(60);

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
    /// The counter: a file that is read and written, which loses counts without a lock.
    file: PathBuf,
    counted: AtomicU64,
    over: AtomicBool,
}

impl Work {
    fn count(&self, lock: &RedisLock) -> Result<(), Failure> {
        let guard = lock.guard()?;
        let before: u64 = fs::read_to_string(&self.file)?.trim().parse()?;
        // The last moment to notice that the lock was lost in the failover.
        guard.ensure_valid()?;
        fs::write(&self.file, (before + 1).to_string())?;
        self.counted.fetch_add(1, Ordering::SeqCst);
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
        wait_until("somebody counts", || self.counted.load(Ordering::SeqCst) > count)
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), Failure> {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > PATIENCE {
            return Err(format!("waited for a minute in vain until {what}").into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A server or a sentinel, in a directory of its own.
struct Redis {
    port: u16,
    dir: PathBuf,
    process: Option<Process>,
}

impl Redis {
    fn start(dir: &Path, name: &str, settings: &str) -> Result<Self, Failure> {
        // Free now. If somebody else is faster, the server says so and the example ends.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let dir = dir.join(name);
        fs::create_dir(&dir)?;
        let mut redis = Self { port, dir, process: None };
        redis.launch(settings)?;
        Ok(redis)
    }

    /// `settings`: lines of its configuration.
    fn launch(&mut self, settings: &str) -> Result<(), Failure> {
        let conf = self.dir.join("redis.conf");
        let is_sentinel = settings.contains("sentinel monitor");
        let dir = self.dir.display();
        let port = self.port;
        fs::write(&conf, format!("port {port}\nbind 127.0.0.1\ndir {dir}\n{settings}"))?;
        let mut command = Command::new("redis-server");
        command.arg(&conf).args(is_sentinel.then_some("--sentinel"));
        let log = fs::File::create(self.dir.join("redis.log"))?;
        let child = command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null()).spawn()?;
        self.process = Some(Process(child));
        wait_until("a server answers", || self.ask::<String>(&["PING"]).is_ok())
    }

    fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port))?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }

    fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.0.id())
    }

    fn says(&self, what: &str) -> bool {
        self.ask::<String>(&["INFO", "replication"]).is_ok_and(|info| info.contains(what))
    }

    /// The port of the primary, as this sentinel says.
    fn primary(&self) -> Option<u16> {
        let named = self.ask::<(String, String)>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        named.ok()?.1.parse().ok()
    }
}

const SERVER: &str = "save \"\"\nrepl-diskless-sync-delay 0\n";

fn replica_of(port: u16) -> String {
    format!("{SERVER}replicaof 127.0.0.1 {port}\n")
}

/// A primary, its replica, and the sentinels that watch them.
struct Servers {
    primary: Redis,
    replica: Redis,
    sentinels: Vec<Redis>,
}

impl Servers {
    fn start(sandbox: &Sandbox) -> Result<Self, Failure> {
        let mut pids = Vec::new();
        let mut start = |name: &str, settings: &str| {
            let redis = Redis::start(sandbox.dir(), name, settings)?;
            pids.extend(redis.pid());
            sandbox.take_along(&pids).map(|()| redis)
        };
        let primary = start("primary", SERVER)?;
        let replica = start("replica", &replica_of(primary.port))?;
        wait_until("the replica has its data", || primary.says("state=online"))?;
        let monitor = format!(
            "sentinel monitor {SERVICE} 127.0.0.1 {} 2\nsentinel down-after-milliseconds \
             {SERVICE} 1000\nsentinel failover-timeout {SERVICE} 5000\n",
            primary.port
        );
        let sentinels = (1..=3).map(|i| start(&format!("sentinel-{i}"), &monitor));
        let sentinels = sentinels.collect::<Result<Vec<_>, _>>()?;
        let all = Self { primary, replica, sentinels };
        let knows = |sentinel: &Redis, field: &str, count: &str| {
            let words: Vec<String> =
                sentinel.ask(&["SENTINEL", "MASTER", SERVICE]).unwrap_or_default();
            words.chunks(2).any(|pair| pair == [field, count])
        };
        wait_until("the sentinels know each other", || {
            all.sentinels.iter().all(|sentinel| {
                knows(sentinel, "num-other-sentinels", "2") && knows(sentinel, "num-slaves", "1")
            })
        })?;
        Ok(all)
    }

    /// What a client is opened with.
    fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
    }

    fn pids(&self) -> Vec<u32> {
        let all = [&self.primary, &self.replica].into_iter().chain(&self.sentinels);
        all.filter_map(Redis::pid).collect()
    }
}

fn run(args: &Args) -> Result<bool, Failure> {
    let sandbox = Sandbox::without_server()?;
    let mut servers = Servers::start(&sandbox)?;
    let work = Work {
        file: sandbox.dir().join("count.txt"),
        counted: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    fs::write(&work.file, "0")?;
    let (start, url) = (Instant::now(), servers.url());
    let say = |what: &str| {
        let counted = work.counted.load(Ordering::SeqCst);
        writeln!(io::stdout(), "  {:5.1} s  {counted:>7}  {what}", start.elapsed().as_secs_f64())
    };
    writeln!(
        io::stdout(),
        "Workers: {}; a primary, a replica and three sentinels\n    time  counted",
        args.workers
    )?;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..args.workers).map(|_| scope.spawn(|| work.work(&url))).collect();
        let told = tell(args, &sandbox, &mut servers, &work, &say);
        work.over.store(true, Ordering::SeqCst);
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        told
    })?;
    let (counted, found) = (work.counted.load(Ordering::SeqCst), fs::read_to_string(&work.file)?);
    writeln!(io::stdout(), "Counted: {counted}. In the file: {found}")?;
    Ok(found == counted.to_string())
}

/// Kills the primary in the middle of the work, and brings it back as a replica.
fn tell(
    args: &Args,
    sandbox: &Sandbox,
    servers: &mut Servers,
    work: &Work,
    say: &impl Fn(&str) -> io::Result<()>,
) -> Result<(), Failure> {
    let pause = Duration::from_secs(args.seconds);
    work.wait_beyond(0)?;
    say("the first count")?;
    thread::sleep(pause);
    servers.primary.process = None;
    say("the primary is killed")?;
    let new = servers.replica.port;
    let sentinels = &servers.sentinels;
    wait_until("the sentinels name another primary", || {
        sentinels.iter().all(|sentinel| sentinel.primary() == Some(new))
    })?;
    say("the sentinels have promoted its replica")?;
    let before = work.counted.load(Ordering::SeqCst);
    servers.primary.launch(&replica_of(new))?;
    sandbox.take_along(&servers.pids())?;
    say("the killed server is back, as a replica")?;
    work.wait_beyond(before)?;
    say("the new primary grants locks, and its replica confirms them")?;
    thread::sleep(pause);
    Ok(say("the end")?)
}
