//! The machine that the row runs on: how late it wakes threads, and how much of it a process uses.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::clock::{nanos, now};
use super::tune::ms;

/// How late this machine wakes a sleeping thread: no lock can be blamed for that.
pub struct Noise {
    ended: Arc<AtomicBool>,
    thread: thread::JoinHandle<u64>,
}

impl Noise {
    pub fn listen() -> Noise {
        let ended = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            let mut worst = 0;
            while !told.load(Ordering::SeqCst) {
                let asleep = now();
                thread::sleep(ms(5));
                worst = worst.max((now() - asleep).saturating_sub(nanos(ms(5))));
            }
            worst
        });
        Noise { ended, thread }
    }

    /// In nanoseconds.
    pub fn worst(self) -> u64 {
        self.ended.store(true, Ordering::SeqCst);
        self.thread.join().expect("it only sleeps")
    }
}

/// The CPU time that a process has used so far; zero if it has gone. Linux counts it in hundredths
/// of a second.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in brackets, may hold anything; user and system time are the 12th and 13th words
    // after it.
    let words = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    Duration::from_millis(words.filter_map(|word| word.parse::<u64>().ok()).sum::<u64>() * 10)
}

/// How many KiB of memory a process has; zero if it has gone.
pub fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// How many threads a process has; none if it has gone.
pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// How many descriptors a process has open; none if it has gone.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}
