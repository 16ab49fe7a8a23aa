//! What a row must have shown to be judged. Its phase under the fault goes on, within limits, until
//! it has: a busy machine needs longer for that.

use std::collections::HashSet;
use std::path::Path;

use super::check;
use super::history::{self, Outcome, Record};

/// What a row has shown, or must show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Substance {
    pub faults: u64,
    /// In the phase under the fault.
    pub holds: usize,
    /// Those in the windows in which the fault lasted and a grant was possible.
    pub under_fault: usize,
    pub renewals: u64,
    pub losses: usize,
    /// In conditions.
    pub waits: usize,
}

/// From when until when (ns).
type Span = (u64, u64);

impl Substance {
    /// What this history shows. `windows`: when the fault lasted, and a grant was possible.
    pub fn of(
        faults: u64,
        (holds, calls): (&[Record], &[Record]),
        phase: Span,
        windows: &[Span],
    ) -> Substance {
        let within = |spans: &[Span]| {
            let is_in = |hold: &&Record| {
                spans.iter().any(|(from, to)| (*from..*to).contains(&hold.granted))
            };
            holds.iter().filter(is_in).count()
        };
        let lost = |record: &&Record| record.outcome == Outcome::Lost;
        Substance {
            faults,
            holds: within(&[phase]),
            under_fault: within(windows),
            renewals: holds.iter().map(|hold| hold.renewed).sum(),
            losses: holds.iter().chain(calls).filter(lost).count(),
            waits: waits(holds),
        }
    }

    /// What the history in `dir` shows so far, of the keys that are judged.
    pub fn so_far(
        faults: u64,
        dir: &Path,
        keys: u64,
        times: &[Span],
        outages: &[Span],
    ) -> Substance {
        let (mut holds, mut calls) = history::read_all(dir);
        holds.retain(|hold| hold.key < keys);
        calls.retain(|call| call.key < keys);
        let phase =
            times.first().zip(times.last()).map_or((0, 0), |(first, last)| (first.0, last.1));
        Substance::of(faults, (&holds, &calls), phase, &windows(times, outages))
    }

    /// What is missing in this, in words.
    pub fn missing(&self, shown: &Substance) -> Vec<String> {
        let numbers = |substance: &Substance| {
            [
                (substance.faults, "faults"),
                (substance.holds as u64, "holds in the faulted phase"),
                (substance.under_fault as u64, "holds under the fault"),
                (substance.renewals, "renewals"),
                (substance.losses as u64, "locks lost"),
                (substance.waits as u64, "waits in conditions"),
            ]
        };
        numbers(self)
            .into_iter()
            .zip(numbers(shown))
            .filter(|((least, _), (shown, _))| shown < least)
            .map(|((least, what), (shown, _))| format!("only {shown} of {least} {what}"))
            .collect()
    }
}

/// When the fault lasted and a grant was possible.
pub fn windows(times: &[Span], outages: &[Span]) -> Vec<Span> {
    times.iter().flat_map(|(from, to)| check::without(outages, *from, *to)).collect()
}

/// A wait ends one hold in the history and, when it returns, begins another.
fn waits(holds: &[Record]) -> usize {
    let ends: HashSet<_> = holds.iter().map(|hold| (hold.owner, hold.ended)).collect();
    holds.iter().filter(|hold| ends.contains(&(hold.owner, hold.called))).count()
}
