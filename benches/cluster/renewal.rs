//! Leases at three nodes, one of which is silent: how punctual those at the others are kept.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use distlock::Client;

use crate::progress;
use crate::support::aims::Aims;
use crate::support::args::Args;
use crate::support::it::shards::Shards;
use crate::support::it::thread_names;
use crate::support::leases::Leases;
use crate::support::placement::Place;
use crate::support::stats::percentile;
use crate::support::table::{Table, thousands};
use crate::support::watch::ms;

const LABEL: &str = "renewal, distlock";

/// The node that falls silent.
const SILENT: usize = 1;

pub fn run(args: &Args, place: Place, aims: &mut Aims) {
    if !args.takes(LABEL) {
        return;
    }
    println!("### Renewal\n");
    // The others neither give the silent node up, nor stop because of it.
    let node = || {
        Shards::node()
            .arg("cluster-node-timeout", "60000")
            .arg("cluster-require-full-coverage", "no")
    };
    let shards = place.of_server(|| Shards::with(3, 0, node));
    let count = args.pick(2_000, 10_000);
    // So short a lease that it is extended several times while the node is silent.
    let (lease, silence) = args.pick((3, 4), (6, 12));
    let (lease, silence) = (Duration::from_secs(lease), Duration::from_secs(silence));
    progress!("{count} leases");
    let leases = Leases::hold(Client::cluster_builder(shards.urls()), count, lease);
    let at_silent: HashSet<String> =
        redis::cmd("KEYS").arg("*").query(&mut shards.primaries[SILENT].connection()).unwrap();
    let at_others = count - at_silent.len();
    let mut table = Table::new(&[
        "",
        "threads that renew",
        "leases",
        "extends of each",
        "late p50 ms",
        "latest ms",
        "least margin",
        "lost",
        "lost at the silent node",
    ]);
    progress!("all well");
    let well = Report::watch(&leases, &at_silent, lease);
    well.row(&mut table, "all nodes well", count);
    progress!("one silent");
    leases.seen.lock().unwrap().leave_out(&at_silent);
    shards.primaries[SILENT].stop_process();
    let silent = Report::watch(&leases, &at_silent, silence);
    shards.primaries[SILENT].cont();
    silent.row(&mut table, "one silent: the leases at the two others", at_others);
    table.print();
    println!(
        "{} leases of {} s of one client, watched for {} s, and for {} s in which one of the three \
         nodes is stopped (SIGSTOP), so that what is there is lost. Late: how long after a third \
         of the lease an extend is sent.\n",
        thousands(count as f64),
        lease.as_secs(),
        lease.as_secs(),
        silence.as_secs()
    );
    let at = |what| format!("renewal, one node silent: {what} at the two others");
    aims.at_most(&at("the latest extend, ms behind its time,"), silent.latest, 100.0);
    aims.at_least(&at("the least margin, of a lease,"), silent.least_margin, 0.5);
    aims.at_most(&at("leases lost"), silent.lost as f64, 0.0);
}

/// What was observed of the leases that are watched.
struct Report {
    threads: usize,
    extends: usize,
    late_p50: f64,
    latest: f64,
    least_margin: f64,
    lost: usize,
    lost_at_silent: usize,
}

impl Report {
    fn watch(leases: &Leases, at_silent: &HashSet<String>, time: Duration) -> Self {
        leases.seen.lock().unwrap().begin();
        thread::sleep(time);
        let names = thread_names();
        let lost = leases.lost();
        let lost_at_silent = lost.iter().filter(|name| at_silent.contains(*name)).count();
        let mut seen = leases.seen.lock().unwrap();
        let mut late = |share| ms(Duration::from_nanos(percentile(&mut seen.late, share)));
        Self {
            threads: names.iter().filter(|name| name.starts_with("distlock-renew")).count(),
            late_p50: late(0.5),
            latest: late(1.0),
            extends: seen.late.len(),
            least_margin: seen.margins.iter().copied().fold(1.0, f64::min),
            lost: lost.len() - lost_at_silent,
            lost_at_silent,
        }
    }

    fn row(&self, table: &mut Table, label: &str, leases: usize) {
        table.row([
            label.to_owned(),
            format!("{}", self.threads),
            thousands(leases as f64),
            format!("{:.2}", self.extends as f64 / leases as f64),
            format!("{:.1}", self.late_p50),
            format!("{:.1}", self.latest),
            format!("{:.0} %", 100.0 * self.least_margin),
            format!("{}", self.lost),
            format!("{}", self.lost_at_silent),
        ]);
    }
}
