//! `Retry`: the pause between two attempts.

use std::time::Duration;

/// The pause between two attempts, and how many attempts there are.
///
/// Without a `Retry`, a waiter that the server wakes asks again about once a second, and a waiter
/// that it does not wake asks every 20 to 80 ms. A pause is never longer than the rest of the
/// present lease. If several threads of one client wait for a lock, only the first asks, for all of
/// them. So its long pause holds for all of them, and a `try_lock` that ends meanwhile returns what
/// the first thread was last told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
    pub(crate) attempts: Option<u32>,
}

impl Retry {
    /// A pause drawn anew between `min` and `max` each time, so that waiters do not ask in step. At
    /// least 1 ms.
    #[must_use]
    pub fn jittered(min: Duration, max: Duration) -> Self {
        Self { min, max, attempts: None }
    }

    /// Always the same pause. At least 1 ms.
    #[must_use]
    pub fn fixed(pause: Duration) -> Self {
        Self::jittered(pause, pause)
    }

    /// Gives up after `n` attempts: `lock` then ends with
    /// [`is_exhausted`](crate::Error::is_exhausted), `try_lock` with `Ok(false)`. A thread that
    /// waits behind another thread of its process uses up one attempt per pause, too. A wake-up
    /// before the end of a pause causes one extra attempt, which does not count.
    #[must_use]
    pub fn attempts(mut self, n: u32) -> Self {
        self.attempts = Some(n);
        self
    }
}
