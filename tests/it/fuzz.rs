//! Servers that send anything: no call panics or hangs, and none takes anything for a grant that is
//! not one. `src/store/fuzz.rs` does the same for the readers of replies alone, a million times
//! faster.

mod odd;

use std::env;
use std::panic;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, ClientBuilder, Layout, LockOptions, Queue, RedisLock, Renewal, Retry};
use fastrand::Rng;

use crate::helpers::{SOON, ms};
use crate::support::in_own_process;

use odd::Odd;

/// How long a command may take here. Every call is over after a few of these.
const COMMAND: Duration = ms(80);

/// How often a call let somebody in.
static ENTERED: AtomicUsize = AtomicUsize::new(0);

/// Makes every call that there is, in any order.
struct Caller<'a> {
    rng: Rng,
    servers: &'a [Odd],
    client: Client,
    what: String,
    /// Whether the present lock has fences.
    fenced: bool,
    /// How many commands a call may wait for.
    slack: u32,
}

impl Caller<'_> {
    /// A call returns in time, whatever it returns. It lets a client in only if a majority has
    /// granted the lock since the call began.
    fn call<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let value = work();
        // A machine under load may delay a thread; a call that hangs never returns.
        assert!(
            begun.elapsed() < COMMAND * self.slack + SOON,
            "{}: {name} took {:?}",
            self.what,
            begun.elapsed()
        );
        value
    }

    /// What a call returned if it let us in. `already`: whether we were in before.
    fn let_in<T>(
        &self,
        name: &str,
        already: bool,
        work: impl FnOnce() -> distlock::Result<Option<T>>,
    ) -> Option<T> {
        let before: Vec<usize> = self.servers.iter().map(Odd::grants).collect();
        let entered = self.call(name, work).unwrap_or(None);
        let grants = self
            .servers
            .iter()
            .zip(before)
            .filter(|(server, before)| server.grants() > *before)
            .count();
        let majority = self.servers.len() / 2 + 1;
        assert!(
            entered.is_none() || already || grants >= majority,
            "{}: {name} let us in by the word of {grants}",
            self.what
        );
        ENTERED.fetch_add(usize::from(entered.is_some()), Ordering::SeqCst);
        entered
    }

    fn enters(&self, name: &str, lock: &RedisLock, work: impl FnOnce() -> distlock::Result<bool>) {
        let entered =
            self.let_in(name, lock.is_held(), || work().map(|locked| locked.then_some(())));
        if entered.is_some() {
            assert!(lock.is_held(), "{}: {name}", self.what);
            self.has_its_fence(name, lock.fence());
        }
    }

    fn has_its_fence(&self, name: &str, fence: Option<u64>) {
        assert!(!self.fenced || fence.is_some(), "{}: {name} let us in without a fence", self.what);
    }

    /// Takes a claim if the lock can be had, and ends it in one way or another.
    fn claims(&mut self, lock: &RedisLock) {
        let Some(claim) = self.let_in("try_claim", false, || lock.try_claim(ms(20))) else {
            return;
        };
        self.has_its_fence("try_claim", claim.fence());
        drop(self.call("extend a claim", || claim.extend(ms(500))));
        if self.rng.bool() {
            drop(self.call("release a claim", || claim.release()));
        } else {
            self.call("drop a claim", || drop(claim));
        }
    }

    fn options(&mut self) -> LockOptions {
        let rng = &mut self.rng;
        let mut options = LockOptions::new()
            .lease(ms(rng.u64(100..2_000)))
            .retry(Retry::fixed(ms(5)).attempts(rng.u32(1..5)))
            .renewal(
                *rng.choice(&[Renewal::UntilUnlock, Renewal::Never, Renewal::AtMost(2)]).unwrap(),
            )
            .queue(*rng.choice(&[Queue::Fifo, Queue::Fifo, Queue::None]).unwrap());
        if self.servers.len() == 1 {
            options = options.layout(
                *rng.choice(&[Layout::Plain, Layout::Plain, Layout::Redisson, Layout::Timestamp])
                    .unwrap(),
            );
            self.fenced = rng.bool();
            options = if self.fenced { options.fenced() } else { options };
        }
        if rng.u32(0..6) == 0 { options.owner("mine") } else { options }
    }

    fn some_calls(&mut self) {
        // What this layout does not support is refused.
        let options = self.options();
        let Ok(lock) = self.client.lock_with("a", options) else { return };
        lock.on_lost(|_| ());
        for _ in 0..8 {
            match self.rng.u32(0..16) {
                0 | 1 => self.enters("lock", &lock, || lock.lock().map(|()| true)),
                2 | 3 => self.enters("try_lock", &lock, || lock.try_lock(Duration::ZERO)),
                4 => self.enters("try_lock in time", &lock, || lock.try_lock(ms(30))),
                5 | 6 => drop(self.call("unlock", || lock.unlock())),
                7 => drop(self.call("extend", || lock.extend(ms(500)))),
                8 => drop(self.call("inspect", || lock.inspect())),
                9 => drop(self.call("force_unlock", || lock.force_unlock())),
                10 => drop(self.call("ping", || self.client.ping())),
                11 => {
                    let limiter = self.client.rate_limiter("ip", 3, ms(100));
                    let limiter = if self.rng.bool() { limiter.smooth() } else { limiter };
                    let decision = self.call("check", || limiter.check());
                    assert!(decision.is_err() || self.servers.len() == 1);
                    drop(self.call("acquire", || limiter.acquire(ms(30))));
                }
                12 | 13 => self.claims(&lock),
                14 => drop(self.call("execute", || {
                    self.client.execute(|connection| {
                        redis::cmd("GET").arg("x").query::<Vec<u8>>(connection)
                    })
                })),
                _ if lock.is_held() => {
                    if let Ok(condition) = lock.new_condition("c") {
                        drop(self.call("notify_all", || condition.notify_all()));
                        drop(self.call("wait", || condition.wait_timeout(ms(10))));
                    }
                    // While the lock is held, renewal sends commands, too.
                    thread::sleep(ms(20));
                }
                _ => {}
            }
        }
        while lock.is_held() {
            drop(self.call("unlock", || lock.unlock()));
        }
    }
}

