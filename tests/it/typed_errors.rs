//! What cannot heal fails at once and says what it is; what can is waited for; foreign data is left
//! alone (R19); nonsense is refused at the border (R18).

use std::time::{Duration, Instant};

use distlock::{Client, Error, ErrorKind, Interrupt, Layout, Lock, LockOptions, Renewal, Retry};
use proptest::prelude::*;

use crate::faults::{PATIENCE, impatient, nothing_is_left};
use crate::helpers::{Elsewhere, SOON, Underway, delete, error, get, keys, ms, put};
use crate::support::fake::{self, FakeServer, Reply};
use crate::support::{Server, eventually, within};

/// Every way to ask for a lock, each of which must fail at once although it may wait.
fn all_fail(client: &Client, name: &str) -> Vec<Error> {
    let lock = client.lock(name);
    let fenced = client.lock_with(name, LockOptions::new().fenced()).unwrap();
    within(..SOON, || {
        vec![
            error(lock.lock()),
            error(lock.try_lock(Duration::ZERO)),
            error(lock.try_lock(SOON * 6)),
            error(fenced.try_lock(Duration::MAX)),
            error(lock.lock_interruptibly(&Interrupt::new())),
            error(lock.guard().map(drop)),
            error(lock.with(|_| ())),
            error(lock.inspect().map(drop)),
            error(lock.is_locked()),
        ]
    })
}

#[track_caller]
fn all_are(errors: Vec<Error>, kind: ErrorKind) {
    for error in errors {
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.lock_name().is_some(), "{error:?}");
    }
}

#[test]
fn wrong_password_is_denied_at_once() {
    let server = Server::builder().password("right").start();
    for url in [
        server.url_with("default", "wrong"),
        server.url_with("nobody", "right"),
        format!("redis://127.0.0.1:{}/", server.port()),
    ] {
        let client = Client::open(&url).unwrap();
        all_are(all_fail(&client, "x"), ErrorKind::Denied);
        assert!(
            error(client.ping()).is_denied()
                || url.ends_with(&format!("127.0.0.1:{}/", server.port())),
            "{url}"
        );
        assert!(error(client.lock("x").force_unlock()).is_denied());
    }
    // Others of this process are not shut out meanwhile.
    Client::open(&server.url()).unwrap().lock("x").with(|_| ()).unwrap();
}

#[test]
fn password_for_a_server_without_one_is_denied_at_once() {
    let server = Server::start();
    // Redis takes any password of the default user then; but not of another user.
    let client = Client::open(&server.url_with("nobody", "any")).unwrap();
    all_are(all_fail(&client, "x"), ErrorKind::Denied);
}

#[test]
fn password_that_is_changed_under_us_is_denied_and_not_an_outage() {
    let server = Server::start();
    redis::cmd("ACL")
        .arg(&["SETUSER", "worker", "on", ">first", "~*", "&*", "+@all"])
        .exec(&mut server.connection())
        .unwrap();
    let client = Client::open(&server.url_with("worker", "first")).unwrap();
    let lock = client.lock("x");
    lock.lock().unwrap();
    redis::cmd("ACL")
        .arg(&["SETUSER", "worker", "resetpass", ">second"])
        .exec(&mut server.connection())
        .unwrap();
    redis::cmd("CLIENT")
        .arg("KILL")
        .arg("USER")
        .arg("worker")
        .exec(&mut server.connection())
        .unwrap();
    let unlocked = within(..SOON, || error(lock.unlock()));
    assert!(unlocked.is_unknown(), "{unlocked:?}");
    all_are(all_fail(&client, "y"), ErrorKind::Denied);
}

#[test]
fn missing_permission_is_denied_at_once() {
    let server = Server::start();
    let mut admin = server.connection();
    for (user, rules) in [
        ("nokeys", &["on", ">pw", "~other:*", "&*", "+@all"][..]),
        ("nocommands", &["on", ">pw", "~*", "&*", "+ping"]),
        ("noset", &["on", ">pw", "~*", "&*", "+@all", "-set", "-eval", "-evalsha"]),
    ] {
        redis::cmd("ACL").arg("SETUSER").arg(user).arg(rules).exec(&mut admin).unwrap();
        let client = Client::open(&server.url_with(user, "pw")).unwrap();
        all_are(all_fail(&client, "x"), ErrorKind::Denied);
    }
    assert!(keys(&server).is_empty());
    // Without PING a connection can still be told to be alive.
    redis::cmd("ACL")
        .arg("SETUSER")
        .arg("noping")
        .arg(&["on", ">pw", "~*", "&*", "+@all", "-ping"])
        .exec(&mut admin)
        .unwrap();
    Client::open(&server.url_with("noping", "pw")).unwrap().lock("x").with(|_| ()).unwrap();
}

