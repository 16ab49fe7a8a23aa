//! From a row that has run to its line in the report: the checkers over its history, the counters, the verdict.

use std::fs;
use std::thread;

use super::check;
use super::clock::{nanos, now};
use super::history::{self, Outcome, Record};
use super::machine::{Noise, memory};
use super::model;
use super::rows::Row;
use super::world::{Size, Tune, World, ms};

/// The head of the table.
pub const HEAD: &str = "| # | class | fault | holds | faults | unknown | overlaps | lost updates | stale offered / accepted | fence regressions | \
     longest stuck (ms) | longest wait (ms) | acquire p50 / p99 (ms) | recovery (ms) | threads | descriptors | connections | keys | remarks | verdict |\n\
     |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// Runs a row and gives its line.
pub fn run(row: &Row, size: Size, seed: u64) -> String {
    let mut tune = Tune::new(size);
    (row.tune)(&mut tune);
    let mut world = World::new(size, tune, seed);
    world.least_faults = if size == Size::Quick { row.faults.0 } else { row.faults.1 };
    (row.prepare)(&mut world);
    let connections_before = connections(&mut world);
    world.start_clients();
    let noise = Noise::listen();
    let start = now();
    thread::sleep(world.tune.baseline);
    let faulted = now();
    let memory_before = memories(&world);
    (row.run)(&mut world);
    let healed = world.times.last().map_or(now(), |times| times.1);
    thread::sleep(world.tune.healing);
    // The baseline of a quick run lasts for a second, in which one long hold is much: it asks for half of that.
    let share = if size == Size::Quick { 0.5 } else { 0.8 };
    let recovery_until_now = |world: &World| {
        let (holds, _) = history::read_all(world.dir());
        check::recovery(&holds, (start, faulted), (healed, now()), share, nanos(ms(250)))
    };
    let mut recovery = row.recovers.then(|| recovery_until_now(&world)).flatten();
    while row.recovers && recovery.is_none() && now() - healed < nanos(ms(5300)) {
        thread::sleep(ms(200));
        recovery = recovery_until_now(&world);
    }
    let end = now();
    let grown = memories(&world).into_iter().zip(memory_before).map(|(after, before)| after.saturating_sub(before)).max().unwrap_or(0);
    let mut problems = std::mem::take(&mut world.problems);
    let delay = noise.worst();

    // Everybody stops: whoever waits is let in one after another, so this takes a while only where something is stuck.
    fs::write(world.dir().join("stop"), "").expect("a file");
    let patience = nanos(ms(35_000));
    let (living, mut counts) = (living(&world), Vec::new());
    for process in &living {
        let status = loop {
            let status = world.status(*process);
            if status.contains("after") {
                break status;
            }
            if now() - end > patience {
                problems.push(format!("process {process} is stuck (I10)"));
                break status;
            }
            thread::sleep(ms(10));
        };
        counts.push(status);
    }
    let stopped = now();
    let quiet = world.tune.load.lease + ms(1000);
    thread::sleep(ms(300));
    let connections_after = connections(&mut world);
    let channels = count(world.command(&["PUBSUB", "CHANNELS", "distlock:*"]));
    let mut locks = locks(&mut world, row);
    while locks > 0 && now() - stopped < nanos(quiet) {
        thread::sleep(ms(20));
        locks = self::locks(&mut world, row);
    }
    let queues = count(world.command(&["KEYS", "*:queue"])) + count(world.command(&["KEYS", "*:waiters"]));
    let logs = world.logs();
    fs::write(world.dir().join("exit"), "").expect("a file");
    (row.after)(&mut world);
    problems.append(&mut world.problems);

    let (holds, calls) = history::read_all(world.dir());
    let offers = world.resource.offers();
    let in_fault = holds.iter().filter(|hold| (faulted..healed).contains(&hold.granted)).count();
    let (overlaps, overlap) = check::overlaps(&holds);
    let lost_updates = check::lost_updates(&holds);
    let regressions = check::fence_regressions(&holds, row.class == 'T');
    let (offered, accepted) = check::stale_writes(&holds, &offers);
    // The kernel rounds the timeout of a socket up, by an eighth at most: one of 2.3 s ends up to 256 ms late.
    let command = world.tune.load.command * 9 / 8;
    let (late, late_by, early) = check::timing(&holds, &calls, nanos(command + ms(100)) + delay);
    let stuck = check::longest_stuck(&holds, &calls, start, end);
    let wait = check::longest_wait(&holds);
    let unnoticed = check::longest_unnoticed(&holds, &world.taken);
    let (unexplained, samples) = if overlaps.is_empty() { model::unexplained(&holds, 4) } else { (0, 0) };
    let of = |outcome| holds.iter().chain(&calls).filter(|record: &&Record| record.outcome == outcome).count();
    let lost = of(Outcome::Lost);
    // A lease that has been stopped for half of its length leaves little more than that for the machine's own delays.
    let overloaded = delay > nanos(world.tune.load.lease) / 8;

    let mut must_not = |happened: bool, what: String| {
        if happened {
            problems.push(what);
        }
    };
    let strict = row.class != 'T';
    must_not(strict && !overlaps.is_empty(), format!("overlap: {}", overlaps.first().map_or(String::new(), describe)));
    must_not(row.class == 'N' && lost_updates > 0, "lost update".into());
    must_not(accepted > 0, "stale write accepted".into());
    must_not(regressions > 0, "fence regression".into());
    must_not(unexplained > 0, format!("model: {unexplained} of {samples} samples have no explanation"));
    let bound = nanos(world.tune.load.lease / 3 + world.tune.load.command + ms(100)) + delay;
    must_not(unnoticed > bound, format!("loss noticed after {} ms", unnoticed / 1_000_000));
    must_not(!strict && overlap > bound, format!("overlap of {} ms", overlap / 1_000_000));
    must_not(of(Outcome::Other) > 0, "an outcome that nothing explains".into());
    must_not(row.in_step && of(Outcome::Mismatched) > 0, "a reply of another command".into());
    must_not(row.punctual && late > 0, format!("{late} timed calls late, by up to {} ms (I6)", late_by / 1_000_000));
    must_not(early > 0, format!("{early} timed calls early (I6)"));
    let patience = row.free_within.map_or(u64::MAX, |most| nanos(most(&world.tune.load)) + delay);
    must_not(stuck > patience, format!("a key was stuck for {} ms (I4)", stuck / 1_000_000));
    must_not(wait > nanos(ms(30_000)), "a waiter starved (I7)".into());
    must_not(row.recovers && recovery.is_none(), "throughput did not recover (I8)".into());
    must_not(row.offers_stale && offered == 0, "no late write was offered".into());
    // What a million calls may cost, and those of a minute are fewer. The histories themselves are written to files.
    must_not(row.number == 1 && size != Size::Quick && grown > 5 << 10, format!("a process grew by {grown} KiB (I9)"));
    must_not(world.faults < world.least_faults, format!("only {} of {} faults", world.faults, world.least_faults));
    must_not(in_fault < row.holds, format!("only {in_fault} holds in the faulted phase"));
    must_not(!row.may_lose && lost > 0 && !overloaded, format!("{lost} locks lost"));
    must_not(!row.may_be_unknown && of(Outcome::Unknown) > 0 && !overloaded, format!("{} unknown outcomes", of(Outcome::Unknown)));
    let errors = of(Outcome::Unavailable) + of(Outcome::Denied) + of(Outcome::Server) + of(Outcome::WrongType) + of(Outcome::Exhausted);
    must_not(!row.may_fail && errors > 0 && !overloaded, format!("{errors} calls failed"));
    must_not(logs.contains("panicked at"), "a panic (I10)".into());
    must_not(world.secrets.iter().any(|secret| logs.contains(secret.as_str())), "a secret in a log (I11)".into());
    must_not(connections_after > connections_before, "connections leaked (I9)".into());
    must_not(channels > 0, "a subscription leaked (I9)".into());
    must_not(locks > 0, format!("{locks} orphans (I4)"));
    must_not(row.leaves_no_queue && queues > 0, format!("{queues} queue keys left (I9)"));
    let mut sums = [0_u64; 4];
    for status in &counts {
        let numbers = |word: &str| -> Vec<u64> {
            let line = status.lines().find(|line| line.starts_with(word)).unwrap_or_default();
            line.split(' ').skip(1).take(3).filter_map(|number| number.parse().ok()).collect()
        };
        let (before, after) = (numbers("before"), numbers("after"));
        if let ([threads, descriptors, ..], [threads_after, descriptors_after, failed]) = (&before[..], &after[..]) {
            must_not(threads_after > threads, format!("threads: {threads} before, {threads_after} after (I9)"));
            // One for the file of the counters, which is made on the way.
            must_not(*descriptors_after > descriptors + 1, format!("descriptors: {descriptors} before, {descriptors_after} after (I9)"));
            must_not(*failed > 0, "a thread panicked (I10)".into());
            for (sum, more) in sums.iter_mut().zip([threads, threads_after, descriptors, descriptors_after]) {
                *sum += more;
            }
        }
    }
    if let Some(dir) = std::env::var_os("FAULTS_KEEP") {
        let to = std::path::Path::new(&dir).join(format!("row-{}", row.number));
        let _ = std::process::Command::new("cp").arg("-r").arg(world.dir()).arg(to).status();
    }
    let mut remarks = std::mem::take(&mut world.remarks);
    if row.number == 1 {
        remarks.push(format!("memory grew by up to {grown} KiB"));
    }
    let mut remark = |count: usize, what: &str| {
        if count > 0 {
            remarks.push(format!("{count} {what}"));
        }
    };
    remark(lost, "lost");
    remark(of(Outcome::Unavailable), "unavailable");
    if !row.in_step {
        remark(of(Outcome::Mismatched), "of a caller's own commands answered by another's reply");
    }
    remark(of(Outcome::Denied) + of(Outcome::Server) + of(Outcome::WrongType), "refused with a typed error");
    if !row.punctual && late > 0 {
        remarks.push(format!("{late} late by up to {} ms", late_by / 1_000_000));
    }
    if !world.taken.is_empty() {
        remarks.push(format!("loss noticed within {} ms", unnoticed / 1_000_000));
    }
    if delay > nanos(ms(20)) {
        remarks.push(format!("machine: sleepers woke up to {} ms late", delay / 1_000_000));
    }
    if overloaded && !(row.may_lose && row.may_be_unknown && row.may_fail) {
        remarks.push("too late for losses and errors to be judged".into());
    }
    if overlap > 0 {
        remarks.push(format!("longest overlap {} ms", overlap / 1_000_000));
    }
    problems.dedup();
    let verdict = if problems.is_empty() { "green" } else { "red" };
    remarks.extend(problems);
    let mut waits: Vec<u64> = holds.iter().map(|hold| hold.granted - hold.called).collect();
    waits.sort_unstable();
    let percentile = |share: usize| waits.get(waits.len() * share / 100).map_or(0.0, |wait| *wait as f64 / 1e6);
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {lost_updates} | {offered} / {accepted} | {regressions} | {} | {} | {:.1} / {:.0} | {} | \
         {} / {} | {} / {} | {connections_before} / {connections_after} | 0 / {locks} + {queues} | {} | {verdict} |",
        row.number,
        row.class,
        row.name,
        holds.len(),
        world.faults,
        of(Outcome::Unknown),
        overlaps.len(),
        stuck / 1_000_000,
        wait / 1_000_000,
        percentile(50),
        percentile(99),
        recovery.map_or("-".into(), |time| (time / 1_000_000).to_string()),
        sums[0],
        sums[1],
        sums[2],
        sums[3],
        remarks.join("; "),
    )
}

