//! The lock is kept whoever ends its lease, and however often that has to be tried.

use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, Layout, LockOptions, RedisLock};

use crate::faults::{PATIENCE, impatient, through_proxy};
use crate::helpers::{Asked, Notes, SOON, Underway, error, keys, ms, pttl};
use crate::support::shards::Shards;
use crate::support::{Fault, Rule, Server, eventually};

/// A lease of a minute: nobody waits for its end here.
fn kept(client: &Client, time: Duration) -> RedisLock {
    client.lock_with("x", LockOptions::new().lease(SOON * 6).at_least(time)).unwrap()
}

fn is_script(command: &[Vec<u8>]) -> bool {
    command[0].starts_with(b"EVAL")
}

/// The lock ends that long after it was locked: not before, and, as it has a lease of a minute, by
/// what has been asked of the server since.
#[track_caller]
fn ends_after(server: &Server, time: Duration, asked: Instant) {
    eventually(SOON, || pttl(server, "x") <= i64::try_from(time.as_millis()).unwrap());
    eventually(SOON, || keys(server).is_empty());
    assert!(asked.elapsed() >= time, "it was free after {:?}", asked.elapsed());
}

#[test]
fn an_unlock_whose_reply_is_lost_keeps_it() {
    let (server, proxy) = through_proxy();
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::SwallowReply] {
        let client = Client::open(&proxy.url()).unwrap();
        let lock = kept(&client, ms(3000));
        let asked = Instant::now();
        lock.lock().unwrap();
        let lost = proxy.add(Rule::any(fault).when(is_script).next(1));
        lock.unlock().unwrap();
        lost.wait_fired(SOON);
        proxy.clear_rules();
        ends_after(&server, ms(3000), asked);
        assert_eq!(client.stats().unknown, 0);
    }
}

/// An unlock without an answer leaves the lock to the background, which comes as soon as the server
/// is back, and must not free it then.
#[test]
fn an_unlock_without_an_answer_keeps_it() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = kept(&client, PATIENCE * 8);
    let asked = Instant::now();
    lock.lock().unwrap();
    // Nothing that the unlock sends arrives, not even later.
    let lost = proxy.add(Rule::any(Fault::CutBefore).when(is_script));
    assert!(error(lock.unlock()).is_unknown());
    assert!(pttl(&server, "x") > 20_000, "nobody could ask the server yet");
    lost.remove();
    ends_after(&server, PATIENCE * 8, asked);
}

/// 1. The first attempt to lock has no answer; the second gets the lock.
/// 2. The program unlocks.
/// 3. A copy of the first attempt may still arrive, so the background withdraws its token for 10 s,
///    which is that of the lease.
#[test]
fn a_token_that_is_withdrawn_for_a_lost_attempt_keeps_it() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = kept(&client, ms(2500));
    let lost = proxy.add(Rule::on("SET", Fault::SwallowReply).next(1));
    let asked = Instant::now();
    lock.lock().unwrap();
    lost.wait_fired(SOON);
    lock.unlock().unwrap();
    assert!(client.stats().pending_withdrawals > 0, "or this test shows nothing");
    ends_after(&server, ms(2500), asked);
}

/// 1. Renewal has found that the lease is due, and begins to send its extend.
/// 2. The program unlocks.
/// 3. The extend arrives. It must not find a lease that it can make whole again.
#[test]
fn an_extend_that_comes_after_the_unlock_changes_nothing() {
    let server = Server::start();
    for url in [server.url(), "memory://at-least-late".to_owned()] {
        for layout in [Layout::Plain, Layout::Redisson] {
            if layout == Layout::Redisson && url.starts_with("memory") {
                continue;
            }
            let (client, notes) = Notes::of(Client::builder(&url));
            let (go, gone) = mpsc::channel::<()>();
            let gone = Mutex::new(gone);
            notes.before(move |asked| {
                if matches!(asked, Asked::Extend { .. }) {
                    let _ = gone.lock().unwrap().recv_timeout(SOON);
                }
            });
            let options = LockOptions::new().layout(layout).lease(ms(6000)).at_least(ms(4000));
            let lock = client.lock_with("late", options).unwrap();
            let asked = Instant::now();
            lock.lock().unwrap();
            eventually(SOON, || notes.extends() > 0);
            lock.unlock().unwrap();
            drop(go);
            eventually(SOON, || notes.under_way() == 0);
            let rest = lock.inspect().unwrap().holders.pop().and_then(|held| held.remaining);
            assert!(rest.is_none_or(|rest| rest < ms(4000)), "{rest:?} are left");
            eventually(ms(5500), || !lock.is_locked().unwrap());
            assert!(asked.elapsed() >= ms(4000));
        }
    }
}

