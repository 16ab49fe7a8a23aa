//! The basis of the tests: real servers, faults on the wire, certificates, and a few ways to wait
//! and to count.
//!
//! Nothing here knows the crate's own types, so that tests, benches and examples can share it
//! (`#[path]`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

pub mod fake;
pub mod fake_sentinel;
pub mod noise;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod resp;
pub mod sentinels;
pub mod server;
pub mod settings;
pub mod shards;
pub mod tls;

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

// Not every test, bench or example uses all of it.
#[allow(unused_imports)]
pub use noise::on_time;
#[allow(unused_imports)]
pub use proxy::{Fault, Held, Mode, Planned, Proxy, Rule};
#[allow(unused_imports)]
pub use server::Server;

/// Polls `condition` every millisecond until it holds; panics if it does not within `limit`.
#[track_caller]
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "still not so after {limit:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `f` and asserts that the time it took lies in `range`.
#[track_caller]
pub fn within<T>(range: impl RangeBounds<Duration> + Debug, f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = f();
    let took = start.elapsed();
    assert!(range.contains(&took), "took {took:?}, expected {range:?}");
    value
}

/// How many threads this process has.
pub fn thread_count() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// The names of this process's threads, as the kernel keeps them: cut after 15 bytes.
pub fn thread_names() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // A thread may end between the listing and the reading of its name.
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    tasks.filter_map(|task| name(task.ok()?)).map(|name| name.trim_end().to_owned()).collect()
}

/// How many file descriptors this process has open, without those that take ports for it.
pub fn fd_count() -> usize {
    // The listing itself needs one.
    fs::read_dir("/proc/self/fd").unwrap().count() - 1 - ports::taken()
}

/// Runs `body` in a process of its own, in which no other test runs: for tests that count threads
/// or descriptors, or that end the process. `test` is the full name of the calling test
/// (`"module::name"`).
#[track_caller]
pub fn in_own_process(test: &str, body: impl FnOnce()) {
    in_own_process_with(test, &[], body);
}

/// The same with these variables in its environment.
#[track_caller]
pub fn in_own_process_with(test: &str, variables: &[(&str, &Path)], body: impl FnOnce()) {
    const CHOSEN: &str = "DISTLOCK_TEST_ALONE";
    if env::var(CHOSEN).is_ok_and(|chosen| chosen == test) {
        return body();
    }
    let output = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(CHOSEN, test)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("running 1 test"), "no test is called {test}");
    assert!(output.status.success(), "in its own process:\n{text}");
    assert!(!text.contains("panicked at src/"), "in its own process:\n{text}");
}
