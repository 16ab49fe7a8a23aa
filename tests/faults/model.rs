//! The model: an owner-aware, fenced lock, or a room that several may share, against which samples
//! of a history are searched for an order that explains them.

use std::collections::{BTreeMap, HashSet};

use super::history::{Outcome, Record};

/// One operation of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Lock,
    Unlock,
    /// The lease ran out or was taken: may happen from here on, and must before anybody else locks.
    Lapse,
}

#[derive(Clone, Copy, Debug)]
struct Operation<'a> {
    /// The hold that begins or ends, and its number in the sample.
    hold: &'a Record,
    number: usize,
    what: What,
    /// It took effect at some moment between `from` and `to`; `u64::MAX`: perhaps never.
    from: u64,
    to: u64,
}

/// Whether some order explains these holds of one key. At most 200 operations are checked.
pub fn explains(holds: &[Record]) -> bool {
    let mut operations = Vec::new();
    for (number, hold) in holds.iter().take(100).enumerate() {
        let operation = |what, from, to| Operation { hold, number, what, from, to };
        operations.push(operation(What::Lock, hold.called, hold.granted));
        operations.push(match hold.outcome {
            Outcome::Ok => operation(What::Unlock, hold.released, hold.ended),
            // It is unknown whether it was released. At the latest it lapses. Both may lie outside
            // the sample.
            _ => operation(What::Lapse, hold.end(), u64::MAX),
        });
    }
    operations.sort_by_key(|operation| operation.from);
    search(&operations, holds)
}

/// Who is inside, by the numbers of their holds, and of the holds of each share the one with the
/// highest fence.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct State {
    inside: Vec<usize>,
    newest: BTreeMap<u64, usize>,
}

impl State {
    /// What this operation makes of the state, if it can take effect now.
    fn after(&self, operation: &Operation<'_>, sample: &[Record]) -> Option<State> {
        let (mut next, hold) = (self.clone(), operation.hold);
        match operation.what {
            What::Lock => {
                // An owner that gives up a part of what it has still has the rest.
                let others = self.inside.iter().map(|number| &sample[*number]);
                let others = others.filter(|other| other.owner != hold.owner);
                let fits = others.map(|other| other.share).sum::<u64>() + hold.share <= hold.room;
                let mut before = self.newest.values().map(|number| &sample[*number]);
                let is_old =
                    |other: &Record| hold.must_be_newer_than(other) && hold.fence <= other.fence;
                if !fits || hold.fence != 0 && before.any(is_old) {
                    return None;
                }
                next.inside.push(operation.number);
                next.inside.sort_unstable();
                let known = next.newest.entry(hold.share).or_insert(operation.number);
                if hold.fence > sample[*known].fence {
                    *known = operation.number;
                }
            }
            What::Unlock | What::Lapse => {
                let place = self.inside.iter().position(|inside| *inside == operation.number)?;
                next.inside.remove(place);
            }
        }
        Some(next)
    }
}

/// Depth first over sets of operations that have taken effect, each with the state that it leads to
/// (Wing and Gong).
fn search(operations: &[Operation<'_>], sample: &[Record]) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![(vec![false; operations.len()], State::default())];
    while let Some((done, state)) = open.pop() {
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
        if !seen.insert((done.clone(), state.clone())) {
            continue;
        }
        let first_end = operations
            .iter()
            .zip(&done)
            .filter(|(_, done)| !**done)
            .map(|(operation, _)| operation.to)
            .min();
        let is_next = |index: &usize| !done[*index] && Some(operations[*index].from) <= first_end;
        let mut next: Vec<usize> = (0..operations.len()).filter(is_next).collect();
        // What must take effect first is tried first: it is at the end of the stack.
        next.sort_by_key(|index| std::cmp::Reverse(operations[*index].to));
        for index in next {
            let operation = &operations[index];
            if let Some(next) = state.after(operation, sample) {
                let mut done = done.clone();
                done[index] = true;
                open.push((done, next));
            }
        }
    }
    false
}

/// How many samples no order explains, and how many samples there are. A sample is a run of holds
/// of one key; those that were inside before are left out of it.
pub fn unexplained(holds: &[Record], samples: usize) -> (usize, usize) {
    let mut keys: BTreeMap<u64, Vec<Record>> = BTreeMap::new();
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
