//! One test per row of the porting guide: the old construct, as it runs in Java, beside ours.

use std::thread;
use std::time::Duration;

use distlock::{Client, Interrupt, LockOptions, Renewal, Retry};

use super::sharing::{excludes, keeps_ours, keeps_theirs, takes_over};
use super::{EXPIRY, Peer, ask, lock, plain, redisson, start, timestamp};
use crate::faults::pool_of;
use crate::helpers::{SOON, error, keys, ms, on_another_thread, pttl};
use crate::support::{Fault, Proxy, Rule, Server, eventually, within};

/// The Jedis driver with this kind of lock, with shorter sleeps than the old code.
fn jedis(server: &Server, kind: &str) -> Option<Peer> {
    let [peer] = start([("jedis", server.url())])?;
    Some(peer.with(&[&format!("kind {kind}"), "sleep 20"]))
}

#[test]
fn acquire_lock_setnx_100_ms_n_tries() {
    let server = Server::start();
    let Some(peer) = jedis(&server, "setnx") else { return };
    let mut peer = peer.with(&["sleep 100"]);
    let tries = |n| lock(&server, plain().retry(Retry::fixed(ms(100)).attempts(n)));
    peer.says("tries a 1", "ok");
    assert_eq!(tries(1).inspect().unwrap().holders[0].remaining, None, "it has no lease");
    assert!(error(tries(1).lock()).is_exhausted());
    within(ms(180)..ms(5_000), || assert!(error(tries(3).lock()).is_exhausted()));
    assert!(!tries(3).try_lock(SOON).unwrap());
    // The lock becomes free between our attempts.
    let patient = tries(100);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| patient.lock().and_then(|()| patient.unlock()));
        peer.says("unlock a", "ok");
        waiter.join().unwrap().unwrap();
    });

    let ours = tries(3);
    ours.lock().unwrap();
    within(ms(180)..ms(5_000), || peer.says("tries a 3", "no"));
    ours.unlock().unwrap();
    peer.says("tries a 3", "ok");
    peer.says("unlock a", "ok");
    // The hazard of the old code: its release deletes whatever is there. Our holder is told.
    ours.lock().unwrap();
    peer.says("unlock a", "ok");
    assert!(error(ours.unlock()).is_lost());
}

#[test]
fn acquire_loca_with_timeout() {
    let server = Server::start();
    let Some(mut peer) = jedis(&server, "timestamp") else { return };
    excludes(&server, &mut peer, &timestamp());
    takes_over(&server, &mut peer, &timestamp());
    keeps_ours(&server, &mut peer, &timestamp());
    // Both sides report the deadline that the server stores.
    peer.says("lock a 20000", "ok");
    let written: String = ask(&server, &["GET", "a"]);
    assert_eq!(peer.ask("value a"), format!("ok {written}"));
    assert_eq!(lock(&server, timestamp()).inspect().unwrap().holders[0].token, written);
    peer.says("unlock a", "ok");
}

#[test]
fn acquire_loca_nxpx_and_del_lock() {
    let server = Server::start();
    let Some(mut peer) = jedis(&server, "nxpx") else { return };
    plain_on_the_wire(&server, &mut peer);
}

#[test]
fn acquire_loca_lua() {
    let server = Server::start();
    let Some(mut peer) = jedis(&server, "lua") else { return };
    plain_on_the_wire(&server, &mut peer);
}

fn plain_on_the_wire(server: &Server, peer: &mut Peer) {
    excludes(server, peer, &plain());
    takes_over(server, peer, &plain());
    keeps_ours(server, peer, &plain());
    let ours = lock(server, plain().lease(ms(20_000)));
    peer.says("lock a 20000", "ok");
    let theirs = wire(server);
    assert_eq!(ours.inspect().unwrap().holders[0].token, theirs.1);
    peer.says("unlock a", "ok");
    ours.lock().unwrap();
    assert_eq!(wire(server).0, theirs.0, "the same type");
    assert!(pttl(server, "a") > 10_000);
    ours.unlock().unwrap();
}

/// Type and value of the only key.
fn wire(server: &Server) -> (String, String) {
    assert_eq!(keys(server), ["a"]);
    (ask(server, &["TYPE", "a"]), ask(server, &["GET", "a"]))
}

