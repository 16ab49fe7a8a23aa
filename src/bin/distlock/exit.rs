//! How the command ends: its exit status, and why.

use std::error::Error as _;
use std::fmt;
use std::io::{self, Write};
use std::process::{ExitCode, ExitStatus};

use std::os::unix::process::ExitStatusExt;

use distlock::{Error, ErrorKind};

use crate::say::say;

/// An exit status. Those from 64 on are of BSD's `sysexits.h`, but for 76; 126 and 127 are those of
/// a shell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(u8);

impl Exit {
    pub(crate) const SUCCESS: Self = Self(0);
    /// The arguments cannot work, or not with this server or key.
    pub(crate) const USAGE: Self = Self(64);
    /// The server does not answer, or cannot serve now.
    pub(crate) const UNAVAILABLE: Self = Self(69);
    /// The operating system refused something, such as a new process.
    pub(crate) const SYSTEM: Self = Self(71);
    /// Somebody else has the lock.
    pub(crate) const NOT_OBTAINED: Self = Self(75);
    /// The lock was lost before CMD had ended.
    pub(crate) const LOST: Self = Self(76);
    /// The server refuses this user.
    pub(crate) const DENIED: Self = Self(77);
    /// CMD was found, and cannot be executed.
    pub(crate) const NOT_EXECUTABLE: Self = Self(126);
    /// There is no such CMD.
    pub(crate) const NOT_FOUND: Self = Self(127);

    /// That of a process that a signal has ended, as a shell gives it.
    pub(crate) fn of_signal(signal: i32) -> Self {
        Self(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }

    /// That of a process that has ended.
    pub(crate) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, Some(signal)) => Self::of_signal(signal),
            (None, None) => Self(u8::MAX),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.0.into()
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why the command cannot go on, and with which status it ends.
pub(crate) struct Failure {
    exit: Exit,
    pub(crate) why: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, why: impl Into<String>) -> Self {
        Self { exit, why: why.into() }
    }

    /// The operating system refused something.
    pub(crate) fn system(what: &str, error: &io::Error) -> Self {
        Self::new(Exit::SYSTEM, format!("{what}: {error}"))
    }

    /// Says why on standard error.
    pub(crate) fn report(self) -> Exit {
        say(format_args!("{}", self.why));
        self.exit
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::WrongType => Exit::USAGE,
            ErrorKind::Denied => Exit::DENIED,
            ErrorKind::Lost => Exit::LOST,
            // Unavailable, Server, Unknown; and what no call of the command can return.
            _ => Exit::UNAVAILABLE,
        };
        Self::new(exit, in_full(&error))
    }
}

/// An error with its cause.
pub(crate) fn in_full(error: &Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Writes to standard output. `false`: nobody reads it any more.
pub(crate) fn print(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::system("standard output", &error)),
    }
}
