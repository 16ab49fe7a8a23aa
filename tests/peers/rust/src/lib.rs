//! The line protocol of PROTOCOL.md around a lock crate.

use std::error::Error;
use std::fs;
use std::io::{self, BufRead, Write};
use std::process::exit;
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands;
use rustix::time::{ClockId, clock_gettime};

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What one crate does for the driver. Each thread has a peer of its own.
pub trait Peer: Sized {
    /// `sleep` zero: the crate's own pause between attempts.
    fn connect(url: &str, sleep: Duration) -> Result<Self>;

    /// Blocks until held.
    fn lock(&mut self, key: &str, lease: Duration) -> Result<()>;

    /// One attempt.
    fn try_lock(&mut self, key: &str, lease: Duration) -> Result<bool>;

    /// False: nothing here to release. Neither crate says what became of the lease.
    fn unlock(&mut self, key: &str) -> Result<bool>;

    fn value(&self, key: &str) -> Option<String>;
}

/// The pause that both crates have at the start.
pub const OWN_PAUSE: Duration = Duration::from_millis(200);

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

const MS: i64 = 1_000_000;

fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1000 * MS + time.tv_nsec
}

struct Driver<P> {
    url: String,
    peer: P,
    redis: redis::Connection,
    sleep: Duration,
    lease_ms: i64,
    warmup_ms: i64,
}

/// Reads commands until the end of input.
pub fn main<P: Peer>() {
    let url = std::env::args().nth(1).ok_or("usage: driver REDIS-URL".into());
    let mut driver = match url.and_then(Driver::<P>::connect) {
        Ok(driver) => driver,
        Err(e) => {
            println!("{}", failure(&*e));
            exit(1);
        }
    };
    println!("ready");
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let answer = driver.answer(&line).unwrap_or_else(|e| failure(&*e));
        println!("{answer}");
        let _ = io::stdout().flush();
        if line == "quit" {
            break;
        }
    }
    // Without destructors: they would release what is held.
    exit(0);
}

fn failure(e: &(dyn Error + Send + Sync)) -> String {
    format!("error {}", e.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
}

fn lease(ms: i64) -> Duration {
    Duration::from_millis(ms.unsigned_abs())
}

/// One lock and unlock; answers when it was acquired.
fn cycle<P: Peer>(peer: &mut P, key: &str, lease_ms: i64) -> Result<i64> {
    peer.lock(key, lease(lease_ms))?;
    let acquired = now();
    peer.unlock(key)?;
    Ok(acquired)
}

struct Args<'a>(Vec<&'a str>);

impl Args<'_> {
    fn text(&self, at: usize) -> Result<&str> {
        self.0.get(at).copied().ok_or_else(|| "usage: see PROTOCOL.md".into())
    }

    fn number(&self, at: usize) -> Result<i64> {
        self.text(at)?.parse().map_err(|_| "usage: see PROTOCOL.md".into())
    }
}

impl<P: Peer> Driver<P> {
    fn connect(url: String) -> Result<Self> {
        let redis = redis::Client::open(&*url)?.get_connection()?;
        let sleep = Duration::ZERO;
        let peer = P::connect(&url, sleep)?;
        Ok(Driver { peer, url, redis, sleep, lease_ms: 30_000, warmup_ms: 200 })
    }

    fn answer(&mut self, line: &str) -> Result<String> {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let args = Args(words.collect());
        let lease_at = match name {
            "lock" | "wait" | "hold" => 1,
            "try" => 2,
            "count" => 3,
            _ => usize::MAX,
        };
        let is_a_bench = ["bench", "benchcs", "threads"].contains(&name);
        let of_no_length = lease_at < usize::MAX && args.number(lease_at)? == 0;
        if of_no_length || self.lease_ms == 0 && is_a_bench {
            return Ok("unsupported".into()); // rslock can renew, but only around a future
        }
        let ok = || Ok("ok".into());
        match name {
            "quit" => ok(),
            "kind" if args.text(0)? == "lock" => ok(),
            "sleep" => {
                self.sleep = lease(args.number(0)?);
                self.peer = P::connect(&self.url, self.sleep)?;
                ok()
            }
            "lease" => {
                self.lease_ms = args.number(0)?;
                ok()
            }
            "warmup" => {
                self.warmup_ms = args.number(0)?;
                ok()
            }
            "lock" => {
                self.peer.lock(args.text(0)?, lease(args.number(1)?))?;
                ok()
            }
            "try" => self.try_lock(args.text(0)?, lease(args.number(1)?), lease(args.number(2)?)),
            "unlock" => Ok(self.unlock(args.text(0)?)?.into()),
            "wait" => {
                self.peer.lock(args.text(0)?, lease(args.number(1)?))?;
                Ok(format!("ok {}", now()))
            }
            "release" => {
                let called = now();
                Ok(format!("{} {called}", self.unlock(args.text(0)?)?))
            }
            "hold" => {
                let hold = lease(args.number(2)?);
                self.peer.lock(args.text(0)?, lease(args.number(1)?))?;
                let acquired = now();
                thread::sleep(hold);
                let called = now();
                Ok(format!("{} {acquired} {called}", self.unlock(args.text(0)?)?))
            }
            "count" => self.count(args.text(0)?, args.text(1)?, args.number(2)?, args.number(3)?),
            "value" => {
                let value = self.peer.value(args.text(0)?);
                Ok(value.map_or("no".into(), |value| format!("ok {value}")))
            }
            "bench" => self.bench(args.text(0)?, args.number(1)?),
            "benchcs" => {
                let start = if args.0.len() > 4 { args.number(4)? } else { 0 };
                self.benchcs(args.text(0)?, args.number(1)?, args.number(2)?, args.text(3)?, start)
            }
            "threads" => self.threads(args.text(0)?, args.number(1)?, args.number(2)?),
            "kind" | "holds" | "locked" | "extend" | "force" | "watchdog" | "owner" | "persist"
            | "limit" | "tries" | "islocking" => Ok("unsupported".into()),
            _ => Err(format!("unknown command {name}").into()),
        }
    }

