//! Servers that are down, frozen, silent, loading or full: `lock()` rides that out, `try_lock` ends
//! by its deadline, nobody knocks too often (R13, R14).

use std::collections::VecDeque;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, Lock, LockOptions, RedisLock};

use crate::faults::{PATIENCE, impatient, nothing_is_left, pool_of, through_proxy, warm_up};
use crate::helpers::{Elsewhere, SOON, Underway, error, get, ms};
use crate::support::fake::{self, FakeServer, Reply};
use crate::support::{
    Fault, Mode, Proxy, Rule, Server, eventually, in_own_process, listen_anywhere, within,
};

/// What a wait may take beyond what it should, on a machine under load.
const SLACK: Duration = ms(2000);

/// Every way to be out of reach.
#[derive(Clone, Copy, Debug)]
enum Out {
    Refused,
    Closed,
    Silent,
    Frozen,
}

const WAYS: [Out; 4] = [Out::Refused, Out::Closed, Out::Silent, Out::Frozen];

impl Out {
    fn begin(self, server: &Server, proxy: &Proxy) {
        match self {
            Out::Refused => proxy.set_mode(Mode::Refuse),
            Out::Closed => proxy.set_mode(Mode::Close),
            Out::Silent => proxy.set_mode(Mode::Silent),
            Out::Frozen => return server.stop_process(),
        }
        proxy.cut_all();
    }

    fn end(self, server: &Server, proxy: &Proxy) {
        if let Out::Frozen = self {
            return server.cont();
        }
        // Connections that it has accepted meanwhile stay silent for ever: as with a host that
        // comes back, they have to be given up.
        proxy.set_mode(Mode::Forward);
    }
}

#[test]
fn server_that_is_down_at_the_start_is_waited_for() {
    let server = Server::start();
    server.kill();
    let client = Client::open(&server.url()).unwrap();
    let lock = client.lock("x");
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    thread::sleep(ms(300));
    assert!(!waiting.is_done());
    server.restart();
    waiting.result().unwrap();
}

#[test]
fn lock_rides_out_every_outage_while_it_waits_and_has_the_lock_soon_after() {
    thread::scope(|scope| {
        for way in WAYS {
            scope.spawn(move || {
                let (server, proxy) = through_proxy();
                let client = impatient(&proxy.url()).build().unwrap();
                client.ping().unwrap();
                way.begin(&server, &proxy);
                let lock = client.lock("x");
                let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
                thread::sleep(ms(900));
                assert!(!waiting.is_done(), "{way:?}");
                way.end(&server, &proxy);
                within(..PATIENCE + SLACK, || waiting.result())
                    .unwrap_or_else(|error| panic!("{way:?}: {error:?}"));
                nothing_is_left(&server);
            });
        }
    });
}

/// How long after the return of a server, which `end` brings about, threads that wait for locks of
/// their own have them all.
fn delay_after(
    outage: Duration,
    waiting: usize,
    begin: impl Fn(&Server),
    end: impl Fn(&Server) -> Instant,
) -> Duration {
    let server = Server::start();
    let client = Client::builder(&server.url()).max_outage(SOON * 6).build().unwrap();
    warm_up(&client, 2);
    begin(&server);
    let waiters: Vec<_> = (0..waiting)
        .map(|n| {
            let lock = client.lock(&format!("x{n}"));
            Underway::start(move || {
                lock.lock().unwrap();
                let at = Instant::now();
                lock.unlock().unwrap();
                at
            })
        })
        .collect();
    thread::sleep(outage);
    assert!(waiters.iter().all(|waiter| !waiter.is_done()));
    let back = end(&server);
    waiters.into_iter().map(|waiter| waiter.result().saturating_duration_since(back)).max().unwrap()
}

/// The best of a few runs is below 300 ms: a busy machine does not count as a slow crate.
#[track_caller]
fn back_within_300_ms(runs: &[Duration]) {
    assert!(runs.iter().any(|delay| *delay < ms(300)), "{runs:?}");
}

