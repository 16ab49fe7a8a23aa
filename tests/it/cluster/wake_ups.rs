//! Wake-ups: over one channel at each node where somebody waits, heard by that node's subscribers
//! alone. Before Redis 7 there are no such channels, and waiters poll.

use std::thread;

use distlock::{Client, Layout, LockOptions, Retry};

use super::client;
use crate::helpers::{SOON, Underway, ms};
use crate::logs;
use crate::permissions::{refused, rule};
use crate::support::shards::Shards;
use crate::support::{Server, eventually, in_own_process};

/// Asks again only when it is woken, where it can be woken.
pub(super) fn patient(shards: &Shards) -> LockOptions {
    let options = LockOptions::new();
    if shards.have_channels() { options.retry(Retry::fixed(SOON * 6)) } else { options }
}

/// The channels that somebody listens to at a primary.
pub(super) fn channels(shards: &Shards, place: usize) -> Vec<String> {
    channels_at(&shards.primaries[place])
}

fn channels_at(node: &Server) -> Vec<String> {
    redis::cmd("PUBSUB").arg("SHARDCHANNELS").query(&mut node.connection()).unwrap()
}

fn published(shards: &Shards, command: &str) -> u64 {
    shards.nodes().map(|node| node.command_count(command)).sum()
}

/// Whether there is one waiter in the queue of a lock without a hash tag.
pub(super) fn has_a_waiter(shards: &Shards, name: &str) -> bool {
    let mut connection = shards.primaries[shards.place(name)].connection();
    let waiters = redis::cmd("HLEN").arg(format!("{{{name}}}:waiters")).to_owned();
    waiters.query::<u32>(&mut connection).unwrap() == 1
}

/// A thread that locks, says whether the lease is valid, and unlocks. Returns once it waits: in the
/// queue, where it can be woken.
pub(super) fn waits(
    shards: &Shards,
    client: Client,
    name: &str,
    options: LockOptions,
) -> Underway<bool> {
    let primary = &shards.primaries[shards.place(name)];
    let lock = client.lock_with(name, options).unwrap();
    let asked = primary.command_count("evalsha");
    let waiting = Underway::start(move || lock.with(|guard| guard.is_valid()).unwrap());
    if shards.have_channels() {
        eventually(SOON, || has_a_waiter(shards, name));
    } else {
        eventually(SOON, || primary.command_count("evalsha") > asked);
    }
    waiting
}

/// The first client holds the lock; the second waits with these options, and gets it.
pub(super) fn pass(shards: &Shards, [from, to]: [&Client; 2], name: &str, options: LockOptions) {
    let guard = from.lock(name).guard().unwrap();
    let waiting = waits(shards, to.clone(), name, options);
    guard.release().unwrap();
    assert!(waiting.result(), "{name}");
}

#[test]
fn a_release_wakes_the_waiter_at_each_node() {
    let shards = Shards::start(3);
    let (client, other) = (client(&shards), client(&shards));
    for place in 0..3 {
        let name = shards.name_at(place, "x");
        pass(&shards, [&client, &other], &name, patient(&shards));
    }
    if shards.have_channels() {
        assert_eq!(published(&shards, "publish"), 0, "that would reach every node");
        assert!(published(&shards, "spublish") >= 3);
        assert!((0..3).all(|place| channels(&shards, place).len() == 1));
    }
    other.close(SOON).unwrap();
}

#[test]
fn locks_of_one_node_share_a_channel() {
    let shards = Shards::start(2);
    let (client, other) = (client(&shards), client(&shards));
    let names: Vec<_> = (0..5).map(|n| shards.name_at(1, &format!("lock-{n}"))).collect();
    let guards: Vec<_> = names.iter().map(|name| client.lock(name).guard().unwrap()).collect();
    let waiting: Vec<_> =
        names.iter().map(|name| waits(&shards, other.clone(), name, patient(&shards))).collect();
    if shards.have_channels() {
        assert_eq!(channels(&shards, 1).len(), 1);
        assert!(channels(&shards, 0).is_empty());
    }
    guards.into_iter().for_each(|guard| guard.release().unwrap());
    assert!(waiting.into_iter().all(Underway::result));
}

#[test]
fn conditions_work_as_on_one_server() {
    let shards = Shards::start(2);
    for place in 0..2 {
        let name = shards.name_at(place, "x");
        let (client, other) = (client(&shards), client(&shards));
        let lock = client.lock(&name);
        let condition = lock.new_condition("c").unwrap();
        let same = name.clone();
        let waiting = Underway::start(move || {
            let lock = other.lock(&same);
            let condition = lock.new_condition("c").unwrap();
            lock.with(|_| condition.wait().unwrap()).unwrap();
        });
        let waiters = || {
            let mut connection = shards.primaries[place].connection();
            let members = redis::cmd("ZCARD").arg(format!("{{{name}}}:conditions")).to_owned();
            members.query::<u32>(&mut connection).unwrap()
        };
        eventually(SOON, || waiters() == 1);
        lock.with(|_| condition.notify_one().unwrap()).unwrap();
        waiting.result();
    }
}

