//! The tally: what the nodes have answered so far, and what that amounts to.

use std::fmt;
use std::time::Duration;

use crate::base::error::ErrorKind;
use crate::base::store_error::StoreError;
use crate::lease::store::{Answer, Gone, Held};

/// One question's answers, by node. A missing reply is not in it: it is not a vote (R17).
pub(super) struct Tally<T> {
    answers: Vec<Option<Result<T, StoreError>>>,
}

impl<T> Tally<Vec<Result<T, StoreError>>> {
    /// Splits the answers to a question about `count` leases into one tally for each lease.
    pub(super) fn each(self, count: usize) -> Vec<Tally<T>> {
        let mut tallies: Vec<Tally<T>> =
            (0..count).map(|_| Tally::new(self.answers.len())).collect();
        for (node, answer) in self.answers.into_iter().enumerate() {
            match answer {
                Some(Ok(answers)) => tallies
                    .iter_mut()
                    .zip(answers)
                    .for_each(|(tally, answer)| tally.note(node, answer)),
                Some(Err(error)) => {
                    let same = || StoreError {
                        may_have_run: error.may_have_run,
                        permanent: error.permanent,
                        ..StoreError::not_sent(error.kind, error.message.clone())
                    };
                    tallies.iter_mut().for_each(|tally| tally.note(node, Err(same())));
                }
                None => {}
            }
        }
        tallies
    }

    /// How many nodes gave an answer about the lease at `i` for which `is` is true.
    pub(super) fn count_of(&self, i: usize, is: impl Fn(&T) -> bool) -> usize {
        self.count(|answers| answers.get(i).is_some_and(|answer| answer.as_ref().is_ok_and(&is)))
    }
}

impl<T> Tally<Vec<Result<T, StoreError>>> {
    /// Whether a majority has answered about the lease at `i`.
    pub(super) fn has_majority(&self, i: usize) -> bool {
        self.count_of(i, |_| true) >= self.majority()
    }
}

impl<T> Tally<T> {
    pub(super) fn new(nodes: usize) -> Self {
        Self { answers: (0..nodes).map(|_| None).collect() }
    }

    pub(super) fn note(&mut self, node: usize, answer: Result<T, StoreError>) {
        let before = self.answers.get_mut(node).and_then(|place| place.replace(answer));
        debug_assert!(before.is_none(), "each node has one vote");
    }

    /// More than half of all nodes, whether they are up or not: any two majorities share a node.
    pub(super) fn majority(&self) -> usize {
        self.answers.len() / 2 + 1
    }

    /// The smallest number of nodes without which there is no majority.
    pub(super) fn veto(&self) -> usize {
        self.answers.len() - self.majority() + 1
    }

    /// The verdict of these numbers of nodes that said yes, and that said no; `None` while neither
    /// is certain.
    pub(super) fn yes_or_no(&self, (yes, no): (usize, usize)) -> Option<bool> {
        if yes >= self.majority() {
            return Some(true);
        }
        (no >= self.veto()).then_some(false)
    }

    /// Whether no further answer would change what these amount to.
    pub(super) fn is_final(&self, (yes, no): (usize, usize)) -> bool {
        let pending = self.pending();
        self.yes_or_no((yes, no)).is_some()
            || (yes + pending < self.majority() && no + pending < self.veto())
    }

    /// How many nodes have not said anything yet.
    pub(super) fn pending(&self) -> usize {
        self.answers.iter().filter(|answer| answer.is_none()).count()
    }

    /// How many nodes have not answered: they failed, or have not said anything yet.
    pub(super) fn silent(&self) -> usize {
        self.answers.len() - self.count(|_| true)
    }

    /// What the nodes said that answered.
    pub(super) fn said(&self) -> impl Iterator<Item = &T> {
        self.answers.iter().filter_map(|answer| answer.as_ref()?.as_ref().ok())
    }

