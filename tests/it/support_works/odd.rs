//! The fake server, the certificates, the framing and the small helpers.

use std::fs;
use std::process::Command;
use std::time::Duration;

use redis::RedisResult;

use crate::support::fake::{self, FakeServer, Reply};
use crate::support::resp::{NotResp, elements, frame_len};
use crate::support::tls::{Certificate, Certificates};
use crate::support::{Server, eventually, fd_count, in_own_process, thread_count, within};

const SOON: Duration = Duration::from_secs(10);

fn get(url: &str, key: &str) -> RedisResult<Option<String>> {
    let mut connection = redis::Client::open(url).unwrap().get_connection()?;
    connection.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    redis::cmd("GET").arg(key).query(&mut connection)
}

#[test]
fn fake_server_says_what_its_script_says() {
    let server = FakeServer::start(|_, command| {
        if !fake::is(command, "GET") {
            return Reply::usual(command);
        }
        match &command[1][..] {
            b"bulk" => Reply::bulk(b"value"),
            b"nil" => Reply::nil(),
            b"moved" => Reply::error("MOVED 866 127.0.0.1:1"),
            b"close" => Reply::Close,
            b"garbage" => Reply::Bytes(b"\xff\xff".to_vec()),
            _ => Reply::Silence,
        }
    });
    assert_eq!(get(&server.url(), "bulk"), Ok(Some("value".to_owned())));
    assert_eq!(get(&server.url(), "nil"), Ok(None));
    assert_eq!(get(&server.url(), "moved").unwrap_err().code(), Some("MOVED"));
    assert!(get(&server.url(), "close").unwrap_err().is_connection_dropped());
    let garbage = get(&server.url(), "garbage").unwrap_err();
    assert!(!garbage.is_timeout() && !garbage.is_connection_dropped(), "{garbage:?}");
    assert!(get(&server.url(), "silence").unwrap_err().is_timeout());
    assert_eq!((server.accepted(), server.count("get")), (6, 6));
    let (connection, command) = server.commands().pop().unwrap();
    assert_eq!((connection, command), (5, vec![b"GET".to_vec(), b"silence".to_vec()]));
}

#[test]
fn fake_server_tells_its_connections_apart() {
    let server = FakeServer::start(|connection, command| {
        if fake::is(command, "GET") {
            Reply::bulk(connection.to_string().as_bytes())
        } else {
            Reply::usual(command)
        }
    });
    for number in 0..3 {
        assert_eq!(get(&server.url(), "x"), Ok(Some(number.to_string())));
    }
}

#[test]
fn nothing_is_left_of_a_fake_server() {
    in_own_process("support_works::odd::nothing_is_left_of_a_fake_server", || {
        let (threads, descriptors) = (thread_count(), fd_count());
        let server = FakeServer::start(|_, command| Reply::usual(command));
        let client = redis::Client::open(server.url()).unwrap();
        let open: Vec<_> = (0..10).map(|_| client.get_connection().unwrap()).collect();
        for _ in 0..100 {
            client.get_connection().unwrap();
        }
        assert!(thread_count() > threads);
        drop((server, open));
        assert_eq!((thread_count(), fd_count()), (threads, descriptors));
    });
}

/// Asks the operating system's own tool, as the crate's TLS is not tested here. The answer is the
/// exit status: the output contains the name of a temporary directory, which may contain any two
/// letters.
fn verify(authority: &Certificates, certificate: &Certificate, host: &str) -> Result<(), String> {
    let output = Command::new("openssl")
        .args(["verify", "-verify_hostname", host, "-CAfile"])
        .args([authority.ca(), &certificate.cert])
        .output()
        .expect("openssl not found: apt-get install -y openssl");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn certificates_are_good_expired_or_misnamed() {
    let certificates = Certificates::new();
    assert_eq!(verify(&certificates, &certificates.good(), "localhost"), Ok(()));
    let expired = verify(&certificates, &certificates.expired(), "localhost").unwrap_err();
    assert!(expired.contains("certificate has expired"), "{expired}");
    let wrong_name = certificates.wrong_name();
    let misnamed = verify(&certificates, &wrong_name, "localhost").unwrap_err();
    assert!(misnamed.contains("ostname mismatch"), "{misnamed}");
    assert_eq!(verify(&certificates, &wrong_name, "elsewhere.example"), Ok(()));
    let stranger = Certificates::new();
    let unknown = verify(&stranger, &certificates.good(), "localhost").unwrap_err();
    assert!(unknown.contains("verification failed"), "{unknown}");
    let dir = certificates.ca().parent().unwrap().to_owned();
    drop(certificates);
    assert!(!fs::exists(dir).unwrap());
}

#[test]
fn server_listens_with_a_certificate() {
    let certificates = Certificates::new();
    let good = certificates.good();
    let server = Server::builder().tls(&good.cert, &good.key, certificates.ca()).start();
    let url = server.tls_url("localhost");
    let address = url.strip_prefix("rediss://").unwrap().trim_end_matches('/');
    let output = Command::new("openssl")
        .args([
            "s_client",
            "-verify_return_error",
            "-verify_hostname",
            "localhost",
            "-connect",
            address,
            "-CAfile",
        ])
        .arg(certificates.ca())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn frames_are_told_apart_at_every_cut() {
    let frames: [&[u8]; 9] = [
        b"+OK\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$4\r\n\r\n\r\n\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
        b"%1\r\n+a\r\n~1\r\n:1\r\n",
        b"|1\r\n+a\r\n+b\r\n>2\r\n+message\r\n_\r\n",
    ];
    for frame in frames {
        for cut in 0..frame.len() {
            assert_eq!(frame_len(&frame[..cut]), Ok(None), "{frame:?} cut at {cut}");
        }
        let longer = [frame, b"+next\r\n"].concat();
        assert_eq!(frame_len(&longer), Ok(Some(frame.len())));
    }
    for garbage in [&b"\x16\x03\x01"[..], b"HTTP/1.1 400\r\n", b"$x\r\n", b"*-7\r\n"] {
        assert_eq!(frame_len(garbage), Err(NotResp));
    }
    assert_eq!(elements(b"*2\r\n$1\r\nx\r\n:7\r\n"), [b"x", b"7"]);
}

#[test]
fn within_and_eventually_refuse_what_is_not_in_time() {
    assert_eq!(within(..SOON, || 7), 7);
    let millisecond = Duration::from_millis(1);
    for failure in [
        std::panic::catch_unwind(|| within(SOON.., || ())),
        std::panic::catch_unwind(|| eventually(millisecond, || false)),
    ] {
        assert!(failure.is_err());
    }
}
