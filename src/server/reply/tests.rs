//! Unit tests of replies: each word and failure is of its kind.

use std::io;

use redis::{RedisError, Value};

use super::*;

/// The reply that a server's bytes are.
fn reply(bytes: &str) -> Value {
    redis::parse_redis_value(bytes.as_bytes()).expect("a reply")
}

/// What redis-rs makes of an error reply.
fn said(words: &str) -> RedisError {
    let Value::ServerError(error) = reply(&format!("-{words}\r\n")) else {
        unreachable!("an error reply")
    };
    error.into()
}

fn failed(kind: io::ErrorKind) -> RedisError {
    io::Error::from(kind).into()
}

/// Kind, permanent, may have run.
fn nature(error: &StoreError) -> (ErrorKind, bool, bool) {
    (error.kind, error.permanent, error.may_have_run)
}

fn cause(error: StoreError) -> Option<String> {
    error.source.map(|source| source.to_string())
}

const UNAVAILABLE: (ErrorKind, bool, bool) = (ErrorKind::Unavailable, false, false);

#[test]
fn each_refusal_is_of_its_kind() {
    for (words, kind, permanent) in [
        ("NOAUTH Authentication required.", ErrorKind::Denied, true),
        ("WRONGPASS invalid username-password pair", ErrorKind::Denied, true),
        ("NOPERM this user has no permissions", ErrorKind::Denied, true),
        ("DENIED Redis is running in protected mode", ErrorKind::Denied, true),
        ("WRONGTYPE Operation against a key", ErrorKind::WrongType, true),
        ("LOADING Redis is loading the dataset", ErrorKind::Unavailable, false),
        ("BUSY Redis is busy running a script", ErrorKind::Unavailable, false),
        ("CLUSTERDOWN The cluster is down", ErrorKind::Unavailable, false),
        ("TRYAGAIN Multiple keys request", ErrorKind::Unavailable, false),
        ("READONLY You can't write against a read only replica.", ErrorKind::Unavailable, false),
        ("NOREPLICAS Not enough good replicas to write.", ErrorKind::Unavailable, false),
        ("OOM command not allowed", ErrorKind::Server, true),
        ("MISCONF Redis is configured to save", ErrorKind::Server, true),
        ("MOVED 1 127.0.0.1:7001", ErrorKind::Unsupported, true),
        ("ASK 1 127.0.0.1:7001", ErrorKind::Unsupported, true),
        ("CROSSSLOT Keys in request don't hash", ErrorKind::Unsupported, true),
        ("ERR max number of clients reached", ErrorKind::Unavailable, false),
        ("ERR unauthenticated bulk length", ErrorKind::Denied, true),
        ("ERR Error running script: WRONGTYPE Operation", ErrorKind::WrongType, true),
        ("ERR Error running script: OOM command not allowed", ErrorKind::Server, true),
        ("ERR Error running script: -NOREPLICAS Not enough", ErrorKind::Unavailable, false),
        ("ERR user_script:55: NOREPLICAS Not enough", ErrorKind::Unavailable, false),
        ("ERR The user executing the script can't run it", ErrorKind::Denied, true),
        ("ERR ACL failure in script: User u has no permissions", ErrorKind::Denied, true),
        ("ERR something else", ErrorKind::Server, true),
    ] {
        let (code, details) = words.split_once(' ').expect("two parts");
        assert_eq!(nature(&refused(code, details)), (kind, permanent, false), "{words}");
    }
    for (code, details) in [
        ("NOPERM", "no permission script: 12, on @user_script:9."),
        ("@user_script:", "1: The user executing the script can't run this command"),
    ] {
        assert_eq!(nature(&refused(code, details)), (ErrorKind::Denied, true, true), "{details}");
    }
    let whole = refused("ERR", "no such thing script: 12, on @user_script:9.");
    assert!(!whole.may_have_run, "any other error comes before what a script writes");
    let full = "the server is out of memory";
    assert_eq!(refused("OOM", "command not allowed").message, full);
    assert_eq!(refused("ERR", "script: OOM command not allowed").message, full);
    let cannot_persist = "the server cannot persist and accepts no writes";
    assert_eq!(refused("MISCONF", "Redis is configured to save").message, cannot_persist);
    assert_eq!(refused("ERR", "script: -MISCONF Errors writing").message, cannot_persist);
    let quoted = cause(refused("ERR", "ACL failure in script")).unwrap_or_default();
    assert_eq!(quoted, "the server said: ERR ACL failure in script");
}

