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
/// Every critical section here leaves its data whole at each step, so a poisoned mutex holds
/// nothing that could mislead; giving up instead would turn one panic into locks that nobody can
/// release.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
