//! The checkers of exclusion, of fences and of losses: what a history must not show. Each of these,
//! and of those of progress, is tested on small histories, good and bad, in
//! `tests/it/fault_checkers.rs`.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::{Outcome, Record};
use super::witness::Offer;

/// Holds by key, in the order of their grants. Expects them in the order of their grants.
pub fn by_key(holds: &[Record]) -> BTreeMap<u64, Vec<&Record>> {
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

/// I1: holds whose windows overlap those of other owners that leave them no room: each with the one
/// of these that ends last, and the longest time in which both owners believed in their holds (ns).
pub fn overlaps(holds: &[Record]) -> (Vec<(Record, Record)>, u64) {
    let (mut found, mut longest) = (Vec::new(), 0);
    for holds in by_key(holds).values() {
        let mut inside: Vec<&Record> = Vec::new();
        for hold in holds.iter().copied().filter(|hold| has_a_window(hold)) {
            inside.retain(|before| hold.granted < before.end());
            let others = || inside.iter().filter(|before| before.owner != hold.owner);
            let taken: u64 = others().map(|before| before.share).sum();
            if taken + hold.share > hold.room
                && let Some(before) = others().max_by_key(|before| before.end())
            {
                longest = longest.max(
                    before.believed_until().min(hold.believed_until()).saturating_sub(hold.granted),
                );
                found.push(((*before).clone(), hold.clone()));
            }
            inside.push(hold);
        }
    }
    (found, longest)
}

/// Holds beside which witness C counted more than there is room for.
pub fn crowded(holds: &[Record]) -> usize {
    holds.iter().filter(|hold| hold.inside > hold.room).count()
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

/// I3: holds whose fence is not above those of all holds of their key that had ended before and
/// could not have been beside them. 0 stands for no fence.
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
        // Of the holds of each share, the one with the highest fence.
        let mut newest: BTreeMap<u64, &Record> = BTreeMap::new();
        for hold in holds.iter().copied().filter(|hold| has_a_window(hold)) {
            // Holds whose windows overlap this one have no order; the overlap is reported
            // elsewhere.
            seen.retain(|before| {
                let over = before.end() <= hold.granted;
                if over {
                    let known = newest.entry(before.share).or_insert(before);
                    if before.fence > known.fence {
                        *known = before;
                    }
                }
                !over
            });
            let older = newest.values().filter(|before| hold.must_be_newer_than(before));
            let highest = older.map(|before| before.fence).max().unwrap_or(0);
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
            && hold.is_exclusive()
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