#[test]
fn ip_limit() {
    let server = Server::start();
    let Some([mut peer]) = start([("jedis", server.url())]) else { return };
    let limiter = Client::open(&server.url()).unwrap().rate_limiter("ip", 4, ms(3_000));
    // The first caller begins the window; each side begins one.
    for we_begin in [false, true] {
        let window = || {
            for turn in 0..4 {
                if (turn % 2 == 0) == we_begin {
                    let decision = limiter.check().unwrap();
                    assert_eq!((decision.allowed, decision.remaining), (true, 3 - turn));
                } else {
                    peer.says("limit ip 3 4", "ok");
                }
            }
            thread::sleep(ms(500));
            assert!(!limiter.check().unwrap().allowed);
            peer.says("limit ip 3 4", "no");
            // Nothing of this has made the window longer: it began half a second ago or earlier.
            let refused = limiter.check().unwrap();
            assert!(!refused.allowed && refused.retry_after <= ms(2_500), "{refused:?}");
            assert!(limiter.acquire(SOON).unwrap());
        };
        within(ms(2_800)..ms(9_000), window);
        // A window that nobody has used.
        ask::<()>(&server, &["DEL", "ip"]);
    }
}

#[test]
fn redis_lock_implements_lock() {
    let server = Server::start();
    let Some(mut peer) = jedis(&server, "endless") else { return };
    keeps_theirs(&server, &mut peer, &plain(), "lock a 2000");
    // Every call, including those that the old class left empty.
    peer.says("lock a 2000", "ok");
    peer.says("try a 0 2000", "unsupported");
    let ours = lock(&server, plain().lease(ms(1_000)));
    assert!(!ours.try_lock(Duration::ZERO).unwrap());
    within(ms(200)..SOON, || assert!(!ours.try_lock(ms(200)).unwrap()));
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| ours.lock_interruptibly(&interrupt));
        interrupt.interrupt();
        assert!(error(waiter.join().unwrap()).is_interrupted());
    });
    interrupt.reset();
    peer.says("unlock a", "ok");
    ours.lock_interruptibly(&interrupt).unwrap();
    ours.unlock().unwrap();
    // Conditions need our queue, and the old client does not take part in it: it takes the lock
    // while we wait in a condition.
    let ours = lock(&server, LockOptions::new().lease(ms(1_000)));
    ours.lock().unwrap();
    let condition = ours.new_condition("done").unwrap();
    thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            peer.says("lock a 2000", "ok");
            peer.says("unlock a", "ok");
        });
        eventually(SOON, || !condition.wait_timeout(ms(100)).unwrap() && theirs.is_finished());
    });
    // Our lease is kept while theirs waits in its endless loop.
    peer.send("lock a 2000");
    thread::sleep(ms(2_500));
    assert!(ours.is_valid());
    ours.unlock().unwrap();
    assert_eq!(peer.answer(), "ok");
    peer.says("unlock a", "ok");
}

#[test]
fn simple_redis_lock() {
    let server = Server::start();
    let Some(mut peer) = jedis(&server, "simple") else { return };
    let client = Client::builder(&server.url()).key_prefix("lock:").build().unwrap();
    let options =
        |seconds| LockOptions::new().lease(Duration::from_secs(seconds)).renewal(Renewal::Never);
    let ours = client.lock_with("a", options(20)).unwrap();
    peer.says("try a 0 20000", "ok");
    assert_eq!(keys(&server), ["lock:a"]);
    assert!(!ours.try_lock(Duration::ZERO).unwrap());
    assert!(error(ours.unlock()).is_not_held());
    peer.says("unlock a", "ok");
    assert!(ours.try_lock(Duration::ZERO).unwrap());
    assert_eq!(keys(&server), ["lock:a"]);
    peer.says("try a 0 20000", "no");
    peer.says("unlock a", "refused");
    ours.unlock().unwrap();

    // The leases run out, as nobody renews them.
    within(EXPIRY, || {
        peer.says("try a 0 1000", "ok");
        assert!(ours.try_lock(SOON).unwrap());
    });
    peer.says("unlock a", "refused");
    ours.unlock().unwrap();
    let short = client.lock_with("a", options(1)).unwrap();
    within(EXPIRY, || {
        assert!(short.try_lock(Duration::ZERO).unwrap());
        peer.says("try a 9000 20000", "ok");
    });
    assert!(error(short.unlock()).is_lost());
    peer.says("unlock a", "ok");
}