fn restarted(server: &Server) -> Instant {
    // It answers a little before this returns.
    server.restart();
    Instant::now()
}

fn thawed(server: &Server) -> Instant {
    let back = Instant::now();
    server.cont();
    back
}

fn side_by_side<T: Send>(runs: usize, run: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let runs: Vec<_> = (0..runs).map(|_| scope.spawn(&run)).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    })
}

#[test]
fn after_an_outage_a_lone_waiter_has_its_lock_within_300_ms() {
    back_within_300_ms(&side_by_side(3, || delay_after(ms(1500), 1, Server::kill, restarted)));
}

#[test]
fn after_an_outage_of_several_seconds_all_waiters_have_their_locks_within_300_ms() {
    back_within_300_ms(&side_by_side(3, || delay_after(ms(3000), 10, Server::kill, restarted)));
}

#[test]
fn after_an_outage_of_15_s_a_waiter_has_its_lock_within_300_ms() {
    back_within_300_ms(&side_by_side(2, || delay_after(ms(15_000), 2, Server::kill, restarted)));
}

#[test]
fn frozen_server_that_goes_on_is_noticed_within_300_ms() {
    back_within_300_ms(&side_by_side(3, || delay_after(ms(2500), 2, Server::stop_process, thawed)));
}

#[test]
fn outage_longer_than_max_outage_is_unavailable_for_all_who_wait_at_about_the_same_time() {
    thread::scope(|scope| {
        for way in WAYS {
            scope.spawn(move || {
                let (server, proxy) = through_proxy();
                let outage = ms(1000);
                let client = impatient(&proxy.url()).max_outage(outage).build().unwrap();
                client.ping().unwrap();
                way.begin(&server, &proxy);
                // Some on a lock of their own, more behind another thread of this process.
                let waiting: Vec<_> = ["a", "b", "same", "same", "same", "same", "same"]
                    .into_iter()
                    .map(|name| {
                        let lock = client.lock(name);
                        Underway::start(move || {
                            let start = Instant::now();
                            (lock.lock(), start.elapsed())
                        })
                    })
                    .collect();
                for waiter in waiting {
                    let (result, took) = waiter.result();
                    let error = error(result);
                    assert!(error.is_unavailable(), "{way:?}: {error:?}");
                    // One command more may have been under way, and the turn passed on just then.
                    assert!(
                        (outage / 2..outage + PATIENCE * 2 + SLACK).contains(&took),
                        "{way:?}: {took:?}"
                    );
                }
                way.end(&server, &proxy);
                eventually(SOON, || client.lock("same").try_lock(Duration::ZERO).unwrap_or(false));
                client.lock("same").unlock().unwrap();
            });
        }
    });
}

#[test]
fn endless_outages_and_none_at_all_are_accepted() {
    let (_server, proxy) = through_proxy();
    proxy.set_mode(Mode::Refuse);
    let impatient_client = impatient(&proxy.url()).max_outage(Duration::ZERO).build().unwrap();
    assert!(within(..SLACK, || error(impatient_client.lock("x").lock())).is_unavailable());
    let client = impatient(&proxy.url()).max_outage(Duration::MAX).build().unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let lock = client.lock("x");
            Underway::start(move || lock.lock().and_then(|()| lock.unlock()))
        })
        .collect();
    thread::sleep(ms(400));
    assert!(waiting.iter().all(|waiter| !waiter.is_done()));
    proxy.set_mode(Mode::Forward);
    waiting.into_iter().for_each(|waiter| waiter.result().unwrap());
}

/// A command timeout so long that a second one would stand out, also on a machine under load.
const LONG: Duration = ms(1500);

fn timed(url: &str) -> distlock::ClientBuilder {
    Client::builder(url).command_timeout(LONG).connect_timeout(LONG)
}

