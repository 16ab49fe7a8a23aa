//! Packets that the kernel drops: nftables, in a network namespace in which the whole row runs.
//!
//! The namespace has no name and no address but its own loopback: nothing outside can be hit, and
//! the namespace is gone with its last process, however that ends.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::super::clock::now;
use super::super::tune::ms;
use super::super::world::World;
use super::{Row, USUAL};

/// Whether a row runs in a network namespace of its own.
#[derive(Clone, Copy, PartialEq)]
pub enum Namespace {
    No,
    /// The row does more there.
    IfPossible,
    Must,
}

pub fn rows() -> Vec<Row> {
    vec![Row {
        number: 12,
        name: "10 % of the packets lost, then 30 % (nft)",
        namespace: Namespace::Must,
        tune: |tune| {
            // The kernel sends a lost packet again after 0.2 s, the first of a connection after 1
            // s.
            (tune.load.lease, tune.load.command) = (ms(4000), ms(2500));
            // So there are only a few holds, and they are slow.
            (tune.load.threads, tune.load.keys) = (tune.load.threads * 2, tune.load.keys * 3);
            tune.faulted = tune.faulted.max(ms(6000));
        },
        run: loss,
        ..USUAL
    }]
}

/// Shell words that run the rest of the command line in a namespace of its own.
pub const IN_NAMESPACE: [&str; 5] =
    ["unshare", "--net", "sh", "-c", "ip link set lo up && FAULTS_NAMESPACE=1 exec \"$0\" \"$@\""];

/// What is missing on this machine for a row in a namespace; `None`: nothing.
pub fn missing() -> Option<&'static str> {
    let works = |words: &[&str]| {
        let run = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        run.is_ok_and(|status| status.success())
    };
    if !works(&["nft", "--version"]) {
        return Some("no nft");
    }
    if !works(&["ip", "-V"]) {
        return Some("no ip");
    }
    let whole = [&IN_NAMESPACE[..], &["nft", "add", "table", "inet", "faults"]].concat();
    (!works(&whole)).then_some("no right to make a network namespace with nft in it")
}

/// Whether this process runs in one.
pub fn in_namespace() -> bool {
    std::env::var_os("FAULTS_NAMESPACE").is_some()
}

/// Drops this percentage of the packets between the clients and their server, at random and
/// independently in each direction. 0: none.
pub fn drop_packets(world: &mut World, percent: u32) {
    world.half_open |= percent > 0;
    let chance =
        if percent < 100 { format!("numgen random mod 100 < {percent}") } else { String::new() };
    let ports: Vec<String> = world.links().map(|link| link.port().to_string()).collect();
    let ports = ports.join(", ");
    let rules = format!(
        "table inet faults\ndelete table inet faults\ntable inet faults {{\n chain arriving {{ \
         type filter hook input priority 0;\n  \
         tcp dport {{ {ports} }} {chance} counter drop\n  tcp sport {{ {ports} }} {chance} counter \
         drop\n }}\n}}\n"
    );
    let nothing = "table inet faults\ndelete table inet faults\n".to_owned();
    apply(if percent == 0 { &nothing } else { &rules });
}

/// Makes these rules those of the kernel.
pub fn apply(rules: &str) {
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("nft was there when the row began");
    nft.stdin.take().expect("a pipe").write_all(rules.as_bytes()).expect("nft reads");
    assert!(nft.wait().expect("nft ends").success(), "nft refused:\n{rules}");
}

/// How many packets the present rules have dropped.
pub fn dropped() -> u64 {
    let output = Command::new("nft")
        .args(["list", "table", "inet", "faults"])
        .output()
        .expect("nft was there when the row began");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    words
        .windows(2)
        .filter(|pair| pair[0] == "packets")
        .filter_map(|pair| pair[1].parse::<u64>().ok())
        .sum()
}

/// Ends all connections. If the packet with a connection's end was dropped, only one side has ended
/// it; a server notices that by its keepalive, after minutes. Connections that the clients
/// themselves leave open show in their descriptors.
pub fn forget_half_open(world: &World) {
    world.apart.cut_all();
    world.proxy.cut_all();
}

fn loss(world: &mut World) {
    let faulted = world.tune.faulted;
    for percent in [10, 30] {
        let (from, before) = (now(), world.faults);
        drop_packets(world, percent);
        world.tune.on = (faulted / 8, faulted / 8);
        world.tune.off = (Duration::ZERO, Duration::ZERO);
        if percent == 10 {
            world.windows_for(faulted / 2, |_| (), |world| world.faults = dropped());
        } else {
            // So slow that even a long phase would not have many holds.
            thread::sleep(faulted / 2);
        }
        let packets = dropped();
        drop_packets(world, 0);
        world.times.push((from, now()));
        if percent == 30 {
            // Half of all questions or answers are lost, and so are those that repeat them: no
            // client can rely on getting the lock.
            world.outages.push((from, now()));
        }
        world.faults = before + packets;
        world.remarks.push(format!("{packets} packets dropped at {percent} %"));
        if packets < 100 {
            world.little(format!("only {packets} packets dropped at {percent} %"));
        }
    }
    forget_half_open(world);
}
