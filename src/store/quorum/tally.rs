//! The tally: what the nodes have answered so far, and what that amounts to.

use std::fmt;
use std::time::Duration;

use crate::base::error::ErrorKind;
use crate::lease::store::{Held, StoreError};

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
                        message: error.message.clone(),
                        may_have_run: error.may_have_run,
                        permanent: error.permanent,
                        ..StoreError::not_sent(error.kind, "")
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

impl<T> Tally<T> {
    pub(super) fn new(nodes: usize) -> Self {
        Self { answers: (0..nodes).map(|_| None).collect() }
    }

    pub(super) fn note(&mut self, node: usize, answer: Result<T, StoreError>) {
        if let Some(place) = self.answers.get_mut(node) {
            *place = Some(answer);
        }
    }

    /// More than half of all nodes, whether they are up or not: any two majorities share a node.
    pub(super) fn majority(&self) -> usize {
        self.answers.len() / 2 + 1
    }

    /// The smallest number of nodes without which there is no majority.
    pub(super) fn veto(&self) -> usize {
        self.answers.len() - self.majority() + 1
    }

    /// How many nodes have not said anything yet.
    pub(super) fn pending(&self) -> usize {
        self.answers.iter().filter(|answer| answer.is_none()).count()
    }

    /// How many nodes have not answered: they failed, or have not said anything yet.
    pub(super) fn silent(&self) -> usize {
        self.answers.len() - self.count(|_| true)
    }

