//! Many processes, each with a lock of its own: what the servers pay per lock, with one primary and
//! with three.

use std::thread;
use std::time::Duration;

use crate::progress;
use crate::support::aims::Aims;
use crate::support::args::Args;
use crate::support::clock::now;
use crate::support::it::shards::Shards;
use crate::support::peers::{self, Driver, Peer};
use crate::support::placement::Place;
use crate::support::server::Side;
use crate::support::stats::{in_turn, median};
use crate::support::table::{Table, thousands};
use crate::{Three, url};

const LABEL: &str = "rate, distlock";

/// As many at each of three primaries.
const PROCESSES: usize = 6;

struct Row {
    label: &'static str,
    /// Each with the name of its lock.
    drivers: Vec<(Driver, String)>,
    side: Side,
    rounds: Vec<Round>,
}

struct Round {
    rate: f64,
    /// CPU of all servers per lock, in microseconds.
    cpu: f64,
    /// The reads of all servers per lock.
    requests: f64,
}

pub fn run(args: &Args, place: Place, three: &Three, aims: &mut Aims) {
    if !args.takes(LABEL) {
        return;
    }
    println!("### Rate\n");
    let one = place.of_server(|| Shards::start(1));
    let mut rows = [
        Row::new("A: distlock, one primary", peers::OURS, &one),
        Row::new("distlock, three primaries", peers::OURS, three),
        Row::new("raw, one primary", peers::RAW, &one),
        Row::new("raw, three primaries", peers::RAW, three),
        Row::new("A': distlock, one primary again", peers::OURS, &one),
    ];
    let (rounds, locks) = args.pick((2, 2_000), (10, 5_000));
    for round in 0..rounds {
        progress!("rate, round {} of {rounds}", round + 1);
        in_turn(&mut rows, round).for_each(|row| row.measure(locks));
    }
    report(&mut rows, locks);
    let [one, three, raw_one, raw_three, _] = &rows;
    let (ours, raw) = (times(three, one), times(raw_three, raw_one));
    aims.at_most(
        "rate: CPU of all servers per lock, three primaries / one",
        median(ours.clone()),
        1.05,
    );
    aims.at_most(
        "rate: the same, over that of the raw commands",
        median(ours.zip(raw).map(|(ours, raw)| ours / raw)),
        1.05,
    );
}

/// What a lock costs the servers of one row in units of another, round by round.
fn times<'a>(row: &'a Row, of: &'a Row) -> impl Iterator<Item = f64> + Clone + 'a {
    row.rounds.iter().zip(&of.rounds).map(|(own, its)| own.cpu / its.cpu)
}

fn report(rows: &mut [Row], locks: usize) {
    let mut table = Table::new(&[
        "",
        "locks per second",
        "CPU of all servers per lock µs",
        "/ A",
        "requests each",
        "CPU of all servers, idle",
    ]);
    let ratios: Vec<f64> = rows.iter().map(|row| median(times(row, &rows[0]))).collect();
    for (row, ratio) in rows.iter_mut().zip(ratios) {
        let idle = row.idle();
        let of = |what: fn(&Round) -> f64| median(row.rounds.iter().map(what));
        table.row([
            row.label.to_owned(),
            thousands(of(|round| round.rate)),
            format!("{:.2}", of(|round| round.cpu)),
            format!("{ratio:.3}"),
            format!("{:.3}", of(|round| round.requests)),
            format!("{:.2} %", 100.0 * idle),
        ]);
    }
    table.print();
    println!(
        "{PROCESSES} processes, each {} times `lock` and `unlock` on a name of its own; two names \
         at each of three primaries. Medians of {} rounds, every row in turn; the ratio is the \
         median of those within a round. Where the cores are busy with one primary, three cannot \
         give a higher rate. Idle: of one core, with all clients connected.\n",
        thousands(locks as f64),
        rows[0].rounds.len()
    );
}

impl Row {
    fn new(label: &'static str, peer: Peer, shards: &Shards) -> Self {
        let start = |process: usize| {
            let place = process % shards.primaries.len();
            let key = shards.name_at(place, &format!("{}-{process}", peer.driver));
            let straight = peer.driver == peers::RAW.driver;
            let url = if straight { shards.primaries[place].url() } else { url(shards) };
            let mut driver = peer.start(&url).unwrap();
            // Connected, and with nothing left to compile or to learn.
            driver.ask("warmup 50");
            driver.ask(&format!("bench {key} 100"));
            driver.ask("warmup 0");
            (driver, key)
        };
        let drivers = (0..PROCESSES).map(start).collect();
        Self { label, drivers, side: Side::of(shards.nodes()), rounds: Vec::new() }
    }

    fn measure(&mut self, locks: usize) {
        let before = self.side.counters();
        let begin = now();
        for (driver, key) in &mut self.drivers {
            driver.tell(&format!("bench {key} {locks}"));
        }
        self.drivers.iter_mut().for_each(|(driver, _)| drop(driver.answer()));
        let took = (now() - begin) as f64;
        let after = self.side.counters();
        let all = (PROCESSES * locks) as f64;
        self.rounds.push(Round {
            rate: all * 1e9 / took,
            cpu: (after.cpu_us - before.cpu_us) / all,
            requests: after.reads_since(&before) as f64 / all,
        });
    }

    /// The CPU that the servers use while nobody asks anything, as share of one core.
    fn idle(&mut self) -> f64 {
        let (before, begin) = (self.side.counters(), now());
        thread::sleep(Duration::from_millis(500));
        let (after, took) = (self.side.counters(), now() - begin);
        (after.cpu_us - before.cpu_us) * 1000.0 / took as f64
    }
}
