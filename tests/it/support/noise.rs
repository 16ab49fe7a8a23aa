//! Timed attempts, which count only on a machine that keeps time.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Runs a timed attempt, which panics if it took too long. One that fails while this machine woke a
/// sleeper more than `most` too late says nothing about the code, and is repeated. An attempt that
/// passes counts in any case, and one that fails on a machine in time is a failure.
#[track_caller]
pub fn on_time<T>(most: Duration, mut attempt: impl FnMut() -> T) -> T {
    for _ in 0..5 {
        let (outcome, late) = lateness(|| catch_unwind(AssertUnwindSafe(&mut attempt)));
        match outcome {
            Ok(value) => return value,
            Err(panic) if late <= most => resume_unwind(panic),
            Err(_) => eprintln!("this attempt does not count: a thread woke up {late:?} too late"),
        }
    }
    panic!("in five attempts this machine woke threads more than {most:?} too late");
}

/// How late this machine wakes sleeping threads, at worst, while `work` runs.
fn lateness<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    const NAP: Duration = Duration::from_millis(2);
    let (ended, worst) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let sleeper = || {
        let (ended, worst) = (Arc::clone(&ended), Arc::clone(&worst));
        thread::spawn(move || {
            while !ended.load(Ordering::SeqCst) {
                let asleep = Instant::now();
                thread::sleep(NAP);
                let late = asleep.elapsed().saturating_sub(NAP).as_micros();
                worst.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::SeqCst);
            }
        })
    };
    // More sleepers than cores: a single one may have a core to itself.
    let sleepers: Vec<_> = (0..4).map(|_| sleeper()).collect();
    let value = work();
    ended.store(true, Ordering::SeqCst);
    sleepers.into_iter().for_each(|sleeper| drop(sleeper.join()));
    (value, Duration::from_micros(worst.load(Ordering::SeqCst)))
}
