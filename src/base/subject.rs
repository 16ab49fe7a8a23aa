//! What an error or a line of the log is about.

use std::fmt;
use std::sync::Arc;

/// A lock, or something else that a client made, by the name that the program gave it.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
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

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.what, self.name)
    }
}
