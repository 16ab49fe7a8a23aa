//! What Sentinel costs while nothing fails, and what confirmations by a replica cost: a primary,
//! one replica, three sentinels.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use distlock::{Client, LockOptions};

mod support;

use support::aims::Aims;
use support::args::Args;
use support::contender::{Contender, Raw};
use support::cycles::{self, Row, ratio};
use support::it::Server;
use support::it::sentinels::Sentinels;
use support::peers;
use support::placement::Place;

const STRAIGHT: &str = "A: distlock, straight at the primary";
const AGAIN: &str = "A': the same again";
const SENTINEL: &str = "distlock, Sentinel";
const RAW: &str = "raw `SET NX PX`, compare-and-delete";
const RAW_WAIT: &str = "raw, `SET NX PX` and `WAIT 1`";
const CONFIRMED: &str = "distlock, Sentinel, `replicas(1)`";
const REDISSON: &str = "Redisson, Sentinel (it waits for the replica, too)";

fn main() {
    let args = Args::parse();
    let place = args.begin("failover: Sentinel and confirmations, while nothing fails", Place::One);
    let all = place.of_server(|| {
        Sentinels::builder()
            .server(|| Server::builder().arg("maxclients", "10000"))
            .default_timers()
            .start()
    });
    let mut rows = ours(&all);
    if !args.alone {
        let built = peers::built(&[peers::REDISSON], &all.url());
        rows.extend(built.iter().map(|peer| {
            Row::peer(REDISSON, peer, &all.url(), "redisson:cycle", args.pick(1500, 5000))
        }));
    }
    rows.retain(|row| row.label == STRAIGHT || args.takes(row.label));
    let (rounds, samples) = args.pick((10, 200), (40, 500));
    cycles::run(&mut rows, rounds, samples);
    let mut aims = Aims::new();
    let aim = |label, to| ratio(&rows, label, to);
    aims.at_most("through Sentinel, times straight", aim(SENTINEL, STRAIGHT), 1.02);
    aims.at_most("`replicas(1)`, times raw with `WAIT`", aim(CONFIRMED, RAW_WAIT), 1.15);
    aims.at_most("`replicas(1)`, times Redisson", aim(CONFIRMED, REDISSON), 1.0);
    aims.print();
}

fn ours(all: &Sentinels) -> Vec<Row> {
    let primary = all.servers[0].url();
    let straight = Client::open(&primary).unwrap();
    let watched = Client::open(&all.url()).unwrap();
    let confirmed = LockOptions::new().replicas(1);
    let mut raw_confirmed = Raw::new(&primary, "raw:confirmed", None);
    vec![
        Row::lock(STRAIGHT, straight.lock("straight")),
        Row::lock(SENTINEL, watched.lock("watched")),
        Row::raw(RAW, Raw::new(&primary, "raw", None)),
        Row::here(RAW_WAIT, move || {
            raw_confirmed.lock_confirmed();
            raw_confirmed.unlock();
        }),
        Row::lock(CONFIRMED, watched.lock_with("confirmed", confirmed).unwrap()),
        Row::lock(AGAIN, straight.lock("again")),
    ]
}
