//! Locks that are shared with Redisson in a cluster.

use distlock::{Client, RedisLock, Retry};

use super::driver::Peer;
use super::waking::both_ways;
use super::{redisson, start};
use crate::helpers::{SOON, ms};
use crate::support::shards::Shards;

/// Redisson, and our lock "a", in this cluster.
fn both(shards: &Shards, retry: Retry) -> Option<(Peer, RedisLock)> {
    let nodes: Vec<_> =
        shards.primaries.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let url = format!("redis+cluster://{}", nodes.join(","));
    let [peer] = start([("redisson", url.clone())])?;
    let ours = Client::open(&url).unwrap().lock_with("a", redisson().retry(retry)).unwrap();
    Some((peer, ours))
}

#[test]
fn redisson_wakes_us_and_is_woken_by_us() {
    let shards = Shards::start(3);
    let Some((mut peer, ours)) = both(&shards, Retry::fixed(SOON * 3)) else { return };
    // As on one server.
    let refused = || shards.primaries[shards.place("a")].command_count("pttl");
    both_ways("Redisson in a cluster", &ours, &mut peer, refused, 2);
    assert_eq!(shards.primaries.iter().map(|node| node.command_count("publish")).sum::<u64>(), 0);
}

#[test]
fn redisson_and_we_keep_each_other_out_over_a_move_of_the_slot() {
    let shards = Shards::start(2);
    let polls = Retry::jittered(ms(20), ms(80));
    let Some((mut peer, ours)) = both(&shards, polls) else { return };
    let from = shards.place("a");
    for (from, to) in [(from, 1 - from), (1 - from, from)] {
        ours.lock().unwrap();
        peer.says("try a 0 20000", "no");
        // Not asked in between: Redisson 4.7.0 gave no answer for a minute then.
        shards.move_slot(&["a"], from, to);
        peer.says("try a 0 20000", "no");
        ours.unlock().unwrap();
        peer.says("try a 1000 20000", "ok");
        assert!(!ours.try_lock(ms(0)).unwrap());
        peer.says("unlock a", "ok");
        ours.with(|_| ()).unwrap();
    }
}
