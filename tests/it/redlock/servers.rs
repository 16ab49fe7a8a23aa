//! Redlock over real servers.

use std::error::Error as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, LockOptions};
use redis::{Commands, SetExpiry, SetOptions};

use crate::helpers::pttl;
use crate::support::{Proxy, Server, eventually, on_time, within};

const SOON: Duration = Duration::from_secs(10);

fn servers() -> Vec<Server> {
    (0..5).map(|_| Server::start()).collect()
}

fn client(servers: &[Server]) -> Client {
    Client::redlock(servers.iter().map(Server::url)).unwrap()
}

fn holder(server: &Server, key: &str) -> Option<String> {
    server.connection().get(key).unwrap()
}

#[test]
fn a_lock_whose_token_is_no_text_can_be_released_by_force() {
    let servers = servers();
    // As redlock-rs writes it: 20 random bytes.
    let token: Vec<u8> = (0..20).map(|i| 0x80 | i).collect();
    for client in [client(&servers), Client::open(&servers[0].url()).unwrap()] {
        for server in &servers {
            server.connection().set_options::<_, _, ()>("x", &token, lease()).unwrap();
        }
        let lock = client.lock("x");
        assert!(!lock.try_lock(Duration::ZERO).unwrap());
        assert!(lock.is_locked().unwrap());
        assert!(lock.force_unlock().unwrap());
        assert!(!lock.is_locked().unwrap());
        servers.iter().for_each(|server| server.connection().del("x").unwrap());
    }
}

fn lease() -> SetOptions {
    SetOptions::default().with_expiration(SetExpiry::PX(60_000))
}

#[test]
fn a_frozen_server_costs_nothing_from_the_first_call_on() {
    let servers = servers();
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(server.port())).collect();
    let half = Duration::from_millis(100);
    proxies.iter().for_each(|proxy| proxy.set_delay(half, half));
    servers[0].stop_process();
    let mut attempts = 0;
    on_time(half / 2, || {
        attempts += 1;
        let client = Client::redlock(proxies.iter().map(Proxy::url)).unwrap();
        // An attempt that does not count may leave its lock behind.
        let lock = client.lock(&format!("{attempts}"));
        // One round trip of 200 ms, however many other nodes there are. Asked in turn, the nodes
        // would take four, and the frozen one 2 s. The first call takes one more, which
        // tests the new connection.
        within(half * 2..half * 12, || lock.lock().unwrap());
        within(half * 2..half * 8, || lock.unlock().unwrap());
        for _ in 0..3 {
            within(half * 2..half * 6, || lock.lock().unwrap());
            within(half * 2..half * 6, || lock.unlock().unwrap());
        }
    });
    servers[0].cont();
    let name = attempts.to_string();
    eventually(SOON, || servers.iter().all(|server| holder(server, &name).is_none()));
}

#[test]
fn two_dead_servers_grant_and_three_do_not() {
    let servers = servers();
    // The nodes have a fifth of the default lease to answer, which is 6 s.
    let builder = Client::redlock_builder(servers.iter().map(Server::url));
    let client = builder.command_timeout(SOON * 2).build().unwrap();
    let lock = client.lock("a");
    lock.lock().unwrap();
    servers[1].kill();
    servers[3].kill();
    lock.unlock().unwrap();
    within(..Duration::from_secs(3), || lock.lock().unwrap());
    assert!([0, 2, 4].iter().all(|node| holder(&servers[*node], "a").is_some()));
    lock.unlock().unwrap();
    client.ping().unwrap();
    servers[4].kill();
    assert!(client.ping().unwrap_err().is_unavailable());
    let error = within(..Duration::from_secs(3), || lock.try_lock(Duration::ZERO)).unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let causes = error.source().unwrap().to_string();
    assert!(causes.contains("node 2: ") && causes.contains("node 5: "), "{causes}");
    eventually(SOON, || [0, 2].iter().all(|node| holder(&servers[*node], "a").is_none()));
    servers[1].restart();
    within(..SOON, || lock.lock().unwrap());
    lock.unlock().unwrap();
}

#[test]
fn closing_closes_every_connection() {
    let servers = servers();
    let client = client(&servers);
    let lock = client.lock_with("a", LockOptions::new().lease(Duration::from_secs(2))).unwrap();
    lock.lock().unwrap();
    // One for questions, and one for renewal.
    eventually(SOON, || servers.iter().all(|server| server.client_count() == 2));
    client.close(SOON).unwrap();
    eventually(SOON, || servers.iter().all(|server| server.client_count() == 0));
    assert!(servers.iter().all(|server| holder(server, "a").is_none()));
}

#[test]
fn lock_waits_through_an_outage_of_the_majority() {
    let servers = servers();
    let client = client(&servers);
    let lock = client.lock("a");
    lock.lock().unwrap();
    lock.unlock().unwrap();
    servers[..3].iter().for_each(Server::stop_process);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().map(|()| lock.unlock()));
        thread::sleep(Duration::from_millis(500));
        assert!(!waiter.is_finished());
        let back = Instant::now();
        servers[..3].iter().for_each(Server::cont);
        waiter.join().unwrap().unwrap().unwrap();
        assert!(back.elapsed() < Duration::from_secs(5), "{:?}", back.elapsed());
    });
    // This includes commands that the frozen servers carry out only now, when nobody waits for
    // them.
    eventually(SOON, || servers.iter().all(|server| holder(server, "a").is_none()));
}