/// `try_lock` of several threads, alone and behind each other, each by its deadline and one command
/// timeout; all unavailable.
fn try_lock_ends_in_time(client: &Client, timeouts: &[Duration]) {
    thread::scope(|scope| {
        for timeout in timeouts {
            for name in ["own", "same", "same", "same"] {
                scope.spawn(move || {
                    let lock = client.lock(&if name == "own" {
                        format!("{timeout:?}")
                    } else {
                        format!("same{timeout:?}")
                    });
                    // Local turns: no thread has more than one command timeout after its own
                    // deadline.
                    let error = within(*timeout / 2..*timeout + LONG + ms(800), || {
                        error(lock.try_lock(*timeout))
                    });
                    assert!(error.is_unavailable(), "{error:?}");
                    assert!(!lock.is_held());
                });
            }
        }
    });
}

#[test]
fn try_lock_ends_by_its_deadline_whatever_the_outage() {
    thread::scope(|scope| {
        for way in WAYS {
            for warm in [true, false] {
                scope.spawn(move || {
                    let (server, proxy) = through_proxy();
                    let client = timed(&proxy.url()).build().unwrap();
                    if warm {
                        warm_up(&client, 3);
                    }
                    way.begin(&server, &proxy);
                    try_lock_ends_in_time(&client, &[Duration::ZERO, ms(200), ms(700)]);
                    way.end(&server, &proxy);
                });
            }
        }
    });
}

#[test]
fn try_lock_ends_by_its_deadline_when_connections_freeze() {
    let (_server, proxy) = through_proxy();
    let client = timed(&proxy.url()).build().unwrap();
    warm_up(&client, 4);
    proxy.freeze();
    try_lock_ends_in_time(&client, &[Duration::ZERO, ms(300)]);
    proxy.thaw();
}

#[test]
fn try_lock_over_the_programs_own_pool_ends_by_its_deadline() {
    for way in [Out::Refused, Out::Closed] {
        let (server, proxy) = through_proxy();
        let client = timed(&proxy.url()).pool(pool_of(&proxy.url(), 2, false)).build().unwrap();
        way.begin(&server, &proxy);
        try_lock_ends_in_time(&client, &[Duration::ZERO, ms(300)]);
    }
}

#[test]
fn name_that_does_not_resolve_is_unavailable_in_time() {
    let client = timed("redis://no-such-host.invalid:6399/").max_outage(ms(600)).build().unwrap();
    try_lock_ends_in_time(&client, &[Duration::ZERO, ms(300)]);
    let error = within(..LONG + SLACK * 2, || error(client.lock("x").lock()));
    assert!(error.is_unavailable(), "{error:?}");
}

/// A server that takes every command and never answers this one.
fn silent_on(name: &'static str) -> FakeServer {
    FakeServer::start(
        move |_, command| {
            if fake::is(command, name) { Reply::Silence } else { Reply::usual(command) }
        },
    )
}

#[test]
fn server_that_never_answers_ends_within_the_deadline_at_every_step() {
    for step in ["AUTH", "SELECT", "ROLE", "PING", "SET"] {
        let server = silent_on(step);
        let url = format!("redis://:secret@127.0.0.1:{}/3", server.port());
        let client = impatient(&url).build().unwrap();
        let error = within(PATIENCE / 2..PATIENCE + SLACK, || {
            error(client.lock("x").try_lock(Duration::ZERO))
        });
        assert!(error.is_unavailable(), "{step}: {error:?}");
        assert!(server.count(step) >= 1);
    }
}

#[test]
fn server_that_stops_in_the_middle_of_a_reply_ends_within_the_deadline() {
    for half in ["+O", "$5\r\nab", "*2\r\n:1\r\n", "-ER", ":", "$-"] {
        for step in ["AUTH", "PING", "SET"] {
            let server = FakeServer::start(move |_, command| {
                if fake::is(command, step) {
                    Reply::Bytes(half.as_bytes().to_vec())
                } else {
                    Reply::usual(command)
                }
            });
            let url = format!("redis://:secret@127.0.0.1:{}/", server.port());
            let client = impatient(&url).command_timeout(ms(100)).build().unwrap();
            // What the next reply makes of half a one may be nonsense, and that is known at once.
            let error =
                within(..ms(100) + SLACK, || error(client.lock("x").try_lock(Duration::ZERO)));
            assert!(error.is_unavailable(), "{step} {half:?}: {error:?}");
        }
    }
}

