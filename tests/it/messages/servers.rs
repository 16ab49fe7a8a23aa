//! What a server says, and what the way to it does.

use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, ClientBuilder, LockOptions};

use super::{Case, shows};
use crate::helpers::ms;
use crate::support::fake::{FakeServer, Reply, is};
use crate::support::tls::{Certificate, Certificates};
use crate::support::{Server, ports};

/// So long does `lock()` wait for what can end. Whatever cannot takes far less.
const OUTAGE: Duration = ms(3000);

fn impatient(url: &str) -> ClientBuilder {
    settle(Client::builder(url))
}

fn settle(builder: ClientBuilder) -> ClientBuilder {
    builder.max_outage(OUTAGE).connect_timeout(ms(1500)).command_timeout(ms(1500))
}

/// The error of `lock()`, and whether the call waited. `address` is shown as `usual`.
#[track_caller]
fn case(
    when: &'static str,
    builder: ClientBuilder,
    options: LockOptions,
    (address, usual): (&str, &str),
) -> Case {
    let lock = builder.build().unwrap().lock_with("job", options).unwrap();
    let started = Instant::now();
    let mut case = Case::new(when, distlock::Lock::lock(&lock));
    case.rest.push(if started.elapsed() >= OUTAGE { "waits" } else { "ends at once" });
    // Some of the attempts are told what the last one was told.
    case.text = case.text.replace(address, usual).replace("the server is down: ", "");
    case
}

/// A server that does this on each command.
#[track_caller]
fn fake(
    when: &'static str,
    options: LockOptions,
    script: impl Fn(&[Vec<u8>]) -> Reply + Send + Sync + 'static,
) -> Case {
    let server = FakeServer::start(move |_, command| script(command));
    let port = format!(":{}", server.port());
    case(when, impatient(&server.url()), options, (&port, ":6379"))
}

/// A server that says this to each command.
fn says(when: &'static str, words: &'static str) -> Case {
    fake(when, LockOptions::new(), |_| Reply::error(words))
}

/// A server that does this to each command of a lock, and logs in everybody.
fn answers(when: &'static str, reply: Reply) -> Case {
    fake(when, LockOptions::new(), move |command| {
        let is_locks = is(command, "SET") || is(command, "EVALSHA") && command[2] != b"0";
        if is_locks { reply.clone() } else { Reply::usual(command) }
    })
}

fn refuses(when: &'static str, words: &'static str) -> Case {
    answers(when, Reply::error(words))
}

/// A server that answers this command of the log-in so.
fn logs_in(when: &'static str, name: &'static str, reply: Reply) -> Case {
    fake(when, LockOptions::new(), move |command| {
        if is(command, name) { reply.clone() } else { Reply::usual(command) }
    })
}

/// All at the same time: many of them wait.
fn all<const N: usize>(cases: [fn() -> Case; N]) -> [Case; N] {
    cases.map(thread::spawn).map(|case| case.join().unwrap())
}

#[test]
fn connections() {
    let cases = all([
        || {
            let port = ports::refused();
            let url = format!("redis://127.0.0.1:{port}/");
            let address = format!(":{port}");
            case("nobody listens", impatient(&url), LockOptions::new(), (&address, ":6379"))
        },
        || fake("nobody answers", LockOptions::new(), |_| Reply::Silence),
        || fake("the server, or a proxy, hangs up", LockOptions::new(), |_| Reply::Close),
        || {
            let plain = Server::start();
            let url = format!("rediss://127.0.0.1:{}/", plain.port());
            let builder = impatient(&url).root_certificates(Certificates::new().ca_pem());
            let port = format!(":{}", plain.port());
            case("`rediss://` and a plain port", builder, LockOptions::new(), (&port, ":6379"))
        },
        || {
            let reply = Reply::Bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n".into());
            fake("another service", LockOptions::new(), move |_| reply.clone())
        },
        || unix("no unix socket", "redis.sock"),
        || unix("no directory of the unix socket", "none/redis.sock"),
        || tls("an old certificate", Certificates::expired, ""),
        || tls("a certificate of another host", Certificates::wrong_name, ""),
        || {
            let server = with(&Certificates::new(), Certificates::good);
            trusting("a certificate of another authority", &server, &Certificates::new())
        },
        || tls("`tls-auth-clients yes`", Certificates::good, "tls-auth-clients yes"),
        || tls("no common cipher", Certificates::good, "tls-ciphers AES256-SHA"),
    ]);
    shows("connections", &cases);
}

fn role(name: &str) -> Reply {
    Reply::array(&[Reply::bulk(name.as_bytes()), Reply::array(&[])])
}