#[test]
fn permission_to_set_but_not_to_release_is_unknown_and_ends_with_the_lease() {
    let server = Server::start();
    let rules = ["SETUSER", "half", "on", ">pw", "~*", "&*", "+set", "+ping"];
    redis::cmd("ACL").arg(&rules).exec(&mut server.connection()).unwrap();
    let client = Client::open(&server.url_with("half", "pw")).unwrap();
    let lock = client.lock_with("x", LockOptions::new().lease(ms(500))).unwrap();
    lock.lock().unwrap();
    assert!(error(lock.unlock()).is_unknown());
    nothing_is_left(&server);
}

#[test]
fn foreign_data_is_reported_and_left_alone() {
    let server = Server::start();
    let mut admin = server.connection();
    for make in [
        &["HSET", "x", "a", "b"][..],
        &["RPUSH", "x", "a"],
        &["SADD", "x", "a"],
        &["ZADD", "x", "1", "a"],
        &["XADD", "x", "*", "a", "b"],
    ] {
        delete(&server, "x");
        redis::cmd(make[0]).arg(&make[1..]).exec(&mut admin).unwrap();
        let before: Vec<u8> = redis::cmd("DUMP").arg("x").query(&mut admin).unwrap();
        let client = Client::open(&server.url()).unwrap();
        all_are(all_fail(&client, "x"), ErrorKind::WrongType);
        assert!(error(client.lock("x").force_unlock()).is_wrong_type());
        let after: Vec<u8> = redis::cmd("DUMP").arg("x").query(&mut admin).unwrap();
        assert_eq!(before, after, "{make:?}");
        assert_eq!(keys(&server), ["x"], "and nothing beside it");
    }
}

#[test]
fn foreign_data_that_replaces_a_held_lock_is_a_loss_and_left_alone() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let mut admin = server.connection();
    let replace = |admin: &mut redis::Connection| {
        redis::pipe().cmd("DEL").arg("x").cmd("RPUSH").arg("x").arg("theirs").exec(admin).unwrap();
    };
    let lock = client.lock("x");
    lock.lock().unwrap();
    replace(&mut admin);
    assert!(error(lock.extend(ms(5000))).is_lost());
    assert!(error(lock.unlock()).is_lost());
    delete(&server, "x");
    lock.lock().unwrap();
    replace(&mut admin);
    assert!(error(lock.unlock()).is_lost());
    delete(&server, "x");
    // Found by renewal.
    let short = client.lock_with("x", LockOptions::new().lease(ms(900))).unwrap();
    short.lock().unwrap();
    replace(&mut admin);
    eventually(SOON, || !short.is_valid());
    assert!(error(short.unlock()).is_lost());
    std::thread::sleep(ms(100));
    let list: Vec<String> = redis::cmd("LRANGE").arg("x").arg(0).arg(-1).query(&mut admin).unwrap();
    assert_eq!(list, ["theirs"]);
}

#[test]
fn foreign_data_under_the_fence_counter_is_no_fence() {
    let server = Server::start();
    redis::cmd("HSET").arg("{x}:fence").arg("a").arg("b").exec(&mut server.connection()).unwrap();
    let lock =
        Client::open(&server.url()).unwrap().lock_with("x", LockOptions::new().fenced()).unwrap();
    assert!(within(..SOON, || error(lock.try_lock(SOON))).is_wrong_type());
    assert_eq!(keys(&server), ["{x}:fence"]);
    delete(&server, "{x}:fence");
    // Nor is one that is no number: it is left alone.
    put(&server, "{x}:fence", "nonsense", SOON * 6);
    assert!(within(..SOON, || error(lock.try_lock(SOON))).is_wrong_type());
    assert_eq!(get(&server, "{x}:fence").as_deref(), Some("nonsense"));
    assert_eq!(keys(&server), ["{x}:fence"]);
}

