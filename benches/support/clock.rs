//! The clock that all processes of a host share, and CPU time.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC in nanoseconds: comparable between processes, which `Instant` is not.
pub fn now() -> u64 {
    read(ClockId::Monotonic)
}

/// The CPU time that this process has used, in nanoseconds.
pub fn cpu() -> u64 {
    read(ClockId::ProcessCPUTime)
}

/// Sleeps until `now()` is `at`.
pub fn sleep_until(at: u64) {
    thread::sleep(Duration::from_nanos(at.saturating_sub(now())));
}

/// The CPU time in nanoseconds that each thread of this process has used so far, by the names of
/// the threads.
pub fn cpu_of_threads() -> Vec<(String, u64)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    tasks
        .filter_map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            let used = fs::read_to_string(task.path().join("schedstat")).ok()?;
            Some((name.trim_end().to_owned(), used.split(' ').next()?.parse().ok()?))
        })
        .collect()
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}