#[test]
fn a_thread_that_ends_keeps_it() {
    let server = Server::start();
    for url in [server.url(), "memory://at-least-abandoned".to_owned()] {
        let client = Client::open(&url).unwrap();
        let lock = kept(&client, ms(2000));
        let abandoned = lock.clone();
        let asked = Instant::now();
        thread::spawn(move || abandoned.lock().unwrap()).join().unwrap();
        eventually(SOON, || !lock.is_locked().unwrap());
        assert!(asked.elapsed() >= ms(2000), "it was free after {:?}", asked.elapsed());
        assert_eq!(client.stats().abandoned, 1);
    }
}

/// A server without memory refuses commands that may need some, and a lock must be unlocked there.
#[test]
fn a_server_without_memory_keeps_it() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    for layout in [Layout::Plain, Layout::Redisson] {
        let options = LockOptions::new().layout(layout).lease(SOON * 6).at_least(ms(1500));
        let lock = client.lock_with("x", options).unwrap();
        let asked = Instant::now();
        lock.lock().unwrap();
        let maxmemory = |bytes: &str| {
            let mut set = redis::cmd("CONFIG");
            set.arg("SET").arg("maxmemory").arg(bytes).exec(&mut server.connection()).unwrap();
        };
        maxmemory("1");
        lock.unlock().unwrap();
        ends_after(&server, ms(1500), asked);
        maxmemory("0");
    }
}

/// What nobody has had is not kept: an attempt without an answer is withdrawn, and the job has not
/// run.
#[test]
fn a_lock_that_nobody_got_is_free() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("x");
    let lost = proxy.add(Rule::on("SET", Fault::SwallowReply).next(1));
    assert!(error(lock.run_once(SOON * 60, |_| ())).is_unavailable());
    lost.wait_fired(SOON);
    eventually(SOON, || keys(&server).is_empty());

    // 1. The lock is granted. 2. The client is closed. 3. The answer comes.
    let late = proxy.add(Rule::on("SET", Fault::DelayReply(PATIENCE / 2)).next(1));
    let running = Underway::start(move || lock.run_once(SOON * 60, |_| ()));
    late.wait_fired(SOON);
    eventually(SOON, || !keys(&server).is_empty());
    client.close(SOON).unwrap();
    assert!(error(running.result()).is_closed());
    eventually(SOON, || keys(&server).is_empty());
}

#[test]
fn closing_the_client_keeps_it() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let lock = kept(&client, ms(2000));
    let asked = Instant::now();
    lock.lock().unwrap();
    client.close(SOON).unwrap();
    assert!(error(lock.unlock()).is_lost());
    ends_after(&server, ms(2000), asked);
}

/// Scripts of more than one key fail there.
#[test]
fn an_unlock_while_the_slot_moves_keeps_it() {
    let shards = Shards::start(2);
    let open = || Client::cluster(shards.urls()).unwrap();
    let (client, other) = (open(), open());
    let name = shards.name_at(0, "x");
    let lock = client.lock_with(&name, LockOptions::new().lease(SOON * 6).at_least(ms(3000)));
    let (lock, waiting) = (lock.unwrap(), other.lock(&name));
    let asked = Instant::now();
    lock.lock().unwrap();
    let waiter = Underway::start(move || {
        waiting.lock().unwrap();
        Instant::now()
    });
    if shards.have_channels() {
        eventually(SOON, || lock.inspect().unwrap().waiters.len() == 1);
    }
    shards.begin_move(&name, 0, 1);
    lock.unlock().unwrap();
    assert!((1..=3000).contains(&pttl(&shards.primaries[0], &name)));
    let got_it = waiter.result();
    assert!(got_it >= asked + ms(3000), "after {:?}", got_it - asked);
}