fn run(seed: u64, nodes: usize) {
    let mut rng = Rng::with_seed(seed);
    let oddness = *rng.choice(&[0, 5, 30, 100]).unwrap();
    let servers: Vec<Odd> = (0..nodes).map(|_| Odd::start(rng.u64(..), oddness)).collect();
    let urls: Vec<String> = servers.iter().map(|odd| odd.server.url()).collect();
    let settings = |builder: ClientBuilder| {
        builder
            .command_timeout(COMMAND)
            .connect_timeout(COMMAND)
            .max_outage(COMMAND * 2)
            .pool_size(2)
    };
    let builder =
        if nodes == 1 { Client::builder(&urls[0]) } else { Client::redlock_builder(&urls) };
    let client = settings(builder).build().unwrap();
    // The most commands in one call: attempts, each with an outage to wait through.
    let mut caller = Caller {
        rng,
        servers: &servers,
        client,
        what: format!("seed {seed}, {nodes} servers, {oddness} % odd"),
        fenced: false,
        slack: 40,
    };
    for _ in 0..3 {
        caller.some_calls();
    }
    drop(caller.call("close", || caller.client.close(ms(200))));
}

#[test]
fn odd_servers_let_nobody_in_and_no_call_panics_or_hangs() {
    in_own_process("fuzz::odd_servers_let_nobody_in_and_no_call_panics_or_hangs", || {
        static PANICS: AtomicUsize = AtomicUsize::new(0);
        let usual = panic::take_hook();
        // This includes the background threads, which nobody joins.
        panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            usual(info);
        }));
        let set = |name| env::var(name).ok().and_then(|text| text.parse().ok());
        let (count, seed) =
            (set("DISTLOCK_FUZZ").unwrap_or(60), set("DISTLOCK_FUZZ_SEED").unwrap_or(1));
        eprintln!("fuzz: {count} clients from seed {seed}");
        let begun = Instant::now();
        // Most of the time they wait for answers that do not come.
        let next = AtomicU64::new(seed);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    loop {
                        let drawn = next.fetch_add(1, Ordering::SeqCst);
                        if drawn >= seed + count || PANICS.load(Ordering::SeqCst) > 0 {
                            return;
                        }
                        run(drawn, if drawn.is_multiple_of(4) { 3 } else { 1 });
                    }
                });
            }
        });
        assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a thread panicked");
        let entered = ENTERED.load(Ordering::SeqCst);
        assert!(
            entered * 2 > usize::try_from(count).unwrap(),
            "hardly anybody was let in: {entered}"
        );
        eprintln!("fuzz: {count} clients in {:?}, let in {entered} times", begun.elapsed());
    });
}
