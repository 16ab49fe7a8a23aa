//! What is true for every shared layout: exclusion, strangers, expiry, and leases that are kept.

use std::thread;
use std::time::{Duration, Instant};

use distlock::{LockOptions, RedisLock, Renewal};

use super::{EXPIRY, Peer, ask, lock, plain, start};
use crate::helpers::{SOON, error, ms};
use crate::support::{Server, within};

/// One holds, the other is refused and cannot unlock it; then the other way round.
pub fn excludes(server: &Server, peer: &mut Peer, options: &LockOptions) {
    let ours = lock(server, options.clone());
    ours.lock().unwrap();
    let held = holder(&ours);
    peer.says("try a 0 5000", "no");
    peer.says("try a 100 5000", "no");
    peer.says("unlock a", "refused");
    assert_eq!(holder(&ours), held, "a stranger's unlock");
    assert!(ours.is_valid());
    ours.unlock().unwrap();

    peer.says("try a 0 20000", "ok");
    let held = holder(&ours);
    assert_ne!(held, "");
    assert!(!ours.try_lock(Duration::ZERO).unwrap());
    assert!(!ours.try_lock(ms(100)).unwrap());
    assert!(error(ours.unlock()).is_not_held());
    assert_eq!(holder(&ours), held);
    peer.says("unlock a", "ok");
    assert!(ours.try_lock(Duration::ZERO).unwrap());
    ours.unlock().unwrap();
    assert_eq!(ask::<u64>(server, &["EXISTS", ours.key()]), 0);
}

/// A lease runs out, the other side gets the lock, and a late unlock by the first does no harm.
pub fn takes_over(server: &Server, peer: &mut Peer, options: &LockOptions) {
    let ours = lock(server, options.clone().lease(ms(1_000)).renewal(Renewal::Never));
    within(EXPIRY, || {
        ours.lock().unwrap();
        peer.says("try a 9000 20000", "ok");
    });
    let held = holder(&ours);
    assert!(error(ours.unlock()).is_lost());
    assert_eq!(holder(&ours), held, "our late unlock");
    peer.says("unlock a", "ok");

    let ours = lock(server, options.clone());
    within(EXPIRY, || {
        peer.says("lock a 1000", "ok");
        assert!(ours.try_lock(SOON).unwrap());
    });
    let held = holder(&ours);
    peer.says("unlock a", "refused");
    assert_eq!(holder(&ours), held, "their late unlock");
    assert!(ours.is_valid());
    ours.unlock().unwrap();
}

/// Our lease of a second is kept for three, and the other waits in vain. It ends by itself once
/// nobody renews it.
pub fn keeps_ours(server: &Server, peer: &mut Peer, options: &LockOptions) {
    let ours = lock(server, options.clone().lease(ms(1_000)));
    ours.lock().unwrap();
    within(ms(2_000)..ms(9_000), || peer.says("try a 3000 5000", "no"));
    assert!(ours.is_valid());
    ours.unlock().unwrap();
    peer.says("try a 0 5000", "ok");
    peer.says("unlock a", "ok");
}

/// Their lease, taken by `command` and at most two seconds long, is kept for more than four, and we
/// wait in vain.
pub fn keeps_theirs(server: &Server, peer: &mut Peer, options: &LockOptions, command: &str) {
    let ours = lock(server, options.clone());
    peer.says(command, "ok");
    let start = Instant::now();
    while start.elapsed() < ms(4_500) {
        assert!(!ours.try_lock(ms(50)).unwrap(), "after {:?}", start.elapsed());
        let left: i64 = ask(server, &["PTTL", ours.key()]);
        assert!((1..=2_000).contains(&left), "{left}");
        thread::sleep(ms(50));
    }
    peer.says("unlock a", "ok");
    assert!(ours.try_lock(Duration::ZERO).unwrap());
    ours.unlock().unwrap();
}

/// Whose the lock is, as the server has it; empty if nobody's.
fn holder(lock: &RedisLock) -> String {
    lock.inspect().unwrap().holders.pop().map_or(String::new(), |holder| holder.token)
}

#[test]
fn redis_py_shares_plain_locks() {
    let server = Server::start();
    let Some([peer]) = start([("redis-py", server.url())]) else { return };
    shares_plain(&server, peer);
}

#[test]
fn redsync_shares_plain_locks() {
    let server = Server::start();
    let Some([peer]) = start([("redsync", server.url())]) else { return };
    shares_plain(&server, peer);
}

fn shares_plain(server: &Server, peer: Peer) {
    let mut peer = peer.with(&["sleep 20"]);
    excludes(server, &mut peer, &plain());
    takes_over(server, &mut peer, &plain());
    keeps_ours(server, &mut peer, &plain());
    // They have no watchdog; an extend by hand still moves only their own lease.
    peer.says("lock a 5000", "ok");
    peer.says("extend a 5000", "ok");
    assert!(!lock(server, plain()).try_lock(Duration::ZERO).unwrap());
    peer.says("unlock a", "ok");
    let ours = lock(server, plain());
    ours.lock().unwrap();
    peer.says("extend a 5000", "refused");
    ours.unlock().unwrap();
}
