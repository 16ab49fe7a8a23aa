//! An error that cannot heal ends a call at once, with its kind. An error that can heal is waited
//! for. Foreign data is left alone (R19). Nonsense input is refused by the first call (R18).

mod foreign_data;
mod settings;

use std::error::Error as _;
use std::time::Duration;

use distlock::{Client, Error, ErrorKind, Interrupt, LockOptions};

use crate::errors::assert_kind;
use crate::faults::{impatient, nothing_is_left};
use crate::helpers::{SOON, Underway, error, get, keys, ms};
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
        assert_kind(&error, kind, error.lock_name());
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
    // Other clients of this process are not shut out meanwhile.
    Client::open(&server.url()).unwrap().lock("x").with(|_| ()).unwrap();
}

#[test]
fn password_for_a_server_without_one_is_denied_at_once() {
    let server = Server::start();
    // Then Redis accepts any password for the default user, but not for another user.
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
        ("noscripts", &["on", ">pw", "~*", "&*", "+@all", "-evalsha"]),
        ("noset", &["on", ">pw", "~*", "&*", "+@all", "-set", "-eval", "-evalsha"]),
    ] {
        redis::cmd("ACL").arg("SETUSER").arg(user).arg(rules).exec(&mut admin).unwrap();
        let client = Client::open(&server.url_with(user, "pw")).unwrap();
        all_are(all_fail(&client, "x"), ErrorKind::Denied);
    }
    assert!(keys(&server).is_empty());
    // Without PING there is still a way to see that a connection is alive.
    redis::cmd("ACL")
        .arg("SETUSER")
        .arg("noping")
        .arg(&["on", ">pw", "~*", "&*", "+@all", "-ping"])
        .exec(&mut admin)
        .unwrap();
    Client::open(&server.url_with("noping", "pw")).unwrap().lock("x").with(|_| ()).unwrap();
}

#[test]
fn a_server_without_scripts_is_unsupported_before_anything_is_granted() {
    let server = Server::builder().arg("rename-command", "EVALSHA another").start();
    let client = Client::open(&server.url()).unwrap();
    let errors = all_fail(&client, "x");
    assert!(errors.iter().all(|error| error.to_string().contains("EVALSHA")), "{errors:?}");
    all_are(errors, ErrorKind::Unsupported);
    assert!(keys(&server).is_empty());
}

#[test]
fn without_permission_to_release_unlock_is_unknown_and_the_lock_ends_with_its_lease() {
    let server = Server::start();
    let set = |rules: &[&str]| {
        let mut user = redis::cmd("ACL");
        user.arg("SETUSER").arg("half").arg(rules).exec(&mut server.connection()).unwrap();
    };
    set(&["on", ">pw", "~*", "&*", "+@all"]);
    let client = Client::open(&server.url_with("half", "pw")).unwrap();
    let lock = client.lock_with("x", LockOptions::new().lease(ms(500))).unwrap();
    lock.lock().unwrap();
    set(&["-eval", "-evalsha"]);
    assert!(error(lock.unlock()).is_unknown());
    nothing_is_left(&server);
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
        for error in all_fail(&client, "x") {
            assert_kind(&error, kind, Some("x"));
            // A server's own words are all that such an error can say.
            let cause = error.source().map(ToString::to_string).unwrap_or_default();
            assert!(kind != ErrorKind::Server || cause.contains(text), "{text}: {error:?}");
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
fn replica_is_a_wrong_address_until_it_has_been_a_master() {
    let master = Server::start();
    let replica =
        Server::builder().arg("replicaof", &format!("127.0.0.1 {}", master.port())).start();
    let client = Client::open(&replica.url()).unwrap();
    let lock = client.lock("x");
    let refused = within(..SOON, || error(lock.lock()));
    assert!(refused.is_unsupported() && refused.to_string().contains("replica"), "{refused}");
    // One that has been a master may be one again.
    let to_be = |words: &[&str]| {
        redis::cmd("REPLICAOF").arg(words).exec(&mut replica.connection()).unwrap();
    };
    to_be(&["NO", "ONE"]);
    lock.lock().and_then(|()| lock.unlock()).unwrap();
    to_be(&["127.0.0.1", &master.port().to_string()]);
    assert!(error(lock.try_lock(ms(100))).is_unavailable());
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut replica.connection()).unwrap();
    waiting.result().unwrap();
}

#[test]
fn node_of_a_cluster_is_unsupported_at_once_whatever_the_name() {
    let node = Server::builder().arg("cluster-enabled", "yes").start();
    let slots: Vec<u16> = (0..8192).collect();
    redis::cmd("CLUSTER").arg("ADDSLOTS").arg(slots).exec(&mut node.connection()).unwrap();
    let client = Client::open(&node.url()).unwrap();
    for name in ["a", "b", "c", "d"] {
        let refused = within(..SOON, || error(client.lock(name).lock()));
        assert!(refused.is_unsupported() && refused.to_string().contains("Cluster"), "{refused}");
    }
}

#[test]
fn server_without_enough_replicas_is_unavailable_until_it_has_them() {
    let server = Server::builder().arg("min-replicas-to-write", "1").start();
    let client = Client::open(&server.url()).unwrap();
    // By a command, and by a script.
    let fenced = client.lock_with("y", LockOptions::new().fenced()).unwrap();
    let waiting = [client.lock("x"), fenced].map(|lock| {
        assert!(error(lock.try_lock(ms(100))).is_unavailable());
        Underway::start(move || lock.lock().and_then(|()| lock.unlock()))
    });
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("min-replicas-to-write")
        .arg("0")
        .exec(&mut server.connection())
        .unwrap();
    waiting.into_iter().for_each(|waiting| waiting.result().unwrap());
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
        .arg("1")
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
fn server_that_is_busy_with_a_script_is_waited_for() {
    let server = Server::builder().arg("lua-time-limit", "20").start();
    let client = impatient(&server.url()).build().unwrap();
    client.ping().unwrap();
    let url = server.url();
    let endless = Underway::start(move || {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut connection).is_err()
    });
    // PING over another connection is refused, too.
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