#[test]
fn threads_that_wait_behind_one_that_holds_are_told_false_and_not_unavailable() {
    let (_server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock_with("x", LockOptions::new().lease(SOON * 3)).unwrap();
    let holder = Elsewhere::holds(&lock);
    proxy.freeze();
    assert!(!lock.try_lock(ms(100)).unwrap(), "the lease is known to be held in this very process");
    proxy.thaw();
    holder.unlock().unwrap();
}

#[test]
fn refusal_followed_by_silence_is_unavailable() {
    let (server, proxy) = through_proxy();
    redis::cmd("SET").arg("x").arg("another").exec(&mut server.connection()).unwrap();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("x");
    assert!(!lock.try_lock(ms(100)).unwrap());
    let waiting = Underway::start(move || lock.try_lock(ms(1500)));
    thread::sleep(ms(200));
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    // A waiter that is not woken may be in the middle of a pause and have heard nothing but its
    // refusal: both are true answers to what it knows.
    match waiting.result() {
        Ok(held) => assert!(!held),
        Err(error) => assert!(error.is_unavailable(), "{error:?}"),
    }
}

#[test]
fn server_that_comes_back_empty_while_the_lock_is_held_is_a_loss() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let lock = client.lock_with("x", LockOptions::new().lease(ms(1500))).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    lock.on_lost(move |lost| tell.lock().unwrap().send(lost.reason()).unwrap());
    lock.lock().unwrap();
    server.restart();
    assert_eq!(told.recv_timeout(SOON).unwrap(), distlock::LostReason::Taken);
    assert!(!lock.is_valid() && error(lock.unlock()).is_lost());
    assert!(lock.try_lock(SOON).unwrap());
    lock.unlock().unwrap();
}

#[test]
fn server_that_comes_back_empty_lets_a_waiter_in() {
    let server = Server::start();
    redis::cmd("SET").arg("x").arg("another").exec(&mut server.connection()).unwrap();
    let client = Client::open(&server.url()).unwrap();
    let lock = client.lock("x");
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    thread::sleep(ms(200));
    assert!(!waiting.is_done());
    server.restart();
    waiting.result().unwrap();
}

#[test]
fn lease_outlives_an_outage_shorter_than_itself() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock_with("x", LockOptions::new().lease(ms(4000))).unwrap();
    lock.lock().unwrap();
    let token = get(&server, "x");
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    thread::sleep(ms(1800));
    proxy.set_mode(Mode::Forward);
    // Beyond the end of the lease as it was when the outage began.
    thread::sleep(ms(2700));
    assert!(lock.is_valid());
    assert_eq!(get(&server, "x"), token);
    lock.unlock().unwrap();
}

