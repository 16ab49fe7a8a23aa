//! Each fault of the proxy does what it says, to the client and to the server.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redis::{Commands, Connection, RedisError, RedisResult};

use crate::support::{Fault, Proxy, Rule, Server, eventually, within};

pub(super) const SOON: Duration = Duration::from_secs(10);
/// How long a client waits for a reply that must not come.
pub(super) const SHORT: Duration = Duration::from_millis(60);

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn through_proxy() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

pub(super) fn connect(proxy: &Proxy) -> Connection {
    let connection = redis::Client::open(proxy.url()).unwrap().get_connection().unwrap();
    connection.set_read_timeout(Some(SOON)).unwrap();
    connection
}

pub(super) fn echo(connection: &mut Connection, text: &str) -> RedisResult<String> {
    redis::cmd("ECHO").arg(text).query(connection)
}

pub(super) fn set(connection: &mut Connection, key: &str) -> Result<(), RedisError> {
    connection.set(key, "value")
}

pub(super) fn has(server: &Server, key: &str) -> bool {
    server.connection().exists(key).unwrap()
}

/// How many calls have reached the server, of a command that no peek uses.
fn sets(server: &Server) -> u64 {
    server.command_count("set")
}

#[test]
fn without_rules_everything_passes() {
    let (_server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    for size in [0, 1, 100_000, 3_000_000] {
        let text = "x".repeat(size);
        assert_eq!(echo(&mut connection, &text), Ok(text));
    }
    let values: (i32, Vec<i32>, Option<i32>) = redis::pipe()
        .atomic()
        .incr("n", 5)
        .lrange("list", 0, -1)
        .get("none")
        .query(&mut connection)
        .unwrap();
    assert_eq!(values, (5, vec![], None));
    assert_eq!(proxy.accepted(), 1);
    let mut plain = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    plain.write_all(b"PING\r\n").unwrap();
    let mut pong = [0; 7];
    plain.read_exact(&mut pong).unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
}

#[test]
fn delay_request_holds_it_back_before_the_server() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let rule = proxy.add(Rule::on("set", Fault::DelayRequest(ms(150))).next(1));
    let start = Instant::now();
    let caller = std::thread::spawn(move || (set(&mut connection, "a"), connection));
    rule.wait_fired(SOON);
    let seen = has(&server, "a");
    assert!(!seen || start.elapsed() > ms(150), "the request was there too early");
    let (answer, mut connection) = caller.join().unwrap();
    assert!(answer.is_ok() && start.elapsed() >= ms(150));
    set(&mut connection, "b").unwrap();
    assert_eq!(rule.fired(), 1);
}

#[test]
fn delay_reply_holds_it_back_after_the_server() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let rule = proxy.add(Rule::on("SET", Fault::DelayReply(ms(150))).next(1));
    let start = Instant::now();
    let caller = std::thread::spawn(move || set(&mut connection, "a"));
    rule.wait_fired(SOON);
    assert!(has(&server, "a"));
    caller.join().unwrap().unwrap();
    assert!(start.elapsed() >= ms(150));
}

#[test]
fn cut_before_keeps_the_request_from_the_server() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let rule = proxy.add(Rule::on("SET", Fault::CutBefore).next(1));
    assert!(set(&mut connection, "a").unwrap_err().is_connection_dropped());
    rule.wait_fired(SOON);
    assert_eq!((sets(&server), rule.fired()), (0, 1));
    set(&mut connect(&proxy), "a").unwrap();
    assert_eq!((sets(&server), rule.fired()), (1, 1));
}

#[test]
fn cut_after_lets_the_server_run_it() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let rule = proxy.add(Rule::on("SET", Fault::CutAfter));
    assert!(set(&mut connection, "a").unwrap_err().is_connection_dropped());
    let firing = rule.wait_fired(SOON);
    assert_eq!(firing.command, [&b"SET"[..], b"a", b"value"]);
    assert!(has(&server, "a"));
    rule.remove();
    set(&mut connect(&proxy), "b").unwrap();
}

