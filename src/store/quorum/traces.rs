//! What one token may have on each node, until it is withdrawn there.
//!
//! A token names one attempt, which is sent to each node once (R31). So a withdrawal can only
//! delete what that attempt, or a later re-grant of its lease (R33), has put there.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::base::key::Key;
use crate::base::locked;
use crate::base::store_error::StoreError;
use crate::lease::store::Answer;
use crate::lease::token::Token;

/// One attempt, and the lease that it may have become.
pub(super) struct Traces {
    pub(super) key: Key,
    pub(super) token: Token,
    /// Set before the first withdrawal is sent. What creates the lease on a node checks it on the
    /// node's thread: so it is never sent, or comes before the withdrawal.
    ended: AtomicBool,
    state: Mutex<State>,
}

struct State {
    nodes: Vec<AtNode>,
    /// When the last two extends were sent that a majority has confirmed: a node that is slow
    /// denies one only after the next one was sent.
    confirmed: [Option<Instant>; 2],
}

/// What one node may have.
#[derive(Clone, Copy, Default)]
struct AtNode {
    /// When what the node was given has run out at the latest, by our clock. `None`: the node was
    /// given nothing, or refused, or what it had is withdrawn for good.
    until: Option<Instant>,
    /// Whether an attempt or a re-grant had no answer: a copy of it may still arrive (R5).
    unanswered: bool,
    /// When the last extend was sent that the node denied after what it was given had run out, if
    /// it was given nothing since.
    denied: Option<Instant>,
    /// Whether the withdrawal is in the node's backlog.
    in_backlog: bool,
}

/// What there is to withdraw on a node.
pub(super) struct Left {
    /// When it ends by itself, unless a copy of a command arrives.
    pub(super) until: Instant,
    /// Whether a copy of a command that creates it may still arrive.
    pub(super) unanswered: bool,
}

impl Traces {
    pub(super) fn new(key: &Key, token: &Token, nodes: usize) -> Self {
        Self {
            key: key.clone(),
            token: token.clone(),
            ended: AtomicBool::new(false),
            state: Mutex::new(State {
                nodes: vec![AtNode::default(); nodes],
                confirmed: [None; 2],
            }),
        }
    }

    /// Ends it: nothing that creates the lease is sent from now on.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// The node has answered an attempt or a re-grant, or not.
    pub(super) fn attempted(
        &self,
        node: usize,
        answer: &Result<Answer, StoreError>,
        now: Instant,
        lease: Duration,
    ) {
        let unanswered = match answer {
            Ok(Answer::Granted { .. }) => false,
            Err(error) if error.may_have_run => true,
            _ => return,
        };
        self.at(node, |at| {
            at.until = at.until.max(Some(now + lease));
            at.unanswered |= unanswered;
            at.denied = None;
        });
    }

    /// The node has answered an extend that was sent at `sent`, or not. An extend never creates
    /// the lease, so one without an answer leaves nothing where nothing was.
    pub(super) fn extended(
        &self,
        node: usize,
        answer: &Result<bool, StoreError>,
        (sent, now): (Instant, Instant),
        lease: Duration,
    ) {
        self.at(node, |at| match answer {
            Ok(false) if at.until.is_none_or(|until| until <= sent) => at.denied = Some(sent),
            Ok(true) => {
                at.until = at.until.max(Some(now + lease));
                at.denied = None;
            }
            Err(error) if error.may_have_run => {
                at.until = at.until.map(|until| until.max(now + lease))
            }
            _ => {}
        });
    }

    /// A majority has confirmed the extend that was sent at `sent`.
    pub(super) fn confirmed(&self, sent: Instant) {
        let mut state = locked(&self.state);
        state.confirmed = [Some(sent), state.confirmed[0]];
    }

    /// When an extend was sent that a majority has confirmed, and that this node denied, after what
    /// it was given had run out (R33).
    pub(super) fn missing(&self, node: usize) -> Option<Instant> {
        let state = locked(&self.state);
        let denied = state.nodes.get(node)?.denied;
        denied.filter(|_| state.confirmed.contains(&denied))
    }

    /// What the node may have. `None`: nothing, and nothing can arrive there.
    pub(super) fn left(&self, node: usize) -> Option<Left> {
        self.at(node, |at| at.until.map(|until| Left { until, unanswered: at.unanswered }))
    }

