//! A lock counts only once so many replicas have confirmed it (R24).

mod away;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, Layout, LockOptions, Renewal};

use crate::helpers::{SOON, Underway, error, get, ms};
use crate::support::{Fault, Proxy, Rule, Server, eventually, ports, within};

/// A primary and its replicas.
struct Group {
    primary: Server,
    replicas: Vec<Server>,
}

impl Group {
    fn start(replicas: usize) -> Group {
        let builder = || Server::builder().arg("repl-diskless-sync-delay", "0");
        let primary = builder().start();
        let of = format!("127.0.0.1 {}", primary.port());
        let replicas: Vec<_> =
            (0..replicas).map(|_| builder().arg("replicaof", &of).start()).collect();
        primary.wait_for_replicas(replicas.len());
        Group { primary, replicas }
    }

    fn client(&self) -> Client {
        Client::builder(&self.primary.url()).command_timeout(ms(1_000)).build().unwrap()
    }

    /// Whether a replica has the key.
    fn has(&self, replica: usize, key: &str) -> bool {
        get(&self.replicas[replica], key).is_some()
    }
}

fn options() -> LockOptions {
    LockOptions::new().replicas(1)
}

#[test]
fn a_lock_that_is_granted_is_on_the_replicas_that_were_asked_for() {
    let group = Group::start(2);
    let client = group.client();
    for (n, options) in [
        options().replicas(2),
        options().replicas(2).fenced(),
        options().replicas(2).layout(Layout::Redisson),
        options().replicas(2).layout(Layout::Timestamp),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("job{n}");
        let lock = client.lock_with(&name, options).unwrap();
        lock.lock().unwrap();
        for replica in &group.replicas {
            let there: bool =
                redis::cmd("EXISTS").arg(&name).query(&mut replica.connection()).unwrap();
            assert!(there, "{name}");
        }
        lock.unlock().unwrap();
    }
}

#[test]
fn without_enough_replicas_nothing_is_granted_and_nothing_is_left() {
    let group = Group::start(1);
    let client = group.client();
    let lock = client.lock_with("job", options().replicas(2)).unwrap();
    let refused = within(..SOON, || error(lock.try_lock(Duration::ZERO)));
    assert!(refused.is_unavailable() && refused.to_string().contains("of 2 replicas"), "{refused}");
    eventually(SOON, || get(&group.primary, "job").is_none());
    // Others, who ask for less, are granted.
    client.lock_with("job", options()).unwrap().with(|_| ()).unwrap();
}

#[test]
fn a_replica_that_comes_back_ends_the_wait() {
    let group = Group::start(1);
    let client = group.client();
    group.replicas[0].stop_process();
    let lock = client.lock_with("job", options()).unwrap();
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    std::thread::sleep(ms(1_500));
    assert!(!waiting.is_done());
    group.replicas[0].cont();
    waiting.result().unwrap();
}

#[test]
fn a_lock_that_was_handed_over_is_on_the_replica_too() {
    let group = Group::start(1);
    let (client, other) = (group.client(), group.client());
    let first = client.lock_with("job", options()).unwrap();
    first.lock().unwrap();
    let mut at_the_replica = group.replicas[0].connection();
    let next = Underway::start(move || {
        let lock = other.lock_with("job", options().lease(SOON)).unwrap();
        lock.lock().unwrap();
        let left: i64 = redis::cmd("PTTL").arg("job").query(&mut at_the_replica).unwrap();
        lock.unlock().unwrap();
        left
    });
    eventually(SOON, || {
        redis::cmd("EXISTS").arg("{job}:queue").query(&mut group.primary.connection()).unwrap()
    });
    // The release is confirmed by nobody: only what the next holder itself has written counts.
    first.unlock().unwrap();
    // A hand-off alone would have three seconds at most.
    assert!(next.result() > 5_000, "the next holder had it before the replica did");
}