#[test]
fn strangers_lock_without_an_end_is_a_refusal() {
    let server = Server::start();
    redis::cmd("SET")
        .arg("x")
        .arg(&b"\xff\xfe not text"[..])
        .exec(&mut server.connection())
        .unwrap();
    let lock = Client::open(&server.url()).unwrap().lock("x");
    assert!(!lock.try_lock(Duration::ZERO).unwrap());
    assert!(!lock.try_lock(ms(100)).unwrap());
    let holder = lock.inspect().unwrap().unwrap();
    assert_eq!(holder.remaining, None);
    assert!(lock.is_locked().unwrap());
    assert!(lock.force_unlock().unwrap() && !lock.force_unlock().unwrap());
}

/// A server that answers every command of a lock with this error.
fn saying(text: &'static str) -> FakeServer {
    FakeServer::start(move |_, command| {
        if fake::is(command, "PING") { Reply::usual(command) } else { Reply::error(text) }
    })
}

#[test]
fn errors_that_cannot_heal_fail_at_once_with_their_kind() {
    for (text, kind) in [
        ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::Server),
        (
            "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to \
             persist on disk.",
            ErrorKind::Server,
        ),
        ("MOVED 866 127.0.0.1:7001", ErrorKind::Unsupported),
        ("ASK 866 127.0.0.1:7001", ErrorKind::Unsupported),
        ("CROSSSLOT Keys in request don't hash to the same slot", ErrorKind::Unsupported),
        ("NOPERM this user has no permissions", ErrorKind::Denied),
        ("NOAUTH Authentication required.", ErrorKind::Denied),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", ErrorKind::WrongType),
        ("ERR something that nobody has thought of", ErrorKind::Server),
        ("", ErrorKind::Server),
    ] {
        let server = saying(text);
        let client = Client::open(&server.url()).unwrap();
        let errors = all_fail(&client, "x");
        for error in &errors {
            assert_eq!(error.kind(), kind, "{text}: {error:?}");
        }
    }
}

#[test]
fn errors_that_can_heal_are_waited_for() {
    for text in [
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script.",
        "MASTERDOWN Link with MASTER is down",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "READONLY You can't write against a read only replica.",
        "NOREPLICAS Not enough good replicas to write.",
    ] {
        let server = saying(text);
        let client = Client::builder(&server.url()).max_outage(ms(300)).build().unwrap();
        let lock = client.lock("x");
        let error = within(..SOON, || {
            assert!(error(lock.try_lock(Duration::ZERO)).is_unavailable());
            assert!(within(ms(90).., || error(lock.try_lock(ms(100)))).is_unavailable());
            within(ms(250).., || error(lock.lock()))
        });
        assert!(error.is_unavailable(), "{text}: {error:?}");
        assert!(server.count("SET") + server.count("EVALSHA") < 60, "with pauses");
    }
}

#[test]
fn replica_is_unavailable_until_it_is_a_master() {
    let master = Server::start();
    let replica =
        Server::builder().arg("replicaof", &format!("127.0.0.1 {}", master.port())).start();
    let client = Client::open(&replica.url()).unwrap();
    let lock = client.lock("x");
    assert!(error(lock.try_lock(ms(100))).is_unavailable());
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut replica.connection()).unwrap();
    waiting.result().unwrap();
}

#[test]
fn server_without_enough_replicas_is_unavailable_until_it_has_them() {
    let server = Server::builder().arg("min-replicas-to-write", "1").start();
    let lock = Client::open(&server.url()).unwrap().lock("x");
    assert!(error(lock.try_lock(ms(100))).is_unavailable());
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("min-replicas-to-write")
        .arg("0")
        .exec(&mut server.connection())
        .unwrap();
    waiting.result().unwrap();
}

