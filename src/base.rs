//! What every layer may use: errors, options, time, and the things a thread sleeps on.

pub(crate) mod backoff;
pub(crate) mod bell;
pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod interrupt;
pub(crate) mod key;
pub(crate) mod options;
pub(crate) mod worker;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex of this crate, also after a panic.
///
/// Every critical section here leaves its data consistent at each step, so the data of a poisoned
/// mutex is safe to use. Giving up instead would turn one panic into locks that nobody can release.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
