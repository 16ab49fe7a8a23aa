//! Makes the report's line from the facts of a row: the checkers over its history, the counters,
//! the verdict.

use std::time::Duration;

use super::clock::nanos;
use super::findings::Findings;
use super::history::{Outcome, Record};
use super::judge::Facts;
use super::leaks::{numbers, of_leaks, of_peaks};
use super::load::Load;
use super::problems::Class::{Late, Little, Red};
use super::problems::{self, Problem, those};
use super::rows::Row;
use super::samples;
use super::tune::{Size, ms};
use super::world::World;

/// Without a message, a Redisson lock is asked for again after this time at most: the server has no
/// queue for these locks.
const POLL: u64 = 1_500_000_000;
/// How many holds in a row a process may have of a key for which another process waits: 17 for a
/// lease that passes from thread to thread, and those of another lease if the waiter had not
/// reached the server when the first one was released.
const RUN: usize = 40;
/// How many permits that were asked for later may come before one, on average: a call may be late
/// on its way to the server.
const OVERTAKERS: f64 = 1.0;

/// What is wrong with a row.
fn of_row(row: &Row, world: &World, facts: &Facts, found: &Findings) -> Vec<Problem> {
    let mut problems = of_exclusion(row, world, facts, found);
    problems.extend(of_progress(row, world, facts, found));
    problems.extend(of_substance(row, world, facts, found));
    problems.extend(of_answers(row, world, facts));
    problems.extend(of_leaks(row, facts));
    problems.extend(of_peaks(row, world, facts));
    problems
}

/// I1 to I3, and I5.
fn of_exclusion(row: &Row, world: &World, facts: &Facts, found: &Findings) -> Vec<Problem> {
    let (strict, load) = (row.class != 'T', &world.tune.load);
    let bound = nanos(load.lease / 3 + load.command + ms(100)) + facts.delay;
    let first = found.overlaps.first().map_or(String::new(), describe);
    let falsely = found.false_releases.first().map_or(String::new(), describe);
    those([
        (strict && !found.overlaps.is_empty(), Red, format!("overlap: {first}")),
        (row.class == 'N' && found.lost_updates > 0, Red, "lost update".into()),
        (
            strict && found.crowded > 0,
            Red,
            format!("{} times more inside than there is room for", found.crowded),
        ),
        (found.stale.1 > 0, Red, "stale write accepted".into()),
        (found.regressions > 0, Red, "fence regression".into()),
        (
            found.model.0 > 0,
            Red,
            format!("model: {} of {} samples have no explanation", found.model.0, found.model.1),
        ),
        (
            !row.split && !found.false_releases.is_empty(),
            Red,
            format!("unlock said Ok although another had been granted: {falsely}"),
        ),
        (
            found.unnoticed > bound,
            Late,
            format!("loss noticed after {} ms", found.unnoticed / 1_000_000),
        ),
        (
            !strict && found.overlap > bound,
            Late,
            format!("overlap of {} ms", found.overlap / 1_000_000),
        ),
    ])
}

/// I4, I6 and I7.
fn of_progress(row: &Row, world: &World, facts: &Facts, found: &Findings) -> Vec<Problem> {
    let load = &world.tune.load;
    let usual = |load: &Load| load.lease + ms(1000);
    let free_within =
        row.free_within.or((row.class != 'T').then_some(usual as fn(&Load) -> Duration));
    let patience = free_within.map_or(u64::MAX - POLL, |most| nanos(most(load)) + facts.delay);
    let (late, late_by, early) = found.timing;
    let known_within =
        row.known_within.filter(|_| row.class == 'N').map_or(Duration::MAX, |most| most(load));
    let too_old = nanos(known_within.saturating_add(load.lease)).saturating_add(facts.delay);
    let oldest = found.orphans.iter().copied().max().unwrap_or(0);
    let many = samples::longer_than(
        &found.orphans,
        known_within.saturating_add(Duration::from_nanos(facts.delay)),
    );
    those([
        (
            found.stuck.0 > patience,
            Late,
            format!("a key was stuck for {} ms (I4)", found.stuck.0 / 1_000_000),
        ),
        (
            found.stuck.1 > patience + POLL,
            Late,
            format!("a key of Redisson's was stuck for {} ms (I4)", found.stuck.1 / 1_000_000),
        ),
        (oldest > too_old, Late, format!("an orphan of {} ms (I4)", oldest / 1_000_000)),
        (
            many as u64 > 1 + world.faults / 100,
            Late,
            format!("{many} orphans of more than {} ms (I4)", known_within.as_millis()),
        ),
        (
            row.punctual && late > 0,
            Late,
            format!("{late} timed calls late, by up to {} ms (I6)", late_by / 1_000_000),
        ),
        // Nothing makes a call end before its time but a wrong count.
        (early > 0, Red, format!("{early} timed calls early (I6)")),
        (found.wait.1 > nanos(ms(30_000)), Late, "a waiter starved (I7)".into()),
        (
            // A waiter that the machine delays on its way to the server is not in the queue yet.
            row.fair && found.run > RUN,
            Late,
            format!("{} holds in a row by a process while another waited (I7)", found.run),
        ),
        (
            row.fair && found.overtakers > OVERTAKERS,
            Late,
            format!("{:.1} others come before a waiter (I7)", found.overtakers),
        ),
    ])
}

