//! What a server is asked: commands, when they may be sent, and their replies.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use redis::Value;

use super::confirm;
use super::reply;
use super::script::{self, Part, Script};
use super::shape::Shape;
use crate::base::options::Confirm;
use crate::base::store_error::StoreError;

/// A command, or a script with its keys and arguments.
pub(crate) struct Command<'a> {
    script: Option<&'a Script>,
    /// How many of `parts` are keys: the first ones of a script, or the one behind a command's
    /// name.
    keys: usize,
    parts: Cow<'a, [Part<'a>]>,
    shape: Shape,
    /// Whether `ASKING` goes in front of it.
    asking: bool,
}

impl<'a> Command<'a> {
    /// A command without a key.
    pub(crate) fn new(parts: impl Into<Cow<'a, [Part<'a>]>>, shape: Shape) -> Self {
        Self { script: None, keys: 0, parts: parts.into(), shape, asking: false }
    }

    /// A command whose first argument is its only key.
    pub(crate) fn with_key(parts: impl Into<Cow<'a, [Part<'a>]>>, shape: Shape) -> Self {
        Self { keys: 1, ..Self::new(parts, shape) }
    }

    /// The first `keys` of `parts` are the script's keys, the others its arguments.
    pub(crate) fn script(
        script: &'a Script,
        keys: usize,
        parts: impl Into<Cow<'a, [Part<'a>]>>,
    ) -> Self {
        let parts = parts.into();
        debug_assert!(0 < keys && keys <= parts.len(), "the keys come first");
        Self { script: Some(script), keys, parts, shape: script.shape, asking: false }
    }

    /// The same command; `asking`: for a node that does not own the slot of its key yet.
    pub(super) fn again(&self, asking: bool) -> Command<'_> {
        Command {
            script: self.script,
            keys: self.keys,
            parts: Cow::Borrowed(&self.parts),
            shape: self.shape,
            asking,
        }
    }

    /// Its first key.
    pub(super) fn key(&self) -> Option<&Part<'a>> {
        let at = usize::from(self.script.is_none());
        (self.keys > 0).then(|| self.parts.get(at)).flatten()
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    /// What its reply looks like.
    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// A script is named by its hash.
    pub(super) fn pack(&self, buffer: &mut Vec<u8>) {
        self.pack_asking(buffer);
        match self.script {
            Some(script) => script.by_hash(self.keys, &self.parts, buffer),
            None => script::pack(&self.parts, buffer),
        }
    }

    /// A script goes whole.
    pub(super) fn pack_whole(&self, buffer: &mut Vec<u8>) {
        self.pack_asking(buffer);
        match self.script {
            Some(script) => script.by_body(self.keys, &self.parts, buffer),
            None => script::pack(&self.parts, buffer),
        }
    }

    /// It covers exactly the next command.
    fn pack_asking(&self, buffer: &mut Vec<u8>) {
        if self.asking {
            script::pack(&[Part::Text("ASKING")], buffer);
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

    /// The same call; `asking`: see [`Command::again`].
    pub(super) fn again(&self, asking: bool) -> Call<'_> {
        Call { command: self.command.again(asking), ..*self }
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
    /// The reply, unless it is an error.
    pub(super) fn understood(self) -> Result<Self, StoreError> {
        Ok(Self { value: reply::value(self.value)?, ..self })
    }

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
