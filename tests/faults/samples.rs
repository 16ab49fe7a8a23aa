//! What is sampled while a row runs: which tokens the server has, and what the clients have open.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::admin::Admin;
use super::clock::{nanos, now};
use super::load::key_name;
use super::machine;
use super::tune::ms;

/// How long something must exist to count as a leak: connections and entries that come and go are
/// no leak.
const LASTING: u64 = 1_000_000_000;

/// When each sample was taken, and how long it took (ns).
type Took = Arc<Mutex<Vec<(u64, u64)>>>;

/// One sample.
struct Look {
    at: u64,
    connections: u64,
    /// Entries in the largest queue.
    queued: u64,
    /// Those of the process with the most.
    threads: u64,
    descriptors: u64,
}

/// All observations.
#[derive(Default)]
pub struct Seen {
    looks: Vec<Look>,
    /// (key, from, to): the server had the same token all the time.
    pub tokens: Vec<(u64, u64, u64)>,
}

/// The largest counts that lasted for a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peak {
    pub connections: u64,
    pub queued: u64,
    pub threads: u64,
    pub descriptors: u64,
}

impl Seen {
    /// Between `from` and `to`, but not while the clients were cut off: the server does not see
    /// what they close then.
    pub fn peak(&self, from: u64, to: u64, cut_offs: &[(u64, u64)]) -> Peak {
        let counts = |look: &&Look| {
            (from..to).contains(&look.at)
                && !cut_offs.iter().any(|(from, to)| (*from..*to).contains(&look.at))
        };
        let looks: Vec<&Look> = self.looks.iter().filter(counts).collect();
        Peak::of(|count| {
            let least = |i: usize| {
                let end = looks.partition_point(|look| look.at < looks[i].at + LASTING);
                (end < looks.len())
                    .then(|| looks[i..=end].iter().map(|look| count(look)).min())
                    .flatten()
            };
            (0..looks.len()).filter_map(least).max()
        })
    }

    /// The largest value of each count at any moment between `from` and `to`.
    pub fn most(&self, from: u64, to: u64) -> Peak {
        let looks = || self.looks.iter().filter(|look| (from..to).contains(&look.at));
        Peak::of(|count| looks().map(count).max())
    }
}

impl Peak {
    /// Applies `of` to each count; `None` becomes 0.
    fn of(of: impl Fn(fn(&Look) -> u64) -> Option<u64>) -> Peak {
        let of = |count| of(count).unwrap_or(0);
        Peak {
            connections: of(|look| look.connections),
            queued: of(|look| look.queued),
            threads: of(|look| look.threads),
            descriptors: of(|look| look.descriptors),
        }
    }
}

/// A thread that takes ten samples a second.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    took: Took,
    thread: thread::JoinHandle<Seen>,
}

impl Sampler {
    /// `pids`: the present client processes.
    pub fn start(mut admin: Admin, keys: u64, pids: Arc<Mutex<Vec<u32>>>) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let took = Took::default();
        let shared = Arc::clone(&took);
        let thread = thread::spawn(move || {
            let (mut seen, mut open) = (Seen::default(), HashMap::new());
            while !told.load(Ordering::SeqCst) {
                let at = now();
                look_at_tokens(&mut admin, keys, &mut open, &mut seen.tokens);
                let pids = pids.lock().expect("nobody panics with it").clone();
                let most = |count: fn(u32) -> usize| {
                    pids.iter().map(|pid| count(*pid) as u64).max().unwrap_or(0)
                };
                if let Some((connections, queued)) = look_at_server(&mut admin, keys) {
                    shared.lock().expect("nobody panics with it").push((at, now() - at));
                    let (threads, descriptors) =
                        (most(machine::threads), most(machine::descriptors));
                    seen.looks.push(Look { at, connections, queued, threads, descriptors });
                }
                thread::sleep(ms(100));
            }
            seen.tokens.extend(open.into_iter().map(|(key, (_, from, to))| (key, from, to)));
            seen
        });
        Sampler { stop, took, thread }
    }

    /// The factor by which a sample takes longer after `healed` than between `start` and `faulted`;
    /// at least 1. It shows how much slower the server and this machine have become for everybody.
    pub fn slower(&self, (start, faulted): (u64, u64), healed: u64) -> f64 {
        let took = self.took.lock().expect("nobody panics with it");
        let median = |from: u64, to: u64| {
            let mut times: Vec<u64> = took
                .iter()
                .filter(|(at, _)| (from..to).contains(at))
                .map(|(_, took)| *took)
                .collect();
            times.sort_unstable();
            times.get(times.len() / 2).map_or(1.0, |time| *time as f64)
        };
        (median(healed, u64::MAX) / median(start, faulted)).max(1.0)
    }

    pub fn end(self) -> Seen {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("it only looks")
    }
}

/// For each key, its present token, and from when until when that was seen.
type Open = HashMap<u64, (Vec<u8>, u64, u64)>;

fn look_at_tokens(admin: &mut Admin, keys: u64, open: &mut Open, ended: &mut Vec<(u64, u64, u64)>) {
    for key in 0..keys {
        let before = now();
        let token = match admin.command(&["GET", &key_name(key)]) {
            Some(redis::Value::BulkString(token)) => Some(token),
            Some(_) => None,
            None if admin.is_connected() => continue,
            None => return,
        };
        match (open.get_mut(&key), token) {
            (Some((known, _, to)), Some(token)) if *known == token => *to = before,
            (_, token) => {
                ended.extend(open.remove(&key).map(|(_, from, to)| (key, from, to)));
                if let Some(token) = token {
                    open.insert(key, (token, now(), now()));
                }
            }
        }
    }
}

/// The connections of clients, and the length of the longest queue.
fn look_at_server(admin: &mut Admin, keys: u64) -> Option<(u64, u64)> {
    let Some(redis::Value::BulkString(info)) = admin.command(&["INFO", "clients"]) else {
        return None;
    };
    let info = String::from_utf8_lossy(&info).into_owned();
    let connected = info
        .lines()
        .find_map(|line| line.strip_prefix("connected_clients:"))?
        .trim()
        .parse()
        .ok()?;
    let mut longest = 0;
    for key in 0..keys {
        let name = format!("{{{}}}:waiters", key_name(key));
        if let Some(redis::Value::Int(length)) = admin.command(&["HLEN", &name]) {
            longest = longest.max(u64::try_from(length).unwrap_or(0));
        }
    }
    Some((connected, longest))
}

/// How many of these times (ns) are longer than `length`.
pub fn longer_than(stretches: &[u64], length: std::time::Duration) -> usize {
    stretches.iter().filter(|stretch| **stretch > nanos(length)).count()
}

/// Messages of the crate's own errors, how often each was logged. Numbers in them are left out, so
/// that the same message is counted as one.
pub fn errors_logged(logs: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for line in logs.lines() {
        if let Some((_, message)) = line.split_once(" ERROR ") {
            let message: String = message
                .chars()
                .map(|c| if c.is_ascii_digit() { '#' } else { c })
                .take(120)
                .collect();
            *found.entry(message).or_insert(0) += 1;
        }
    }
    found
}