#[test]
fn a_cause_quotes_no_argument_and_is_short() {
    let unknown = refused("ERR", "unknown command 'X', with args beginning with: 'token'");
    assert_eq!(cause(unknown).as_deref(), Some("the server said: ERR unknown command 'X'"));
    let long = cause(refused("ERR", &"x".repeat(1000))).expect("a cause");
    assert_eq!(long.len(), "the server said: ERR ".len() + 200);
    let lost = unanswered(&failed(io::ErrorKind::ConnectionReset));
    assert_eq!(cause(lost).as_deref(), Some("connection reset"));
}

#[test]
fn only_a_failure_without_a_word_says_nothing() {
    assert!(says_nothing(&failed(io::ErrorKind::ConnectionReset)));
    assert!(says_nothing(&said("READONLY You can't write against a read only replica.")));
    assert!(!says_nothing(&said("NOPERM this user has no permissions")));
    assert!(!says_nothing(&failed(io::ErrorKind::TimedOut)));
}

#[test]
fn a_connection_that_could_not_be_opened_has_sent_nothing() {
    assert_eq!(nature(&connecting(&failed(io::ErrorKind::ConnectionReset))), UNAVAILABLE);
    let denied = connecting(&said("WRONGPASS invalid username-password pair"));
    assert_eq!(nature(&denied), (ErrorKind::Denied, true, false));
}

#[cfg(feature = "tls")]
#[test]
fn what_is_wrong_with_a_certificate_is_told_and_permanent() {
    use rustls::CertificateError as Problem;
    for (problem, words) in [
        (Problem::Expired, "the server's certificate has expired"),
        (Problem::NotValidForName, "the server's certificate is for another host"),
        (
            Problem::UnknownIssuer,
            "the server's certificate is from an authority that is not trusted",
        ),
        (Problem::Revoked, "the server's certificate is not valid"),
    ] {
        let tls = rustls::Error::InvalidCertificate(problem);
        let error = connecting(&io::Error::new(io::ErrorKind::InvalidData, tls).into());
        assert_eq!(nature(&error), (ErrorKind::Unavailable, true, false));
        assert_eq!(error.message, words);
    }
    let other = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError);
    assert_eq!(nature(&connecting(&other.into())), UNAVAILABLE);
}

#[test]
fn a_log_in_is_refused_for_its_credentials_or_because_nobody_is_served() {
    assert!(logged_in(reply("+OK\r\n")).is_ok());
    let loading = logged_in(reply("-LOADING Redis is loading\r\n")).expect_err("refused");
    assert_eq!(nature(&loading), UNAVAILABLE);
    let odd = logged_in(reply("-ERR wrong number of arguments\r\n")).expect_err("refused");
    assert_eq!(nature(&odd), (ErrorKind::Denied, true, false));
    assert!(cause(odd).is_some_and(|words| words.contains("wrong number")));
}

#[test]
fn what_was_sent_and_not_answered_may_have_run() {
    let late = unanswered(&failed(io::ErrorKind::TimedOut));
    assert_eq!(nature(&late), (ErrorKind::Unavailable, false, true));
    assert!(!late.dropped);
    assert_eq!(late.message, "the server did not answer in time");
    let lost = unanswered(&failed(io::ErrorKind::ConnectionReset));
    assert!(lost.may_have_run && lost.dropped);
    let never_there = unanswered(&failed(io::ErrorKind::ConnectionRefused));
    assert_eq!(nature(&never_there), UNAVAILABLE);
    assert!(never_there.dropped);
    let refusal = unanswered(&said("OOM command not allowed"));
    assert_eq!(nature(&refusal), (ErrorKind::Server, true, true));
    assert!(!refusal.dropped);
    let demoted = unanswered(&said("READONLY You can't write against a read only replica."));
    assert!(!demoted.may_have_run && demoted.dropped, "a replica carries out no write");
}

