//! A server that becomes a replica keeps its connections, but clients leave it at once (R22). A
//! replica grants and confirms nothing (R35).
//!
//! The servers are real. Clients reach them through a proxy, as behind a DNS name or a virtual
//! address: new connections go to the new master, old ones stay.

mod stores;

use std::sync::mpsc;
use std::time::Duration;

use distlock::{Client, LockOptions, LostReason};

use crate::faults::{pool_of, through_proxy, warm_up};
use crate::helpers::{SOON, Underway, error, get, inboxes, ms, pttl, put};
use crate::support::{Fault, Proxy, Rule, Server, eventually, ports, within};

/// How long after a demotion everything works again: 2 s, and what a machine under load needs.
const RECOVERED: Duration = ms(3500);

/// A master, its replica, and the address that clients know.
struct Pair {
    old: Server,
    new: Server,
    proxy: Proxy,
}

impl Pair {
    fn start() -> Pair {
        let builder = || Server::builder().arg("repl-diskless-sync-delay", "0");
        let old = builder().start();
        let new = builder().arg("replicaof", &format!("127.0.0.1 {}", old.port())).start();
        eventually(SOON * 2, || new.info("replication").contains("master_link_status:up"));
        let proxy = Proxy::start(old.port());
        Pair { old, new, proxy }
    }

    /// Waits until the replica has all that the master has.
    fn replicated(&self, key: &str) {
        eventually(SOON, || get(&self.new, key) == get(&self.old, key));
    }

    /// The new server is the master from now on, under the same name. The old one cannot even
    /// connect to it.
    fn demote(&self) {
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut self.new.connection()).unwrap();
        self.proxy.set_upstream(self.new.port());
        become_a_replica(&self.old, ports::refused());
    }

    fn client(&self) -> Client {
        Client::open(&self.proxy.url()).unwrap()
    }
}

fn become_a_replica(server: &Server, master: u16) {
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(master).exec(&mut server.connection()).unwrap();
}

/// How often this server has refused to write because it is a replica.
fn refusals(server: &Server) -> u64 {
    errors_that_begin(server, "READONLY:")
}

/// How many errors that begin so the server has given.
fn errors_that_begin(server: &Server, word: &str) -> u64 {
    let stats = server.info("errorstats");
    let errors = stats.lines().filter_map(|line| line.strip_prefix("errorstat_")?.split_once('='));
    let counts = errors.filter(|(error, _)| error.starts_with(word)).map(|(_, count)| count);
    counts.map(|count| count.trim().parse::<u64>().unwrap()).sum()
}

/// Many threads lock at the same time, so that every connection of a pool is in use; none of them
/// notices anything.
fn all_lock_at_once(client: &Client, threads: usize) {
    std::thread::scope(|scope| {
        for n in 0..threads {
            scope.spawn(move || {
                let lock = client.lock(&format!("own{n}"));
                assert!(lock.try_lock(Duration::ZERO).unwrap());
                lock.unlock().unwrap();
            });
        }
    });
}

#[test]
fn a_demoted_server_loses_every_pooled_connection_at_its_first_refusal() {
    let pair = Pair::start();
    let client = pair.client();
    warm_up(&client, 8);
    pair.demote();
    let lock = client.lock("x");
    assert!(
        within(..RECOVERED, || lock.try_lock(Duration::ZERO)).unwrap(),
        "nothing was carried out: asked at once over a new connection"
    );
    all_lock_at_once(&client, 8);
    lock.unlock().unwrap();
    assert_eq!(refusals(&pair.old), 1);
}

#[test]
fn a_demoted_server_loses_the_programs_own_idle_connections_at_its_first_refusal() {
    let pair = Pair::start();
    let client = Client::builder(&pair.proxy.url())
        .pool(pool_of(&pair.proxy.url(), 6, false))
        .build()
        .unwrap();
    warm_up(&client, 6);
    pair.demote();
    let lock = client.lock("x");
    within(..RECOVERED, || lock.lock()).unwrap();
    all_lock_at_once(&client, 6);
    lock.unlock().unwrap();
    assert_eq!(refusals(&pair.old), 1);
}

