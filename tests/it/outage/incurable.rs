//! What waiting cannot cure is told at once: an address at which there is no Redis server, or one
//! that turns this client away.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::time::Duration;
use std::{fs, iter, thread};

use distlock::{Client, ErrorKind};
use socket2::{Domain, SockAddr, Socket, Type};

use super::Underway;
use super::causes::cause;
use crate::helpers::{SOON, error, ms};
use crate::support::fake::{FakeServer, Reply};
use crate::support::{Server, ports, within};

/// Every call fails at once, with these words in its text and that of its cause.
#[track_caller]
pub fn told_at_once(client: &Client, kind: ErrorKind, words: &[&str]) {
    let lock = client.lock("x");
    let errors = within(..SOON, || {
        [error(client.ping()), error(lock.try_lock(SOON * 2)), error(lock.lock())]
    });
    for error in errors {
        let text = format!("{error}: {}", cause(&error));
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert_eq!(error.kind(), kind, "{text}");
    }
}

#[test]
fn a_service_that_is_not_redis_is_told_at_once() {
    for words in ["HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "220 smtp\r\n"] {
        let service = FakeServer::start(|_, _| Reply::Bytes(words.into()));
        let client = Client::open(&service.url()).unwrap();
        let port = service.port().to_string();
        told_at_once(&client, ErrorKind::Unsupported, &["no Redis server", &port]);
    }
}

/// Says this to each of so many connections, and closes them before it reads anything.
fn hang_up(listener: &TcpListener, connections: usize, words: &str) {
    for connection in listener.incoming().take(connections) {
        connection.unwrap().write_all(words.as_bytes()).unwrap();
    }
}

#[test]
fn a_server_in_protected_mode_is_told_at_once() {
    let listener = ports::listen();
    let url = format!("redis://{}/7", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        hang_up(&listener, 3, "-DENIED Redis is running in protected mode because\r\n");
    });
    let client = Client::open(&url).unwrap();
    told_at_once(&client, ErrorKind::Denied, &["other machines", "protected mode"]);
    server.join().unwrap();
}

#[test]
fn a_unix_socket_without_a_directory_is_told_at_once() {
    let server = Server::start();
    let directory = server.dir().join("none");
    let url = format!("redis+unix://{}/redis.sock", directory.display());
    let client = Client::open(&url).unwrap();
    told_at_once(&client, ErrorKind::Unavailable, &["directory", "does not exist", "redis.sock"]);
    fs::write(&directory, "").unwrap();
    told_at_once(&client, ErrorKind::Unavailable, &["cannot be", "not a directory"]);
}

#[test]
fn an_address_that_has_led_to_a_server_may_do_so_again() {
    let server = Server::builder().unix_socket().start();
    let [here, elsewhere] = ["here", "elsewhere"].map(|name| server.dir().join(name));
    symlink(server.dir(), &here).unwrap();
    let url = format!("redis+unix://{}/redis.sock", here.display());
    let client = Client::builder(&url).pool_size(1).build().unwrap();
    client.ping().unwrap();
    fs::rename(&here, &elsewhere).unwrap();
    server.restart();
    let lock = client.lock("x");
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    let mut down = client.lock("y").try_lock(ms(0));
    // The restart may be noticed only by the command.
    while down.is_ok() {
        down = client.lock("y").try_lock(ms(0));
    }
    assert!(error(down).is_unavailable());
    assert!(!waiting.is_done());
    fs::rename(&elsewhere, &here).unwrap();
    waiting.result().unwrap();
}

#[test]
fn a_unix_socket_whose_queue_is_full_is_unavailable_in_time() {
    let server = Server::start();
    let path = server.dir().join("full.sock");
    let address = SockAddr::unix(&path).unwrap();
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener.bind(&address).unwrap();
    listener.listen(0).unwrap();
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.connect(&address).ok().map(|()| socket)
    };
    let _queue: Vec<_> = iter::from_fn(connect).collect();
    let url = format!("redis+unix://{}", path.display());
    let client = Client::builder(&url).build().unwrap();
    for timeout in [Duration::ZERO, ms(200)] {
        assert!(within(..SOON, || error(client.lock("x").try_lock(timeout))).is_unavailable());
    }
}
