//! The checkers: what a history must not show. Each is tested on small histories, good and bad, in
//! `tests/it/fault_checkers.rs`.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::{Outcome, Record};
use super::witness::Offer;

/// Holds by key, in the order of their grants. Expects them in the order of their grants.
fn by_key(holds: &[Record]) -> BTreeMap<u64, Vec<&Record>> {
    let mut keys: BTreeMap<u64, Vec<&Record>> = BTreeMap::new();
    for hold in holds {
        keys.entry(hold.key).or_default().push(hold);
    }
    keys
}

/// A process that gets little CPU time may note its grant only after the lease has run out. The
/// position of such a hold among the others is not known.
pub fn has_a_window(hold: &Record) -> bool {
    hold.end() > hold.granted
}

/// I1: pairs of holds of one key by different owners whose windows overlap, and the longest time in
/// which both owners believed that they held it (ns).
pub fn overlaps(holds: &[Record]) -> (Vec<(Record, Record)>, u64) {
    let (mut found, mut longest) = (Vec::new(), 0);
    for holds in by_key(holds).values() {
        // Only the earlier hold that ends last has to be checked.
        let mut last: Option<&Record> = None;
        for hold in holds.iter().filter(|hold| has_a_window(hold)) {
            if let Some(before) = last
                && before.owner != hold.owner
                && hold.granted < before.end()
            {
                longest = longest.max(
                    before.believed_until().min(hold.believed_until()).saturating_sub(hold.granted),
                );
                found.push((before.clone(), (*hold).clone()));
            }
            if last.is_none_or(|last| hold.end() > last.end()) {
                last = Some(hold);
            }
        }
    }
    (found, longest)
}

/// I2: updates at witness A that were lost between two writes made in valid windows.
pub fn lost_updates(holds: &[Record]) -> usize {
    let mut lost = 0;
    for holds in by_key(holds).values() {
        let tainted: Vec<u64> =
            holds.iter().map(|hold| hold.tainted).filter(|at| *at != 0).collect();
        let mut written: HashMap<u64, &Record> = HashMap::new();
        for hold in holds.iter().filter(|hold| hold.wrote != 0) {
            if let Some(before) = written.insert(hold.wrote, hold) {
                // A late write of a lost lease between the two may have restored an old value:
                // preventing that is the task of the fence.
                let clobbered = tainted
                    .iter()
                    .any(|at| (before.granted..=hold.released.max(hold.granted)).contains(at));
                lost += usize::from(!clobbered);
            }
        }
    }
    lost
}

/// I3: holds whose fence is not above those of all holds of their key that had ended before. 0
/// stands for no fence.
///
/// With `first_holds`, only the first hold of each lease is checked. A process whose lease a third
/// party took away may still pass it from thread to thread until it notices: those holds have old
/// fences, as they must, and are late rather than out of order.
pub fn fence_regressions(holds: &[Record], first_holds: bool) -> usize {
    let process = |hold: &Record| (hold.key, hold.owner / 10_000);
    // Local hand-offs count up by one within the block of their lease.
    let fences: HashSet<_> = holds.iter().map(|hold| (process(hold), hold.fence)).collect();
    let goes_on =
        |hold: &Record| hold.fence > 0 && fences.contains(&(process(hold), hold.fence - 1));
    let mut found = 0;
    for holds in by_key(holds).values() {
        let mut seen: Vec<&Record> = Vec::new();
        let mut highest = 0;
        for hold in holds.iter().copied().filter(|hold| has_a_window(hold)) {
            // Holds whose windows overlap this one have no order; the overlap is reported
            // elsewhere.
            seen.retain(|before| {
                let over = before.end() <= hold.granted;
                if over {
                    highest = highest.max(before.fence);
                }
                !over
            });
            found += usize::from(
                hold.fence != 0 && hold.fence <= highest && !(first_holds && goes_on(hold)),
            );
            seen.push(hold);
        }
    }
    found
}

/// I3 at witness B: (writes refused, writes accepted after one of a later hold).
pub fn stale_writes(holds: &[Record], offers: &[Offer]) -> (usize, usize) {
    // The window of each hold of the key: the order is by time and not by fence.
    let mut order: HashMap<(u64, u64, u64), (u64, u64)> = HashMap::new();
    for hold in holds.iter().filter(|hold| has_a_window(hold)) {
        order.insert((hold.key, hold.owner, hold.number), (hold.granted, hold.end()));
    }
    let mut newest: HashMap<u64, (u64, u64)> = HashMap::new();
    let (mut refused, mut accepted) = (0, 0);
    for offer in offers {
        if !offer.accepted {
            refused += 1;
            continue;
        }
        let Some(&(granted, end)) = order.get(&(offer.key, offer.owner, offer.number)) else {
            continue;
        };
        let newest = newest.entry(offer.key).or_insert((0, 0));
        // Certainly older: it had ended before the newer one was granted.
        if end <= newest.0 {
            accepted += 1;
        } else if granted > newest.0 {
            *newest = (granted, end);
        }
    }
    (refused + accepted, accepted)
}

