//! What the proxy does to whole connections, to subscriptions, and when it ends.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use redis::{Commands, Connection};

use super::proxy::{SHORT, SOON, connect, echo, has, ms, set, through_proxy};
use crate::support::{
    Fault, Mode, Proxy, Rule, Server, eventually, fd_count, in_own_process, thread_count,
    thread_names, within,
};

#[test]
fn constant_delay_lets_many_requests_be_under_way_at_once() {
    let (_server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    proxy.set_delay(ms(20), ms(30));
    assert_eq!(within(ms(50)..SOON, || echo(&mut connection, "x")), Ok("x".to_owned()));
    // 200 requests, sent one by one before the first reply is read, are under way at once.
    let replies = within(ms(50)..ms(5000), || {
        let request = redis::cmd("ECHO").arg("x").get_packed_command();
        for _ in 0..200 {
            connection.send_packed_command(&request).unwrap();
            std::thread::sleep(Duration::from_micros(100));
        }
        (0..200)
            .map(|_| connection.recv_response().unwrap())
            .filter(|reply| *reply == redis::Value::BulkString(b"x".to_vec()))
            .count()
    });
    assert_eq!(replies, 200);
}

#[test]
fn jitter_keeps_the_order_of_a_connection() {
    let (_server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    proxy.set_jitter(ms(5));
    let mut calls = redis::pipe();
    for n in 0..50 {
        calls.cmd("ECHO").arg(n);
    }
    let replies: Vec<u32> = calls.query(&mut connection).unwrap();
    assert!(replies.iter().copied().eq(0..50));
}

#[test]
fn frozen_proxy_delivers_everything_later() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    proxy.freeze();
    connection.set_read_timeout(Some(SHORT)).unwrap();
    assert!(set(&mut connection, "a").unwrap_err().is_timeout());
    assert!(!has(&server, "a"));
    proxy.thaw();
    eventually(SOON, || has(&server, "a"));
}

#[test]
fn silent_proxy_accepts_and_says_nothing() {
    let (_server, proxy) = through_proxy();
    let mut before = connect(&proxy);
    proxy.set_mode(Mode::Silent);
    let client = redis::Client::open(proxy.url()).unwrap();
    assert!(within(SHORT..SOON, || client.get_connection_with_timeout(SHORT)).is_err());
    assert_eq!(proxy.accepted(), 2);
    assert!(echo(&mut before, "x").is_ok());
    proxy.set_mode(Mode::Forward);
    assert!(echo(&mut connect(&proxy), "x").is_ok());
}

#[test]
fn refusing_proxy_does_not_listen() {
    let (_server, proxy) = through_proxy();
    for _ in 0..20 {
        proxy.set_mode(Mode::Refuse);
        let refused = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        proxy.set_mode(Mode::Forward);
        assert!(echo(&mut connect(&proxy), "x").is_ok());
    }
    assert_eq!(proxy.accepted(), 20);
    proxy.set_mode(Mode::Refuse);
}

#[test]
fn closing_proxy_ends_new_connections() {
    let (_server, proxy) = through_proxy();
    proxy.set_mode(Mode::Close);
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    assert_eq!(client.read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn cut_all_ends_every_connection() {
    let (_server, proxy) = through_proxy();
    let mut connections: Vec<Connection> = (0..5).map(|_| connect(&proxy)).collect();
    assert_eq!(proxy.cut_all(), 5);
    for connection in &mut connections {
        assert!(echo(connection, "x").unwrap_err().is_connection_dropped());
    }
    eventually(SOON, || proxy.open() == 0);
}

#[test]
fn pushes_pass_and_can_be_swallowed() {
    let (server, proxy) = through_proxy();
    let mut publisher = server.connection();
    let mut connection = connect(&proxy);
    let mut pubsub = connection.as_pubsub();
    pubsub.set_read_timeout(Some(SOON)).unwrap();
    // One by one: with several, redis-rs returns at the first confirmation, and takes the second
    // one for that of the next call.
    pubsub.subscribe("a").unwrap();
    pubsub.subscribe("b").unwrap();
    pubsub.psubscribe("p*").unwrap();
    let lost = proxy.add(Rule::on("message", Fault::SwallowReply).when(|push| push[2] == b"lost"));
    for (channel, text) in [("a", "1"), ("b", "lost"), ("a", "2"), ("px", "3")] {
        let () = publisher.publish(channel, text).unwrap();
    }
    pubsub.unsubscribe("b").unwrap();
    let mut texts = Vec::new();
    for _ in 0..3 {
        texts.push(pubsub.get_message().unwrap().get_payload::<String>().unwrap());
    }
    assert_eq!(texts, ["1", "2", "3"]);
    assert_eq!(lost.wait_fired(SOON).command[1], b"b");
    drop(pubsub);
    assert!(echo(&mut connection, "x").is_ok());
}

#[test]
fn confirmations_and_pushes_are_no_replies_to_other_requests() {
    let (server, proxy) = through_proxy();
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    let rule = proxy.add(Rule::on("PING", Fault::ReplaceReply(b"+mine\r\n".to_vec())));
    client.write_all(b"SUBSCRIBE a b\r\nPING\r\n").unwrap();
    rule.wait_fired(SOON);
    let () = server.connection().publish("b", "x").unwrap();
    client.write_all(b"PING\r\n").unwrap();
    let expected = "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n\
                    *3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n+mine\r\n\
                    *3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$1\r\nx\r\n+mine\r\n";
    let mut heard = vec![0; expected.len()];
    client.read_exact(&mut heard).unwrap();
    assert_eq!(String::from_utf8_lossy(&heard), expected);
}

#[test]
fn reply_of_a_subscription_can_be_cut() {
    let (_server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let rule = proxy.add(Rule::on("SUBSCRIBE", Fault::CutAfter).next(1));
    let mut pubsub = connection.as_pubsub();
    pubsub.set_read_timeout(Some(SOON)).unwrap();
    assert!(pubsub.subscribe("a").is_err());
    rule.wait_fired(SOON);
}

#[test]
fn server_that_dies_ends_the_clients_connection() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    server.kill();
    assert!(echo(&mut connection, "x").unwrap_err().is_connection_dropped());
    server.restart();
    assert!(echo(&mut connect(&proxy), "x").is_ok());
}

#[test]
fn dropped_proxy_leaves_no_thread_and_no_descriptor() {
    in_own_process(
        "support_works::proxy_modes::dropped_proxy_leaves_no_thread_and_no_descriptor",
        || {
            let server = Server::start();
            let (threads, descriptors) = (thread_count(), fd_count());
            for mode in [Mode::Forward, Mode::Silent, Mode::Refuse, Mode::Close] {
                let proxy = Proxy::start(server.port());
                let mut connections: Vec<Connection> = (0..10).map(|_| connect(&proxy)).collect();
                let held = proxy.add(Rule::on("SET", Fault::HoldRequest));
                let _late =
                    proxy.add(Rule::on("GET", Fault::DelayReply(Duration::from_secs(3600))));
                proxy.set_mode(mode);
                let idle = TcpStream::connect(("127.0.0.1", proxy.port()));
                for connection in &mut connections[..5] {
                    connection
                        .send_packed_command(
                            &redis::cmd("SET").arg("a").arg("b").get_packed_command(),
                        )
                        .unwrap();
                    connection
                        .send_packed_command(&redis::cmd("GET").arg("a").get_packed_command())
                        .unwrap();
                    let _ = std::mem::ManuallyDrop::new(held.wait_held(SOON));
                }
                assert!(
                    thread_names()
                        .iter()
                        .any(|name| name.starts_with(&format!("px{}", proxy.port())))
                );
                within(..SOON, || drop((proxy, idle, connections)));
                assert_eq!((thread_count(), fd_count()), (threads, descriptors), "{mode:?}");
            }
        },
    );
}

#[test]
fn many_short_connections_leave_no_trace() {
    in_own_process("support_works::proxy_modes::many_short_connections_leave_no_trace", || {
        let (server, proxy) = through_proxy();
        for _ in 0..300 {
            set(&mut connect(&proxy), "a").unwrap();
        }
        eventually(SOON, || proxy.open() == 0 && server.client_count() == 0);
        eventually(SOON, || thread_count() <= 3);
        assert_eq!(proxy.accepted(), 300);
    });
}