/// How many KiB each client process has.
fn memories(world: &World) -> Vec<u64> {
    world.clients.iter().map(|client| memory(client.pid())).collect()
}

/// The processes that were not killed: the last of each place.
fn living(world: &World) -> Vec<u64> {
    let alive = |process: &u64| {
        let pids: Vec<String> = world.clients.iter().map(|client| client.pid().to_string()).collect();
        let status = world.status(*process);
        status.lines().find_map(|line| line.strip_prefix("pid ")).is_some_and(|pid| pids.iter().any(|other| other == pid))
    };
    (0..world.spawned).filter(alive).collect()
}

/// How many connections the server has, without our own.
fn connections(world: &mut World) -> u64 {
    let looking = u64::from(world.is_looking());
    world.server.client_count().saturating_sub(looking)
}

/// How many of the locks' own keys are there, on all nodes.
fn locks(world: &mut World, row: &Row) -> usize {
    let names: Vec<String> = (row.foreign_keys..world.tune.load.keys).map(super::load::key_name).collect();
    let words: Vec<&str> = std::iter::once("EXISTS").chain(names.iter().map(String::as_str)).collect();
    let here = if let Some(redis::Value::Int(count)) = world.command(&words) { usize::try_from(count).unwrap_or(0) } else { 0 };
    let there = |(server, _): &(super::support::Server, _)| -> usize {
        redis::cmd("EXISTS").arg(&names).query(&mut server.connection()).expect("the node answers")
    };
    here + world.more.iter().map(there).sum::<usize>()
}

fn count(answer: Option<redis::Value>) -> usize {
    if let Some(redis::Value::Array(values)) = answer { values.len() } else { 0 }
}

/// An overlap in words: enough to find it in the histories.
pub fn describe((before, after): &(Record, Record)) -> String {
    let us = |time: u64| time / 1000 % 1_000_000_000;
    format!(
        "key {} owner {} fence {} called {} granted {} until {} released {}, then owner {} fence {} called {} granted {} (µs)",
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