#[test]
fn server_out_of_memory_refuses_a_lock_and_releases_one() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let (held, fenced) =
        (client.lock("held"), client.lock_with("fenced", LockOptions::new().fenced()).unwrap());
    held.lock().unwrap();
    fenced.lock().unwrap();
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory")
        .arg("1mb")
        .exec(&mut server.connection())
        .unwrap();
    let error = within(..SOON, || error(client.lock("x").lock()));
    assert!(error.is_server() && format!("{error:?}").contains("OOM"), "{error:?}");
    held.extend(ms(20_000)).unwrap();
    held.unlock().unwrap();
    fenced.unlock().unwrap();
    assert_eq!(get(&server, "held"), None);
    assert_eq!(get(&server, "fenced"), None);
}

#[test]
fn server_that_stands_in_a_script_is_waited_for() {
    let server = Server::builder().arg("lua-time-limit", "20").start();
    let client = impatient(&server.url()).build().unwrap();
    client.ping().unwrap();
    let url = server.url();
    let endless = Underway::start(move || {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut connection).is_err()
    });
    // PING of another connection is refused as well.
    eventually(SOON, || redis::cmd("PING").exec(&mut server.connection()).is_err());
    assert!(error(client.lock("x").try_lock(ms(50))).is_unavailable());
    let lock = client.lock("x");
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    std::thread::sleep(ms(100));
    assert!(!waiting.is_done());
    redis::cmd("SCRIPT").arg("KILL").exec(&mut server.connection()).unwrap();
    waiting.result().unwrap();
    assert!(endless.result());
}

#[test]
fn leases_are_accepted_between_their_bounds_only() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    for (lease, accepted) in [
        (Duration::ZERO, false),
        (Duration::from_nanos(1), false),
        (ms(99), false),
        (Duration::from_micros(99_999), false),
        (ms(100), true),
        (Duration::from_micros(100_999), true),
        (day, true),
        (day + Duration::from_micros(999), true),
        (day + ms(1), false),
        (Duration::from_secs(1 << 53), false),
        (Duration::MAX, false),
    ] {
        let options = LockOptions::new().lease(lease).renewal(Renewal::Never);
        let made = client.lock_with("x", options.clone());
        assert_eq!(made.is_ok(), accepted, "{lease:?}");
        assert_eq!(Client::builder(&server.url()).lock_options(options).build().is_ok(), accepted);
        let lock = client.lock_with("y", LockOptions::new()).unwrap();
        lock.lock().unwrap();
        let extended = lock.extend(lease);
        if accepted {
            let lock = made.unwrap();
            lock.lock().unwrap();
            let set: i64 = redis::cmd("PTTL").arg("x").query(&mut server.connection()).unwrap();
            let millis = i64::try_from(lease.as_millis()).unwrap();
            assert!(set <= millis && set > millis - 5000, "{lease:?}: {set}");
            let _ = lock.unlock();
            extended.unwrap();
        } else {
            assert!(error(made).is_invalid_input());
            assert!(error(extended).is_invalid_input());
            assert!(
                lock.is_valid() && lock.remaining().unwrap() > ms(20_000),
                "nothing was changed"
            );
        }
        // Long past for the shortest ones.
        let _ = lock.unlock();
    }
}

#[test]
fn settings_that_cannot_work_are_refused_when_they_are_given() {
    let client = Client::open("memory://").unwrap();
    let huge = "o".repeat(1025);
    for options in [
        LockOptions::new().retry(Retry::fixed(Duration::ZERO)),
        LockOptions::new().retry(Retry::fixed(Duration::from_micros(999))),
        LockOptions::new().retry(Retry::jittered(ms(5), ms(4))),
        LockOptions::new().retry(Retry::fixed(ms(5)).attempts(0)),
        LockOptions::new().owner(""),
        LockOptions::new().owner(huge.clone()),
        LockOptions::new().local_hand_offs(u32::MAX),
        LockOptions::new().local_hand_offs(1_000_001),
        LockOptions::new().owner("me").layout(Layout::Timestamp),
    ] {
        let made = error(client.lock_with("x", options.clone()).map(drop));
        assert!(made.is_invalid_input(), "{options:?}: {made:?}");
        assert!(
            error(Client::builder("memory://").lock_options(options).build()).is_invalid_input()
        );
    }
    for wait in
        [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(3601), Duration::MAX]
    {
        assert!(
            error(Client::builder("redis://localhost").command_timeout(wait).build())
                .is_invalid_input()
        );
        assert!(
            error(Client::builder("redis://localhost").connect_timeout(wait).build())
                .is_invalid_input()
        );
    }
    for size in [0, 1025, u32::MAX] {
        assert!(
            error(Client::builder("redis://localhost").pool_size(size).build()).is_invalid_input()
        );
    }
    for url in [
        "",
        "redis",
        "redis://",
        "redis://:x@",
        "http://localhost",
        "redis://localhost:99999",
        "redis://localhost/x",
        "redis://a b/",
        "\0",
    ] {
        let built = Client::open(url);
        assert!(built.as_ref().is_ok() || error(built).is_invalid_input(), "{url:?}");
    }
}