#[test]
fn cuts_can_be_resets() {
    let (_server, proxy) = through_proxy();
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    proxy.set_resets(true);
    let _rule = proxy.add(Rule::on("PING", Fault::CutAfter));
    client.write_all(b"PING\r\n").unwrap();
    assert_eq!(client.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    eventually(SOON, || proxy.open() == 1);
    assert_eq!(proxy.cut_all(), 1);
    assert_eq!(client.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn swallowed_reply_is_never_heard() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let rule = proxy.add(Rule::on("SET", Fault::SwallowReply).next(1));
    connection.set_read_timeout(Some(SHORT)).unwrap();
    assert!(set(&mut connection, "a").unwrap_err().is_timeout());
    rule.wait_fired(SOON);
    assert!(has(&server, "a"));
}

#[test]
fn duplicated_reply_is_taken_for_the_next() {
    let (_server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let _rule = proxy.add(Rule::on("ECHO", Fault::DuplicateReply).next(1));
    assert_eq!(echo(&mut connection, "first"), Ok("first".to_owned()));
    assert_eq!(echo(&mut connection, "second"), Ok("first".to_owned()));
}

#[test]
fn garbled_reply_is_a_protocol_error() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let _rule = proxy.add(Rule::on("SET", Fault::GarbleReply).next(1));
    connection.set_read_timeout(Some(SHORT)).unwrap();
    let error = set(&mut connection, "a").unwrap_err();
    assert!(!error.is_timeout(), "{error:?}");
    assert!(has(&server, "a"));
}

#[test]
fn truncated_reply_is_followed_by_silence() {
    let (_server, proxy) = through_proxy();
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    client.set_read_timeout(Some(SHORT)).unwrap();
    let _rule = proxy.add(Rule::on("PING", Fault::TruncateReply).next(1));
    client.write_all(b"PING\r\nPING\r\n").unwrap();
    let mut heard = Vec::new();
    assert_eq!(client.read_to_end(&mut heard).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(heard, b"+PO");
}

#[test]
fn dribbled_reply_comes_whole_in_the_end() {
    let (_server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let _rule = proxy.add(Rule::on("ECHO", Fault::DribbleReply(ms(3))).next(1));
    // "$10\r\n0123456789\r\n": 17 bytes, 16 pauses.
    let text = within(ms(48)..SOON, || echo(&mut connection, "0123456789"));
    assert_eq!(text, Ok("0123456789".to_owned()));
}

#[test]
fn held_request_arrives_after_its_client_has_gone() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let rule = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    connection.set_read_timeout(Some(SHORT)).unwrap();
    assert!(set(&mut connection, "a").unwrap_err().is_timeout());
    let held = rule.wait_held(SOON);
    drop(connection);
    // A later request of another connection overtakes it.
    set(&mut connect(&proxy), "b").unwrap();
    assert!(!has(&server, "a"));
    held.release();
    eventually(SOON, || has(&server, "a"));
    eventually(SOON, || proxy.open() == 0);
}

#[test]
fn held_request_that_is_dropped_is_lost() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let rule = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    let caller = std::thread::spawn(move || set(&mut connection, "a"));
    drop(rule.wait_held(SOON));
    assert!(caller.join().unwrap().unwrap_err().is_connection_dropped());
    assert_eq!(sets(&server), 0);
}

#[test]
fn held_reply_comes_when_released() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let rule = proxy.add(Rule::on("SET", Fault::HoldReply).next(1));
    let caller = std::thread::spawn(move || set(&mut connection, "a"));
    let held = rule.wait_held(SOON);
    assert!(has(&server, "a") && !caller.is_finished());
    held.release();
    caller.join().unwrap().unwrap();
}

#[test]
fn replies_can_be_made_up_with_and_without_the_server() {
    let (server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let moved = b"-MOVED 1 127.0.0.1:1\r\n".to_vec();
    let instead = proxy.add(Rule::on("SET", Fault::Answer(moved)).next(1));
    let after =
        proxy.add(Rule::on("SET", Fault::ReplaceReply(b"-OOM none left\r\n".to_vec())).next(1));
    // In a pipeline too, each answer stays with its request.
    let mut calls = redis::pipe();
    calls
        .cmd("ECHO")
        .arg("1")
        .set("a", 1)
        .cmd("ECHO")
        .arg("2")
        .set("b", 1)
        .cmd("ECHO")
        .arg("3")
        .ignore_errors();
    let replies: Vec<redis::Value> = calls.query(&mut connection).unwrap();
    let told: Vec<String> = replies.iter().map(|reply| format!("{reply:?}")).collect();
    assert!(told[1].contains("MOVED") || told[1].contains("Moved"), "{told:?}");
    assert!(told[3].contains("OOM"), "{told:?}");
    for (at, text) in [(0, "1"), (2, "2"), (4, "3")] {
        assert_eq!(replies[at], redis::Value::BulkString(text.as_bytes().to_vec()));
    }
    assert_eq!((instead.fired(), after.fired()), (1, 1));
    assert!(!has(&server, "a") && has(&server, "b"));
}

#[test]
fn rules_choose_by_arguments_and_count() {
    let (_server, proxy) = through_proxy();
    let mut connection = connect(&proxy);
    let nil = Fault::Answer(b"$-1\r\n".to_vec());
    let rule = proxy
        .add(Rule::on("get", nil).when(|command| command[1].starts_with(b"x")).skip(1).next(2));
    let () = connection.set("x", "there").unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(connection.get::<_, Option<String>>("x").unwrap().is_some());
        let _: Option<String> = connection.get("y").unwrap();
    }
    assert_eq!(seen, [true, false, false, true]);
    assert_eq!(rule.fired(), 2);
}
