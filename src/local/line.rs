//! Threads of this process that wait for permits which cannot be promised: first come, first
//! served. The threads of a line share each answer. So no thread asks before there is room, and no
//! more of them ask than there is room for.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::base::backoff;
use crate::base::bell::Bell;
use crate::base::key::Key;
use crate::base::locked;

/// The lines of one client, by key. An empty line leaves nothing behind.
#[derive(Default)]
pub(crate) struct Lines {
    by_key: Mutex<HashMap<Key, Line>>,
}

#[derive(Default)]
struct Line {
    last_turn: u64,
    /// By the last answer, there is no room before this time.
    room: Option<Instant>,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    turn: u64,
    bell: Arc<Bell>,
    /// `None`: no limit.
    deadline: Option<Instant>,
    /// Whether the thread may ask as soon as there is room. Such threads may stand anywhere in the
    /// line: a refused thread waits for the threads before it.
    may_ask: bool,
}

/// A thread's place in a line, until dropped.
pub(crate) struct Place<'a> {
    lines: &'a Lines,
    key: &'a Key,
    turn: u64,
}

/// What a thread in a line does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Ask,
    /// Sleeps until this time, its deadline, or a ring.
    Sleep(Option<Instant>),
}

impl Lines {
    /// If no thread of the line has to wait, a new one may ask at once, beside the others: only a
    /// refusal makes a queue.
    pub(crate) fn enter<'a>(
        &'a self,
        key: &'a Key,
        bell: &Arc<Bell>,
        deadline: Option<Instant>,
        now: Instant,
    ) -> Place<'a> {
        let mut by_key = locked(&self.by_key);
        let line = by_key.entry(key.clone()).or_default();
        line.last_turn += 1;
        let turn = line.last_turn;
        let may_ask = line.waiting.is_empty()
            || line.has_room(now) && line.waiting.iter().all(|waiter| waiter.may_ask);
        line.waiting.push_back(Waiter { turn, bell: Arc::clone(bell), deadline, may_ask });
        Place { lines: self, key, turn }
    }
}

impl Line {
    fn has_room(&self, now: Instant) -> bool {
        self.room.is_none_or(|room| room <= now)
    }

    /// Lets at most `most` threads ask, including those that already may.
    fn admit(&mut self, most: usize) {
        let already = self.waiting.iter().filter(|waiter| waiter.may_ask).count();
        for waiter in self
            .waiting
            .iter_mut()
            .filter(|waiter| !waiter.may_ask)
            .take(most.saturating_sub(already))
        {
            waiter.may_ask = true;
            waiter.bell.ring();
        }
    }
}

impl Place<'_> {
    pub(crate) fn next(&self, now: Instant) -> Next {
        self.with(|line, at| {
            let waiter = &line.waiting[at];
            // A thread asks a last time at its deadline, or as soon as others have heard that there
            // will be no room in time. The answer is the server's, never a guess of ours.
            if waiter.deadline.is_some_and(|deadline| {
                deadline <= now || line.room.is_some_and(|room| deadline < room)
            }) {
                return Next::Ask;
            }
            match line.room {
                _ if !waiter.may_ask => Next::Sleep(None),
                Some(room) if room > now => {
                    Next::Sleep(now.checked_add(backoff::room_pause(room - now)))
                }
                _ => Next::Ask,
            }
        })
        .unwrap_or(Next::Ask)
    }

    /// A permit was taken, and `left` are left: as many other threads may ask at the same time.
    /// Otherwise a line would be served more slowly than threads without a line.
    pub(crate) fn passed(&self, left: u64) {
        self.with(|line, _| {
            line.room = None;
            line.admit(usize::try_from(left).unwrap_or(usize::MAX).saturating_add(1));
        });
    }

    /// There is no room before `room`: then one thread asks, the first.
    pub(crate) fn refused(&self, room: Instant) {
        self.with(|line, at| {
            line.room = Some(room);
            line.waiting[at].may_ask = false;
            line.admit(1);
            line.waiting
                .iter()
                .filter(|waiter| waiter.deadline.is_some_and(|deadline| deadline < room))
                .for_each(|waiter| waiter.bell.ring());
        });
    }

    /// No answer: each thread finds out for itself how long the outage lasts.
    pub(crate) fn unanswered(&self) {
        self.with(|line, _| line.admit(usize::MAX));
    }

    fn with<R>(&self, look: impl FnOnce(&mut Line, usize) -> R) -> Option<R> {
        let mut by_key = locked(&self.lines.by_key);
        let line = by_key.get_mut(self.key)?;
        let at = line.waiting.iter().position(|waiter| waiter.turn == self.turn)?;
        Some(look(line, at))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut by_key = locked(&self.lines.by_key);
        let Some(line) = by_key.get_mut(self.key) else { return };
        line.waiting.retain(|waiter| waiter.turn != self.turn);
        line.admit(1);
        if line.waiting.is_empty() {
            by_key.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    fn asks(places: &[Place<'_>], now: Instant) -> Vec<bool> {
        places.iter().map(|place| place.next(now) == Next::Ask).collect()
    }

    #[test]
    fn after_a_refusal_one_asks_and_then_as_many_as_there_is_room_for() {
        let (lines, key, start) = (Lines::default(), Key::new("ip".into()), Instant::now());
        let enter = |now| lines.enter(&key, &Bell::new(), None, now);
        let mut places = vec![enter(start), enter(start), enter(start)];
        assert_eq!(asks(&places, start), [true; 3], "nobody waits yet");
        // The answers come in any order.
        places.swap(0, 2);
        places.iter().for_each(|place| place.refused(start + SECOND));
        places.swap(0, 2);
        assert_eq!(asks(&places, start), [false; 3]);
        let end = start + SECOND * 2;
        assert_eq!(asks(&places, end).iter().filter(|asks| **asks).count(), 1);
        // A thread that comes now overtakes nobody.
        places.extend([enter(end), enter(end)]);
        assert_eq!(asks(&places, end).iter().filter(|asks| **asks).count(), 1);
        let first = asks(&places, end).iter().position(|asks| *asks).unwrap();
        places[first].passed(2);
        drop(places.remove(first));
        assert_eq!(asks(&places, end), [true, true, false, false]);
        drop(places);
        assert!(locked(&lines.by_key).is_empty(), "nothing is left behind");
    }

    #[test]
    fn whoever_leaves_lets_the_next_one_ask() {
        let (lines, key, start) = (Lines::default(), Key::new("ip".into()), Instant::now());
        let bells = [Bell::new(), Bell::new(), Bell::new()];
        let mut places: Vec<_> =
            bells.iter().map(|bell| lines.enter(&key, bell, None, start)).collect();
        places.iter().for_each(|place| place.refused(start + SECOND));
        let end = start + SECOND * 2;
        for left in (1..=3).rev() {
            assert_eq!(
                asks(&places, end).iter().filter(|asks| **asks).count(),
                1,
                "{left} are left"
            );
            let asking = asks(&places, end).iter().position(|asks| *asks).unwrap();
            drop(places.remove(asking));
        }
    }
}