    /// How many nodes gave an answer for which `is` is true.
    pub(super) fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        self.said().filter(|said| is(said)).count()
    }

    /// The error of a question that no majority answered, with each node's cause.
    ///
    /// Permanent, if the nodes that refused permanently leave no majority.
    pub(super) fn failure(self) -> StoreError {
        let veto = self.veto();
        let mut causes = Vec::new();
        let mut refusals = Vec::new();
        let (mut may_have_run, mut stale) = (false, false);
        for (node, answer) in (1..).zip(self.answers) {
            match answer {
                Some(Ok(_)) => may_have_run = true,
                Some(Err(error)) => {
                    may_have_run |= error.may_have_run;
                    stale |= error.stale;
                    if error.permanent {
                        refusals.push(error.kind);
                    }
                    causes.push((node, error));
                }
                None => {
                    may_have_run = true;
                    causes.push((
                        node,
                        StoreError::not_sent(ErrorKind::Unavailable, "no answer so far")
                            .maybe_run(),
                    ));
                }
            }
        }
        let error = match most_frequent(&refusals) {
            Some(kind) if refusals.len() >= veto => {
                StoreError::not_sent(kind, "too many nodes refused: a majority is out of reach")
                    .permanent()
            }
            _ => StoreError::not_sent(ErrorKind::Unavailable, "no majority of the nodes answered"),
        };
        let error = StoreError { stale, ..error.because(Causes(causes)) };
        if may_have_run { error.maybe_run() } else { error }
    }
}

fn most_frequent(kinds: &[ErrorKind]) -> Option<ErrorKind> {
    kinds
        .iter()
        .rev()
        .max_by_key(|kind| kinds.iter().filter(|other| other == kind).count())
        .copied()
}

/// Why nodes did not answer, by their number in the list of URLs, from 1. URLs stay out of it:
/// they may hold passwords (R19).
#[derive(Debug)]
struct Causes(Vec<(usize, StoreError)>);

impl fmt::Display for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (node, error)) in self.0.iter().enumerate() {
            let gap = if i > 0 { "; " } else { "" };
            write!(f, "{gap}node {node}: {}", error.message)?;
            if let Some(source) = &error.source {
                write!(f, " ({source})")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Causes {}

/// The answers do not decide it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Undecided;

/// Who holds the lock on a majority of nodes; `None`: nobody.
pub(super) fn holder(tally: &Tally<Option<Held>>) -> Result<Option<Held>, Undecided> {
    let holders: Vec<&Held> = tally.said().flatten().collect();
    let votes = |holder: &Held| holders.iter().filter(|other| other.token == holder.token).count();
    let most = holders.iter().max_by_key(|holder| votes(holder));
    let Some(most) = most.filter(|most| votes(most) >= tally.majority()) else {
        // The nodes that said nothing might all name this holder.
        let at_most = most.map_or(0, |most| votes(most)) + tally.silent();
        return if at_most < tally.majority() { Ok(None) } else { Err(Undecided) };
    };
    // It lasts until so many nodes have dropped it that the others are not a majority.
    let mut ends: Vec<_> = holders
        .iter()
        .filter(|holder| holder.token == most.token)
        .map(|holder| holder.remaining)
        .collect();
    ends.sort_unstable_by_key(|end| std::cmp::Reverse(end.unwrap_or(Duration::MAX)));
    Ok(Some(Held {
        token: most.token.clone(),
        remaining: ends.get(tally.majority() - 1).copied().flatten(),
    }))
}

/// The result of withdrawing a lease. An error unless a majority has answered.
pub(super) fn gone(tally: Tally<Option<Gone>>) -> Result<Gone, StoreError> {
    if tally.count(|_| true) < tally.majority() {
        return Err(tally.failure());
    }
    let released = tally.count(|gone| *gone == Some(Gone::Released)) > 0;
    Ok(if released { Gone::Released } else { Gone::NotOurs })
}

pub(super) fn granted(answer: &Answer) -> bool {
    matches!(answer, Answer::Granted { .. })
}

/// How long until enough of the leases in the way have run out that a majority is free; `None`:
/// not known.
pub(super) fn remaining(tally: &Tally<Answer>) -> Option<Duration> {
    let in_the_way = |answer: &Answer| match answer {
        Answer::Refused { remaining, .. } => Some(remaining.unwrap_or(Duration::MAX)),
        Answer::Granted { .. } => None,
    };
    let mut ends: Vec<_> = tally.said().filter_map(in_the_way).collect();
    ends.sort_unstable();
    let missing = tally.majority().saturating_sub(tally.count(granted));
    ends.get(missing.checked_sub(1)?).copied().filter(|end| *end != Duration::MAX)
}

#[cfg(test)]
mod tests;