#[test]
fn a_reply_that_is_not_the_commands_is_told_apart() {
    let misshapen = unanswered(&misshapen());
    assert_eq!(nature(&misshapen), (ErrorKind::Server, false, true));
    let other = unanswered(&out_of_step());
    assert_eq!(nature(&other), (ErrorKind::Unavailable, false, true));
    assert_eq!(other.message, "the connection failed before the reply");
}

#[test]
fn some_error_replies_say_that_nothing_was_read() {
    let full = reply("-ERR max number of clients reached\r\n");
    assert!(turned_away(&full) && !turned_away(&reply("-ERR other\r\n")));
    assert!(!turned_away(&reply("+max number of clients\r\n")));
    assert!(unknown_script(&reply("-NOSCRIPT No matching script.\r\n")));
    assert!(!unknown_script(&reply("-ERR other\r\n")));
}

#[test]
fn a_missing_permission_is_for_the_command_that_it_names() {
    let refuses_echo = |words: &str| match reply(words) {
        Value::ServerError(error) => refuses(&error, "echo"),
        _ => unreachable!("an error reply"),
    };
    assert!(refuses_echo("-NOPERM this user has no permissions to run the 'echo' command\r\n"));
    assert!(!refuses_echo("-NOPERM this user has no permissions to run the 'get' command\r\n"));
    assert!(!refuses_echo("-ERR unknown command 'echo'\r\n"));
    assert!(!refuses_echo("-NOPERM\r\n"));
}

#[test]
fn values_are_read_and_anything_else_is_nonsense() {
    assert_eq!(value(reply(":1\r\n")).ok(), Some(Value::Int(1)));
    assert!(value(reply("-ERR no\r\n")).is_err());
    assert_eq!(number(&reply(":-7\r\n")).ok(), Some(-7));
    assert_eq!(number(&reply("$2\r\n42\r\n")).ok(), Some(42));
    assert_eq!(counts(&reply("*2\r\n:0\r\n:7\r\n")).ok(), Some(vec![0, 7]));
    assert_eq!(list(&reply("*1\r\n:1\r\n")).ok(), Some(&[Value::Int(1)][..]));
    assert_eq!(text(&reply("+a\r\n")).ok().as_deref(), Some("a"));
    assert_eq!(text(&reply("$1\r\nb\r\n")).ok().as_deref(), Some("b"));
    assert_eq!(text(&Value::BulkString(vec![0xff])).ok().as_deref(), Some("\u{fffd}"));
    assert_eq!(bytes(&Value::BulkString(vec![0xff])).ok(), Some([0xff].as_slice()));
    for nonsense in [
        number(&reply("$1\r\nx\r\n")).map(drop),
        number(&reply("*0\r\n")).map(drop),
        list(&reply(":1\r\n")).map(drop),
        counts(&reply(":1\r\n")).map(drop),
        counts(&reply("*1\r\n:-1\r\n")).map(drop),
        counts(&reply("*1\r\n$1\r\n1\r\n")).map(drop),
        bytes(&reply(":1\r\n")).map(drop),
    ] {
        let error = nonsense.expect_err("not of this shape");
        assert_eq!(nature(&error), (ErrorKind::Server, false, true));
    }
}

#[test]
fn a_primary_that_moved_may_have_carried_the_command_out_unless_nothing_was_sent() {
    let (moved, meanwhile, replica) = (moved(), moved_meanwhile(), replica());
    assert_eq!(nature(&moved), (ErrorKind::Unavailable, false, true));
    assert!(moved.dropped && !moved.stale);
    assert_eq!(nature(&meanwhile), UNAVAILABLE);
    assert!(meanwhile.stale && !meanwhile.dropped);
    assert_eq!(nature(&replica), UNAVAILABLE);
}
