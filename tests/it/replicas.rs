//! A server that becomes a replica keeps its connections, and is left at once (R22); a replica
//! grants and confirms nothing (R35).
//!
//! The servers are real. Clients reach them through a proxy, as behind a DNS name or a virtual
//! address: new connections go to the new master, old ones stay.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use distlock::testing::{
    Answer, Ask, Bell, End, Extend, InCondition, Key, LeaseStore, Place, StoreError, Token, Within,
};
use distlock::{Client, Layout, Lock, LockOptions, LostReason, Retry};

use crate::faults::{pool_of, through_proxy, warm_up};
use crate::helpers::{SOON, Underway, error, get, ms, pttl, put};
use crate::support::fake::{self, FakeServer, Reply};
use crate::support::{Fault, Proxy, Rule, Server, eventually, listen_anywhere, within};

/// How long after a demotion everything works again: 2 s, and what a machine under load needs.
const RECOVERED: Duration = ms(3500);

/// A master, a replica of it, and the name that clients know.
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

    /// The new server is the master from now on, under the same name. The old one does not even
    /// reach it.
    fn demote(&self) {
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut self.new.connection()).unwrap();
        self.proxy.set_upstream(self.new.port());
        become_a_replica(&self.old, listen_anywhere().local_addr().unwrap().port());
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
    let stats = server.info("errorstats");
    let line = stats.lines().find_map(|line| line.strip_prefix("errorstat_READONLY:count="));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

