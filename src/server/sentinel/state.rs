//! What the client knows of the primary of a service.

use std::time::{Duration, Instant};

use super::answer::Primary;
use crate::server::dial::Address;

/// A majority of sentinels may not have heard of a failover yet: each tells the others every two
/// seconds. So for this long a majority has to name another primary before it counts, if its epoch
/// is not higher.
const BEGUN_AGAIN: Duration = Duration::from_secs(3);

pub(super) struct KnownPrimary {
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

impl KnownPrimary {
    pub(super) fn new() -> Self {
        let (known, left, lower) = (None, None, None);
        Self { known, in_doubt: true, moved: false, left, lower, closed: false }
    }

    /// A sentinel has told of a failover from this server to another one.
    pub(super) fn leave(&mut self, old: Address) {
        let epoch = self.known.as_ref().map_or(0, |known| known.epoch);
        self.left = Some((Primary { address: old, epoch }, Instant::now()));
    }

    /// What the sentinel that told of a failover says when it is asked. If that is the known
    /// primary, or one that was before it, then the failover was, too: nothing has been left.
    pub(super) fn unless_news(&mut self, named: &Primary) {
        let is_older = |known: &Primary| named == known || named.epoch < known.epoch;
        if self.known.as_ref().is_some_and(is_older) {
            self.left = None;
        }
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
}
