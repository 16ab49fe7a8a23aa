//! Fleets of several kinds: two processes of each, one counter that is read and written in two
//! steps.

use std::env;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, LockOptions, Queue};

use super::{Peer, ask, lock, plain, redisson, start, timestamp};
use crate::helpers::{SOON, ms};
use crate::support::{Server, eventually};

const EACH: u64 = 100;
/// Far longer than all of them need, and shorter than a starving peer would wait: our processes go
/// on until it is done.
const LONGEST: Duration = Duration::from_secs(15);
/// Tells a process that it is one of ours, and where the server is.
const OURS: &str = "DISTLOCK_TEST_FLEET";
/// The text before its result.
const COUNTED: &str = "counted: ";

/// If this process is one of ours: takes the lock again and again while a peer still has work to
/// do, so that a starving peer never ends.
fn is_one_of_ours(options: &LockOptions) -> bool {
    let Ok(url) = env::var(OURS) else { return false };
    let lock = Client::open(&url).unwrap().lock_with("a", options.clone()).unwrap();
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let (mut longest, mut mine) = (Duration::ZERO, 0);
    // Until the peers are done; our processes must get their share as well.
    while mine < EACH || !redis::cmd("EXISTS").arg("done").query::<bool>(&mut connection).unwrap() {
        let asked = Instant::now();
        lock.with(|_| {
            longest = longest.max(asked.elapsed());
            let n: Option<u64> = redis::cmd("GET").arg("counter").query(&mut connection).unwrap();
            redis::cmd("SET").arg("counter").arg(n.unwrap_or(0) + 1).exec(&mut connection).unwrap();
        })
        .unwrap();
        mine += 1;
    }
    println!("{COUNTED}{mine} {}", longest.as_micros());
    true
}

/// A process of ours, which ends with the test at the latest.
struct Ours(Option<Child>);

impl Ours {
    /// Starts the test of this name again, as one of our processes.
    fn start(test: &str, server: &Server) -> Ours {
        let mut own = Command::new(env::current_exe().unwrap());
        own.args([&format!("peers::fleet::{test}"), "--exact", "--nocapture"])
            .env(OURS, server.url());
        Ours(Some(own.stdout(Stdio::piped()).spawn().unwrap()))
    }

    /// How often it has added, and how long it had to wait for the lock at most.
    fn result(mut self) -> (u64, Duration) {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let counted = text
            .lines()
            .find_map(|line| line.split_once(COUNTED))
            .unwrap_or_else(|| panic!("one of ours failed: {text}"))
            .1;
        let (mine, longest) = counted.split_once(' ').unwrap();
        (mine.parse().unwrap(), Duration::from_micros(longest.parse().unwrap()))
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Two processes of ours and those of the peers, all of them adding to one counter. `test` is the
/// name of the test that calls this.
fn counts<const N: usize>(test: &str, server: &Server, mut peers: [Peer; N]) {
    let ours = [Ours::start(test, server), Ours::start(test, server)];
    eventually(SOON, || ask::<u64>(server, &["EXISTS", "counter"]) == 1);
    peers.iter_mut().for_each(|peer| peer.send(&format!("count a counter {EACH} 20000")));
    let mut shares: Vec<(u64, Duration)> = peers
        .iter()
        .map(|peer| (EACH, Duration::from_micros(peer.number(&peer.answer()))))
        .collect();
    let () = ask(server, &["SET", "done", "1"]);
    let ours = ours.map(Ours::result);
    shares.extend(ours);
    eprintln!("shares and longest waits: {shares:?}");
    assert_eq!(
        ask::<u64>(server, &["GET", "counter"]),
        EACH * N as u64 + ours.iter().map(|(mine, _)| mine).sum::<u64>(),
        "a lost update"
    );
    assert!(shares.iter().all(|(_, longest)| *longest < LONGEST), "{shares:?}");
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn no_update_is_lost_in_a_fleet_with_plain_locks_and_nobody_starves() {
    if is_one_of_ours(&plain()) {
        return;
    }
    let server = Server::start();
    let peers = ["jedis", "jedis", "redis-py", "redis-py", "redsync", "redsync"]
        .map(|name| (name, server.url()));
    let Some(peers) = start(peers) else { return };
    let peers = peers.map(|peer| peer.with(&["sleep 20"]));
    counts("no_update_is_lost_in_a_fleet_with_plain_locks_and_nobody_starves", &server, peers);
}

#[test]
fn no_update_is_lost_in_a_fleet_with_timestamps_and_nobody_starves() {
    // Without leases that could run out: after that, old clients and ours promise less.
    if is_one_of_ours(&timestamp().local_hand_offs(0)) {
        return;
    }
    let server = Server::start();
    let Some(peers) = start([("jedis", server.url()), ("jedis", server.url())]) else { return };
    let peers = peers.map(|peer| peer.with(&["kind timestamp", "sleep 20"]));
    counts("no_update_is_lost_in_a_fleet_with_timestamps_and_nobody_starves", &server, peers);
}

#[test]
fn no_update_is_lost_in_a_fleet_with_redisson_and_nobody_starves() {
    if is_one_of_ours(&redisson()) {
        return;
    }
    let server = Server::start();
    let Some(peers) = start([("redisson", server.url()), ("redisson", server.url())]) else {
        return;
    };
    counts("no_update_is_lost_in_a_fleet_with_redisson_and_nobody_starves", &server, peers);
}

/// Four of our processes want the lock all the time; three times, an old client asks every 20 ms
/// for this long. Returns how often it got a turn.
fn turns_beside_us(
    server: &Server,
    peer: &mut Peer,
    options: &LockOptions,
    patience: Duration,
) -> usize {
    let (done, holds) = (AtomicBool::new(false), AtomicU64::new(0));
    let ours = || {
        let lock = lock(server, options.clone());
        while !done.load(Ordering::SeqCst) {
            lock.with(|_| thread::sleep(ms(20))).unwrap();
            holds.fetch_add(1, Ordering::SeqCst);
        }
    };
    thread::scope(|scope| {
        let _end = End(&done);
        (0..4).for_each(|_| drop(scope.spawn(ours)));
        let mut turns = 0;
        for _ in 0..3 {
            // All of them wait by then, also after an unlock by the old client, which wakes nobody.
            let before = holds.load(Ordering::SeqCst);
            eventually(SOON, || holds.load(Ordering::SeqCst) >= before + 40);
            if peer.ask(&format!("try a {} 20000", patience.as_millis())) == "ok" {
                peer.says("unlock a", "ok");
                turns += 1;
            }
        }
        turns
    })
}

#[test]
fn an_old_client_starves_beside_our_queue_and_gets_its_turn_without_it() {
    let server = Server::start();
    let Some([peer]) = start([("jedis", server.url())]) else { return };
    let mut peer = peer.with(&["kind nxpx", "sleep 20"]);
    let without = turns_beside_us(&server, &mut peer, &plain(), SOON);
    let beside = turns_beside_us(&server, &mut peer, &plain().queue(Queue::Fifo), ms(2_000));
    eprintln!("turns of an old client: {without} of 3 without our queue, {beside} of 3 beside it");
    assert_eq!(without, 3);
    // Asked about a hundred times in two seconds, and never found free. More than once would need a
    // gap in the hand-offs more than once.
    assert!(beside < 3, "the lock was found free beside the queue each time");
}
