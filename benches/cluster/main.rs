//! What a cluster costs, compared with one server: a cycle, a hand-over, the packets between nodes,
//! the renewal while a node is silent, and the CPU of the servers.
#![allow(clippy::unwrap_used, reason = "a bench fails aloud")]

use std::cell::LazyCell;

#[path = "../support/mod.rs"]
mod support;

mod bus;
mod cycle;
mod hand_over;
mod rate;
mod renewal;

use support::aims::Aims;
use support::args::Args;
use support::it::shards::Shards;
use support::peers::{self, Peer};
use support::placement::Place;

/// A settled cluster of three primaries, started when a section first needs it.
type Three = LazyCell<Shards, Box<dyn FnOnce() -> Shards>>;

fn main() {
    let args = Args::parse();
    let place = args.begin("cluster: three primaries, compared with one server", Place::Free);
    let three: Three = LazyCell::new(Box::new(move || place.of_server(|| Shards::start(3))));
    let redisson = redisson(&args, &three);
    let mut aims = Aims::new();
    // Alone on one core, as in `lock_cycle`.
    let one_core = args.place(Place::One);
    one_core.of_section(|| cycle::run(&args, one_core, redisson.as_ref(), &mut aims));
    hand_over::run(&args, place, &three, redisson.as_ref(), &mut aims);
    bus::run(&args, place, &three, &mut aims);
    renewal::run(&args, place, &mut aims);
    rate::run(&args, place, &three, &mut aims);
    aims.print();
}

/// Redisson, if it takes part and is built.
fn redisson(args: &Args, three: &Three) -> Option<Peer> {
    let takes_part = args.takes(cycle::REDISSON) || args.takes(hand_over::REDISSON);
    if args.alone || !takes_part {
        return None;
    }
    peers::built(&[peers::REDISSON], &url(three)).pop()
}

/// The URL of all primaries.
fn url(shards: &Shards) -> String {
    let addresses = shards.primaries.iter().map(|node| format!("127.0.0.1:{}", node.port()));
    format!("redis+cluster://{}", addresses.collect::<Vec<_>>().join(","))
}