/// I8, and whether the row has shown anything.
fn of_substance(row: &Row, world: &World, facts: &Facts, found: &Findings) -> Vec<Problem> {
    let mut problems = those([
        (
            row.recovers && facts.recovery.is_none(),
            Little,
            "throughput did not recover (I8)".into(),
        ),
        (
            row.holds > 0 && found.idle_percent() >= 20,
            Little,
            format!("idle for {} % of the time", found.idle_percent()),
        ),
        (
            found.model.1 == 0 && found.overlaps.is_empty() && row.holds > 0,
            Little,
            "no history to explain".into(),
        ),
        (row.offers_stale && found.stale.0 == 0, Little, "no late write was offered".into()),
    ]);
    problems.extend(world.least.missing(&found.shown).into_iter().map(|what| (Little, what)));
    problems
}

/// How calls ended, and what was logged.
fn of_answers(row: &Row, world: &World, facts: &Facts) -> Vec<Problem> {
    let of = |outcome| count(facts, outcome);
    let (lost, unknown) = (of(Outcome::Lost), of(Outcome::Unknown));
    let failed = of(Outcome::Unavailable) + of(Outcome::Exhausted);
    // A process that gets no CPU for most of a lease loses it, and one whose server gets none has
    // no answer: such a machine shows nothing. The delay that was measured is another thread's.
    let busy = if is_overloaded(world, facts) { Little } else { Late };
    // The growth that a million calls may cause; a minute has fewer calls. The histories themselves
    // are written to files.
    let too_large = row.number == 1 && world.size != Size::Quick && facts.grown > 5 << 10;
    those([
        (of(Outcome::Other) > 0, Red, "an outcome that nothing explains".into()),
        (row.in_step && of(Outcome::Mismatched) > 0, Red, "a reply of another command".into()),
        (!row.may_lose && lost > 0, busy, format!("{lost} locks lost")),
        (!row.may_be_unknown && unknown > 0, busy, format!("{unknown} unknown outcomes")),
        (!row.may_fail && failed > 0, busy, format!("{failed} calls failed")),
        (!row.may_fail && refused(facts) > 0, Red, format!("{} calls refused", refused(facts))),
        (too_large, Red, format!("a process grew by {} KiB (I9)", facts.grown)),
        (facts.logs.contains("panicked at"), Red, "a panic (I10)".into()),
        (
            world.secrets.iter().any(|secret| facts.logs.contains(secret.as_str())),
            Red,
            "a secret in a log (I11)".into(),
        ),
    ])
}

fn count(facts: &Facts, outcome: Outcome) -> usize {
    facts.holds.iter().chain(&facts.calls).filter(|record| record.outcome == outcome).count()
}

/// How many calls the server refused, which it does not do for want of time.
fn refused(facts: &Facts) -> usize {
    [Outcome::Denied, Outcome::Server, Outcome::WrongType]
        .into_iter()
        .map(|outcome| count(facts, outcome))
        .sum()
}

/// If a process is stopped for half of its lease, little more than the other half is left for the
/// machine's own delays.
fn is_overloaded(world: &World, facts: &Facts) -> bool {
    facts.delay > nanos(world.tune.load.lease) / 8
}

