//! Users, passwords, TLS, and the ways to write an address.

use distlock::Client;
use redis::Value;

use crate::helpers::{SOON, error, get, ms};
use crate::permissions::rule;
use crate::support::sentinels::{SERVICE, Sentinel, Sentinels, SentinelsBuilder};
use crate::support::tls::Certificates;
use crate::support::{Server, eventually, ports, within};

fn alone() -> SentinelsBuilder {
    Sentinels::builder().sentinels(1).replicas(0)
}

/// Locks, and unlocks, on this server.
fn works(client: &Client, server: &Server) {
    let lock = client.lock("x");
    within(..SOON, || lock.lock()).unwrap();
    assert!(get(server, "x").is_some(), "the lock is elsewhere");
    lock.unlock().unwrap();
}

#[test]
fn sentinels_and_servers_have_users_of_their_own() {
    let server = Server::builder().password("of-servers").start();
    let sentinels = Sentinels::builder()
        .replicas(0)
        .line(&format!("sentinel auth-pass {SERVICE} of-servers"))
        .watch(server.port());
    for sentinel in &sentinels {
        let user = [&["ACL", "SETUSER"], &rule("watcher")[..]].concat();
        sentinel.ask::<()>(&user);
    }
    let urls = || sentinels.iter().map(Sentinel::url);
    let builder =
        Client::sentinel_builder(urls(), SERVICE).sentinel_credentials("watcher", "password");
    let client = builder.credentials("", "of-servers").build().unwrap();
    works(&client, &server);
    // The subscription to the news, too.
    let listens = |sentinel: &Sentinel| {
        let list: String = sentinel.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        list.lines().any(|line| line.contains("user=watcher") && line.contains("sub=1"))
    };
    eventually(SOON, || sentinels.iter().any(listens));
    for sentinel in &sentinels {
        let refused: Vec<Value> = sentinel.ask(&["ACL", "LOG"]);
        assert_eq!(refused, [], "the guide's rule is enough");
    }

    let with = |user: &'static str, password: &'static str| {
        Client::sentinel_builder(urls(), SERVICE).sentinel_credentials(user, password)
    };
    let wrong = [
        with("watcher", "wrong").credentials("", "of-servers"),
        with("watcher", "password").credentials("", "wrong"),
    ];
    for builder in wrong {
        let client = builder.build().unwrap();
        let error = within(..SOON, || error(client.lock("x").lock()));
        assert!(error.is_denied(), "{error:?}");
    }
}

#[test]
fn a_url_has_the_credentials_and_the_database_of_the_primary() {
    let server = Server::builder().password("p@ss").start();
    let sentinels =
        alone().line(&format!("sentinel auth-pass {SERVICE} p@ss")).watch(server.port());
    let at = format!("127.0.0.1:{}", sentinels[0].port());
    let client = Client::open(&format!("redis+sentinel://:p%40ss@{at}/{SERVICE}/3")).unwrap();
    client.lock("x").lock().unwrap();
    let mut connection = server.connection();
    redis::cmd("SELECT").arg(3).exec(&mut connection).unwrap();
    assert!(redis::cmd("EXISTS").arg("x").query::<bool>(&mut connection).unwrap());
    client.lock("x").unlock().unwrap();
}

#[test]
fn sentinels_and_their_primary_are_reached_over_tls() {
    let certificates = Certificates::new();
    let good = certificates.good();
    let server = Server::builder().tls(&good.cert, &good.key, certificates.ca()).start();
    let port = ports::free();
    let tls_port = server.tls_url("127.0.0.1");
    let tls_port = tls_port.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    let mut builder = alone();
    for line in [
        format!("tls-port {port}"),
        format!("tls-cert-file {}", good.cert.display()),
        format!("tls-key-file {}", good.key.display()),
        format!("tls-ca-cert-file {}", certificates.ca().display()),
        "tls-auth-clients no".to_owned(),
        // It is how the sentinel itself reaches the primary.
        "tls-replication yes".to_owned(),
    ] {
        builder = builder.line(&line);
    }
    let _sentinels = builder.watch(tls_port);
    let url = format!("rediss+sentinel://127.0.0.1:{port}/{SERVICE}");
    let client = Client::builder(&url).root_certificates(certificates.ca_pem()).build().unwrap();
    works(&client, &server);
    // Nobody falls back to something less, or trusts another authority.
    let other = Certificates::new();
    let client = Client::builder(&url).root_certificates(other.ca_pem()).build().unwrap();
    assert!(error(client.lock("x").try_lock(ms(300))).is_unavailable());
}

#[test]
fn addresses_of_either_kind_and_names_are_understood() {
    let server = Server::start();
    let lines = ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"];
    let sentinels =
        lines.iter().fold(alone(), |builder, line| builder.line(line)).watch(server.port());
    // An IPv4 address written as one of IPv6, so that the machine needs no network of that kind.
    for (service, host) in [("six", "::ffff:127.0.0.1"), ("named", "localhost")] {
        let port = server.port().to_string();
        sentinels[0].ask::<()>(&["SENTINEL", "MONITOR", service, host, &port, "1"]);
        for at in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
            let url = format!("redis+sentinel://{at}:{}/{service}", sentinels[0].port());
            works(&Client::open(&url).unwrap(), &server);
        }
    }
}

#[test]
fn without_sentinels_nothing_stands_beside_the_url() {
    let nodes = ["redis://a/", "redis://b/", "redis://c/"];
    for open in [
        || Client::builder("redis://a/"),
        || Client::builder("memory://"),
        || Client::redlock_builder(["memory://a", "memory://b", "memory://c"]),
    ] {
        let refused = [
            open().credentials("u", "p").build(),
            open().database(1).build(),
            open().sentinel_credentials("u", "p").build(),
        ];
        assert!(refused.into_iter().all(|client| error(client.map(drop)).is_invalid_input()));
    }
    assert!(Client::redlock(nodes).is_ok());
}
