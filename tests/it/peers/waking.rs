//! How long after an unlock a waiter in another language gets the lock.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::{LockOptions, RedisLock, Retry};
use rustix::time::{ClockId, clock_gettime};

use super::{Peer, lock, plain, redisson, start, timestamp};
use crate::helpers::{SOON, ms};
use crate::support::{Server, eventually};

const ROUNDS: usize = 7;
/// Redisson's clients ask again only when the lease has run out, and our clients are set to do the
/// same: within this time they can only have been woken. Polling clients ask every 20 ms or every
/// 20 to 80 ms.
const PROMPT: Duration = ms(3_000);

/// The clock that all processes of a host share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap()
}

/// Wakes the peer by our unlock, and us by the peer's, several times each; prints the times. A
/// waiter has made `asked` grow by `often`.
pub(super) fn both_ways(
    name: &str,
    ours: &RedisLock,
    peer: &mut Peer,
    asked: impl Fn() -> u64,
    often: u64,
) {
    let mut theirs_after_ours = Vec::new();
    for _ in 0..ROUNDS {
        ours.lock().unwrap();
        let before = asked();
        peer.send("wait a 30000");
        eventually(SOON, || asked() >= before + often);
        let unlocked = now_ns();
        ours.unlock().unwrap();
        let answer = peer.answer();
        theirs_after_ours.push(since(peer.number(&answer), unlocked));
        peer.says("unlock a", "ok");
    }
    let mut ours_after_theirs = Vec::new();
    for _ in 0..ROUNDS {
        peer.says("lock a 30000", "ok");
        let before = asked();
        let (tell, told) = mpsc::channel();
        let waiter = ours.clone();
        let thread = thread::spawn(move || {
            waiter.lock().unwrap();
            tell.send(now_ns()).unwrap();
            waiter.unlock().unwrap();
        });
        eventually(SOON, || asked() >= before + often);
        let answer = peer.ask("release a");
        ours_after_theirs.push(since(told.recv_timeout(SOON * 4).unwrap(), peer.number(&answer)));
        thread.join().unwrap();
    }
    for (way, mut took) in [
        ("theirs after our unlock", theirs_after_ours),
        ("ours after their unlock", ours_after_theirs),
    ] {
        took.sort();
        let (least, median, most) = (took[0], took[ROUNDS / 2], took[ROUNDS - 1]);
        eprintln!("{name}: {way}: {least:?} at least, {median:?} in the middle, {most:?} at most");
    }
}

/// The times. Nobody may get the lock before the unlock, or much later.
#[track_caller]
fn since(acquired: u64, released: u64) -> Duration {
    let took = Duration::from_nanos(
        acquired.checked_sub(released).expect("acquired before it was released"),
    );
    assert!(took < PROMPT, "{took:?}");
    took
}

#[test]
fn redisson_wakes_us_and_is_woken_by_us() {
    let server = Server::start();
    let Some([mut peer]) = start([("redisson", server.url())]) else { return };
    // Each refusal reads the rest of the lease. Both sides are refused, subscribe, and are refused
    // once more: from then on only a message wakes them. After an earlier unlock they would find
    // the lock free by asking, and the test would prove nothing about messages.
    let refused = || server.command_count("pttl");
    let ours = lock(&server, redisson().retry(Retry::fixed(SOON * 3)));
    both_ways("Redisson", &ours, &mut peer, refused, 2);
}

/// The clients that poll: a waiter has asked at least three times.
fn poll(name: &str, server: &Server, peer: &mut Peer, options: &LockOptions) {
    let ours = lock(server, options.clone());
    both_ways(name, &ours, peer, || server.commands_processed_by_clients(), 3);
}

#[test]
fn jedis_has_the_lock_soon_after_us_and_we_after_it() {
    let server = Server::start();
    let Some([peer]) = start([("jedis", server.url())]) else { return };
    let mut peer = peer.with(&["kind nxpx", "sleep 20"]);
    poll("Jedis, SET NX PX", &server, &mut peer, &plain());
    let mut peer = peer.with(&["kind timestamp", "sleep 20"]);
    poll("Jedis, timestamp", &server, &mut peer, &timestamp());
}

#[test]
fn redis_py_and_redsync_have_the_lock_soon_after_us_and_we_after_them() {
    let server = Server::start();
    let Some(peers) = start([("redis-py", server.url()), ("redsync", server.url())]) else {
        return;
    };
    for (peer, name) in peers.into_iter().zip(["redis-py", "redsync"]) {
        poll(name, &server, &mut peer.with(&["sleep 20"]), &plain());
    }
}
