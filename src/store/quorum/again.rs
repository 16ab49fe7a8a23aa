//! Giving a lease again to nodes that do not have it any more, or never had it (R33).
//!
//! Without this a hold would end once a majority of the nodes has been away, one after the other
//! and each for longer than the lease, although a majority was up all the time. A rolling upgrade
//! would end every long hold that way.
//!
//! It must not bring back a lease that was taken away. Somebody may release the lock by force
//! meanwhile, or we may release it ourselves:
//!
//! 1. nodes 1 to 3 confirm an extend, node 4 denies it; all five are told to release the lease, and
//!    do;
//! 2. now the lease is given to node 4 again, and is an orphan there. If an operator releases the
//!    lock by force, but slowly, the nodes that the release has already reached deny the lease and
//!    could get it again: it could move from node to node ahead of the release, and live on.
//!
//! So a node is given the lease again only if
//! * what it was last given had run out by our clock before the extend was sent: either it did not
//!   lose the lease by force, or that was so long ago that a holder with a majority would have
//!   noticed;
//! * a majority confirmed that same extend;
//! * no undoing of the lease has begun: checked on the node's thread, which gets the undoing later;
//! * nobody else has it there (`NX`).
//!
//! The node's grant is not a vote. The node counts again when it confirms the next extend.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::attempt::{Wanted, attempt};
use super::node_thread::{Job, Member, Order};
use super::tally::Tally;
use super::undo_log::{Name, UndoLog};
use super::{Quorum, Round, UndoingFlag};
use crate::base::clock::Clock;
use crate::base::locked;
use crate::lease::store::{Extend, StoreError, Within};
use crate::lease::validity::valid_until;

/// The most leases that are given again in one go, so that extends can come between.
const TOGETHER: usize = 16;

/// One extend of some leases, which the nodes' threads share.
pub(super) struct Again {
    leases: Vec<Renewed>,
    sent: Instant,
    /// Pairs of a node and a lease: the node denied the lease, and what it was last given of it had
    /// run out.
    missing: Mutex<HashSet<(usize, usize)>>,
}

struct Renewed {
    name: Name,
    length: Duration,
    /// `None`: it was not granted here, or is undone.
    undone: Option<UndoingFlag>,
}

impl Again {
    pub(super) fn new(
        leases: &[Extend<'_>],
        names: &[Name],
        granted: &HashMap<Name, UndoingFlag>,
        sent: Instant,
    ) -> Arc<Self> {
        let renewed = |(lease, name): (&Extend<'_>, &Name)| Renewed {
            name: name.clone(),
            length: lease.lease,
            undone: granted.get(name).cloned(),
        };
        Arc::new(Self {
            leases: leases.iter().zip(names).map(renewed).collect(),
            sent,
            missing: Mutex::default(),
        })
    }

    /// Which grant of a lease was to be extended.
    pub(super) fn grant(&self, lease: usize) -> Option<UndoingFlag> {
        self.leases.get(lease)?.undone.clone()
    }

    /// When the majority's confirmation is over for all of the leases.
    fn over(&self) -> Instant {
        self.sent + self.leases.iter().map(|lease| lease.length).max().unwrap_or_default()
    }

    /// Gives one lease to one node, on its thread, if all of the conditions above are met. `false`:
    /// the node did not answer.
    fn give(
        &self,
        node: usize,
        i: usize,
        member: &Member,
        undo_log: &mut UndoLog,
        clock: &Clock,
        timeout: Duration,
    ) -> bool {
        let Some(Renewed { name, length, undone: Some(undone) }) = self.leases.get(i) else {
            return true;
        };
        let (now, until) = (clock.now(), valid_until(self.sent, *length));
        if now >= until
            || undone.load(Ordering::SeqCst)
            || !self.is_missing(node, i)
            || !undo_log.had_run_out(name, self.sent)
        {
            return true;
        }
        let wanted = Wanted {
            lease: *length,
            contended: false,
            may_be_mine: false,
            deadline: until.min(now + timeout),
        };
        attempt(name, member, undo_log, clock, &wanted).is_ok()
    }

    fn is_missing(&self, node: usize, lease: usize) -> bool {
        locked(&self.missing).contains(&(node, lease))
    }
}

impl Quorum {
    pub(super) fn send_extends(
        &self,
        again: &Arc<Again>,
        within: Within,
    ) -> Result<Round<Vec<Result<bool, StoreError>>>, StoreError> {
        let (again, clock) = (Arc::clone(again), self.clock.clone());
        self.ask(within.end(self.clock.now()), Order::First, move |node, member, undo_log| {
            let ask = || {
                let leases = again.leases.iter();
                let leases: Vec<_> = leases
                    .map(|Renewed { name: (key, token), length, .. }| Extend {
                        key,
                        token,
                        lease: *length,
                        settles: false,
                    })
                    .collect();
                member.leases.extend(&leases, within)
            };
            let mut answers = ask();
            if answers.first().is_some_and(|answer| answer.as_ref().is_err_and(|error| error.stale))
            {
                answers = ask();
            }
            let now = clock.now();
            for (i, (Renewed { name, length, .. }, answer)) in
                again.leases.iter().zip(&mut answers).enumerate()
            {
                match answer {
                    Ok(true) => undo_log.holds(name, now, *length),
                    Ok(false) if undo_log.had_run_out(name, again.sent) => {
                        locked(&again.missing).insert((node, i));
                    }
                    Err(error) if error.may_have_run => {
                        undo_log.extend_unanswered(name, now, *length)
                    }
                    _ => {}
                }
            }
            Ok(answers)
        })
    }

    /// Gives the leases that a majority confirmed again to the nodes that denied them; and to nodes
    /// that have not answered yet, if those deny them.
    pub(super) fn give_again(
        &self,
        again: &Arc<Again>,
        tally: &Tally<Vec<Result<bool, StoreError>>>,
        decided: &[Option<bool>],
    ) {
        for (node, node_thread) in self.node_threads.iter().enumerate() {
            let again = Arc::clone(again);
            let may_be_missing = |i: usize| match tally.of(node) {
                Ok(Some(_)) => again.is_missing(node, i),
                Ok(None) => true,
                Err(_) => false,
            };
            let live = |i: usize| again.leases.get(i).is_some_and(|lease| lease.undone.is_some());
            let which: Vec<usize> = (0..decided.len())
                .filter(|i| decided[*i] == Some(true) && live(*i) && may_be_missing(*i))
                .collect();
            for which in which.chunks(TOGETHER) {
                let (which, again, clock, timeout) =
                    (which.to_vec(), Arc::clone(&again), self.clock.clone(), self.command_timeout);
                let deadline = again.over();
                let run = move |member: &Member, undo_log: &mut UndoLog| {
                    which.iter().all(|i| again.give(node, *i, member, undo_log, &clock, timeout))
                };
                let _ = node_thread.ask(Job::Ask {
                    deadline,
                    order: Order::InTurn,
                    run: Box::new(run),
                });
            }
        }
    }
}
