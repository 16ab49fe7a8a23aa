//! How often a server that is down is asked whether it is back, and what waiting for it costs
//! (R14).

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::{Extend, Key, Token, Within};
use distlock::{Client, Layout};

use crate::faults::{through_proxy, warm_up};
use crate::helpers::{SOON, Underway, error, ms};
use crate::support::{Mode, in_own_process, ports};

/// What the process knows about the server when it goes down.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Warm {
    /// Every pool is full of connections.
    Pools,
    /// It was up a moment ago, and there is no connection.
    Known,
    Unknown,
}

/// Fifty threads of two clients wait for fifty locks: their connection attempts are counted in
/// slices of time.
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

/// The processor time of this process so far, in ticks of 10 ms.
fn ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn waiting_through_an_outage_is_no_hot_loop() {
    in_own_process("outage::knocks::waiting_through_an_outage_is_no_hot_loop", || {
        let port = ports::refused();
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
fn an_attempt_with_little_time_does_not_shut_the_gate_for_those_who_have_more() {
    let (_server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let other = Client::open(&proxy.url()).unwrap();
    let store = client.store(Layout::Plain).unwrap();
    client.ping().unwrap();
    // A slow link: opening a connection takes several round trips.
    proxy.set_delay(ms(60), ms(60));
    proxy.cut_all();
    // As renewal asks for a lease that is about to end.
    let (key, token) = (Key::new("x".into()), Token::new("t"));
    let lease = Extend { key: &key, token: &token, lease: ms(300) };
    let within = Within { reply: ms(50), connect_by: Instant::now() + ms(100) };
    assert!(store.extend(&[lease], within).remove(0).is_err());
    assert!(other.lock("y").try_lock(Duration::ZERO).unwrap(), "the server is up");
    other.lock("y").unlock().unwrap();
}
