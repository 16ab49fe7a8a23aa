//! What it costs to keep ten thousand leases alive, how punctual that is, and how far it goes.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use std::thread;
use std::time::Duration;

use distlock::Client;

mod support;

use support::aims::Aims;
use support::args::Args;
use support::clock::{cpu, cpu_of_threads, now};
use support::it::{Proxy, Server, eventually, thread_names};
use support::leases::Leases;
use support::placement::Place;
use support::server::{self, Side};
use support::stats::percentile;
use support::table::{Table, thousands};
use support::watch::ms;

const LEASES: usize = 10_000;

/// What was observed during one scene.
struct Report {
    threads: usize,
    /// The scripts among them that extend.
    renewals: usize,
    connections: usize,
    own_cpu: f64,
    renewal_cpu: f64,
    server_cpu: f64,
    extends: f64,
    per_call: f64,
    late_p50: f64,
    late_most: f64,
    least_margin: f64,
    lost: u64,
}

fn main() {
    let args = Args::parse();
    let place = args.begin("renewal: 10,000 leases kept alive by one client", Place::Free);
    let server = server::start(place);
    let proxy = place.of_server(|| Proxy::start(server.port()));
    let leases = args.pick(2_000, LEASES);
    let seconds = args.pick(3, 21);
    let lease = Duration::from_secs(args.pick(6, 30));

    let mut table = Table::new(&[
        "",
        "threads",
        "connections",
        "CPU of the renewal thread",
        "of the process",
        "of the server",
        "extends per second",
        "per call",
        "late p50 ms",
        "latest ms",
        "least margin",
        "lost",
    ]);
    let (mut aims, mut alike) = (Aims::new(), Vec::new());
    let scenes: [(&str, &str, Duration, bool); 4] = [
        ("A: direct", &server.url(), Duration::ZERO, false),
        ("one lease's key deleted", &server.url(), Duration::ZERO, true),
        ("50 ms of added delay", &proxy.url(), Duration::from_millis(25), false),
        ("A': direct again", &server.url(), Duration::ZERO, false),
    ];
    for (label, url, delay, delete) in scenes {
        progress!("{leases} leases of {lease:?}: {label}");
        let mut side = Side::new(&server);
        // Acquiring ten thousand locks one by one through a delay would take minutes.
        proxy.set_delay(Duration::ZERO, Duration::ZERO);
        // The client of the previous scene may still be closing.
        eventually(Duration::from_secs(30), || side.connections() == 0);
        let connections = side.connections();
        let scene = Leases::hold(Client::builder(url), leases, lease);
        proxy.set_delay(delay, delay);
        if delete {
            side.delete("renewal:7");
        }
        let report = Report::watch(&scene, &mut side, seconds, connections);
        report.row(&mut table, label.to_owned());
        if label.starts_with('A') {
            alike.push(report.renewal_cpu);
        }
        if !label.starts_with("A'") {
            let label = label.trim_start_matches("A: ");
            aims.at_most(&format!("{label}: threads that extend"), report.renewals as f64, 1.0);
            aims.at_most(
                &format!("{label}: CPU of the renewal thread, % of a core"),
                100.0 * report.renewal_cpu,
                0.5,
            );
            aims.at_most(
                &format!("{label}: the latest extend, ms behind its time"),
                report.late_most,
                100.0,
            );
            aims.at_least(
                &format!("{label}: the least margin, of a lease"),
                report.least_margin,
                0.5,
            );
            aims.at_most(
                &format!("{label}: leases lost beside the deleted one"),
                report.lost as f64 - f64::from(u8::from(delete)),
                0.0,
            );
        }
        drop(scene);
        server_is_empty(&server);
    }
    table.print();
    println!(
        "{} leases of {} s, watched for {seconds} s. Late: how long after a third of the lease \
         (since it was granted or last extended) an extend is sent; extends of \
         long leases are brought forward to a common beat of 100 ms. Least margin: how much of a \
         lease was left at least when its extend was answered. Threads and \
         connections: the client's own. CPU as share of one core.\n",
        thousands(leases as f64),
        lease.as_secs()
    );
    println!("A' / A, CPU of the renewal thread: {:.2}.\n", alike[1] / alike[0]);
    fastest(&args, &server, leases);
    aims.print();
}