#[test]
fn extreme_settings_that_can_work_do() {
    let server = Server::start();
    for url in ["memory://".to_owned(), server.url()] {
        let client = Client::open(&url).unwrap();
        for options in [
            LockOptions::new().retry(Retry::fixed(Duration::MAX)),
            LockOptions::new().retry(Retry::jittered(ms(1), Duration::MAX).attempts(u32::MAX)),
            LockOptions::new().retry(Retry::fixed(Duration::MAX).attempts(1)),
            LockOptions::new().local_hand_offs(1_000_000).fenced(),
            LockOptions::new().local_hand_offs(0).fenced(),
            LockOptions::new().owner("o".repeat(1024)),
            LockOptions::new().renewal(Renewal::AtMost(0)),
            LockOptions::new().renewal(Renewal::AtMost(u32::MAX)),
        ] {
            let lock = client.lock_with("x", options.clone()).unwrap();
            for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
                assert!(lock.try_lock(wait).unwrap(), "{options:?}");
                lock.unlock().unwrap();
            }
            // Behind another thread of this process, and behind nobody any more.
            let holder = Elsewhere::holds(&lock);
            assert!(!lock.try_lock(ms(1)).unwrap());
            let waiting = {
                let lock = lock.clone();
                Underway::start(move || {
                    lock.try_lock(Duration::MAX).map(|held| held && lock.unlock().is_ok())
                })
            };
            std::thread::sleep(ms(20));
            holder.unlock().unwrap();
            match waiting.result() {
                Ok(held) => assert!(
                    held || format!("{options:?}").contains("attempts: Some(1)"),
                    "{options:?}"
                ),
                Err(error) => panic!("{options:?}: {error:?}"),
            }
        }
        client.close(Duration::MAX).unwrap();
    }
}

#[test]
fn waits_without_end_end_when_they_can() {
    let server = Server::start();
    put(&server, "x", "another", ms(700));
    let client = Client::open(&server.url()).unwrap();
    // The pause is endless, and what is in the way runs out: it is taken then, and not after the
    // pause.
    let lock =
        client.lock_with("x", LockOptions::new().retry(Retry::fixed(Duration::MAX))).unwrap();
    assert!(within(..SOON, || lock.try_lock(Duration::MAX)).unwrap());
    lock.unlock().unwrap();
    let interrupt = Interrupt::new();
    let holder = Elsewhere::holds(&lock);
    let waiting = {
        let (lock, interrupt) = (lock.clone(), interrupt.clone());
        Underway::behind(&client, "x", move || {
            lock.try_lock_interruptibly(Duration::MAX, &interrupt)
        })
    };
    interrupt.interrupt();
    assert!(error(waiting.result()).is_interrupted());
    holder.unlock().unwrap();
}

#[test]
fn names_are_refused_by_the_first_call_that_would_use_them() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("p:").build().unwrap();
    for (name, accepted) in [
        (String::new(), false),
        ("n".repeat(1022), true),
        ("n".repeat(1023), false),
        ("n".repeat(1_000_000), false),
    ] {
        let lock = client.lock(&name);
        let outcomes = [
            lock.try_lock(Duration::ZERO).map(drop),
            lock.lock(),
            lock.inspect().map(drop),
            lock.force_unlock().map(drop),
        ];
        for outcome in outcomes {
            assert_eq!(outcome.is_ok(), accepted);
            if let Err(error) = outcome {
                assert!(error.is_invalid_input() && format!("{error:?}").len() < 500, "{error:?}");
            }
        }
    }
    // An empty name is one even where a prefix would make a key of it; and odd ones are only names.
    let odd = ["a b", "ключ", "{", "}", "{}", "a}b", "{a}b", "\n", "\0", "*", ":", "🔒"];
    for name in odd.into_iter().chain(["a\r\nDEL x"]) {
        let lock = client.lock(name);
        lock.lock().unwrap();
        assert_eq!(
            keys(&server).iter().filter(|key| **key == format!("p:{name}")).count(),
            1,
            "{name:?}"
        );
        assert_eq!(lock.key(), format!("p:{name}"));
        lock.unlock().unwrap();
    }
    drop(client);
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::MAX),
        (0..2_000_000_000_u64).prop_map(Duration::from_nanos),
        any::<u64>().prop_map(Duration::from_millis),
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
    ]
}

