//! The model: an owner-aware, re-entrant, fenced lock, against which samples of a history are
//! searched for an order that explains them.

use std::collections::HashSet;

use super::history::{Outcome, Record};

/// One operation of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Lock {
        fence: u64,
    },
    Unlock,
    /// The lease ran out or was taken: may happen from here on, and must before anybody else locks.
    Lapse,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    owner: u64,
    what: What,
    /// It took effect at some moment between `from` and `to`; `u64::MAX`: perhaps never.
    from: u64,
    to: u64,
}

/// Whether some order explains these holds of one key. At most 200 operations are checked.
pub fn explains(holds: &[Record]) -> bool {
    let mut operations = Vec::new();
    for hold in holds.iter().take(100) {
        operations.push(Operation {
            owner: hold.owner,
            what: What::Lock { fence: hold.fence },
            from: hold.called,
            to: hold.granted,
        });
        let ended = match hold.outcome {
            Outcome::Ok => Operation {
                owner: hold.owner,
                what: What::Unlock,
                from: hold.released,
                to: hold.ended,
            },
            // It is unknown whether it was released. At the latest it lapses. Both may lie outside
            // the sample.
            _ => Operation { owner: hold.owner, what: What::Lapse, from: hold.end(), to: u64::MAX },
        };
        operations.push(ended);
    }
    operations.sort_by_key(|operation| operation.from);
    search(&operations)
}

/// Depth first over sets of operations that have taken effect, each with the state that it leads to
/// (Wing and Gong).
fn search(operations: &[Operation]) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![(vec![false; operations.len()], None::<u64>, 0_u64)];
    while let Some((done, holder, fence)) = open.pop() {
        let must_go_on =
            operations.iter().zip(&done).any(|(operation, done)| !done && operation.to != u64::MAX);
        if !must_go_on {
            return true;
        }
        if seen.len() > 200_000 {
            // Too many orders to check: nothing is proven either way, and the other checkers see
            // the whole history.
            return true;
        }
        if !seen.insert((done.clone(), holder, fence)) {
            continue;
        }
        let first_end = operations
            .iter()
            .zip(&done)
            .filter(|(_, done)| !**done)
            .map(|(operation, _)| operation.to)
            .min();
        for (index, operation) in operations.iter().enumerate() {
            if done[index] || Some(operation.from) > first_end {
                continue;
            }
            let next = match operation.what {
                What::Lock { fence: new } if holder.is_none() && (new > fence || new == 0) => {
                    Some((Some(operation.owner), new))
                }
                What::Unlock | What::Lapse if holder == Some(operation.owner) => {
                    Some((None, fence))
                }
                _ => None,
            };
            if let Some((holder, fence)) = next {
                let mut done = done.clone();
                done[index] = true;
                open.push((done, holder, fence));
            }
        }
    }
    false
}

/// How many samples no order explains, and how many samples there are. A sample is a run of holds
/// of one key that nobody held at its start.
pub fn unexplained(holds: &[Record], samples: usize) -> (usize, usize) {
    let mut keys: std::collections::BTreeMap<u64, Vec<Record>> = std::collections::BTreeMap::new();
    for hold in holds {
        keys.entry(hold.key).or_default().push(hold.clone());
    }
    let (mut bad, mut all) = (0, 0);
    for holds in keys.values() {
        let step = (holds.len() / samples.max(1)).max(100);
        for start in (0..holds.len()).step_by(step) {
            all += 1;
            bad += usize::from(!explains(&holds[start..holds.len().min(start + 100)]));
        }
    }
    (bad, all)
}