/// Ever shorter leases, until one is lost.
fn fastest(args: &Args, server: &Server, leases: usize) {
    println!("### The highest rate\n");
    let mut table = Table::new(&[
        "lease s",
        "extends due per second",
        "seen",
        "CPU of the renewal thread",
        "late p50 ms",
        "latest ms",
        "lost",
    ]);
    let (mut punctual, mut kept) = (None, None);
    let lengths: &[u64] = args.pick(&[3000, 1000][..], &[6000, 3000, 1500, 1000, 750, 500, 300]);
    for &millis in lengths {
        let lease = Duration::from_millis(millis);
        progress!("{leases} leases of {lease:?}");
        let mut side = Side::new(server);
        let scene = Leases::hold(Client::builder(&server.url()), leases, lease);
        let report = Report::watch(&scene, &mut side, args.pick(2, 4), 0);
        let due = leases as f64 * 3000.0 / millis as f64;
        table.row([
            format!("{}", millis as f64 / 1000.0),
            thousands(due),
            thousands(report.extends),
            format!("{:.1} %", 100.0 * report.renewal_cpu),
            format!("{:.1}", report.late_p50),
            format!("{:.1}", report.late_most),
            format!("{}", report.lost),
        ]);
        if report.lost == 0 && report.late_most < 100.0 {
            punctual = Some(report.extends);
        }
        drop(scene);
        server_is_empty(server);
        if report.lost > 0 {
            break;
        }
        kept = Some(report.extends);
    }
    table.print();
    let rate = |rate: Option<f64>| {
        rate.map_or("none of these".to_owned(), |rate| {
            format!("{} extends per second", thousands(rate))
        })
    };
    println!(
        "Kept up with and none later than 100 ms: {}; without losing a lease: {}.\n",
        rate(punctual),
        rate(kept)
    );
}

/// A scene must leave nothing to the next one.
fn server_is_empty(server: &Server) {
    redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
}

impl Report {
    /// What happens to these leases in so many seconds.
    fn watch(leases: &Leases, side: &mut Side, seconds: u64, connections: usize) -> Self {
        leases.seen.lock().unwrap().begin();
        let (cpu_before, renewal_before, before, start) =
            (cpu(), renewal_cpu(), side.counters(), now());
        thread::sleep(Duration::from_secs(seconds));
        let took = (now() - start) as f64;
        let mut seen = leases.seen.lock().unwrap();
        let late_p50 = percentile(&mut seen.late, 0.5);
        Self {
            // Counted by name: the proxy has threads in this process, too.
            threads: thread_names().iter().filter(|name| name.starts_with("distlock-")).count(),
            renewals: thread_names()
                .iter()
                .filter(|name| name.starts_with("distlock-renew"))
                .count(),
            connections: side.connections().saturating_sub(connections),
            own_cpu: (cpu() - cpu_before) as f64 / took,
            renewal_cpu: (renewal_cpu() - renewal_before) as f64 / took,
            server_cpu: (side.counters().cpu_us - before.cpu_us) * 1000.0 / took,
            extends: seen.extends as f64 * 1e9 / took,
            per_call: seen.extends as f64 / seen.calls.max(1) as f64,
            late_p50: ms(Duration::from_nanos(late_p50)),
            late_most: ms(Duration::from_nanos(seen.late.last().copied().unwrap_or(0))),
            least_margin: seen.margins.iter().copied().fold(1.0, f64::min),
            lost: leases.lost().len() as u64,
        }
    }
}

fn renewal_cpu() -> u64 {
    cpu_of_threads()
        .iter()
        .filter(|(name, _)| name.starts_with("distlock-renew"))
        .map(|(_, used)| used)
        .sum()
}

impl Report {
    fn row(&self, table: &mut Table, label: String) {
        table.row([
            label,
            format!("{}", self.threads),
            format!("{}", self.connections),
            format!("{:.2} %", 100.0 * self.renewal_cpu),
            format!("{:.2} %", 100.0 * self.own_cpu),
            format!("{:.2} %", 100.0 * self.server_cpu),
            thousands(self.extends),
            format!("{:.0}", self.per_call),
            format!("{:.1}", self.late_p50),
            format!("{:.1}", self.late_most),
            format!("{:.0} %", 100.0 * self.least_margin),
            format!("{}", self.lost),
        ]);
    }
}