/// What the report says besides the columns.
fn remarks(row: &Row, world: &World, facts: &Facts, found: &Findings) -> Vec<String> {
    let mut remarks = world.remarks.clone();
    if row.number == 1 {
        remarks.push(format!("memory grew by up to {} KiB", facts.grown));
    }
    let of = |outcome| count(facts, outcome);
    let counted = [
        (of(Outcome::Lost), "lost"),
        (of(Outcome::Unavailable), "unavailable"),
        (of(Outcome::Exhausted), "attempts exhausted"),
        (
            if row.in_step { 0 } else { of(Outcome::Mismatched) },
            "of a caller's own commands answered by another's reply",
        ),
        (refused(facts), "refused with a typed error"),
    ];
    remarks.extend(
        counted
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}")),
    );
    remarks.extend(
        (row.renewals.0 > 0)
            .then(|| format!("{} renewals seen by their holders", found.shown.renewals)),
    );
    remarks.extend(
        (found.overtakers > 0.0)
            .then(|| format!("{:.2} later permits before one", found.overtakers)),
    );
    remarks.extend((row.waits_in_conditions > 0).then(|| format!("{} waits", found.shown.waits)));
    let (late, late_by, _) = found.timing;
    remarks.extend(
        (!row.punctual && late > 0)
            .then(|| format!("{late} late by up to {} ms", late_by / 1_000_000)),
    );
    remarks.extend(
        (!world.taken.is_empty())
            .then(|| format!("loss noticed within {} ms", found.unnoticed / 1_000_000)),
    );
    remarks.extend(
        (facts.delay > nanos(ms(20)))
            .then(|| format!("machine: sleepers woke up to {} ms late", facts.delay / 1_000_000)),
    );
    remarks.extend(
        (found.overlap > 0).then(|| format!("longest overlap {} ms", found.overlap / 1_000_000)),
    );
    remarks.extend((row.split && !found.false_releases.is_empty()).then(|| {
        format!(
            "{} locks released at one server while another had granted them",
            found.false_releases.len()
        )
    }));
    let logged = samples::errors_logged(&facts.logs);
    remarks.extend(
        logged
            .into_iter()
            .map(|(message, count)| format!("logged {count} times: {}", message.replace('|', "/"))),
    );
    remarks
}

/// The row's line. Takes the problems that the row itself has found.
pub fn line(row: &Row, world: &mut World, facts: &Facts) -> String {
    let found = Findings::new(row, world, facts);
    let mut all = std::mem::take(&mut world.problems);
    all.extend(of_row(row, world, facts, &found));
    all.dedup();
    let mut remarks = remarks(row, world, facts, &found);
    remarks.extend(all.iter().map(problems::remark));
    let mut sums = [0_u64; 4];
    for status in &facts.counts {
        let (before, after) = (numbers(status, "before"), numbers(status, "after"));
        for (sum, more) in
            sums.iter_mut().zip([before.first(), after.first(), before.get(1), after.get(1)])
        {
            *sum += more.copied().unwrap_or(0);
        }
    }
    let mut waits: Vec<u64> = facts
        .holds
        .iter()
        .filter(|hold| hold.key < world.tune.load.keys)
        .map(|hold| hold.granted - hold.called)
        .collect();
    waits.sort_unstable();
    let percentile =
        |share: usize| waits.get(waits.len() * share / 100).map_or(0.0, |wait| *wait as f64 / 1e6);
    let millis = |time: u64| (time / 1_000_000).to_string();
    let cells = [
        row.number.to_string(),
        row.class.to_string(),
        row.name.to_owned(),
        facts.holds.len().to_string(),
        found.shown.under_fault.to_string(),
        found.idle_percent().to_string(),
        world.faults.to_string(),
        count(facts, Outcome::Unknown).to_string(),
        found.overlaps.len().to_string(),
        found.lost_updates.to_string(),
        format!("{} / {}", found.stale.0, found.stale.1),
        found.regressions.to_string(),
        millis(found.stuck.0.max(found.stuck.1)),
        millis(found.orphans.iter().copied().max().unwrap_or(0)),
        millis(found.wait.0),
        format!("{:.1} / {:.0}", percentile(50), percentile(99)),
        facts.recovery.map_or("-".into(), millis),
        format!("{} / {}", sums[0], sums[1]),
        format!("{} / {}", sums[2], sums[3]),
        format!("{} / {}", facts.connections.0, facts.connections.1),
        format!("0 / {} + {}", facts.locks, facts.queues),
        // One line, whatever a remark quotes.
        remarks.join("; ").replace('\n', " "),
        problems::word(problems::verdict(&all)).to_owned(),
    ];
    format!("| {} |", cells.join(" | "))
}

/// An overlap in words: enough to find it in the histories.
pub fn describe((before, after): &(Record, Record)) -> String {
    let us = |time: u64| time / 1000 % 1_000_000_000;
    format!(
        "key {} owner {} fence {} called {} granted {} until {} released {}, then owner {} fence \
         {} called {} granted {} (µs)",
        before.key,
        before.owner,
        before.fence,
        us(before.called),
        us(before.granted),
        us(before.valid_until),
        us(before.released),
        after.owner,
        after.fence,
        us(after.called),
        us(after.granted)
    )
}
