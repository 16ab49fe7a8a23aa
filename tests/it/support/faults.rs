//! What the tests of bad input and bad networks share: clients with a short command timeout, and a
//! look at what they left behind.

use std::sync::Barrier;
use std::time::Duration;

use distlock::{Client, ClientBuilder};

use crate::helpers::{SOON, keys, ms};
use crate::support::{Proxy, Server, eventually};

/// The short command timeout of these clients. Far longer than any command takes, even on a machine
/// that stands still for half a second.
pub const PATIENCE: Duration = ms(1000);

/// A server, and a proxy in front of it.
pub fn through_proxy() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

/// A client whose command timeout is [`PATIENCE`].
pub fn impatient(url: &str) -> ClientBuilder {
    Client::builder(url).command_timeout(PATIENCE).connect_timeout(PATIENCE)
}

/// The program's own pool, of this many connections. The pool tests each connection at check-out,
/// or does not.
pub fn pool_of(url: &str, size: u32, tried: bool) -> r2d2::Pool<redis::Client> {
    let client = redis::Client::open(url).unwrap();
    r2d2::Pool::builder()
        .max_size(size)
        .test_on_check_out(tried)
        .connection_timeout(SOON)
        .build(client)
        .unwrap()
}

/// Opens this many connections of a client, by that many commands at the same time. Returns once
/// all of them have worked.
pub fn warm_up(client: &Client, connections: usize) {
    eventually(SOON, || {
        let barrier = Barrier::new(connections);
        std::thread::scope(|scope| {
            let users: Vec<_> =
                (0..connections).map(|_| scope.spawn(|| ping_together(client, &barrier))).collect();
            users.into_iter().filter_map(|user| user.join().unwrap().then_some(())).count()
                == connections
        })
    });
}

/// Whether a PING worked at once. It is sent when every thread has a connection.
fn ping_together(client: &Client, barrier: &Barrier) -> bool {
    let mut tries = 0;
    eventually(SOON, || {
        let pinged = client.execute(|connection| {
            tries += 1;
            if tries == 1 {
                barrier.wait();
            }
            redis::cmd("PING").exec(connection)
        });
        pinged.is_ok()
    });
    tries == 1
}

/// Waits until the server has no key at all any more.
#[track_caller]
pub fn nothing_is_left(server: &Server) {
    eventually(SOON, || keys(server).is_empty());
}
