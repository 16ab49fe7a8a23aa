//! `StoreError`: why a store, or a server, gave no answer.

use std::borrow::Cow;
use std::fmt;

use super::error::{Cause, Error, ErrorKind};

/// Why a call to a store has no answer.
#[derive(Debug)]
pub struct StoreError {
    /// The store may have carried the call out, or may do so later (R5).
    pub may_have_run: bool,
    /// Trying again cannot help.
    pub permanent: bool,
    /// An idle connection turned out to be closed: trying again at once, on a fresh one, is likely
    /// to help.
    pub stale: bool,
    /// The connection was dropped, as opposed to an answer that took too long.
    pub dropped: bool,
    /// The slot of the key is moving to another node of a cluster: until it has, some commands with
    /// several keys are refused, and those with one key go on.
    pub moving: bool,
    /// What to tell the caller.
    pub kind: ErrorKind,
    /// In words.
    pub message: Cow<'static, str>,
    /// The cause, without any secret.
    pub source: Option<Cause>,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, ": {source}"))
    }
}

impl StoreError {
    /// A failure before anything was sent.
    pub fn not_sent(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            may_have_run: false,
            permanent: false,
            stale: false,
            dropped: false,
            moving: false,
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// A failure that trying again cannot mend.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.permanent = true;
        self
    }

    /// A failure after something was sent.
    #[must_use]
    pub fn maybe_run(mut self) -> Self {
        self.may_have_run = true;
        self
    }

    /// Adds the address of the server to the message.
    #[must_use]
    pub(crate) fn at(mut self, address: &str) -> Self {
        self.message = format!("{} ({address})", self.message).into();
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Cause>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub(crate) fn into_error(self) -> Error {
        let error = Error::new(self.kind, self.message);
        match self.source {
            Some(source) => error.because(source),
            None => error,
        }
    }
}