#[test]
fn a_restart_of_every_server_in_turn_is_not_noticed() {
    let servers: Vec<Server> = (0..5).map(|_| Server::builder().append_only().start()).collect();
    let client = client(&servers);
    let lock = client.lock_with("a", LockOptions::new().lease(Duration::from_secs(3))).unwrap();
    lock.lock().unwrap();
    for server in &servers {
        server.restart();
        // Until renewal has reached the restarted server, too: the promise does not cover two
        // servers down at once together with a node that missed the lock.
        let mut before = pttl(server, "a");
        eventually(SOON, || {
            assert!(lock.is_valid());
            let left = pttl(server, "a");
            left > std::mem::replace(&mut before, left)
        });
    }
    lock.unlock().unwrap();
}

#[test]
fn processes_exclude_each_other_and_all_make_progress() {
    let servers = servers();
    let counter = servers[0].url();
    let (holds, since) = (AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        for _ in 0..5 {
            let builder = Client::redlock_builder(servers.iter().map(Server::url));
            let client = builder.command_timeout(SOON).build().unwrap();
            for _ in 0..4 {
                let (client, counter, holds) = (client.clone(), &counter, &holds);
                scope.spawn(move || {
                    let mut connection =
                        redis::Client::open(counter.as_str()).unwrap().get_connection().unwrap();
                    let lock = client.lock("a");
                    for _ in 0..10 {
                        let guard = lock.guard().unwrap();
                        let count: Option<u64> = connection.get("count").unwrap();
                        let () = connection.set("count", count.unwrap_or(0) + 1).unwrap();
                        assert!(guard.is_valid());
                        guard.release().unwrap();
                        holds.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        }
    });
    let count: u64 = servers[0].connection().get("count").unwrap();
    assert_eq!((count, holds.load(Ordering::SeqCst)), (200, 200));
    assert!(since.elapsed() < Duration::from_secs(60), "took {:?}", since.elapsed());
}

/// The token that the server has under the first name is a refusal under the second.
#[test]
fn a_server_under_two_names_gives_no_attempt_two_votes() {
    let (twice, other) = (Server::start(), Server::start());
    let urls = [other.url(), twice.url(), format!("redis://localhost:{}/", twice.port())];
    let client = Client::redlock(&urls).unwrap();
    let lock = client.lock_with("a", LockOptions::new().lease(Duration::from_secs(2))).unwrap();
    lock.lock().unwrap();
    assert!(holder(&twice, "a").is_some() && holder(&other, "a").is_some());
    // Renewal finds the lease under both names.
    let mut before = pttl(&twice, "a");
    for _ in 0..3 {
        eventually(SOON, || {
            let left = pttl(&twice, "a");
            left > std::mem::replace(&mut before, left)
        });
    }
    assert!(lock.is_valid());
    lock.unlock().unwrap();
    other.kill();
    for _ in 0..5 {
        assert!(!lock.try_lock(Duration::ZERO).is_ok_and(|locked| locked));
    }
    eventually(SOON, || holder(&twice, "a").is_none());
}

#[test]
fn after_every_idle_connection_was_closed_the_next_call_succeeds() {
    let servers = servers();
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(server.port())).collect();
    let client = Client::redlock(proxies.iter().map(Proxy::url)).unwrap();
    let lock = client.lock("a");
    let cut = || {
        // A majority may have answered without the others.
        eventually(SOON, || proxies.iter().all(|proxy| proxy.open() > 0));
        proxies.iter().for_each(|proxy| _ = proxy.cut_all());
    };
    let held = |count| {
        let holders = || servers.iter().filter_map(|server| holder(server, "a")).count();
        eventually(SOON, || holders() == count);
    };
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    held(5);
    cut();
    lock.extend(Duration::from_secs(60)).unwrap();
    cut();
    lock.unlock().unwrap();
    held(0);
    cut();
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    lock.unlock().unwrap();
    held(0);
}

#[test]
fn replicas_have_no_vote() {
    let primary = Server::builder().arg("repl-diskless-sync-delay", "0").start();
    let replica =
        || Server::builder().arg("replicaof", &format!("127.0.0.1 {}", primary.port())).start();
    let replicas = [replica(), replica()];
    eventually(SOON, || {
        replicas.iter().all(|replica| replica.info("replication").contains("master_link_status:up"))
    });
    let client = Client::redlock([primary.url(), replicas[0].url(), replicas[1].url()]).unwrap();
    // Each asks several times, like every client that sees contention. By then its token may have
    // reached the replicas.
    let granted = || {
        thread::scope(|scope| {
            let one = |i| {
                let client = &client;
                scope.spawn(move || {
                    client
                        .lock(&format!("{i}"))
                        .try_lock(Duration::from_millis(700))
                        .is_ok_and(|locked| locked)
                })
            };
            let trying: Vec<_> = (0..40).map(one).collect();
            trying
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .filter(|granted| *granted)
                .count()
        })
    };
    assert_eq!(granted(), 0);
    replicas[1].kill();
    assert_eq!(granted(), 0);
}

#[test]
fn contenders_keep_their_connections() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let connections = || servers.iter().map(connections_of).sum::<u64>();
    let clients: Vec<_> =
        (0..4).map(|_| Client::redlock(servers.iter().map(Server::url)).unwrap()).collect();
    let contend = || {
        thread::scope(|scope| {
            for client in &clients {
                scope.spawn(move || (0..10).for_each(|_| client.lock("job").with(|_| ()).unwrap()));
            }
        });
    };
    contend();
    let before = connections();
    contend();
    assert_eq!(connections() - before, 0, "connections were opened again");
}

/// How often somebody has logged in to it.
fn connections_of(server: &Server) -> u64 {
    server.command_count("role")
}