#[test]
fn a_release_in_redissons_layout_wakes_a_waiter() {
    let shards = Shards::start(2);
    let (client, other) = (client(&shards), client(&shards));
    for place in 0..2 {
        let name = shards.name_at(place, "x");
        let lock = client.lock_with(&name, LockOptions::new().layout(Layout::Redisson)).unwrap();
        let guard = lock.guard().unwrap();
        let same = other.lock_with(&name, patient(&shards).layout(Layout::Redisson)).unwrap();
        let waiting = Underway::start(move || same.with(|guard| guard.is_valid()).unwrap());
        if shards.have_channels() {
            let channel = format!("redisson_lock__channel:{{{name}}}");
            eventually(SOON, || channels(&shards, place).contains(&channel));
        }
        thread::sleep(ms(50));
        guard.release().unwrap();
        assert!(waiting.result());
    }
}

#[test]
fn a_channel_that_leaves_its_node_costs_its_waiters_a_pause() {
    let shards = Shards::start(2);
    let (client, other) = (client(&shards), client(&shards));
    let (first, second) = (shards.name_at(0, "first"), shards.name_at(0, "second"));
    // The channel is in the slot of the lock that is waited for first.
    pass(&shards, [&client, &other], &first, LockOptions::new());
    let guard = client.lock(&second).guard().unwrap();
    let waiting = waits(&shards, other.clone(), &second, LockOptions::new());
    shards.move_slot(&[&first], 0, 1);
    if shards.have_channels() {
        eventually(SOON, || channels(&shards, 0).is_empty() && !channels(&shards, 1).is_empty());
    }
    guard.release().unwrap();
    assert!(waiting.result(), "it asks again by itself");
    // Who waits at the old node from now on has another channel there.
    other.lock(&first).with(|_| ()).unwrap();
    pass(&shards, [&client, &other], &second, patient(&shards));
}

#[test]
fn after_a_failover_the_new_primary_wakes_the_waiter() {
    let shards = Shards::with(2, 1, Shards::node);
    if !shards.have_channels() {
        return;
    }
    let (client, other) = (client(&shards), client(&shards));
    let name = shards.name_at(0, "x");
    let guard = client.lock(&name).guard().unwrap();
    let waiting = waits(&shards, other, &name, patient(&shards));
    shards.fail_over(0);
    // The old primary ends the subscription.
    eventually(SOON, || !channels_at(&shards.replicas[0][0]).is_empty());
    guard.release().unwrap();
    assert!(waiting.result());
}

#[test]
fn the_permissions_that_the_guide_gives_in_a_cluster_suffice() {
    let shards = Shards::start(2);
    if !shards.have_channels() {
        return;
    }
    for node in shards.nodes() {
        let set = redis::cmd("ACL").arg("SETUSER").arg(rule("sharded")).to_owned();
        set.exec(&mut node.connection()).unwrap();
    }
    let client = || Client::cluster([shards.primaries[0].url_with("sharded", "password")]).unwrap();
    let (client, other) = (client(), client());
    for place in 0..2 {
        let name = shards.name_at(place, "orders:");
        pass(&shards, [&client, &other], &name, patient(&shards));
    }
    other.close(SOON).unwrap();
    assert!(shards.nodes().all(|node| refused(node).is_empty()));
}

#[test]
fn a_refused_subscription_is_said_once_for_all_nodes() {
    in_own_process("cluster::wake_ups::a_refused_subscription_is_said_once_for_all_nodes", || {
        logs::keep();
        let shards = Shards::start(2);
        if !shards.have_channels() {
            return;
        }
        for node in shards.nodes() {
            let deaf = ["SETUSER", "deaf", "on", ">password", "~*", "&*", "+@all", "-ssubscribe"];
            redis::cmd("ACL").arg(&deaf).exec(&mut node.connection()).unwrap();
        }
        let client = Client::cluster([shards.primaries[0].url_with("deaf", "password")]).unwrap();
        for place in 0..2 {
            let name = shards.name_at(place, "x");
            let other = Client::cluster(shards.urls()).unwrap();
            let guard = other.lock(&name).guard().unwrap();
            let lock = client.lock(&name);
            let waiting = Underway::start(move || lock.with(|guard| guard.is_valid()).unwrap());
            eventually(SOON, || !refused(&shards.primaries[place]).is_empty());
            guard.release().unwrap();
            assert!(waiting.result());
        }
        client.close(SOON).unwrap();
        assert_eq!(logs::lines(log::Level::Warn, &["refuses the subscription"]).len(), 1);
    });
}
