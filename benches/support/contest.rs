//! Many processes on one lock: their holds, put in one order, and the results from that order.

use std::path::Path;

use super::crowd::{Crowd, Hold, Run, longest_wait};
use super::peers::Peer;
use super::server::Side;
use super::stats::{jain, percentile};

/// What to run.
pub struct Contest<'a> {
    pub url: &'a str,
    /// The server that has the lock.
    pub at: &'a str,
    pub processes: usize,
    pub seconds: u64,
    /// How long each hold lasts.
    pub hold_us: u64,
    /// A directory for files of the drivers.
    pub dir: &'a Path,
}

/// The pairs of consecutive holds of which the second is of another process, which was waiting
/// already. `holds` are in order.
pub fn hand_overs(holds: &[Hold]) -> impl Iterator<Item = (&Hold, &Hold)> {
    holds.windows(2).map(|pair| (&pair[0], &pair[1])).filter(|(last, next)| {
        next.process != last.process && next.lock_called < last.unlock_called
    })
}

/// The results. Times are in nanoseconds.
pub struct Outcome {
    pub rate: f64,
    /// From the call of unlock to the return of the next process's lock, if that was already
    /// waiting.
    pub hand_over_p50: u64,
    pub hand_over_p99: u64,
    /// The share of holds by the process that had released last.
    pub barged: f64,
    pub longest_wait: u64,
    pub jain: f64,
    /// What the server read from clients per acquisition.
    pub requests: f64,
    /// A GET over a separate connection at the same time.
    pub round_trip_p50: u64,
    pub unlock_p50: Option<u64>,
    /// Holds that began before the last one had ended. A correct lock has none.
    pub overlaps: usize,
}

/// What stands for these rounds in a table: two processes must never have held the lock at once.
pub fn label(name: &str, rounds: &[Outcome]) -> String {
    match rounds.iter().map(|round| round.overlaps).sum::<usize>() {
        0 => name.to_owned(),
        overlaps => format!("{name} ({overlaps} OVERLAPS)"),
    }
}

impl Contest<'_> {
    pub fn run(&self, peer: &Peer, side: &mut Side, key: &str) -> Outcome {
        let crowd = Crowd { peer: *peer, processes: self.processes, threads: 1 };
        let run = Run { url: self.url, at: self.at, key, seconds: self.seconds, dir: self.dir };
        let mut run = run.of(&[crowd], side, |_, file, start| {
            format!("benchcs {key} {} {} {file} {start}", self.seconds, self.hold_us)
        });
        let (holds, in_time) = (&run.all, run.in_time());
        let pairs = || holds.windows(2).map(|pair| (&pair[0], &pair[1]));
        let mut hand_overs: Vec<u64> = hand_overs(holds)
            .map(|(last, next)| next.acquired.saturating_sub(last.unlock_called))
            .collect();
        let mut unlocks: Vec<u64> = holds.iter().filter_map(|hold| hold.unlocking).collect();
        Outcome {
            rate: in_time / self.seconds as f64,
            hand_over_p50: percentile(&mut hand_overs, 0.50),
            hand_over_p99: percentile(&mut hand_overs, 0.99),
            barged: pairs().filter(|(last, next)| next.process == last.process).count() as f64
                / holds.len().max(1) as f64,
            longest_wait: longest_wait(holds),
            jain: jain(&run.shares(self.processes)),
            requests: run.reads as f64 / in_time,
            round_trip_p50: percentile(&mut run.trips, 0.50),
            unlock_p50: (!unlocks.is_empty()).then(|| percentile(&mut unlocks, 0.50)),
            overlaps: pairs().filter(|(last, next)| next.acquired < last.unlock_called).count(),
        }
    }
}