/// How many inboxes this server knows.
fn inboxes(server: &Server) -> usize {
    let channels: Vec<String> = redis::cmd("PUBSUB")
        .arg("CHANNELS")
        .arg("distlock:inbox:*")
        .query(&mut server.connection())
        .unwrap();
    channels.len()
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
fn a_demoted_server_loses_the_idle_connections_of_the_programs_own_pool_at_its_first_refusal() {
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
fn a_pool_of_the_programs_that_leads_to_a_replica_is_asked_with_pauses() {
    let (server, proxy) = through_proxy();
    let client =
        Client::builder(&proxy.url()).pool(pool_of(&proxy.url(), 4, false)).build().unwrap();
    let lock = client.lock("x");
    lock.lock().unwrap();
    become_a_replica(&server, listen_anywhere().local_addr().unwrap().port());
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
    // Nobody but renewal says a word, until long after the end of the lease as it was.
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
    // It does not ask by itself: only its inbox can know.
    let patient = LockOptions::new().retry(Retry::fixed(SOON));
    let lock = client.lock_with("x", patient).unwrap();
    let waiting = Underway::start(move || lock.with(|_| ()));
    eventually(SOON, || inboxes(&pair.old) == 1);
    pair.replicated("x");
    pair.demote();
    within(..RECOVERED, || eventually(SOON * 2, || inboxes(&pair.new) == 1));
    // Whoever releases it hands it on.
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
    let before = Instant::now();
    let waiting = Underway::start(move || {
        let guard = lock.guard().unwrap();
        lock.new_condition("c").unwrap().wait().unwrap();
        guard.release()
    });
    eventually(SOON, || inboxes(&pair.old) == 1 && get(&pair.old, "x").is_none());
    let line = || {
        redis::cmd("EXISTS")
            .arg("{x}:condition:c:queue")
            .query::<bool>(&mut pair.new.connection())
            .unwrap()
    };
    eventually(SOON, line);
    pair.demote();
    // It gives a sign of life 4 to 6 s after it began to wait, and would find out then at the
    // latest.
    within(..ms(3900).saturating_sub(before.elapsed()), || {
        let other = pair.client().lock("x");
        other.with(|_| other.new_condition("c").unwrap().notify_all().unwrap()).unwrap();
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
fn commands_of_the_callers_own_run_again_at_the_new_master() {
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
        become_a_replica(here, listen_anywhere().local_addr().unwrap().port());
        call("after").unwrap();
        assert_eq!(get(there, "after").as_deref(), Some("1"));
        redis::cmd("DEL").arg("after").exec(&mut there.connection()).unwrap();
        (here, there) = (there, here);
    }
}

#[test]
fn a_replica_is_found_out_at_log_in_and_told_nothing_else() {
    let (server, proxy) = through_proxy();
    become_a_replica(&server, listen_anywhere().local_addr().unwrap().port());
    let client = Client::open(&proxy.url()).unwrap();
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
fn whoever_is_not_told_the_role_only_goes_without_the_look_at_log_in() {
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
        become_a_replica(&server, listen_anywhere().local_addr().unwrap().port());
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

/// Redis 6.2 wraps what a command inside a script is refused with.
#[test]
fn a_refusal_inside_a_script_is_known_in_its_old_form() {
    let wrapped = "ERR Error running script (call to f_1f): @user_script:9: @user_script: 9: \
                   -READONLY You can't write against a read only replica. ";
    let server = FakeServer::start(move |connection, command| match connection {
        0 if fake::is(command, "EVALSHA") => Reply::error(wrapped),
        _ if fake::is(command, "ECHO") => Reply::bulk(&command[1]),
        _ if fake::is(command, "EVALSHA") => {
            Reply::array(&[Reply::int(1), Reply::int(0), Reply::int(0)])
        }
        _ => Reply::usual(command),
    });
    let client = Client::builder(&server.url()).build().unwrap();
    client.ping().unwrap();
    let store = client.store(Layout::Plain).unwrap();
    let answer = acquire(&*store, &key(), &Token::new("t"), ms(1000));
    assert!(matches!(answer, Ok(Answer::Granted { .. })), "{answer:?}");
    assert_eq!(server.accepted(), 2);
}

fn key() -> Key {
    Key::new("x".to_owned())
}

fn deadline() -> Instant {
    Instant::now() + SOON
}

fn acquire(
    store: &dyn LeaseStore,
    key: &Key,
    token: &Token,
    lease: Duration,
) -> Result<Answer, StoreError> {
    let ask = Ask {
        key,
        token,
        attempt: 2,
        lease,
        fences: 0,
        place: None,
        contended: true,
        may_be_mine: true,
        deadline: deadline(),
    };
    store.try_acquire(&ask)
}

/// A waiter's place in the queue that nobody needs here.
struct Nowhere;

impl Place for Nowhere {
    fn listen(&self) -> Option<&str> {
        Some("distlock:inbox:nobody")
    }

    fn alive_for(&self) -> Duration {
        SOON
    }

    fn first_lease(&self) -> Duration {
        ms(3000)
    }
}

/// What is asked of a store that must not say "yours" without having written it.
type Question = fn(&dyn LeaseStore, &Key, &Token) -> Result<bool, StoreError>;

const SHORTER: Duration = ms(10_000);

fn acquire_again(store: &dyn LeaseStore, key: &Key, token: &Token) -> Result<bool, StoreError> {
    acquire(store, key, token, SHORTER).map(|answer| matches!(answer, Answer::Granted { .. }))
}

fn extend(store: &dyn LeaseStore, key: &Key, token: &Token) -> Result<bool, StoreError> {
    let lease = Extend { key, token, lease: SHORTER, settles: false };
    store.extend(&[lease], Within::until(deadline())).remove(0)
}

fn move_end(store: &dyn LeaseStore, key: &Key, token: &Token) -> Result<bool, StoreError> {
    store.move_end(
        &Extend { key, token, lease: SHORTER, settles: false },
        End::NotBefore,
        deadline(),
    )
}

fn wait_in(store: &dyn LeaseStore, key: &Key, token: &Token) -> Result<bool, StoreError> {
    let place: Option<&dyn Place> = Some(&Nowhere);
    let ask = Ask {
        key,
        token,
        attempt: 2,
        lease: SHORTER,
        fences: 0,
        place,
        contended: true,
        may_be_mine: true,
        deadline: deadline(),
    };
    store
        .wait_in(&ask, "c", None, false)
        .map(|answer| matches!(answer, InCondition::Granted { .. }))
}

/// As somebody with a Sentinel's list of addresses may write it.
#[test]
fn a_master_and_its_replicas_are_no_quorum() {
    let master = Server::start();
    let replica = || {
        Server::builder()
            .arg("repl-diskless-sync-delay", "0")
            .arg("replicaof", &format!("127.0.0.1 {}", master.port()))
            .start()
    };
    let replicas = [replica(), replica()];
    replicas.iter().for_each(|replica| {
        eventually(SOON * 2, || replica.info("replication").contains("master_link_status:up"))
    });
    let client = Client::redlock([master.url(), replicas[0].url(), replicas[1].url()]).unwrap();
    for n in 0..20 {
        assert!(error(client.lock(&format!("x{n}")).try_lock(ms(100))).is_unavailable());
    }
}

/// 1. our attempt is granted by the master, and its answer lost;
/// 2. the master becomes a replica, and its successor may know nothing of the grant;
/// 3. we ask again, for no more than is left: the old server sees our token, and would have nothing
///    to write.
#[test]
fn a_replica_confirms_nothing_over_a_connection_from_before() {
    for layout in [Layout::Plain, Layout::Redisson, Layout::Timestamp] {
        let server = Server::start();
        let mut questions: Vec<Question> = vec![acquire_again, extend, move_end];
        if layout == Layout::Plain {
            questions.push(wait_in);
        }
        // Each with a client of its own: a refusal costs all connections of one.
        let asking: Vec<_> = questions
            .iter()
            .enumerate()
            .map(|(n, question)| {
                let client = Client::open(&server.url()).unwrap();
                let store: Arc<dyn LeaseStore> = client.store(layout).unwrap();
                let (key, token) = (Key::new(format!("x{n}")), Token::new("t"));
                assert!(matches!(
                    acquire(&*store, &key, &token, SHORTER * 2),
                    Ok(Answer::Granted { .. })
                ));
                // As the master it says so, and the end does not move.
                assert!(question(&*store, &key, &token).unwrap(), "{layout:?} {n}");
                assert!(pttl(&server, key.as_str()) > 15_000, "{layout:?} {n}");
                (client, store, key, token, question)
            })
            .collect();
        // One that logs in later would find out before the question, and close its connections.
        let hear = if layout == Layout::Plain { 1 } else { 0 };
        eventually(SOON, || inboxes(&server) == hear);
        become_a_replica(&server, listen_anywhere().local_addr().unwrap().port());
        for (n, (_client, store, key, token, question)) in asking.iter().enumerate() {
            let before = refusals(&server);
            let answer = question(&**store, key, token);
            assert!(
                answer.as_ref().is_err_and(|error| !error.permanent && !error.may_have_run),
                "{layout:?} {n}: {answer:?}"
            );
            assert!(refusals(&server) > before, "{layout:?} {n}: not even asked");
        }
    }
}

#[test]
fn a_connection_has_its_own_time_to_open_before_an_extend() {
    let server = Server::builder().password("secret").start();
    let near = Client::open(&server.url()).unwrap();
    let (key, token) = (key(), Token::new("t"));
    let store = near.store(Layout::Plain).unwrap();
    assert!(matches!(acquire(&*store, &key, &token, SHORTER), Ok(Answer::Granted { .. })));
    // Has the server know the script.
    assert!(extend(&*store, &key, &token).unwrap());
    let proxy = Proxy::start(server.port());
    proxy.set_delay(ms(30), ms(30));
    let far =
        Client::open(&proxy.url_with("default", "secret")).unwrap().store(Layout::Plain).unwrap();
    // A sixth of a lease of 1 s, and a third of it. Logging in takes two round trips.
    let within = Within { reply: ms(166), connect_by: Instant::now() + ms(330) };
    let lease = Extend { key: &key, token: &token, lease: SHORTER, settles: false };
    assert!(far.extend(&[lease], within).remove(0).unwrap());
}

#[test]
fn close_does_not_wait_for_an_extend_and_its_connection_ends_with_it() {
    let (_server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let store = client.store(Layout::Plain).unwrap();
    let held = proxy.add(Rule::on("EVALSHA", Fault::HoldReply).next(1));
    let extending = Underway::start(move || extend(&*store, &key(), &Token::new("t")));
    let reply = held.wait_held(SOON);
    within(..ms(2000), || client.close(ms(100))).unwrap();
    assert!(!extending.is_done());
    reply.release();
    assert!(!extending.result().unwrap());
    eventually(SOON, || proxy.open() == 0);
}

#[test]
fn a_bell_rings_when_the_inbox_has_moved() {
    let pair = Pair::start();
    let client = pair.client();
    let store = client.store(Layout::Plain).unwrap();
    let (bell, token) = (Bell::new(), Token::new("t"));
    let _listening = store.listen(&key(), &token, &bell).unwrap();
    eventually(SOON, || inboxes(&pair.old) == 1);
    client.ping().unwrap();
    pair.demote();
    within(..RECOVERED, || eventually(SOON * 2, || inboxes(&pair.new) == 1));
}