#[test]
fn a_lock_is_not_handed_over_while_the_replica_is_away() {
    let group = Group::start(1);
    let (client, other) = (group.client(), group.client());
    let first = client.lock_with("job", options()).unwrap();
    first.lock().unwrap();
    let next = Underway::start(move || {
        let lock = other.lock_with("job", options()).unwrap();
        lock.lock().and_then(|()| lock.unlock())
    });
    eventually(SOON, || {
        redis::cmd("EXISTS").arg("{job}:queue").query(&mut group.primary.connection()).unwrap()
    });
    group.replicas[0].stop_process();
    first.unlock().unwrap();
    std::thread::sleep(ms(1_500));
    assert!(!next.is_done());
    group.replicas[0].cont();
    next.result().unwrap();
}

#[test]
fn an_extend_that_no_replica_confirms_does_not_count() {
    let group = Group::start(1);
    let lock = group.client().lock_with("job", options().lease(ms(1_500))).unwrap();
    lock.lock().unwrap();
    group.replicas[0].stop_process();
    // Renewal goes on, the primary says yes to it, and nobody else does.
    eventually(SOON, || !lock.is_valid());
    group.replicas[0].cont();
    let _ = lock.unlock();
    let lock = group.client().lock_with("by hand", options().renewal(Renewal::Never)).unwrap();
    lock.lock().unwrap();
    group.replicas[0].stop_process();
    assert!(error(lock.extend(Duration::from_secs(60))).is_unknown());
    group.replicas[0].cont();
    lock.extend(Duration::from_secs(60)).unwrap();
    lock.unlock().unwrap();
}

#[test]
fn a_downgrade_that_no_replica_confirms_does_not_count() {
    let group = Group::start(1);
    let client = group.client();
    let rw = client.rw_lock_with("rw", options()).unwrap();
    let (writing, reading) = (rw.write().unwrap(), rw.read().unwrap());
    group.replicas[0].stop_process();
    let released = writing.release();
    let is_valid = reading.is_valid();
    group.replicas[0].cont();
    assert!(error(released).is_unknown() && !is_valid);
    assert!(error(reading.release()).is_lost());
    // What it left is withdrawn.
    let writing = rw.try_write(SOON).unwrap().unwrap();
    let reading = rw.downgrade(writing).unwrap();
    assert!(reading.is_valid() && rw.readers().unwrap() == 1);
    reading.release().unwrap();
}

#[test]
fn a_lock_that_a_replica_confirmed_survives_the_primary() {
    let group = Group::start(1);
    let lock = group.client().lock_with("job", options()).unwrap();
    lock.lock().unwrap();
    group.primary.kill();
    assert!(group.has(0, "job"));
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut group.replicas[0].connection()).unwrap();
    let other = Client::open(&group.replicas[0].url()).unwrap();
    assert!(!other.lock("job").try_lock(ms(200)).unwrap());
}

#[test]
fn a_server_that_cannot_confirm_its_disk_says_so_at_the_first_call() {
    // Without an append-only file; and before Redis 7.2 without the command.
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let lock = client.lock_with("job", LockOptions::new().fsynced()).unwrap();
    let refused = within(..SOON, || error(lock.lock()));
    assert!(refused.is_unsupported(), "{refused}");
    eventually(SOON, || get(&server, "job").is_none());
}

/// Leads to this port. What comes back takes `slow`, as from a replica that is far away.
fn far_away(port: u16, slow: Arc<AtomicBool>) -> u16 {
    const SLOW: Duration = ms(300);
    let listener = ports::listen();
    let here = listener.local_addr().unwrap().port();
    let pipe = |mut from: TcpStream, mut to: TcpStream, slow: Option<Arc<AtomicBool>>| {
        let (send, sent) = mpsc::channel::<(Instant, Vec<u8>)>();
        thread::spawn(move || {
            for (at, bytes) in sent {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                if to.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                let is_slow = slow.as_ref().is_some_and(|slow| slow.load(Ordering::SeqCst));
                let delay = if is_slow { SLOW } else { Duration::ZERO };
                if send.send((Instant::now() + delay, bytes[..count].to_vec())).is_err() {
                    return;
                }
            }
        });
    };
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
            pipe(near.try_clone().unwrap(), far.try_clone().unwrap(), None);
            pipe(far, near, Some(Arc::clone(&slow)));
        }
    });
    here
}

