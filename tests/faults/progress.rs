//! The checkers of progress: who waits too long, who is overtaken, and when nobody gets anything.

use std::collections::{BTreeMap, BTreeSet};

use super::check::by_key;
use super::history::{Outcome, Record};

/// How many holds of the same key were asked for after a hold and granted before it (I7): the mean
/// over all holds.
pub fn overtakers(holds: &[Record]) -> f64 {
    let mut all = 0;
    for holds in by_key(holds).values() {
        for (i, hold) in holds.iter().enumerate() {
            let since = holds[..i].iter().rev().take_while(|other| other.granted > hold.called);
            all += since.filter(|other| other.called > hold.called).count();
        }
    }
    all as f64 / holds.len().max(1) as f64
}

/// What happens to a key at a moment, by the call that it is about.
enum Event<'a> {
    Waits(&'a Record),
    Granted(&'a Record),
    GivesUp(&'a Record),
    Ends(&'a Record),
}

/// The longest time between `from` and `to` in which a key had waiters and room for each of them,
/// and either nobody was granted anything or one of them was not (ns). A lock that is held has room
/// for nobody. A call that asks once is refused if there is no room for it, and then does not wait.
pub fn longest_stuck(holds: &[Record], calls: &[Record], from: u64, to: u64) -> u64 {
    let mut keys: BTreeMap<u64, (u64, Vec<(u64, Event<'_>)>)> = BTreeMap::new();
    for hold in holds {
        let events = &mut keys.entry(hold.key).or_insert((hold.room, Vec::new())).1;
        events.push((hold.called, Event::Waits(hold)));
        events.push((hold.granted, Event::Granted(hold)));
        let end = hold.end().max(hold.ended).max(hold.granted);
        events.push((end, Event::Ends(hold)));
    }
    for call in calls {
        let events = &mut keys.entry(call.key).or_insert((call.room, Vec::new())).1;
        events.push((call.called, Event::Waits(call)));
        events.push((call.ended.max(call.called), Event::GivesUp(call)));
    }
    let stuck = |(room, events)| longest_stuck_of(room, events, from, to);
    keys.into_values().map(stuck).max().unwrap_or(0)
}

fn longest_stuck_of(room: u64, mut events: Vec<(u64, Event<'_>)>, from: u64, to: u64) -> u64 {
    // Stable: what belongs to one record stays in its order.
    events.sort_by_key(|(at, _)| *at);
    let (mut taken, mut longest) = (0, 0);
    let mut waiting = Waiting::default();
    // Since when there is room for all that wait.
    let mut since = None;
    for (at, event) in events {
        let granted = matches!(event, Event::Granted(_));
        match event {
            Event::Waits(call) if call.timeout == 1 && taken + call.share > room => {}
            Event::Waits(call) => waiting.enter(call),
            Event::Granted(hold) => {
                waiting.leave(hold);
                taken += hold.share;
            }
            Event::GivesUp(call) => waiting.leave(call),
            Event::Ends(hold) => taken -= hold.share,
        }
        let has_room = waiting.largest().is_some_and(|share| taken + share <= room);
        if let Some(begun) = since.filter(|_| granted || !has_room) {
            longest = longest.max(at.min(to).saturating_sub(from.max(begun)));
        }
        since = match since {
            _ if !has_room => None,
            // Those that are left go on waiting, and some of them may have come later.
            Some(begun) if granted => waiting.oldest().map(|called| called.max(begun)),
            _ => since.or(Some(at)),
        };
    }
    longest
}

/// Those that wait for a key.
#[derive(Default)]
struct Waiting {
    shares: BTreeMap<u64, usize>,
    calls: BTreeSet<(u64, u64, u64)>,
}

impl Waiting {
    fn enter(&mut self, call: &Record) {
        *self.shares.entry(call.share).or_default() += 1;
        self.calls.insert((call.called, call.owner, call.number));
    }

    fn leave(&mut self, call: &Record) {
        if !self.calls.remove(&(call.called, call.owner, call.number)) {
            return;
        }
        let count = self.shares.get_mut(&call.share).expect("it waits");
        *count -= 1;
        if *count == 0 {
            self.shares.remove(&call.share);
        }
    }

    fn largest(&self) -> Option<u64> {
        self.shares.keys().last().copied()
    }

    fn oldest(&self) -> Option<u64> {
        self.calls.first().map(|call| call.0)
    }
}

/// The largest number of holds in a row that threads of one process had of a key, while another
/// process waited for it all the time (I7). Expects holds of keys with a queue.
pub fn longest_run(holds: &[Record]) -> usize {
    let mut longest = 0;
    for holds in by_key(holds).values() {
        let mut run: Vec<&Record> = Vec::new();
        for hold in holds {
            if run.last().is_some_and(|last| last.owner / 10_000 != hold.owner / 10_000) {
                // The other process waited from some moment within this run of holds.
                longest =
                    longest.max(run.iter().filter(|before| before.granted > hold.called).count());
                run.clear();
            }
            run.push(hold);
        }
    }
    longest
}

/// How many slices of time between `from` and `to` had no grant, and how many slices there are.
/// Slices that overlap one of `but` are left out.
pub fn idle(
    holds: &[Record],
    (from, to): (u64, u64),
    but: &[(u64, u64)],
    slice: u64,
) -> (usize, usize) {
    let granted: Vec<u64> = holds.iter().map(|hold| hold.granted).collect();
    let (mut idle, mut all) = (0, 0);
    let mut at = from;
    while at + slice <= to {
        let end = at + slice;
        if !but.iter().any(|&(from, to)| from < end && at < to) {
            all += 1;
            let next = granted.partition_point(|granted| *granted < at);
            idle += usize::from(granted.get(next).is_none_or(|granted| *granted >= end));
        }
        at = end;
    }
    (idle, all)
}

/// The longest time from a call to its grant (ns).
pub fn longest_wait(holds: &[Record]) -> u64 {
    holds.iter().map(|hold| hold.granted - hold.called).max().unwrap_or(0)
}

/// I6: (timed calls that ended too late, by how much at most, refusals that came before their
/// time). `slack`: one command timeout and a little.
pub fn timing(holds: &[Record], calls: &[Record], slack: u64) -> (usize, u64, usize) {
    let (mut late, mut by, mut early) = (0, 0, 0);
    for call in holds.iter().chain(calls).filter(|call| call.timeout != 0) {
        let answered = if call.granted != 0 { call.granted } else { call.ended };
        let deadline = call.called + call.timeout - 1;
        if answered > deadline + slack {
            late += 1;
            by = by.max(answered - deadline);
        }
        early += usize::from(call.outcome == Outcome::Refused && answered < deadline);
    }
    (late, by, early)
}

/// How long after `healed` a period of `slice` ns first had `share` of the rate of grants between
/// `start` and `faulted`. Holds in the order of their grants.
pub fn recovery(
    holds: &[Record],
    (start, faulted): (u64, u64),
    (healed, end): (u64, u64),
    share: f64,
    slice: u64,
) -> Option<u64> {
    let before = |at: u64| holds.partition_point(|hold| hold.granted < at);
    let count = |from: u64, to: u64| (before(to) - before(from)) as f64;
    let usual = count(start, faulted) / (faulted - start) as f64 * slice as f64;
    let mut at = healed;
    while at + slice <= end {
        if count(at, at + slice) >= usual * share {
            return Some(at + slice - healed);
        }
        at += slice / 8;
    }
    None
}