    /// What this node said; `Ok(None)`: nothing yet.
    pub(super) fn of(&self, node: usize) -> Result<Option<&T>, &StoreError> {
        self.answers.get(node).and_then(Option::as_ref).map(Result::as_ref).transpose()
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
    /// Trying again cannot help once so many nodes refuse for good that a majority is out of reach.
    pub(super) fn failure(self) -> StoreError {
        let veto = self.veto();
        let mut causes = Vec::new();
        let mut refusals = Vec::new();
        let mut may_have_run = false;
        for (node, answer) in (1..).zip(self.answers) {
            match answer {
                Some(Ok(_)) => may_have_run = true,
                Some(Err(error)) => {
                    may_have_run |= error.may_have_run;
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
        let error = error.because(Causes(causes));
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

/// Why nodes did not answer, by their number in the list of URLs, from 1. URLs stay out of it: they
/// may hold passwords (R19).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::token::Token;

    fn wrong_type() -> StoreError {
        StoreError::not_sent(ErrorKind::WrongType, "foreign data").permanent()
    }

    #[test]
    fn two_majorities_always_share_a_node() {
        for nodes in 1..12 {
            let tally = Tally::<()>::new(nodes);
            assert!(2 * tally.majority() > nodes);
            assert_eq!(tally.majority() + tally.veto(), nodes + 1);
        }
    }

    #[test]
    fn refusals_for_good_are_permanent_only_when_no_majority_is_left() {
        for refusing in 1..=3 {
            let mut tally = Tally::new(5);
            (0..5 - refusing).for_each(|node| tally.note(node, Ok(())));
            (5 - refusing..5).for_each(|node| tally.note(node, Err(wrong_type())));
            let failure = tally.failure();
            assert_eq!(failure.permanent, refusing == 3);
            assert_eq!(
                failure.kind,
                if refusing == 3 { ErrorKind::WrongType } else { ErrorKind::Unavailable }
            );
        }
    }

    #[test]
    fn causes_are_told_by_node_and_a_missing_reply_may_have_run() {
        let mut tally = Tally::<()>::new(3);
        tally.note(1, Err(wrong_type()));
        tally.note(
            2,
            Err(StoreError::not_sent(ErrorKind::Unavailable, "down").because("connection refused")),
        );
        let failure = tally.failure();
        assert!(failure.may_have_run);
        let causes = failure.source.map(|source| source.to_string());
        assert_eq!(
            causes.as_deref(),
            Some(
                "node 1: no answer so far; node 2: foreign data; node 3: down (connection refused)"
            )
        );
    }

    #[test]
    fn answers_failures_and_silence_are_counted_apart() {
        let mut tally = Tally::new(5);
        tally.note(0, Ok(7));
        tally.note(1, Ok(8));
        tally.note(2, Err(wrong_type()));
        tally.note(5, Ok(9));
        assert_eq!((tally.pending(), tally.silent()), (2, 3));
        assert_eq!(tally.said().copied().collect::<Vec<_>>(), [7, 8]);
        assert_eq!(tally.count(|said| *said == 7), 1);
        assert!(matches!(tally.of(1), Ok(Some(8))));
        assert!(matches!(tally.of(2), Err(error) if error.kind == ErrorKind::WrongType));
        assert!(matches!(tally.of(3), Ok(None)) && matches!(tally.of(9), Ok(None)));
    }

    #[test]
    fn a_question_about_some_leases_has_a_tally_for_each() {
        let down = || StoreError::not_sent(ErrorKind::Unavailable, "down").maybe_run();
        let mut tally = Tally::new(3);
        tally.note(0, Ok(vec![Ok(true), Err(wrong_type())]));
        tally.note(1, Err(down().permanent()));
        assert_eq!(tally.count_of(0, |yes| *yes), 1);
        assert_eq!(tally.count_of(0, |yes| !*yes), 0);
        assert_eq!(tally.count_of(1, |_| true), 0);
        let each = tally.each(2);
        assert_eq!(each.len(), 2);
        assert!(matches!(each[0].of(0), Ok(Some(true))));
        assert!(matches!(each[1].of(0), Err(error) if error.kind == ErrorKind::WrongType));
        for lease in &each {
            let error = lease.of(1).expect_err("the node failed");
            assert_eq!((error.kind, error.message.as_ref()), (ErrorKind::Unavailable, "down"));
            assert!(error.may_have_run && error.permanent);
            assert_eq!(lease.pending(), 1);
        }
    }

    #[test]
    fn a_failure_may_have_run_where_a_node_said_so() {
        let failed = |error: StoreError| {
            let mut tally = Tally::<()>::new(1);
            tally.note(0, Err(error));
            tally.failure()
        };
        assert!(!failed(wrong_type()).may_have_run);
        assert!(failed(wrong_type().maybe_run()).may_have_run);
        let mut answered = Tally::new(3);
        answered.note(0, Ok(()));
        (1..3).for_each(|node| answered.note(node, Err(wrong_type())));
        let failure = answered.failure();
        assert!(failure.may_have_run, "the node that answered has it");
        let server = StoreError::not_sent(ErrorKind::Server, "no").permanent();
        let mut mixed = Tally::<()>::new(3);
        mixed.note(0, Err(server));
        (1..3).for_each(|node| mixed.note(node, Err(wrong_type())));
        assert_eq!(mixed.failure().kind, ErrorKind::WrongType, "what most of them said");
    }

    fn held(token: &str, seconds: Option<u64>) -> Option<Held> {
        Some(Held { token: Token::new(token), remaining: seconds.map(Duration::from_secs) })
    }

    /// Who holds the lock, and for how many seconds, by what these of five nodes say.
    fn holder_of(said: &[Option<Held>]) -> Result<Option<(String, Option<u64>)>, Undecided> {
        let mut tally = Tally::new(5);
        for (node, said) in said.iter().enumerate() {
            let said = said.as_ref().map(|held| Held { token: held.token.clone(), ..*held });
            tally.note(node, Ok(said));
        }
        let holder = holder(&tally)?;
        Ok(holder.map(|held| {
            let remaining = held.remaining.map(|left| left.as_secs());
            (held.token.text(), remaining)
        }))
    }

    #[test]
    fn a_majority_names_the_holder_for_as_long_as_a_majority_has_it() {
        let (a, b) = (|left| held("a", Some(left)), held("b", Some(99)));
        let all = [a(10), a(30), a(20), b, None];
        assert_eq!(holder_of(&all), Ok(Some(("a".into(), Some(10)))));
        let more = [a(10), a(30), a(20), a(40), None];
        assert_eq!(holder_of(&more), Ok(Some(("a".into(), Some(20)))));
        let for_ever = [held("a", None), a(30), held("a", None), a(5)];
        assert_eq!(holder_of(&for_ever), Ok(Some(("a".into(), Some(30)))));
        let only = [held("a", None), held("a", None), held("a", None)];
        assert_eq!(holder_of(&only), Ok(Some(("a".into(), None))));
    }

    #[test]
    fn nobody_holds_it_only_if_the_silent_nodes_could_not_change_that() {
        let a = || held("a", Some(10));
        assert_eq!(holder_of(&[None, None, None]), Ok(None));
        assert_eq!(holder_of(&[None, None]), Err(Undecided));
        assert_eq!(holder_of(&[a(), None, None, None]), Ok(None));
        assert_eq!(holder_of(&[a(), None, None]), Err(Undecided));
        assert_eq!(holder_of(&[a(), a(), held("b", Some(9)), None]), Err(Undecided));
        assert_eq!(holder_of(&[a(), a(), held("b", Some(9)), None, None]), Ok(None));
    }
}