fn any_options() -> impl Strategy<Value = LockOptions> {
    let retry =
        proptest::option::of((any_duration(), any_duration(), proptest::option::of(any::<u32>())));
    let renewal = prop_oneof![
        Just(Renewal::UntilUnlock),
        Just(Renewal::Never),
        any::<u32>().prop_map(Renewal::AtMost)
    ];
    let owner = proptest::option::of("\\PC{0,12}");
    (any_duration(), retry, renewal, owner, any::<bool>(), prop_oneof![0..20_u32, any::<u32>()])
        .prop_map(|(lease, retry, renewal, owner, fenced, hand_offs)| {
            let mut options =
                LockOptions::new().lease(lease).renewal(renewal).local_hand_offs(hand_offs);
            if let Some((min, max, attempts)) = retry {
                let retry = Retry::jittered(min, max);
                options = options.retry(attempts.map_or(retry, |n| retry.attempts(n)));
            }
            if let Some(owner) = owner {
                options = options.owner(owner);
            }
            if fenced { options.fenced() } else { options }
        })
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(300))]

    /// Whatever the settings: they are refused at once, or lock, extend and unlock.
    #[test]
    fn any_settings_work_or_are_refused(
        name in "\\PC{0,40}",
        options in any_options(),
        wait in any_duration(),
        extend in any_duration(),
    ) {
        let client = Client::open("memory://").unwrap();
        let start = Instant::now();
        match client.lock_with(&name, options.clone()) {
            Err(error) => prop_assert!(error.is_invalid_input(), "{error:?}"),
            Ok(lock) => match lock.try_lock(wait) {
                Err(error) => {
                    prop_assert!(error.is_invalid_input() && name.is_empty(), "{error:?}");
                }
                Ok(held) => {
                    prop_assert!(held);
                    prop_assert!(lock.remaining().unwrap() <= Duration::from_secs(86_400));
                    let fenced = format!("{options:?}").contains("fenced: true");
                    prop_assert_eq!(lock.fence().is_some(), fenced);
                    if let Err(error) = lock.extend(extend) {
                        prop_assert!(error.is_invalid_input(), "{error:?}");
                    }
                    lock.unlock().unwrap();
                }
            },
        }
        client.close(wait).unwrap_or_else(|error| assert!(error.is_unknown()));
        prop_assert!(start.elapsed() < SOON);
    }
}

proptest! {
    #![proptest_config(cases(12))]

    /// The same against a server, while another holds the lock: refused, in time, and no key is
    /// left without an end.
    #[test]
    fn any_settings_are_refused_in_time_by_a_server(options in any_options(), wait in 0..30_u64) {
        static SERVER: std::sync::OnceLock<Server> = std::sync::OnceLock::new();
        let server = SERVER.get_or_init(Server::start);
        let client = Client::open(&server.url()).unwrap();
        let Ok(lock) = client.lock_with("x", options) else { return Ok(()) };
        put(server, "x", "another", SOON * 6);
        let start = Instant::now();
        prop_assert!(!lock.try_lock(ms(wait)).unwrap());
        prop_assert!(start.elapsed() < ms(wait) + PATIENCE * 10);
        delete(server, "x");
        prop_assert!(lock.try_lock(Duration::MAX).unwrap());
        let end: i64 = redis::cmd("PTTL").arg("x").query(&mut server.connection()).unwrap();
        prop_assert!((1..=86_400_000).contains(&end), "{end}");
        lock.unlock().unwrap();
        prop_assert_eq!(get(server, "x"), None);
    }
}