#[test]
fn redis_distributed_lock() {
    let server = Server::start();
    let Some(peer) = jedis(&server, "pooled") else { return };
    let mut peer = peer.with(&["owner alice", "persist 1"]);
    let client =
        Client::builder(&server.url()).pool(pool_of(&server.url(), 2, true)).build().unwrap();
    let ours = client
        .lock_with(
            "a",
            LockOptions::new().owner("bob").lease(ms(1_000)).renewal(Renewal::AtMost(1)),
        )
        .unwrap();
    // Extended once: kept beyond its lease, but not for ever.
    within(ms(1_200)..ms(9_000), || {
        ours.lock().unwrap();
        assert!(ours.is_held() && !on_another_thread(|| ours.is_held()));
        peer.says("islocking a bob", "yes");
        peer.says("islocking a alice", "no");
        peer.says("unlock a", "refused");
        peer.says("try a 9000 1000", "ok");
    });
    assert!(error(ours.unlock()).is_lost());
    peer.says("unlock a", "ok");
    within(ms(1_400)..ms(9_000), || {
        peer.says("lock a 1000", "ok");
        assert_eq!(ours.inspect().unwrap().holders[0].token, "alice");
        assert!(error(ours.unlock()).is_not_held());
        assert!(ours.try_lock(SOON).unwrap());
    });
    peer.says("unlock a", "refused");
    assert_eq!(ours.inspect().unwrap().holders[0].token, "bob");
    // Both sides count holds.
    ours.lock().unwrap();
    assert_eq!(ours.hold_count(), 2);
    ours.unlock().unwrap();
    ours.unlock().unwrap();
    peer.says("lock a 20000", "ok");
    peer.says("lock a 20000", "ok");
    peer.says("holds a", "ok 2");
    peer.says("unlock a", "ok");
    assert!(!ours.try_lock(Duration::ZERO).unwrap());
    peer.says("unlock a", "ok");
}

#[test]
fn redis_util_execute() {
    let server = Server::start();
    let (to_us, to_them) = (Proxy::start(server.port()), Proxy::start(server.port()));
    let Some([peer]) = start([("jedis", to_them.url())]) else { return };
    let mut peer = peer.with(&["kind pooled", "owner alice"]);
    let client = Client::open(&to_us.url()).unwrap();
    client.ping().unwrap();
    // Each side's connection is dropped once, and neither caller notices.
    let cut = to_them.add(Rule::on("SET", Fault::CutBefore).next(1));
    peer.says("lock a 20000", "ok");
    assert_eq!(cut.fired(), 1);
    let cut = to_us.add(Rule::on("GET", Fault::CutBefore).next(1));
    let seen: String =
        client.execute(|connection| redis::cmd("GET").arg("a").query(connection)).unwrap();
    assert_eq!((seen.as_str(), cut.fired()), ("alice", 1));
    // Once more, and not twice.
    let _cut = to_us.add(Rule::on("GET", Fault::CutBefore));
    let again = client.execute(|connection| redis::cmd("GET").arg("a").query::<String>(connection));
    assert!(error(again).is_unavailable());
    peer.says("unlock a", "ok");
}

#[test]
fn redisson_get_lock() {
    let server = Server::start();
    let Some([peer]) = start([("redisson", server.url())]) else { return };
    let mut peer = peer.with(&["watchdog 1500"]);
    excludes(&server, &mut peer, &redisson());
    takes_over(&server, &mut peer, &redisson());
    keeps_ours(&server, &mut peer, &redisson());
    keeps_theirs(&server, &mut peer, &redisson(), "lock a 0");
    // A hash with a count; on their side it counts all holds.
    peer.says("lock a 20000", "ok");
    peer.says("lock a 20000", "ok");
    let field: Vec<String> = ask(&server, &["HGETALL", "a"]);
    assert_eq!(field[1], "2");
    assert_eq!(peer.ask("value a"), format!("ok {}", field[0]));
    peer.says("unlock a", "ok");
    assert!(!lock(&server, redisson()).try_lock(Duration::ZERO).unwrap());
    peer.says("unlock a", "ok");
}

#[test]
fn redlock_on_n_masters() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let [a, b, c] = servers.each_ref().map(Server::url);
    let Some(mut peers) = start([("jedis", a), ("redsync", b), ("redis-py", c)]) else { return };
    let ours = Client::redlock(servers.each_ref().map(Server::url)).unwrap().lock("a");
    ours.lock().unwrap();
    for peer in &mut peers {
        peer.says("try a 0 5000", "no");
        peer.says("unlock a", "refused");
    }
    assert!(ours.is_valid());
    ours.unlock().unwrap();
    for server in &servers {
        // The last node may get the release a moment after the majority.
        eventually(SOON, || keys(server).is_empty());
    }
    // Their lock is on one node: that is no majority, and it is left alone.
    peers[0].says("lock a 20000", "ok");
    assert!(ours.try_lock(SOON).unwrap());
    assert_eq!(
        peers[0].ask("value a"),
        format!("ok {}", ask::<String>(&servers[0], &["GET", "a"]))
    );
    ours.unlock().unwrap();
    peers[1].says("lock a 20000", "ok");
    assert!(!ours.try_lock(ms(500)).unwrap(), "two of three");
    peers[0].says("unlock a", "ok");
    assert!(ours.try_lock(SOON).unwrap());
    ours.unlock().unwrap();
    peers[1].says("unlock a", "ok");
}
