//! Renewal that cannot open a connection of its own extends over those of the pool.

use std::thread;
use std::time::Duration;

use distlock::{Client, ClientBuilder};

use crate::faults::pool_of;
use crate::helpers::{SOON, lease, ms};
use crate::logs;
use crate::loss::{HOUR, renewal_finds, timed};
use crate::support::{Mode, Proxy, Server, on_time};

/// Locks over the pool's connection, and only then makes the server refuse new connections.
#[track_caller]
fn is_kept(server: &Server, builder: ClientBuilder, refuse: impl FnOnce(&mut redis::Connection)) {
    let mut operator = server.connection();
    let (builder, clock) = timed(builder);
    let client = builder.build().unwrap();
    let lock = client.lock_with("job", lease(HOUR)).unwrap();
    lock.lock().unwrap();
    refuse(&mut operator);
    for _ in 0..3 {
        renewal_finds(&clock, || lock.remaining().unwrap() > HOUR * 9 / 10);
    }
    lock.unlock().unwrap();
    client.close(SOON).unwrap();
}

fn is_full(operator: &mut redis::Connection) {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(operator).unwrap();
    let clients = list.lines().count();
    redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(clients).exec(operator).unwrap();
    // Those that are closed make room for nobody.
    assert!(clients >= 2, "{list}");
}

#[test]
fn a_lock_is_kept_while_the_server_has_too_many_clients() {
    logs::keep();
    let server = Server::start();
    is_kept(&server, Client::builder(&server.url()).pool_size(3), is_full);
    let said = ["renewal cannot open a connection of its own", "too many clients"];
    assert!(!logs::lines(log::Level::Warn, &said).is_empty());
}

#[test]
fn a_lock_is_kept_over_the_programs_pool_while_the_server_has_too_many_clients() {
    let server = Server::start();
    let pool = pool_of(&server.url(), 2, false);
    is_kept(&server, Client::builder(&server.url()).pool(pool), is_full);
}

#[test]
fn a_lock_is_kept_after_its_password_was_changed() {
    let server = Server::start();
    let mut operator = server.connection();
    let mut set = |rule: &[&str]| {
        redis::cmd("ACL").arg("SETUSER").arg("u").arg(rule).exec(&mut operator).unwrap();
    };
    set(&["on", ">password", "~*", "&*", "+@all"]);
    is_kept(&server, Client::builder(&server.url_with("u", "password")), |_| {
        set(&["resetpass", ">another"]);
    });
}

#[test]
fn the_programs_pool_may_try_a_connection_before_an_extend() {
    // An extend has a sixth of the lease, and the pool's PING has time of its own.
    const LEASE: Duration = ms(3000);
    const ONE_WAY: Duration = ms(150);
    on_time(ms(50), || {
        let server = Server::start();
        let known = Client::open(&server.url()).unwrap().lock("scripts");
        known.lock().unwrap();
        known.extend(LEASE).unwrap();
        known.unlock().unwrap();
        let proxy = Proxy::start(server.port());
        let pool = pool_of(&proxy.url(), 3, true);
        proxy.set_delay(ONE_WAY, ONE_WAY);
        let client = Client::builder(&proxy.url()).pool(pool).build().unwrap();
        let lock = client.lock_with("job", lease(LEASE)).unwrap();
        proxy.set_mode(Mode::Refuse);
        lock.lock().unwrap();
        thread::sleep(LEASE * 3 / 2);
        assert!(lock.is_valid(), "it was extended");
        lock.unlock().unwrap();
    });
}