/// From when until when (ns).
type Spans = Vec<(u64, u64)>;

/// The longest time between `from` and `to` in which a key had a waiter and no holder (ns).
pub fn longest_stuck(holds: &[Record], calls: &[Record], from: u64, to: u64) -> u64 {
    // For each key: when it was held, and when it was waited for.
    let mut keys: BTreeMap<u64, (Spans, Spans)> = BTreeMap::new();
    for hold in holds {
        let (held, waited) = keys.entry(hold.key).or_default();
        held.push((hold.granted, hold.end().max(hold.ended).max(hold.granted)));
        waited.push((hold.called, hold.granted));
    }
    for call in calls {
        keys.entry(call.key).or_default().1.push((call.called, call.ended.max(call.called)));
    }
    let gaps = |(mut held, mut waited): (Spans, Spans)| {
        let waited = joined(&mut waited);
        apart_from(&mut held, from, to)
            .into_iter()
            .map(|(start, end)| covered(&waited, start, end))
            .max()
    };
    keys.into_values().filter_map(gaps).max().unwrap_or(0)
}

/// What lies between `from` and `to` and in none of these intervals.
fn apart_from(intervals: &mut Spans, from: u64, to: u64) -> Spans {
    let mut free_from = from;
    let mut gaps = Spans::new();
    for (start, end) in joined(intervals).into_iter().chain([(to, to)]) {
        if start.min(to) > free_from {
            gaps.push((free_from, start.min(to)));
        }
        free_from = free_from.max(end);
    }
    gaps
}

/// I4: the lengths (ns) of the times between `from` and `to` in which a key was held at the server,
/// and by nobody that was alive. `spans`: when the server was seen to have the same token under a
/// key. `slack`: by how much a holder may learn of its grant later, and of its release earlier.
pub fn orphans(
    spans: &[(u64, u64, u64)],
    holds: &[Record],
    (from, to): (u64, u64),
    slack: u64,
) -> Vec<u64> {
    let mut held: BTreeMap<u64, Spans> = BTreeMap::new();
    for hold in holds {
        let end = hold.end().max(hold.ended).max(hold.granted);
        held.entry(hold.key).or_default().push((hold.granted.saturating_sub(slack), end + slack));
    }
    let joined: BTreeMap<u64, Spans> =
        held.into_iter().map(|(key, mut spans)| (key, joined(&mut spans))).collect();
    let mut found = Vec::new();
    for &(key, start, end) in spans {
        let mut held = joined.get(&key).cloned().unwrap_or_default();
        found.extend(
            apart_from(&mut held, start.max(from), end.min(to))
                .into_iter()
                .map(|(start, end)| end - start),
        );
    }
    found
}

/// Unlocks that said Ok although another hold of the key had been granted since theirs. Only
/// unlocks that asked the server are checked. If a lease was passed on to a thread of the same
/// process, which the next fence shows, the loss is noticed later. Holds without a fence are left
/// out, as it is not known of them whether they were passed on.
pub fn false_releases(holds: &[Record]) -> Vec<(Record, Record)> {
    let process = |hold: &Record| (hold.key, hold.owner / 10_000);
    let fences: HashSet<_> = holds.iter().map(|hold| (process(hold), hold.fence)).collect();
    let asked = |hold: &Record| {
        hold.outcome == Outcome::Ok
            && hold.fence > 0
            && !fences.contains(&(process(hold), hold.fence + 1))
    };
    let mut found = Vec::new();
    for holds in by_key(holds).values() {
        for (i, hold) in holds.iter().enumerate().filter(|(_, hold)| asked(hold)) {
            let mut since = holds[i + 1..].iter().take_while(|other| other.granted < hold.released);
            // A hold with an older fence has an earlier lease, which its process passes on because
            // it has not noticed the loss.
            let other = since.find(|other| {
                other.owner != hold.owner
                    && other.granted > hold.granted
                    && other.fence > hold.fence
            });
            found.extend(other.map(|other| ((*hold).clone(), (*other).clone())));
        }
    }
    found
}

/// The largest number of holds in a row that threads of one process had of a key, while another
/// process waited for it all the time (I7). Expects holds of keys with a queue.
pub fn longest_run(holds: &[Record]) -> usize {
    let mut longest = 0;
    for holds in by_key(holds).values() {
        let mut run: Vec<&Record> = Vec::new();
        for hold in holds {
            if run.last().is_some_and(|last| last.owner / 10_000 != hold.owner / 10_000) {
                // The other process waited from some moment within this run of holds.
                longest =
                    longest.max(run.iter().filter(|before| before.granted > hold.called).count());
                run.clear();
            }
            run.push(hold);
        }
    }
    longest
}

