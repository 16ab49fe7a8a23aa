//! Signals that interrupt a call to a socket are no failures of its connection.

use std::process::{Child, Command};
use std::time::Duration;

use distlock::Client;

use crate::helpers::SOON;
use crate::support::{Server, in_own_process};

/// Stops this process and lets it continue, again and again. Linux ends each call to a socket with
/// a timeout then, as it does after a signal that the program handles.
fn stopped_and_continued() -> Child {
    let loops = "for i in $(seq 150); do kill -STOP $0 && kill -CONT $0; sleep 0.01; done";
    let own = std::process::id().to_string();
    Command::new("sh").args(["-c", loops, &own]).spawn().unwrap()
}

/// How many connections the server has had.
fn connections(operator: &mut redis::Connection) -> Option<String> {
    let info: String = redis::cmd("INFO").arg("stats").query(operator).unwrap();
    info.lines()
        .find_map(|line| line.strip_prefix("total_connections_received:").map(str::to_owned))
}

#[test]
fn a_process_that_is_stopped_and_continued_keeps_its_connections() {
    in_own_process(
        "signals::a_process_that_is_stopped_and_continued_keeps_its_connections",
        || {
            let server = Server::start();
            let mut operator = server.connection();
            let client = Client::builder(&server.url()).command_timeout(SOON).build().unwrap();
            let lock = client.lock("job");
            lock.with(|_| ()).unwrap();
            let before = connections(&mut operator);
            // The server answers after many stops.
            redis::cmd("CLIENT").arg("PAUSE").arg(1_000).arg("WRITE").exec(&mut operator).unwrap();
            let mut stops = stopped_and_continued();
            assert!(lock.try_lock(Duration::ZERO).unwrap());
            lock.unlock().unwrap();
            assert!(stops.wait().unwrap().success());
            assert_eq!(connections(&mut operator), before, "each call went over the same one");
        },
    );
}
