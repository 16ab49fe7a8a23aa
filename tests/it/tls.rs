//! `rediss://`, unix sockets, and what else a URL can contain.

use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use distlock::{Client, ErrorKind};
use rcgen::{BasicConstraints, IsCa};

use crate::faults::{PATIENCE, impatient};
use crate::helpers::{SOON, error, get, ms};
use crate::outage::incurable::told_at_once;
use crate::support::tls::{Certificate, Certificates};
use crate::support::{Mode, Proxy, Server, eventually, in_own_process_with, within};

/// A server with a certificate from an authority of its own.
fn with(choose: impl Fn(&Certificates) -> Certificate) -> (Server, Certificates) {
    let certificates = Certificates::new();
    let chosen = choose(&certificates);
    let server = Server::builder().tls(&chosen.cert, &chosen.key, certificates.ca()).start();
    (server, certificates)
}

fn works(client: &Client, server: &Server) {
    let lock = client.lock("x");
    assert!(lock.try_lock(SOON).unwrap());
    assert!(get(server, "x").is_some());
    lock.extend(ms(20_000)).unwrap();
    lock.unlock().unwrap();
    assert_eq!(get(server, "x"), None);
}

#[test]
fn lock_works_over_tls_with_a_private_authority() {
    let (server, certificates) = with(Certificates::good);
    for host in ["localhost", "127.0.0.1"] {
        let client = Client::builder(&server.tls_url(host))
            .root_certificates(certificates.ca_pem())
            .build()
            .unwrap();
        works(&client, &server);
    }
}

/// Every call fails at once and says why: waiting does not repair a certificate.
#[track_caller]
fn refused(server: &Server, certificates: &Certificates, why: &str) {
    let client = Client::builder(&server.tls_url("localhost"))
        .root_certificates(certificates.ca_pem())
        .build()
        .unwrap();
    told_at_once(&client, ErrorKind::Unavailable, &[why]);
    assert_eq!(get(server, "x"), None);
}

#[test]
fn expired_certificate_is_refused_at_once() {
    let (server, certificates) = with(Certificates::expired);
    refused(&server, &certificates, "has expired");
}

#[test]
fn certificate_of_another_host_is_refused_at_once() {
    let (server, certificates) = with(Certificates::wrong_name);
    refused(&server, &certificates, "for another host");
}

#[test]
fn certificate_of_another_authority_is_refused_at_once() {
    let (server, _) = with(Certificates::good);
    refused(&server, &Certificates::new(), "authority");
}

/// TLS can resume a session without another look at the certificate.
#[test]
fn certificate_that_has_expired_meanwhile_is_refused_to_a_client_that_was_connected() {
    let (server, certificates) = with(|all| all.valid_for(Duration::from_secs(4)));
    let url = server.tls_url("localhost");
    let builder = Client::builder(&url).root_certificates(certificates.ca_pem());
    let client = builder.build().unwrap();
    works(&client, &server);
    eventually(SOON, || {
        let mut admin = server.connection();
        redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").exec(&mut admin).unwrap();
        let lock = client.lock("x");
        lock.try_lock(ms(0))
            .map(|_| lock.unlock())
            .is_err_and(|error| error.is_unavailable() && error.to_string().contains("has expired"))
    });
}

/// A server's certificate that is its own authority.
#[test]
fn a_self_signed_certificate_is_trusted_unless_it_is_an_authoritys() {
    let (server, certificates) = with(|all| all.self_signed(IsCa::ExplicitNoCa));
    let pem = fs::read(certificates.path("self-signed.pem")).unwrap();
    let url = server.tls_url("localhost");
    works(&Client::builder(&url).root_certificates(pem).build().unwrap(), &server);

    // As `openssl req -x509` makes them by default.
    let as_authority = IsCa::Ca(BasicConstraints::Unconstrained);
    let (server, certificates) = with(|all| all.self_signed(as_authority));
    let pem = fs::read(certificates.path("self-signed.pem")).unwrap();
    let builder = Client::builder(&server.tls_url("localhost")).root_certificates(pem);
    let why = ["the server's certificate is not valid", "CaUsedAsEndEntity"];
    told_at_once(&builder.build().unwrap(), ErrorKind::Unavailable, &why);
}

#[test]
fn text_that_is_no_certificate_is_invalid_input() {
    for pem in [
        "-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n!\n",
    ] {
        let built = Client::builder("rediss://localhost:1/").root_certificates(pem).build();
        let error = error(built);
        assert!(error.is_invalid_input(), "{error:?}");
    }
}

#[test]
fn a_server_that_wants_a_certificate_of_its_client_is_told_at_once() {
    let (server, certificates) = with(Certificates::good);
    let why = [("TLSv1.3", "wants a certificate"), ("TLSv1.2", "refuses to speak TLS")];
    for (version, why) in why {
        for setting in ["tls-auth-clients yes", &format!("tls-protocols {version}")] {
            configure(&server, setting);
        }
        refused(&server, &certificates, why);
    }
}

#[test]
fn a_server_without_a_cipher_or_a_version_of_ours_is_told_at_once() {
    let (server, certificates) = with(Certificates::good);
    configure(&server, "tls-protocols TLSv1.2");
    configure(&server, "tls-ciphers AES256-SHA");
    refused(&server, &certificates, "refuses to speak TLS");
}

fn configure(server: &Server, setting: &str) {
    let (name, value) = setting.split_once(' ').unwrap();
    redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut server.connection()).unwrap();
}