/// Renewal gives an answer a tenth of a second at first, and the replicas less.
#[test]
fn a_replica_that_becomes_slow_costs_no_lease() {
    let primary = Server::builder().arg("repl-diskless-sync-delay", "0").start();
    let slow = Arc::new(AtomicBool::new(false));
    let of = format!("127.0.0.1 {}", far_away(primary.port(), Arc::clone(&slow)));
    let _replica = Server::builder().arg("replicaof", &of).start();
    primary.wait_for_replicas(1);
    let client = Client::open(&primary.url()).unwrap();
    // Renewal takes the quickest grant for a round trip.
    for _ in 0..20 {
        client.lock_with("quick", options()).unwrap().with(|_| ()).unwrap();
    }
    let lock = client.lock_with("job", options().lease(ms(6_000))).unwrap();
    lock.lock().unwrap();
    slow.store(true, Ordering::SeqCst);
    let since = Instant::now();
    while since.elapsed() < ms(9_000) {
        assert!(lock.is_valid(), "lost after {:?}", since.elapsed());
        thread::sleep(ms(10));
    }
    lock.unlock().unwrap();
}

/// Renewal waits for replicas for longer than an acquisition does.
#[test]
fn what_is_granted_over_a_slow_replica_is_kept() {
    let primary = Server::builder().arg("repl-diskless-sync-delay", "0").start();
    let slow = Arc::new(AtomicBool::new(false));
    let of = format!("127.0.0.1 {}", far_away(primary.port(), Arc::clone(&slow)));
    let _replica = Server::builder().arg("replicaof", &of).start();
    primary.wait_for_replicas(1);
    slow.store(true, Ordering::SeqCst);
    let client = Client::open(&primary.url()).unwrap();
    let granted = [3_000, 12_000].map(|lease| {
        let lock = client.lock_with(&format!("{lease}"), options().lease(ms(lease))).unwrap();
        lock.try_lock(ms(2_000)).is_ok_and(|granted| granted).then_some(lock)
    });
    assert!(granted[1].is_some(), "a lease of 12 s leaves 950 ms for a replica that takes 300");
    let since = Instant::now();
    while since.elapsed() < ms(8_000) {
        for lock in granted.iter().flatten() {
            assert!(lock.is_valid(), "{} was lost after {:?}", lock.name(), since.elapsed());
        }
        thread::sleep(ms(10));
    }
}

#[test]
fn a_quorum_and_memory_have_no_replicas_to_ask() {
    for client in [
        Client::open("memory://").unwrap(),
        Client::redlock(["memory://", "memory://", "memory://"]).unwrap(),
    ] {
        for options in [options(), LockOptions::new().fsynced()] {
            assert!(error(client.lock_with("job", options)).is_unsupported());
        }
    }
}

/// The server has been asked for confirmations before the client has the reply to its command.
#[test]
fn the_question_for_confirmations_is_no_round_trip_of_its_own() {
    let group = Group::start(1);
    let proxy = Proxy::start(group.primary.port());
    let client = Client::open(&proxy.url()).unwrap();
    for (command, options) in [("SET", options()), ("EVALSHA", options().fenced())] {
        let lock = client.lock_with("job", options).unwrap();
        lock.with(|_| ()).unwrap();
        let before = group.primary.command_count("wait");
        let rule = proxy.add(Rule::on(command, Fault::HoldReply).next(1));
        let locking = {
            let lock = lock.clone();
            Underway::start(move || lock.with(|_| ()))
        };
        let held = rule.wait_held(SOON);
        eventually(SOON, || group.primary.command_count("wait") == before + 1);
        assert!(!locking.is_done());
        held.release();
        locking.result().unwrap();
    }
}

#[test]
fn somebody_who_has_not_logged_in_is_denied_at_once() {
    let server = Server::builder().password("secret").start();
    let client = Client::open(&format!("redis://127.0.0.1:{}/", server.port())).unwrap();
    for options in [options(), options().fenced()] {
        let lock = client.lock_with("job", options).unwrap();
        let refused = within(..SOON, || error(lock.lock()));
        assert!(refused.is_denied(), "{refused}");
    }
}