#[test]
fn outage_longer_than_the_lease_is_a_loss_that_is_told_in_time() {
    let (_server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock_with("x", LockOptions::new().lease(ms(900))).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    lock.on_lost(move |lost| tell.lock().unwrap().send(lost.reason()).unwrap());
    lock.lock().unwrap();
    proxy.freeze();
    assert_eq!(
        within(..ms(900) + SLACK, || told.recv_timeout(SOON)).unwrap(),
        distlock::LostReason::Expired
    );
    assert!(!lock.is_valid());
    proxy.thaw();
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn loading_server_is_waited_for() {
    let (_server, proxy) = through_proxy();
    let loading = proxy.add(Rule::any(Fault::Answer(
        b"-LOADING Redis is loading the dataset in memory\r\n".to_vec(),
    )));
    let client = Client::open(&proxy.url()).unwrap();
    assert!(error(client.lock("x").try_lock(Duration::ZERO)).is_unavailable());
    assert!(error(client.ping()).is_unavailable());
    let lock = client.lock("x");
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    thread::sleep(ms(400));
    assert!(!waiting.is_done());
    assert!(loading.fired() < 20, "one thread asks, with pauses: {}", loading.fired());
    loading.remove();
    waiting.result().unwrap();
}

#[test]
fn server_with_too_many_clients_is_waited_for() {
    for password in [None, Some("secret")] {
        let mut builder = Server::builder().arg("maxclients", "3");
        if let Some(password) = password {
            builder = builder.password(password);
        }
        let server = builder.start();
        let mut taken: VecDeque<_> = (0..3).map(|_| server.connection()).collect();
        let client = Client::open(&server.url()).unwrap();
        let lock = client.lock("x");
        let error = error(lock.try_lock(Duration::ZERO));
        assert!(error.is_unavailable(), "{error:?}");
        let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
        thread::sleep(ms(300));
        assert!(!waiting.is_done());
        taken.clear();
        waiting.result().unwrap();
    }
}

/// What the process knows of the server when it goes down.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Warm {
    /// Every pool is full of connections.
    Pools,
    /// It was up a moment ago, and there is no connection.
    Known,
    Unknown,
}

/// Fifty threads of two clients wait for fifty locks: how often they knock is counted in slices of
/// time.
fn knocks(warm: Warm) {
    let (_server, proxy) = through_proxy();
    let clients =
        [0, 1].map(|_| Client::builder(&proxy.url()).max_outage(SOON * 6).build().unwrap());
    if warm == Warm::Known {
        Client::open(&proxy.url()).unwrap().ping().unwrap();
    }
    if warm == Warm::Pools {
        clients.iter().for_each(|client| warm_up(client, 8));
    }
    proxy.set_mode(Mode::Close);
    let before = proxy.accepted();
    proxy.cut_all();
    let start = Instant::now();
    let waiting: Vec<_> = (0..50)
        .map(|n| {
            let lock = clients[n % 2].lock(&n.to_string());
            Underway::start(move || lock.lock().and_then(|()| lock.unlock()))
        })
        .collect();
    let mut asked = Vec::new();
    for _ in 0..20 {
        thread::sleep(ms(100));
        asked.push((start.elapsed(), proxy.accepted() - before));
    }
    for (at, so_far) in &asked {
        let seconds = at.as_secs_f64().ceil();
        assert!(*so_far as f64 <= 20.0 * seconds, "{warm:?}: {asked:?}");
    }
    assert!(asked.last().unwrap().1 >= 5, "somebody has to look whether it is back: {asked:?}");
    proxy.set_mode(Mode::Forward);
    waiting.into_iter().for_each(|waiter| waiter.result().unwrap());
}

#[test]
fn server_that_is_down_is_not_asked_more_than_20_times_a_second() {
    thread::scope(|scope| {
        for warm in [Warm::Pools, Warm::Known, Warm::Unknown] {
            scope.spawn(move || knocks(warm));
        }
    });
}

/// Another client goes on trying, in a way that never works; the one that is set up well opens new
/// connections all the same.
fn is_not_shut_out_by(misconfigured: Client, well: impl Fn() -> Client) {
    let tries = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                assert!(error(misconfigured.ping()).is_unavailable());
                tries.fetch_add(1, Ordering::SeqCst);
                thread::sleep(ms(5));
            }
        });
        eventually(SOON, || tries.load(Ordering::SeqCst) > 2);
        let well: Vec<_> = (0..20).map(|_| well().ping()).collect();
        done.store(true, Ordering::SeqCst);
        well.into_iter().for_each(Result::unwrap);
    });
}

#[cfg(feature = "tls")]
#[test]
fn client_that_speaks_tls_to_a_plain_port_shuts_nobody_out() {
    let server = Server::start();
    let url = server.url().replace("redis://", "rediss://");
    is_not_shut_out_by(impatient(&url).command_timeout(ms(100)).build().unwrap(), || {
        impatient(&server.url()).build().unwrap()
    });
}

