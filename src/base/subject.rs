//! What an error or a line of the log is about.

use std::fmt;
use std::sync::Arc;

/// A lock, a side of a read-write lock, a semaphore or a rate limiter, by the name that the program
/// gave it. Its text, by [`Display`](fmt::Display), is that of the log: `read lock "catalogue"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    what: &'static str,
    name: Arc<str>,
}

impl Subject {
    pub(crate) fn lock(name: Arc<str>) -> Self {
        Self { what: "lock", name }
    }

    pub(crate) fn read_lock(name: Arc<str>) -> Self {
        Self { what: "read lock", name }
    }

    pub(crate) fn write_lock(name: Arc<str>) -> Self {
        Self { what: "write lock", name }
    }

    pub(crate) fn semaphore(name: Arc<str>) -> Self {
        Self { what: "semaphore", name }
    }

    pub(crate) fn rate_limiter(name: Arc<str>) -> Self {
        Self { what: "rate limiter", name }
    }

    /// The name with which it was made.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is: `lock`, `read lock`, `write lock`, `semaphore` or `rate limiter`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.what
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.what, self.name)
    }
}
