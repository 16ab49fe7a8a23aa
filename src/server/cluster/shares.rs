//! The commands of a batch, divided among the nodes, and asked of all nodes at once.

use std::thread;

use super::over::Over;
use super::{At, Replies};
use crate::server::call::Command;

/// A command of a batch that has no answer yet.
pub(super) struct Open {
    /// Its place in the batch.
    pub(super) index: usize,
    pub(super) at: At,
}

/// The commands that go to each node.
pub(super) fn by_node(open: Vec<Open>) -> Vec<Vec<Open>> {
    let mut groups: Vec<Vec<Open>> = Vec::new();
    for one in open {
        match groups.iter_mut().find(|group| group[0].at.member.is(&one.at.member)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

/// Asks each node for its commands, all nodes at once: one that is silent delays no other (R9).
pub(super) fn at_once(
    groups: Vec<Vec<Open>>,
    commands: &[Command<'_>],
    over: Over,
) -> Vec<(Vec<Open>, Replies)> {
    let ask = |group: &[Open]| {
        let asked: Vec<_> =
            group.iter().map(|one| commands[one.index].again(one.at.asking)).collect();
        group.first().map_or_else(Vec::new, |one| over.ask(&one.at.member.node, &asked))
    };
    let ask = &ask;
    let answers: Vec<_> = thread::scope(|scope| {
        let Some((first, others)) = groups.split_first() else { return Vec::new() };
        let started: Vec<_> = others
            .iter()
            .map(|group| {
                let thread = thread::Builder::new().name("distlock-shard".into());
                (group, thread.spawn_scoped(scope, move || ask(group)))
            })
            .collect();
        let mut answers = vec![ask(first)];
        answers.extend(started.into_iter().map(|(group, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // No thread could be started.
            Err(_) => ask(group),
        }));
        answers
    });
    groups.into_iter().zip(answers).collect()
}
