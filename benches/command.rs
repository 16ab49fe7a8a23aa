//! How long the command `distlock run` takes until the command that it runs begins.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

mod support;

use support::aims::Aims;
use support::args::Args;
use support::clock::now;
use support::it::Proxy;
use support::placement::Place;
use support::server;
use support::stats::percentile;
use support::table::Table;

/// One way, between the command and the server.
const DELAY: Duration = Duration::from_millis(25);

fn main() {
    let args = Args::parse();
    let place = args.begin("command: from the start of `distlock run` to its CMD", Place::Free);
    let server = server::start(place);
    let proxy = place.of_server(|| Proxy::start(server.port()));
    proxy.set_delay(DELAY, DELAY);
    let rounds = args.pick(5, 100);
    let names = ["CMD alone", "distlock run", "distlock run, 50 ms of added delay"];
    let mut times = names.map(|_| Vec::new());
    // The first one loads the scripts.
    begins(&mut distlock(&server.url()));
    for round in 1..=rounds {
        progress!("round {round} of {rounds}");
        let commands = [cmd(), distlock(&server.url()), distlock(&proxy.url())];
        for (mut command, times) in commands.into_iter().zip(&mut times) {
            times.push(begins(&mut command));
        }
    }
    let mut table = Table::new(&["", "p50 ms", "p99 ms"]);
    for (name, times) in names.iter().zip(&mut times) {
        let mut ms = |share| format!("{:.1}", percentile(times, share) as f64 / 1e6);
        table.row([(*name).to_owned(), ms(0.5), ms(0.99)]);
    }
    table.print();
    let [alone, direct, delayed] = times.map(|mut times| percentile(&mut times, 0.5) as f64);
    let round_trips = (delayed - direct) / (2.0 * DELAY.as_secs_f64() * 1e9);
    let mut aims = Aims::new();
    aims.at_most("start to CMD, ms more than CMD alone", (direct - alone) / 1e6, 20.0);
    aims.at_most("round trips, without that of the TCP connection", round_trips, 2.1);
    aims.print();
}

fn cmd() -> Command {
    let mut cmd = Command::new("echo");
    cmd.arg("begun");
    cmd
}

fn distlock(url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distlock"));
    command.args(["run", "--url", url, "job", "--", "echo", "begun"]);
    command
}

/// How long it takes until CMD says that it has begun, in nanoseconds.
fn begins(command: &mut Command) -> u64 {
    let start = now();
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let took = now() - start;
    assert!(child.wait().unwrap().success());
    took
}
