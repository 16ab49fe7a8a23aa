//! What the crate logs, for tests that check it. All tests share one logger: a process can have
//! only one.

use std::sync::{Mutex, Once, PoisonError};

use distlock::testing::flush_log;
use log::{LevelFilter, Log, Metadata, Record};

struct Kept(Mutex<Vec<(log::Level, String)>>);

static KEPT: Kept = Kept(Mutex::new(Vec::new()));

impl Log for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("distlock")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((record.level(), record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// Keeps what is logged from now on. Call it before the event that is logged; further calls do
/// nothing.
pub fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&KEPT).expect("no other logger in this process");
        log::set_max_level(LevelFilter::Trace);
    });
}

/// Every line at this level that contains all of these texts. Tests run side by side: one of the
/// texts is a lock's name that no other test uses.
pub fn lines(level: log::Level, texts: &[&str]) -> Vec<String> {
    flush_log();
    let kept = KEPT.0.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = |(at, line): &&(log::Level, String)| {
        *at == level && texts.iter().all(|text| line.contains(text))
    };
    kept.iter().filter(wanted).map(|(_, line)| line.clone()).collect()
}

/// Every line at every level.
pub fn everything() -> String {
    flush_log();
    let kept = KEPT.0.lock().unwrap_or_else(PoisonError::into_inner);
    kept.iter().map(|(level, line)| format!("{level} {line}\n")).collect()
}