#[test]
fn the_programs_own_pool_is_asked_with_pauses_while_it_leads_to_a_replica() {
    let (server, proxy) = through_proxy();
    let client =
        Client::builder(&proxy.url()).pool(pool_of(&proxy.url(), 4, false)).build().unwrap();
    let lock = client.lock("x");
    lock.lock().unwrap();
    become_a_replica(&server, ports::refused());
    assert!(error(lock.unlock()).is_unknown());
    // Within one command timeout of 2 s.
    assert!(refusals(&server) < 60, "{}", refusals(&server));
}

#[test]
fn a_renewed_lease_survives_the_demotion_of_its_server() {
    let pair = Pair::start();
    let client = pair.client();
    let lock = client.lock_with("x", LockOptions::new().lease(ms(3000))).unwrap();
    lock.lock().unwrap();
    // Renewal has its connection.
    std::thread::sleep(ms(1400));
    pair.replicated("x");
    pair.demote();
    // Only renewal sends commands, until long after the original end of the lease.
    std::thread::sleep(ms(4500));
    assert!(lock.is_valid());
    assert!(pttl(&pair.new, "x") > 500);
    lock.unlock().unwrap();
    assert_eq!(get(&pair.new, "x"), None);
}

#[test]
fn an_inbox_leaves_a_demoted_server_and_its_waiter_is_let_in() {
    let pair = Pair::start();
    put(&pair.old, "x", "somebody's", SOON * 6);
    let client = pair.client();
    let lock = client.lock("x");
    let waiting = Underway::start(move || lock.with(|_| ()));
    eventually(SOON, || inboxes(&pair.old) == 1);
    pair.replicated("x");
    pair.demote();
    // The waiter's next question, after 1.5 s at the latest, is refused by the replica.
    eventually(SOON, || inboxes(&pair.new) == 1);
    // The release hands the lock on.
    within(..ms(2000), || {
        assert!(Client::open(&pair.new.url()).unwrap().lock("x").force_unlock().unwrap());
        waiting.result().unwrap();
    });
}

#[test]
fn a_waiter_in_a_condition_is_notified_at_the_new_master() {
    let pair = Pair::start();
    let client = pair.client();
    let lock = client.lock("x");
    let in_line = || {
        redis::cmd("EXISTS")
            .arg("{x}:conditions")
            .query::<bool>(&mut pair.new.connection())
            .unwrap()
    };
    let wait = || {
        let lock = lock.clone();
        let waiting = Underway::start(move || {
            let guard = lock.guard().unwrap();
            lock.new_condition("c").unwrap().wait().unwrap();
            guard.release()
        });
        eventually(SOON, || inboxes(&pair.old) == 1 && in_line());
        waiting
    };
    let notify = || {
        let other = pair.client().lock("x");
        other.with(|_| other.new_condition("c").unwrap().notify_all().unwrap()).unwrap();
    };
    // When its subscription stands, a waiter asks once more. That must not be the second wait's.
    let first = wait();
    notify();
    first.result().unwrap();
    eventually(SOON, || !in_line());
    let waiting = wait();
    pair.demote();
    // It notices the failover by its next sign of life, 4 to 6 s after it began to wait.
    within(..SOON, || {
        notify();
        waiting.result().unwrap();
    });
}

#[test]
fn a_failover_disturbs_nobody() {
    let pair = Pair::start();
    let client = pair.client();
    let held = client.lock_with("held", LockOptions::new().lease(ms(3000))).unwrap();
    let (tell, lost) = mpsc::channel::<LostReason>();
    held.on_lost(move |loss| tell.send(loss.reason()).unwrap());
    held.lock().unwrap();
    put(&pair.old, "x", "somebody's", SOON * 6);
    let lock = client.lock("x");
    let waiting = Underway::start(move || lock.with(|_| ()));
    eventually(SOON, || inboxes(&pair.old) == 1);
    let mut failover = redis::cmd("FAILOVER");
    failover.arg("TO").arg("127.0.0.1").arg(pair.new.port());
    // The master refuses until it has seen the replica acknowledge something.
    eventually(SOON, || failover.exec(&mut pair.old.connection()).is_ok());
    eventually(SOON, || pair.new.info("replication").contains("role:master"));
    pair.proxy.set_upstream(pair.new.port());
    within(..RECOVERED, || {
        client.lock("another").with(|_| ()).unwrap();
        eventually(SOON, || inboxes(&pair.new) == 1);
    });
    assert!(Client::open(&pair.new.url()).unwrap().lock("x").force_unlock().unwrap());
    waiting.result().unwrap();
    std::thread::sleep(ms(3200));
    assert!(held.is_valid() && lost.try_recv().is_err());
    held.unlock().unwrap();
}

