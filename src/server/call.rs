//! What a server is asked: commands, when they may be sent, and their replies.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use redis::Value;

use super::confirm;
use super::script::{self, Part, Script};
use super::shape::Shape;
use crate::base::options::Confirm;
use crate::base::store_error::StoreError;

/// A command, or a script with its keys and arguments.
pub(crate) struct Command<'a> {
    /// With the number of its keys.
    script: Option<(&'a Script, usize)>,
    parts: Cow<'a, [Part<'a>]>,
    shape: Shape,
}

impl<'a> Command<'a> {
    pub(crate) fn new(parts: impl Into<Cow<'a, [Part<'a>]>>, shape: Shape) -> Self {
        Self { script: None, parts: parts.into(), shape }
    }

    /// The first `keys` of `parts` are the script's keys, the others its arguments.
    pub(crate) fn script(
        script: &'a Script,
        keys: usize,
        parts: impl Into<Cow<'a, [Part<'a>]>>,
    ) -> Self {
        let parts = parts.into();
        debug_assert!(0 < keys && keys <= parts.len(), "the keys come first");
        Self { script: Some((script, keys)), parts, shape: script.shape }
    }

    /// What its reply looks like.
    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// A script is named by its hash.
    pub(super) fn pack(&self, buffer: &mut Vec<u8>) {
        match self.script {
            Some((script, keys)) => script.by_hash(keys, &self.parts, buffer),
            None => script::pack(&self.parts, buffer),
        }
    }

    /// A script goes whole.
    pub(super) fn pack_whole(&self, buffer: &mut Vec<u8>) {
        match self.script {
            Some((script, keys)) => script.by_body(keys, &self.parts, buffer),
            None => script::pack(&self.parts, buffer),
        }
    }
}

/// When a call is sent once more, at once, because an idle connection turned out to be closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resend {
    /// If the command was certainly not carried out.
    IfNotRun,
    /// In any case: the command may be carried out twice.
    Always,
    /// Never, and so it goes over a new connection: over an idle one that turned out to be closed,
    /// nobody would know whether the command was carried out.
    Never,
}

/// One call: a command, and when it may be sent.
pub(crate) struct Call<'a> {
    pub(super) command: Command<'a>,
    pub(super) resend: Resend,
    pub(super) check: &'a dyn Fn() -> Result<(), StoreError>,
    pub(super) confirm_within: Duration,
}

impl<'a> Call<'a> {
    /// Is sent once more only if the command was not carried out.
    pub(crate) fn new(command: Command<'a>) -> Self {
        Self { command, resend: Resend::IfNotRun, check: &|| Ok(()), confirm_within: Duration::MAX }
    }

    pub(crate) fn resend(self, resend: Resend) -> Self {
        Self { resend, ..self }
    }

    /// Calls `check` once there is a connection, before anything is sent over it. Its error ends
    /// the call.
    pub(crate) fn check(self, check: &'a dyn Fn() -> Result<(), StoreError>) -> Self {
        Self { check, ..self }
    }

    /// How long its confirmations may take, at a node that asks for them.
    pub(crate) fn confirm_within(self, confirm_within: Duration) -> Self {
        Self { confirm_within, ..self }
    }

    /// Whether it may be sent once more after this failure.
    pub(super) fn may_be_sent_again(&self, error: &StoreError) -> bool {
        error.stale && (!error.may_have_run || self.resend == Resend::Always)
    }
}

/// A command's reply.
pub(crate) struct Reply {
    /// Read after check-out and connect, before the first byte was sent (R1).
    pub(crate) asked_at: Instant,
    pub(crate) value: Value,
    /// What had to be confirmed, and the reply to `WAIT`.
    pub(super) confirmations: Option<(Confirm, Option<Value>)>,
}

impl Reply {
    /// An error unless all that had to be confirmed is (R24). A grant or an extend counts only
    /// then.
    pub(crate) fn confirmed(&self) -> Result<(), StoreError> {
        match &self.confirmations {
            Some((what, said)) => confirm::check(*what, said.as_ref()),
            None => Ok(()),
        }
    }

    /// One that needs no confirmations.
    #[cfg(test)]
    pub(crate) fn unconfirmed(asked_at: Instant, value: Value) -> Self {
        Self { asked_at, value, confirmations: None }
    }
}