/// How many slices of time between `from` and `to` had no grant, and how many slices there are.
/// Slices that overlap one of `but` are left out.
pub fn idle(
    holds: &[Record],
    (from, to): (u64, u64),
    but: &[(u64, u64)],
    slice: u64,
) -> (usize, usize) {
    let granted: Vec<u64> = holds.iter().map(|hold| hold.granted).collect();
    let (mut idle, mut all) = (0, 0);
    let mut at = from;
    while at + slice <= to {
        let end = at + slice;
        if !but.iter().any(|&(from, to)| from < end && at < to) {
            all += 1;
            let next = granted.partition_point(|granted| *granted < at);
            idle += usize::from(granted.get(next).is_none_or(|granted| *granted >= end));
        }
        at = end;
    }
    (idle, all)
}

/// What is left between `from` and `to` without these intervals.
pub fn without(but: &[(u64, u64)], from: u64, to: u64) -> Vec<(u64, u64)> {
    apart_from(&mut but.to_vec(), from, to)
}

/// Joins intervals that touch or overlap: there are thousands of waiters, and as many gaps to
/// check.
fn joined(intervals: &mut Spans) -> Spans {
    intervals.sort_unstable();
    let mut all = Spans::new();
    for &(start, end) in intervals.iter() {
        match all.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => all.push((start, end)),
        }
    }
    all
}

/// The longest time between `from` and `to` that one of these intervals covers. They are separate
/// and in order.
fn covered(intervals: &[(u64, u64)], from: u64, to: u64) -> u64 {
    let first = intervals.partition_point(|(_, end)| *end <= from);
    let within = intervals[first..].iter().take_while(|(start, _)| *start < to);
    within.map(|(start, end)| end.min(&to) - start.max(&from)).max().unwrap_or(0)
}

/// The longest time from a call to its grant (ns).
pub fn longest_wait(holds: &[Record]) -> u64 {
    holds.iter().map(|hold| hold.granted - hold.called).max().unwrap_or(0)
}

/// I6: (timed calls that ended too late, by how much at most, refusals that came before their
/// time). `slack`: one command timeout and a little.
pub fn timing(holds: &[Record], calls: &[Record], slack: u64) -> (usize, u64, usize) {
    let (mut late, mut by, mut early) = (0, 0, 0);
    for call in holds.iter().chain(calls).filter(|call| call.timeout != 0) {
        let answered = if call.granted != 0 { call.granted } else { call.ended };
        let deadline = call.called + call.timeout - 1;
        if answered > deadline + slack {
            late += 1;
            by = by.max(answered - deadline);
        }
        early += usize::from(call.outcome == Outcome::Refused && answered < deadline);
    }
    (late, by, early)
}

/// How long after `healed` a period of `slice` ns first had `share` of the rate of grants between
/// `start` and `faulted`. Holds in the order of their grants.
pub fn recovery(
    holds: &[Record],
    (start, faulted): (u64, u64),
    (healed, end): (u64, u64),
    share: f64,
    slice: u64,
) -> Option<u64> {
    let before = |at: u64| holds.partition_point(|hold| hold.granted < at);
    let count = |from: u64, to: u64| (before(to) - before(from)) as f64;
    let usual = count(start, faulted) / (faulted - start) as f64 * slice as f64;
    let mut at = healed;
    while at + slice <= end {
        if count(at, at + slice) >= usual * share {
            return Some(at + slice - healed);
        }
        at += slice / 8;
    }
    None
}

/// I5: after a third party took a key, the longest time for which its holder still believed in its
/// lease (ns).
pub fn longest_unnoticed(holds: &[Record], taken: &[(u64, u64)]) -> u64 {
    let unnoticed = taken.iter().flat_map(|&(key, at)| {
        let held =
            move |hold: &&Record| hold.key == key && hold.granted < at && hold.last_valid > at;
        // An unlock that reported the loss counts as a notice, too.
        let noticed = |hold: &Record| match hold.released {
            0 => hold.last_valid,
            released => hold.last_valid.min(released),
        };
        holds.iter().filter(held).map(move |hold| noticed(hold) - at)
    });
    unnoticed.max().unwrap_or(0)
}

/// I12: whether the old token of a key that was `deleted` may not be there when it was `seen`. It
/// may if an acquisition was under way at the deletion: its attempt had been carried out and not
/// answered, so the next one takes the lock under the same token.
pub fn is_created_again(
    holds: &[Record],
    calls: &[Record],
    key: u64,
    (deleted, seen): (u64, u64),
) -> bool {
    let asks = |record: &Record, answered: u64| {
        record.key == key && record.called < deleted && deleted < answered
    };
    let granted = |hold: &Record| asks(hold, hold.granted) && hold.granted <= seen;
    let unanswered = |call: &Record| {
        let is_known = matches!(call.outcome, Outcome::Ok | Outcome::Lost | Outcome::Refused);
        !is_known && asks(call, if call.ended == 0 { u64::MAX } else { call.ended })
    };
    !holds.iter().any(granted) && !calls.iter().any(unanswered)
}