/// A way to set a key.
type Call<'a> = &'a dyn Fn(&str) -> distlock::Result<()>;

#[test]
fn the_callers_own_commands_run_again_at_the_new_master() {
    let pair = Pair::start();
    let client = pair.client();
    let set =
        |key: &str| client.execute(|connection| redis::cmd("SET").arg(key).arg(1).exec(connection));
    let in_a_pipe = |key: &str| {
        client.execute(|connection| redis::pipe().cmd("SET").arg(key).arg(1).exec(connection))
    };
    let at_one_stroke = |key: &str| {
        client.execute(|connection| {
            redis::pipe().atomic().cmd("SET").arg(key).arg(1).exec(connection)
        })
    };
    let calls: [Call<'_>; 3] = [&set, &in_a_pipe, &at_one_stroke];
    let (mut here, mut there) = (&pair.old, &pair.new);
    for call in calls {
        call("before").unwrap();
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut there.connection()).unwrap();
        pair.proxy.set_upstream(there.port());
        become_a_replica(here, ports::refused());
        call("after").unwrap();
        assert_eq!(get(there, "after").as_deref(), Some("1"));
        redis::cmd("DEL").arg("after").exec(&mut there.connection()).unwrap();
        (here, there) = (there, here);
    }
}

#[test]
fn a_replica_is_recognised_at_log_in_and_sent_nothing_else() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    client.ping().unwrap();
    become_a_replica(&server, ports::refused());
    proxy.cut_all();
    let refused = error(client.lock("x").try_lock(Duration::ZERO));
    assert!(refused.is_unavailable() && refused.to_string().contains("replica"), "{refused}");
    assert_eq!(refusals(&server), 0);
    let lock = client.lock("x");
    let waiting = Underway::start(move || lock.with(|_| ()));
    std::thread::sleep(ms(500));
    assert!(!waiting.is_done());
    assert!(proxy.accepted() < 12, "with pauses: {}", proxy.accepted());
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut server.connection()).unwrap();
    within(..RECOVERED, || waiting.result()).unwrap();
}

#[test]
fn a_client_that_is_not_told_the_role_only_skips_the_check_at_log_in() {
    let (server, proxy) = through_proxy();
    redis::cmd("ACL")
        .arg(&["SETUSER", "u", "on", ">pw", "~*", "&*", "+@all", "-role"])
        .exec(&mut server.connection())
        .unwrap();
    let unknown =
        proxy.add(Rule::on("ROLE", Fault::Answer(b"-ERR unknown command 'ROLE'\r\n".to_vec())));
    for url in [server.url_with("u", "pw"), proxy.url()] {
        let client = Client::open(&url).unwrap();
        let lock = client.lock("x");
        lock.with(|_| ()).unwrap();
        become_a_replica(&server, ports::refused());
        let before = refusals(&server);
        let refused = error(lock.try_lock(Duration::ZERO));
        assert!(refused.is_unavailable() && refused.to_string().contains("replica"), "{refused}");
        assert!(refusals(&server) > before);
        let waiting = Underway::start(move || lock.with(|_| ()));
        std::thread::sleep(ms(300));
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut server.connection()).unwrap();
        within(..RECOVERED, || waiting.result()).unwrap();
    }
    assert!(unknown.fired() > 0);
}

/// As somebody might write it with a Sentinel's list of addresses.
#[test]
fn a_master_and_its_replicas_are_no_quorum() {
    let master = Server::builder().arg("repl-diskless-sync-delay", "0").start();
    let of = format!("127.0.0.1 {}", master.port());
    let replica = || Server::builder().arg("replicaof", &of).start();
    let replicas = [replica(), replica()];
    replicas.iter().for_each(|replica| {
        eventually(SOON * 2, || replica.info("replication").contains("master_link_status:up"))
    });
    let client = Client::redlock([master.url(), replicas[0].url(), replicas[1].url()]).unwrap();
    for n in 0..20 {
        assert!(error(client.lock(&format!("x{n}")).try_lock(ms(100))).is_unavailable());
    }
}