    /// The node was asked to withdraw it. `true`: from now on the node's backlog has to repeat
    /// that.
    pub(super) fn withdrawn(&self, node: usize, answered: bool) -> bool {
        self.at(node, |at| {
            if answered && !at.unanswered {
                at.until = None;
                return false;
            }
            !std::mem::replace(&mut at.in_backlog, true)
        })
    }

    fn at<T>(&self, node: usize, look: impl FnOnce(&mut AtNode) -> T) -> T {
        let mut state = locked(&self.state);
        let mut beyond = AtNode::default();
        look(state.nodes.get_mut(node).unwrap_or(&mut beyond))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;

    const LEASE: Duration = Duration::from_secs(30);

    fn lost() -> StoreError {
        StoreError::not_sent(ErrorKind::Unavailable, "silent").maybe_run()
    }

    #[test]
    fn a_node_may_have_what_it_granted_and_what_it_did_not_answer() {
        let (now, traces) =
            (Instant::now(), Traces::new(&Key::new("a".into()), &Token::new("t"), 4));
        let granted = Answer::Granted { asked_at: now, fences: None };
        let refused = Answer::Refused { asked_at: now, remaining: None, heard: false };
        traces.attempted(0, &Ok(granted), now, LEASE);
        traces.attempted(1, &Ok(refused), now, LEASE);
        traces.attempted(2, &Err(lost()), now, LEASE);
        traces.attempted(3, &Err(StoreError::not_sent(ErrorKind::Unavailable, "down")), now, LEASE);
        let left = |node| traces.left(node).map(|left| (left.until, left.unanswered));
        assert_eq!(left(0), Some((now + LEASE, false)));
        assert_eq!((left(1), left(3), left(4)), (None, None, None));
        assert_eq!(left(2), Some((now + LEASE, true)));
        // An extend creates nothing, answered or not; where something is, it lasts longer.
        let later = now + LEASE / 2;
        (0..2).for_each(|node| traces.extended(node, &Err(lost()), (now, later), LEASE));
        assert_eq!(left(0), Some((later + LEASE, false)));
        assert_eq!(left(1), None);
    }

    #[test]
    fn a_node_misses_the_lease_only_once_what_it_was_given_has_run_out() {
        let (now, traces) =
            (Instant::now(), Traces::new(&Key::new("a".into()), &Token::new("t"), 2));
        traces.attempted(0, &Ok(Answer::Granted { asked_at: now, fences: None }), now, LEASE);
        let deny =
            |sent| (0..2).for_each(|node| traces.extended(node, &Ok(false), (sent, sent), LEASE));
        let missing = || [0, 1].map(|node| traces.missing(node));
        let (early, late) = (now + LEASE / 2, now + LEASE);
        deny(early);
        assert_eq!(missing(), [None, None], "no majority has confirmed it");
        traces.confirmed(early);
        assert_eq!(missing(), [None, Some(early)]);
        // The next extend was confirmed before this node has answered it.
        traces.confirmed(late);
        assert_eq!(missing(), [None, Some(early)]);
        deny(late);
        assert_eq!(missing(), [Some(late), Some(late)]);
        // Once for each denial.
        traces.attempted(0, &Err(lost()), late, LEASE);
        traces.extended(1, &Ok(true), (late, late), LEASE);
        assert_eq!(missing(), [None, None]);
        deny(late + LEASE / 2);
        (1..4).for_each(|later| traces.confirmed(late + LEASE / 2 * later));
        assert_eq!(missing(), [None, None], "both last to later than that");
    }

    #[test]
    fn a_withdrawal_is_in_the_backlog_once_until_nothing_can_be_left() {
        let (now, traces) =
            (Instant::now(), Traces::new(&Key::new("a".into()), &Token::new("t"), 2));
        traces.attempted(0, &Ok(Answer::Granted { asked_at: now, fences: None }), now, LEASE);
        traces.attempted(1, &Err(lost()), now, LEASE);
        assert!(traces.withdrawn(0, false) && traces.withdrawn(1, true));
        assert!(!traces.withdrawn(0, false) && !traces.withdrawn(1, true));
        assert!(!traces.withdrawn(0, true));
        assert!(traces.left(0).is_none() && traces.left(1).is_some());
    }
}
