//! What every layer may use: errors, options, time, and the things a thread sleeps on.

pub(crate) mod active;
pub(crate) mod backoff;
pub(crate) mod bell;
pub(crate) mod client_name;
pub(crate) mod clock;
pub(crate) mod count;
pub(crate) mod error;
pub(crate) mod interrupt;
pub(crate) mod key;
pub(crate) mod log;
pub(crate) mod options;
pub(crate) mod rarely;
pub(crate) mod store_error;
pub(crate) mod subject;
pub(crate) mod within;
pub(crate) mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex of this crate, also after a panic.
///
/// Every critical section here leaves its data consistent at each step, so the data of a poisoned
/// mutex is safe to use. Giving up instead would turn one panic into locks that nobody can release.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs code that may be the program's, or call it, and stops a panic there. `None`: it panicked.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => Some(value),
        Err(payload) => {
            // Not dropped: the drop could panic, too.
            std::mem::forget(payload);
            None
        }
    }
}