#[test]
fn servers() {
    let cases = all([
        || {
            let server = FakeServer::start(|_, command| match is(command, "AUTH") {
                true => Reply::error("WRONGPASS invalid username-password pair"),
                false => Reply::usual(command),
            });
            let builder = impatient(&server.url().replace("://", "://user:wrong@"));
            let port = format!(":{}", server.port());
            case("a wrong password", builder, LockOptions::new(), (&port, ":6379"))
        },
        || says("no password, but one is needed", "NOAUTH Authentication required."),
        || says("protected mode", "DENIED Redis is running in protected mode because ..."),
        || says("`maxclients` are connected", "ERR max number of clients reached"),
        || says("a restart", "LOADING Redis is loading the dataset in memory"),
        || says("a script that does not end", "BUSY Redis is busy running a script."),
        || logs_in("a sentinel", "ROLE", role("sentinel")),
        || logs_in("a replica", "ROLE", role("slave")),
        || logs_in("a node of a Redis Cluster", "CLUSTER", Reply::bulk(b"cluster_enabled:1")),
        || {
            let server = FakeServer::start(|_, command| match is(command, "CLUSTER") {
                true => Reply::error("ERR This instance has cluster support disabled"),
                false => Reply::usual(command),
            });
            let builder = settle(Client::cluster_builder([server.url()]));
            let port = format!(":{}", server.port());
            case("`Client::cluster` of one server", builder, LockOptions::new(), (&port, ":6379"))
        },
        || {
            let words = "ERR unknown command 'EVALSHA', with args beginning with: ";
            logs_in("no scripts", "EVALSHA", Reply::error(words))
        },
        || {
            let words = "NOPERM this user has no permissions to run the 'evalsha' command";
            logs_in("no permission for a command", "EVALSHA", Reply::error(words))
        },
        || refuses("no permission for a key", "NOPERM this user has no permissions to access ..."),
        || refuses("other data under the name", "WRONGTYPE Operation against a key ..."),
        || refuses("`maxmemory` is used up", "OOM command not allowed when used memory > ..."),
        || refuses("the disk is full", "MISCONF Redis is configured to save RDB snapshots, ..."),
        || refuses("a primary that was demoted", "READONLY You can't write against a replica."),
        || refuses("`min-replicas-to-write`", "NOREPLICAS Not enough good replicas to write."),
        || refuses("a replica without its primary", "MASTERDOWN Link with MASTER is down"),
        || refuses("a proxy in front of a cluster", "MOVED 866 10.0.0.1:6379"),
        || refuses("a cluster that is not whole", "CLUSTERDOWN The cluster is down"),
        || refuses("anything else", "ERR something that nobody has thought of"),
        || answers("no reply", Reply::Silence),
        || answers("the connection ends before the reply", Reply::Close),
        || answers("a reply of no Redis", Reply::array(&[])),
    ]);
    shows("servers", &cases);
}

#[test]
fn set_ups() {
    let cases = all([
        || {
            let server = Server::start();
            let options = LockOptions::new().replicas(1);
            case("`replicas(1)`, and none confirms", impatient(&server.url()), options, ("x", "x"))
        },
        || {
            fake("`fsynced` before Redis 7.2", LockOptions::new().fsynced(), |command| {
                let words = "ERR unknown command 'WAITAOF', with args beginning with: ";
                if is(command, "WAITAOF") { Reply::error(words) } else { Reply::usual(command) }
            })
        },
        || {
            let sentinel = FakeServer::start(|_, command| match is(command, "SENTINEL") {
                true => Reply::error("ERR No such master with that name"),
                false => Reply::usual(command),
            });
            watched("a service that its sentinels do not know", sentinel.port())
        },
        || watched("no sentinel answers", ports::refused()),
        || {
            let dead: [_; 3] = std::array::from_fn(|_| ports::refused());
            let urls = dead.map(|port| format!("redis://127.0.0.1:{port}/"));
            let builder = settle(Client::redlock_builder(urls));
            let mut case =
                case("no majority of a quorum answers", builder, LockOptions::new(), ("x", "x"));
            // What each of them said, or has not said yet.
            let nodes = case.text.find("node 1").unwrap();
            case.text.replace_range(nodes.., "node 1: ...; node 2: ...; node 3: ...");
            case
        },
    ]);
    shows("set-ups", &cases);
}

fn watched(when: &'static str, sentinel: u16) -> Case {
    let url = format!("redis://127.0.0.1:{sentinel}/");
    let builder = settle(Client::sentinel_builder([url], "orders"));
    case(when, builder, LockOptions::new(), (&format!(":{sentinel}"), ":26379"))
}

fn unix(when: &'static str, file: &str) -> Case {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let builder = impatient(&format!("redis+unix://{path}/{file}"));
    case(when, builder, LockOptions::new(), (path, "/run/redis"))
}

fn with(certificates: &Certificates, choose: fn(&Certificates) -> Certificate) -> Server {
    let chosen = choose(certificates);
    Server::builder().tls(&chosen.cert, &chosen.key, certificates.ca()).start()
}

/// A server with such a certificate and this setting.
fn tls(when: &'static str, choose: fn(&Certificates) -> Certificate, setting: &str) -> Case {
    let certificates = Certificates::new();
    let server = with(&certificates, choose);
    let set = |setting: &str| {
        let words: Vec<_> = setting.split(' ').collect();
        redis::cmd("CONFIG").arg("SET").arg(words).exec(&mut server.connection()).unwrap();
    };
    if setting.starts_with("tls-ciphers") {
        set("tls-protocols TLSv1.2");
    }
    if !setting.is_empty() {
        set(setting);
    }
    trusting(when, &server, &certificates)
}

fn trusting(when: &'static str, server: &Server, certificates: &Certificates) -> Case {
    let url = server.tls_url("localhost");
    let port = url.trim_end_matches('/').rsplit_once(':').unwrap().1.to_owned();
    let builder = impatient(&url).root_certificates(certificates.ca_pem());
    case(when, builder, LockOptions::new(), (&port, "6379"))
}