#[test]
fn client_with_too_little_time_to_connect_shuts_nobody_out() {
    let (_server, proxy) = through_proxy();
    proxy.set_delay(ms(10), ms(10));
    for hasty in [
        Client::builder(&proxy.url()).connect_timeout(ms(5)),
        Client::builder(&proxy.url()).command_timeout(ms(5)),
    ] {
        is_not_shut_out_by(hasty.build().unwrap(), || Client::open(&proxy.url()).unwrap());
    }
}

/// The processor time of this process so far, in ticks of 10 ms.
fn ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn waiting_through_an_outage_is_no_hot_loop() {
    in_own_process("outage::waiting_through_an_outage_is_no_hot_loop", || {
        let closed = listen_anywhere();
        let port = closed.local_addr().unwrap().port();
        drop(closed);
        let client = Client::open(&format!("redis://127.0.0.1:{port}/")).unwrap();
        let interrupt = distlock::Interrupt::new();
        thread::scope(|scope| {
            for n in 0..50 {
                let (client, interrupt) = (&client, &interrupt);
                scope.spawn(move || {
                    assert!(
                        error(client.lock(&n.to_string()).lock_interruptibly(interrupt))
                            .is_interrupted()
                    )
                });
            }
            thread::sleep(ms(300));
            let before = ticks();
            thread::sleep(ms(2000));
            let used = ticks() - before;
            interrupt.interrupt();
            assert!(used < 60, "{used} ticks of 200");
        });
    });
}

#[test]
fn pool_of_one_serves_a_hundred_threads() {
    let server = Server::start();
    let clients = [
        Client::builder(&server.url()).pool_size(1).build().unwrap(),
        Client::builder(&server.url()).pool(pool_of(&server.url(), 1, false)).build().unwrap(),
    ];
    for client in clients {
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for n in 0..100 {
                let (client, inside, most) = (&client, &inside, &most);
                scope.spawn(move || {
                    let own = client.lock(&format!("own{n}"));
                    let shared = client.lock("shared");
                    for _ in 0..3 {
                        own.with(|_| ()).unwrap();
                        shared
                            .with(|_| {
                                most.fetch_max(
                                    inside.fetch_add(1, Ordering::SeqCst) + 1,
                                    Ordering::SeqCst,
                                );
                                inside.fetch_sub(1, Ordering::SeqCst);
                            })
                            .unwrap();
                    }
                });
            }
        });
        assert_eq!(most.load(Ordering::SeqCst), 1);
    }
    nothing_is_left(&server);
}

#[test]
fn large_pool_opens_its_connections_all_at_once() {
    let server = Server::start();
    let client = Client::builder(&server.url()).pool_size(100).build().unwrap();
    warm_up(&client, 100);
    thread::scope(|scope| {
        for n in 0..100 {
            let client = &client;
            scope.spawn(move || {
                assert!(client.lock(&n.to_string()).try_lock(Duration::ZERO).unwrap());
                client.lock(&n.to_string()).unlock().unwrap();
            });
        }
    });
}

