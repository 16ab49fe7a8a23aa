//! Servers start, freeze, die and come back, and never outlive the test.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use redis::Commands;

use crate::support::process::is_running;
use crate::support::{Server, eventually, fd_count, in_own_process, thread_count};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn server_answers_and_is_gone_after_drop() {
    let server = Server::start();
    let (pid, dir) = (server.pid(), server.dir().to_owned());
    let pong: String = redis::cmd("PING").query(&mut server.connection()).unwrap();
    assert_eq!(pong, "PONG");
    drop(server);
    assert!(!is_running(pid));
    assert!(!dir.exists());
}

#[test]
fn server_is_gone_after_a_panic() {
    let (tell, told) = mpsc::channel();
    let died = std::thread::spawn(move || {
        let server = Server::start();
        server.stop_process();
        tell.send((server.pid(), server.dir().to_owned())).unwrap();
        // Without a message, as this is no failure of the test.
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(died.join().is_err());
    let (pid, dir) = told.recv().unwrap();
    assert!(!is_running(pid));
    assert!(!dir.exists());
}

#[test]
fn server_is_gone_after_the_test_process_was_killed() {
    const ROLE: &str = "DISTLOCK_TEST_START_AND_WAIT";
    if std::env::var_os(ROLE).is_some() {
        let (runs, frozen) = (Server::start(), Server::start());
        frozen.stop_process();
        for server in [&runs, &frozen] {
            println!("\nserver {} {}", server.pid(), server.dir().display());
        }
        loop {
            std::thread::park();
        }
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "support_works::server::server_is_gone_after_the_test_process_was_killed",
            "--exact",
            "--nocapture",
        ])
        .env(ROLE, "yes")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let told: Vec<String> = lines.filter(|line| line.starts_with("server ")).take(2).collect();
    let servers: Vec<(u32, PathBuf)> = told
        .iter()
        .map(|line| {
            let mut words = line.split(' ').skip(1);
            (words.next().unwrap().parse().unwrap(), words.next().unwrap().into())
        })
        .collect();
    assert!(servers.iter().all(|(pid, dir)| is_running(*pid) && dir.exists()));
    child.kill().unwrap();
    child.wait().unwrap();
    for (pid, dir) in servers {
        eventually(SOON, || !is_running(pid) && !dir.exists());
    }
}

#[test]
fn frozen_server_is_silent_until_it_goes_on() {
    let server = Server::start();
    let mut connection = server.connection();
    server.stop_process();
    connection.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let silent: redis::RedisResult<String> = redis::cmd("PING").query(&mut connection);
    assert!(silent.unwrap_err().is_timeout());
    server.cont();
    let pong: String = redis::cmd("PING").query(&mut server.connection()).unwrap();
    assert_eq!(pong, "PONG");
}

#[test]
fn restarted_server_is_empty_on_the_same_port() {
    let server = Server::start();
    let (port, pid) = (server.port(), server.pid());
    let () = server.connection().set("key", "value").unwrap();
    server.stop_process();
    server.restart();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.connection().get("key"), Ok(None::<String>));
}

#[test]
fn append_only_server_keeps_its_data_over_a_kill() {
    let server = Server::builder().append_only().start();
    let () = server.connection().set("key", "value").unwrap();
    server.kill();
    server.kill();
    server.restart();
    assert_eq!(server.connection().get("key"), Ok(Some("value".to_owned())));
}

#[test]
fn loading_server_can_be_asked_while_it_loads() {
    // 8,000 keys at 50 µs each; a loading server looks at its clients once per 1024 commands.
    let server = Server::builder()
        .append_only()
        .arg("aof-use-rdb-preamble", "no")
        .arg("key-load-delay", "50")
        .start();
    let mut keys = redis::pipe();
    for key in 0..8_000 {
        keys.set(key, "value").ignore();
    }
    let () = keys.query(&mut server.connection()).unwrap();
    server.restart_without_waiting();
    assert!(server.info("persistence").contains("loading:1"));
    server.wait_ready();
    assert_eq!(server.connection().get(7_999), Ok(Some("value".to_owned())));
}

#[test]
fn password_and_unix_socket_are_in_the_urls() {
    let server = Server::builder().password("secret").unix_socket().start();
    let open = |url: String| redis::Client::open(url).unwrap().get_connection();
    for url in [server.url(), server.unix_url(), server.url_with("default", "secret")] {
        assert_eq!(open(url).unwrap().get("key"), Ok(None::<String>));
    }
    assert!(open(server.url_with("default", "wrong")).is_err());
}

#[test]
fn counts_leave_out_the_peeks() {
    for server in [Server::start(), Server::builder().password("secret").start()] {
        let mut connection = server.connection();
        let before = server.commands_processed_by_clients();
        for _ in 0..7 {
            let _: Option<String> = connection.get("key").unwrap();
        }
        assert_eq!(server.commands_processed_by_clients(), before + 7);
        assert_eq!(server.commands_processed_by_clients(), before + 7);
        assert_eq!(server.command_count("GET"), 7);
        assert_eq!(server.command_count("set"), 0);
        assert_eq!(server.client_count(), 1);
        drop(connection);
        eventually(SOON, || server.client_count() == 0);
    }
}

#[test]
fn nothing_is_left_of_a_hundred_servers() {
    in_own_process("support_works::server::nothing_is_left_of_a_hundred_servers", || {
        drop(Server::start());
        let (threads, descriptors) = (thread_count(), fd_count());
        for _ in 0..10 {
            let servers: Vec<Server> = (0..10).map(|_| Server::start()).collect();
            drop(servers);
        }
        assert_eq!(thread_count(), threads);
        assert_eq!(fd_count(), descriptors);
    });
}

#[test]
fn configuration_lines_reach_the_server() {
    let server = Server::builder()
        .arg("maxclients", "123")
        .arg("client-output-buffer-limit", "pubsub 1mb 1mb 1")
        .start();
    let (_, value): (String, u32) =
        redis::cmd("CONFIG").arg("GET").arg("maxclients").query(&mut server.connection()).unwrap();
    assert_eq!(value, 123);
}
