//! What is known of the sentinels of a service, and of its primary.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Sentinel;
use super::answer::{Address, Answer, Primary};
use crate::base::locked;

/// As many sentinels are remembered: more are never of use.
const MOST: usize = 32;
/// A majority of sentinels may not have heard of a failover yet: each tells the others every two
/// seconds. So for this long a majority has to name another primary before it counts, if its epoch
/// is not higher.
const BEGUN_AGAIN: Duration = Duration::from_secs(3);

pub(super) struct State {
    pub(super) sentinels: Vec<Arc<Sentinel>>,
    pub(super) known: Option<Primary>,
    /// Whether the sentinels have to be asked before the primary is used.
    pub(super) in_doubt: bool,
    /// Whether a sentinel has told of a failover, and none has said yet where the primary is.
    pub(super) moved: bool,
    /// The last primary that a sentinel told to have been replaced, and when it told.
    pub(super) left: Option<(Primary, Instant)>,
    /// What a majority has said that has no higher epoch, and since when.
    pub(super) lower: Option<(Primary, Instant)>,
    /// Whether the client has been closed: no connection is kept any more.
    pub(super) closed: bool,
}

impl State {
    /// A sentinel has said its name. It is asked at one address only, except at those that the
    /// program named.
    pub(super) fn name(&mut self, sentinel: &Arc<Sentinel>, id: Option<&str>) {
        let Some(id) = id else { return };
        *locked(&sentinel.id) = Some(id.to_owned());
        let is_it = |other: &Arc<Sentinel>| locked(&other.id).as_deref() == Some(id);
        let same = self.sentinels.iter().filter(|other| is_it(other));
        let Some(kept) = same.max_by_key(|other| other.own).cloned() else { return };
        self.sentinels.retain(|other| other.own || Arc::ptr_eq(other, &kept) || !is_it(other));
    }

    /// How many sentinels there are: those that have answered or are named in an answer, and at
    /// least as many as the program named. A sentinel that knows no others is no majority.
    pub(super) fn voters(&self, answers: &[Answer]) -> usize {
        let mut own = HashSet::new();
        let counts = |sentinel: &&Arc<Sentinel>| {
            sentinel.own && locked(&sentinel.id).clone().is_none_or(|id| own.insert(id))
        };
        let own = self.sentinels.iter().filter(counts).count();
        let named = if answers.iter().all(|answer| answer.id.is_some()) {
            names(answers.iter()).len()
        } else {
            // Who has no name of its own may be one of those that others name.
            let others = answers.iter().map(|answer| answer.others.len() + 1).max();
            others.unwrap_or(0).max(answers.len())
        };
        named.max(own)
    }

    /// A sentinel has told of a failover from this server to another one.
    pub(super) fn leave(&mut self, old: Address) {
        let epoch = self.known.as_ref().map_or(0, |known| known.epoch);
        self.left = Some((Primary { address: old, epoch }, Instant::now()));
    }

    /// Whether this primary is the one that was left just now: other sentinels name it until they
    /// have heard of the failover.
    pub(super) fn has_left(&self, named: &Primary) -> bool {
        self.left.as_ref().is_some_and(|(left, since)| {
            left.address == named.address
                && named.epoch <= left.epoch
                && since.elapsed() < BEGUN_AGAIN
        })
    }

    /// Forgets sentinels that nobody names any more.
    pub(super) fn forget_others(&mut self, said: &[(Arc<Sentinel>, Answer)]) {
        let named = names(said.iter().map(|(_, answer)| answer));
        self.sentinels.retain(|sentinel| {
            sentinel.own
                || said.iter().any(|(it, _)| Arc::ptr_eq(it, sentinel))
                || locked(&sentinel.id).as_ref().is_some_and(|id| named.contains(id.as_str()))
        });
    }

    /// This primary, unless it is another one than is known and its epoch is not higher: then only
    /// once that has been said for a while.
    pub(super) fn unless_lower(&mut self, chosen: Primary) -> Primary {
        let not_higher = |known: &Primary| chosen != *known && chosen.epoch <= known.epoch;
        let Some(known) = self.known.clone().filter(not_higher) else {
            self.lower = None;
            return chosen;
        };
        match &self.lower {
            Some((said, since)) if *said == chosen && since.elapsed() >= BEGUN_AGAIN => {
                self.lower = None;
                chosen
            }
            Some((said, _)) if *said == chosen => known,
            _ => {
                self.lower = Some((chosen, Instant::now()));
                known
            }
        }
    }

    /// A sentinel has named another one.
    pub(super) fn add(&mut self, id: &str, address: &Address) {
        let known = self.sentinels.iter().any(|sentinel| {
            sentinel.address == *address || locked(&sentinel.id).as_deref() == Some(id)
        });
        if !known && self.sentinels.len() < MOST {
            self.sentinels.push(Sentinel::at(address.clone(), Some(id.to_owned())));
        }
    }
}

/// The names of the sentinels that have answered, and of those that they know.
fn names<'a>(answers: impl Iterator<Item = &'a Answer>) -> HashSet<&'a str> {
    let of = |answer: &'a Answer| {
        answer.id.iter().chain(answer.others.iter().map(|(id, _)| id)).map(String::as_str)
    };
    answers.flat_map(of).collect()
}