    fn try_lock(&mut self, key: &str, wait: Duration, lease: Duration) -> Result<String> {
        let pause = if self.sleep.is_zero() { OWN_PAUSE } else { self.sleep };
        let end = Instant::now() + wait;
        while !self.peer.try_lock(key, lease)? {
            if Instant::now() + pause > end {
                return Ok("no".into());
            }
            thread::sleep(pause);
        }
        Ok("ok".into())
    }

    fn unlock(&mut self, key: &str) -> Result<&'static str> {
        Ok(if self.peer.unlock(key)? { "ok" } else { "refused" })
    }

    fn count(&mut self, key: &str, counter: &str, n: i64, lease_ms: i64) -> Result<String> {
        let mut longest = 0;
        for _ in 0..n {
            let called = now();
            self.peer.lock(key, lease(lease_ms))?;
            longest = longest.max(now() - called);
            let before: Option<i64> = self.redis.get(counter)?;
            self.redis.set::<_, _, ()>(counter, before.unwrap_or(0) + 1)?;
            self.peer.unlock(key)?;
        }
        Ok(format!("ok {n} {}", longest / 1000))
    }

    fn bench(&mut self, key: &str, n: i64) -> Result<String> {
        let end = now() + self.warmup_ms * MS;
        while now() < end {
            cycle(&mut self.peer, key, self.lease_ms)?;
        }
        let n = usize::try_from(n)?;
        let mut took = Vec::with_capacity(n);
        let start = now();
        let mut before = start;
        for _ in 0..n {
            cycle(&mut self.peer, key, self.lease_ms)?;
            let after = now();
            took.push(after - before);
            before = after;
        }
        took.sort_unstable();
        Ok(format!("ok {} {} {}", took[n / 2], took[n * 99 / 100], before - start))
    }

    fn benchcs(
        &mut self,
        key: &str,
        seconds: i64,
        cs_us: i64,
        file: &str,
        start: i64,
    ) -> Result<String> {
        let start = if start == 0 { now() + self.warmup_ms * MS } else { start };
        let end = start + seconds * 1000 * MS;
        let mut spans = Vec::new();
        let mut longest = 0;
        loop {
            let called = now();
            if called >= end {
                break;
            }
            self.peer.lock(key, lease(self.lease_ms))?;
            let acquired = now();
            let mut released = acquired;
            while released < acquired + cs_us * 1000 {
                std::hint::spin_loop();
                released = now();
            }
            self.peer.unlock(key)?;
            if acquired >= start {
                longest = longest.max(acquired - called);
                spans.push((acquired, released, called));
            }
        }
        let line =
            |(acquired, released, called): &(_, _, _)| format!("{acquired} {released} {called}\n");
        let text: String = spans.iter().map(line).collect();
        fs::write(file, text)?;
        Ok(format!("ok {} {}", spans.len(), longest / 1000))
    }

    fn threads(&self, key: &str, threads: i64, seconds: i64) -> Result<String> {
        let start = now() + self.warmup_ms * MS;
        let end = start + seconds * 1000 * MS;
        let (url, sleep, lease_ms) = (&self.url, self.sleep, self.lease_ms);
        let shares: Vec<Result<(i64, i64)>> = thread::scope(|scope| {
            let all: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(move || {
                        let mut peer = P::connect(url, sleep)?;
                        let (mut n, mut longest) = (0, 0);
                        loop {
                            let called = now();
                            if called >= end {
                                return Ok((n, longest));
                            }
                            let acquired = cycle(&mut peer, key, lease_ms)?;
                            if acquired >= start {
                                n += 1;
                                longest = longest.max(acquired - called);
                            }
                        }
                    })
                })
                .collect();
            let joined = all.into_iter().map(|thread| thread.join());
            joined.map(|end| end.unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
        });
        let shares = shares.into_iter().collect::<Result<Vec<_>>>()?;
        let counts = || shares.iter().map(|share| share.0);
        let longest = shares.iter().map(|share| share.1).max().unwrap_or(0);
        let (min, max) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
        let list: String = counts().map(|n| format!(" {n}")).collect();
        Ok(format!("ok {} {min} {max} {}{list}", counts().sum::<i64>(), longest / 1000))
    }
}