/// Threads lock and unlock, each a lock of its own and one that all share, while `disturb` is
/// called again and again. No error but those that `is_fine`.
fn work_while(
    client: &Client,
    disturb: impl Fn(),
    is_fine: impl Fn(&RedisLock, &distlock::Error) -> bool + Sync,
) {
    let done = AtomicBool::new(false);
    let cycles = AtomicUsize::new(0);
    thread::scope(|scope| {
        for n in 0..4 {
            let (done, cycles, is_fine) = (&done, &cycles, &is_fine);
            let locks = [
                client.lock(&format!("own{n}")),
                client.lock("shared"),
                client.lock_with("fenced", LockOptions::new().fenced()).unwrap(),
            ];
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    for lock in &locks {
                        let cycle = lock.lock().and_then(|()| lock.unlock());
                        if let Err(error) = cycle {
                            assert!(is_fine(lock, &error), "{error:?}");
                        }
                        cycles.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        let start = Instant::now();
        while start.elapsed() < ms(1800) {
            disturb();
            thread::sleep(ms(4));
        }
        done.store(true, Ordering::SeqCst);
    });
    // Few where every connection dies young, and on a busy machine.
    assert!(cycles.load(Ordering::SeqCst) > 10, "{cycles:?}");
}

#[test]
fn scripts_may_be_flushed_at_any_moment() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let held = client.lock_with("held", LockOptions::new().lease(ms(2500))).unwrap();
    held.lock().unwrap();
    let flusher = std::cell::RefCell::new(server.connection());
    work_while(
        &client,
        || redis::cmd("SCRIPT").arg("FLUSH").exec(&mut *flusher.borrow_mut()).unwrap(),
        |_, _| false,
    );
    assert!(held.is_valid(), "renewal sends its scripts whole where it has to");
    held.unlock().unwrap();
}

#[test]
fn connections_may_be_killed_at_any_moment() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let held = client.lock_with("held", LockOptions::new().lease(ms(3000))).unwrap();
    held.lock().unwrap();
    let killer = std::cell::RefCell::new(server.connection());
    let kill = || {
        redis::cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("yes")
            .exec(&mut *killer.borrow_mut())
            .unwrap()
    };
    work_while(&client, kill, |_, _| false);
    assert!(held.is_valid());
    held.unlock().unwrap();
    nothing_is_left_but_fences(&server);
}

fn nothing_is_left_but_fences(server: &Server) {
    eventually(SOON, || crate::helpers::keys(server).iter().all(|key| key.ends_with(":fence")));
}

#[test]
fn connections_may_be_cut_at_any_moment() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let resets = AtomicBool::new(false);
    work_while(
        &client,
        || {
            proxy.set_resets(resets.fetch_xor(true, Ordering::SeqCst));
            proxy.cut_all();
        },
        |_, _| false,
    );
    nothing_is_left_but_fences(&server);
}

#[test]
fn one_lost_reply_in_ten_is_no_error_of_lock() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).command_timeout(ms(150)).build().unwrap();
    let count = AtomicUsize::new(0);
    let _lossy = proxy.add(
        Rule::any(Fault::SwallowReply)
            .when(move |_| count.fetch_add(1, Ordering::SeqCst) % 10 == 9),
    );
    // An unlock whose repetition was lost, too, is unknown.
    work_while(&client, || (), |_, error| error.is_unknown());
    proxy.clear_rules();
    nothing_is_left_but_fences(&server);
}

#[test]
fn host_that_never_answers_a_packet_ends_within_the_deadline() {
    // An address that is reserved for documentation: packets to it go nowhere, or the network says
    // so.
    let client = impatient("redis://192.0.2.1:6399/").build().unwrap();
    let error = within(..PATIENCE + SLACK, || error(client.lock("x").try_lock(Duration::ZERO)));
    assert!(error.is_unavailable(), "{error:?}");
}

/// The attempt is answered in time and the withdrawal of its place would not be: the caller is not
/// kept for it (R13).
#[test]
fn slow_link_keeps_no_caller_for_a_withdrawal() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let holder = Client::open(&server.url()).unwrap().lock("x");
    let _held = holder.guard().unwrap();
    let client = Client::builder(&proxy.url()).command_timeout(ms(1000)).build().unwrap();
    let lock = client.lock("x");
    // The lock is known to be contended from here on, and the connection stands: one round trip
    // each for the attempt and its withdrawal.
    assert!(!lock.try_lock(ms(50)).unwrap());
    proxy.set_delay(ms(400), ms(400));
    let refused = within(ms(700)..ms(1400), || lock.try_lock(ms(10)));
    assert!(!refused.unwrap());
    eventually(ms(10_000), || {
        redis::cmd("EXISTS").arg("{x}:queue").query::<u32>(&mut server.connection()).unwrap() == 0
    });
}
