//! The rate limiter, in both its forms, over both stores.

mod faults;
mod fixed;
mod input;
mod promises;
mod smooth;
mod threads;
mod together;
mod waiting;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use distlock::testing::FakeClock;
use distlock::{Client, Decision, RateLimiter};

use crate::support::Server;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(10);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn open(server: &Server) -> Client {
    Client::open(&server.url()).unwrap()
}

/// A store of its own in memory, and the clock that it reads.
fn in_memory() -> (Client, FakeClock) {
    let clock = FakeClock::new();
    (Client::builder("memory://").clock(clock.clone()).build().unwrap(), clock)
}

/// Runs a test over a real server and over memory.
fn everywhere(test: impl Fn(&Client)) {
    let server = Server::start();
    test(&open(&server));
    test(&Client::open("memory://").unwrap());
}

/// Both forms of a limit.
fn both(client: &Client, count: u64, window: Duration) -> [RateLimiter; 2] {
    let fixed = client.rate_limiter("both", count, window);
    [fixed.clone().smooth(), fixed]
}

/// Closes a client at the end of a test, also of one that failed: a wait without a limit would keep
/// the test from ending.
struct CloseAtEnd<'a>(&'a Client);

impl Drop for CloseAtEnd<'_> {
    fn drop(&mut self) {
        drop(self.0.close(SOON));
    }
}

/// How many questions there are for each permit if 50 threads take permits without a pause.
fn questions_per_permit(server: &Server, limiter: &RateLimiter, each: u64) -> f64 {
    assert!(limiter.check_n(0).unwrap().allowed, "the server knows the script from now on");
    let (before, taken) = (server.command_count("evalsha"), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                for _ in 0..each {
                    assert!(limiter.acquire(LONG).unwrap());
                    taken.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(taken.into_inner(), 50 * each);
    (server.command_count("evalsha") - before) as f64 / (50 * each) as f64
}

/// Takes permits one by one until one is refused. Returns how many, and the refusal.
fn take_all(limiter: &RateLimiter) -> (u64, Decision) {
    let mut taken = 0;
    loop {
        let decision = limiter.check().unwrap();
        if !decision.allowed {
            return (taken, decision);
        }
        taken += 1;
    }
}

/// The rest of a key's life in ms: -1 without an end, -2 without a key.
fn pttl(server: &Server, key: &str) -> i64 {
    redis::cmd("PTTL").arg(key).query(&mut server.connection()).unwrap()
}

fn get(server: &Server, key: &str) -> Option<String> {
    redis::cmd("GET").arg(key).query(&mut server.connection()).unwrap()
}

fn run(server: &Server, command: &[&str]) {
    redis::cmd(command[0]).arg(&command[1..]).exec(&mut server.connection()).unwrap();
}