/// A port that never answers, or always hangs up, may be that of a server which is about to start.
#[test]
fn the_other_port_of_a_server_is_an_outage_that_says_what_may_be_wrong() {
    let (server, certificates) = with(Certificates::good);
    let tls = impatient(&format!("rediss://localhost:{}/", server.port()))
        .root_certificates(certificates.ca_pem());
    let plain = impatient(&server.tls_url("localhost").replace("rediss:", "redis:"));
    for (client, hint) in [(tls, "without TLS"), (plain, "a port for TLS")] {
        let lock = client.build().unwrap().lock("x");
        let error = within(..SOON, || error(lock.try_lock(Duration::ZERO)));
        assert!(error.is_unavailable() && error.to_string().contains(hint), "{error:?}");
    }
}

#[test]
fn what_is_no_certificate_among_those_of_the_system_costs_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let name = "tls::what_is_no_certificate_among_those_of_the_system_costs_nothing";
    let variables = [("SSL_CERT_FILE", file.path()), ("SSL_CERT_DIR", Path::new(""))];
    in_own_process_with(name, &variables, || {
        let file = env::var_os("SSL_CERT_FILE").unwrap();
        let none = "-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n";
        let (server, certificates) = with(Certificates::good);
        let url = server.tls_url("localhost");
        fs::write(&file, none).unwrap();
        assert!(error(Client::open(&url)).is_invalid_input());
        let named = Client::builder(&url).root_certificates(certificates.ca_pem()).build();
        works(&named.unwrap(), &server);
        fs::write(&file, none.to_owned() + &certificates.ca_pem()).unwrap();
        works(&Client::open(&url).unwrap(), &server);
    });
}

#[test]
fn silent_handshake_ends_within_its_deadline() {
    let (server, certificates) = with(Certificates::good);
    let proxy = Proxy::start(server.port());
    proxy.set_mode(Mode::Silent);
    let url = format!("rediss://localhost:{}/", proxy.port());
    let client = impatient(&url).root_certificates(certificates.ca_pem()).build().unwrap();
    let lock = client.lock("x");
    let error = within(PATIENCE / 2..PATIENCE + ms(2000), || error(lock.try_lock(Duration::ZERO)));
    assert!(error.is_unavailable(), "{error:?}");
}

#[test]
fn tls_connection_that_freezes_ends_within_its_deadline_and_recovers() {
    let (server, certificates) = with(Certificates::good);
    let client = impatient(&server.tls_url("localhost"))
        .root_certificates(certificates.ca_pem())
        .build()
        .unwrap();
    let lock = client.lock("x");
    works(&client, &server);
    server.stop_process();
    let error = within(PATIENCE / 2..PATIENCE + ms(2000), || error(lock.try_lock(Duration::ZERO)));
    assert!(error.is_unavailable(), "{error:?}");
    server.cont();
    assert!(lock.try_lock(SOON).unwrap());
    lock.unlock().unwrap();
}

#[test]
fn lock_works_over_a_unix_socket() {
    for server in [
        Server::builder().unix_socket().start(),
        Server::builder().unix_socket().password("secret").start(),
    ] {
        let client = Client::open(&server.unix_url()).unwrap();
        works(&client, &server);
        server.restart();
        works(&client, &server);
    }
}

#[test]
fn unix_socket_that_is_not_there_is_unavailable() {
    let server = Server::start();
    let client =
        impatient(&format!("redis+unix://{}/none.sock", server.dir().display())).build().unwrap();
    let lock = client.lock("x");
    let error = within(..SOON, || error(lock.try_lock(ms(200))));
    assert!(error.is_unavailable(), "{error:?}");
}

#[test]
fn calls_to_a_frozen_server_behind_a_unix_socket_end_within_their_deadline() {
    let server = Server::builder().unix_socket().start();
    let client = impatient(&server.unix_url()).build().unwrap();
    let lock = client.lock("x");
    server.stop_process();
    let error = within(PATIENCE / 2..PATIENCE + ms(2000), || error(lock.try_lock(Duration::ZERO)));
    assert!(error.is_unavailable(), "{error:?}");
    server.cont();
    assert!(lock.try_lock(SOON).unwrap());
    lock.unlock().unwrap();
}

#[test]
fn url_names_user_password_and_database() {
    let server = Server::start();
    let mut admin = server.connection();
    let rules = ["SETUSER", "worker", "on", ">topsecret", "~*", "&*", "+@all"];
    redis::cmd("ACL").arg(&rules).exec(&mut admin).unwrap();
    let url = format!("{}5", server.url_with("worker", "topsecret"));
    let client = Client::open(&url).unwrap();
    let lock = client.lock("x");
    lock.lock().unwrap();
    assert_eq!(get(&server, "x"), None, "not in database 0");
    redis::cmd("SELECT").arg(5).exec(&mut admin).unwrap();
    assert!(redis::cmd("EXISTS").arg("x").query::<bool>(&mut admin).unwrap());
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut admin).unwrap();
    assert!(clients.contains("user=worker"));
    lock.unlock().unwrap();
}

#[test]
fn database_that_is_not_there_is_an_error_at_once() {
    let server = Server::start();
    let client = Client::open(&format!("{}99", server.url())).unwrap();
    let error = within(..SOON, || error(client.lock("x").try_lock(SOON * 6)));
    assert!(error.is_server(), "{error:?}");
}
