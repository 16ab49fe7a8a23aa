//! The one error type: what went wrong, and whether the lock may still be held on the server.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use super::subject::Subject;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A boxed cause. Causes never carry a URL, a password or a token.
pub(crate) type Cause = Box<dyn StdError + Send + Sync>;

/// What went wrong.
///
/// The text of each kind says whether the lock **may still be held on the server** after the call
/// that returned that kind. For permits of a semaphore, read *permits* for *lock*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// This thread does not hold the lock. The call changed nothing; another thread or process may
    /// hold it.
    NotHeld,
    /// This thread or claim held the lock, and the lease was lost: it ran out, the server said that
    /// it belongs to somebody else, or the client was closed. Another process may hold the lock
    /// now. This thread leaves nothing behind for longer than the rest of one lease.
    Lost,
    /// The server did not answer, so it is unknown whether it carried the request out. After an
    /// unlock: the lock may still be held on the server; the background keeps removing it, and it
    /// ends with its lease at the latest. After an `extend`, a `force_unlock` or a notification:
    /// this thread still holds the lock if it did before.
    Unknown,
    /// The wait was ended by [`Interrupt::interrupt`](crate::Interrupt::interrupt). Not held: what
    /// an unanswered attempt left is withdrawn in the background. After a wait in a condition:
    /// held.
    Interrupted,
    /// All attempts of [`Retry::attempts`](crate::Retry::attempts) were used up, and the last one
    /// was refused. Not held: what an unanswered attempt left is withdrawn in the background.
    Exhausted,
    /// The lock could not be acquired: the server did not answer, is down, loading or overloaded,
    /// or no pooled connection came free in time. Not held: what an unanswered attempt left is
    /// withdrawn in the background.
    Unavailable,
    /// The client was closed: no later call can succeed. Not held: closing withdraws what an
    /// unanswered attempt left.
    Closed,
    /// The server refuses this user: a wrong password, or no permission for a command or key. Not
    /// held.
    Denied,
    /// The lock's key holds data of another type, which was not changed. Not held.
    WrongType,
    /// A name, a duration or another setting cannot work. Nothing was sent. Not held.
    InvalidInput,
    /// What this thread holds stands in the way: it holds the lock with other options, or asks for
    /// a claim on a lock that it holds; or it reads, and asks to write. Its holds are unchanged,
    /// but that of a guard which could not be downgraded.
    Conflict,
    /// This store, layout or server cannot do what was asked. Not held.
    Unsupported,
    /// The server answered with an error that none of the other kinds covers. Not held: what the
    /// call may have left is withdrawn in the background.
    Server,
}

/// An error of this crate.
///
/// The type is opaque: ask for its [`kind`](Error::kind), or use the predicate for one kind.
/// [`source`](StdError::source) gives the cause if there is one, such as the server's reply. The
/// texts of the error and of its cause never hold a token, a password or a URL.
///
/// ```
/// # fn main() -> Result<(), distlock::Error> {
/// use distlock::Client;
///
/// let lock = Client::open("memory://")?.lock("orders:42");
/// let error = lock.unlock().unwrap_err();
/// assert!(error.is_not_held());
/// assert_eq!(error.lock_name(), Some("orders:42"));
/// # Ok(())
/// # }
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    subject: Option<Subject>,
    message: Cow<'static, str>,
    may_be_held: bool,
    source: Option<Cause>,
}

macro_rules! predicates {
    ($($name:ident => $kind:ident),* $(,)?) => {$(
        #[doc = concat!("Whether this is [`ErrorKind::", stringify!($kind), "`].")]
        #[must_use]
        pub fn $name(&self) -> bool {
            self.0.kind == ErrorKind::$kind
        }
    )*};
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            subject: None,
            message: message.into(),
            may_be_held: kind == ErrorKind::Unknown,
            source: None,
        }))
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    pub(crate) fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    pub(crate) fn about(mut self, subject: &Subject) -> Self {
        self.0.subject = Some(subject.clone());
        self
    }

    /// `left_behind`: whether the server may hold something for the call that failed.
    pub(crate) fn leaving(mut self, left_behind: bool) -> Self {
        self.0.may_be_held |= left_behind;
        self
    }

    pub(crate) fn because(mut self, source: impl Into<Cause>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the server may hold the lock because of the call that failed: an answer is missing.
    /// The background withdraws it; without the server's answer to that, it ends with its lease.
    /// Always `true` for `Unknown`. `false`: the call has left nothing on the server.
    #[must_use]
    pub fn may_be_held(&self) -> bool {
        self.0.may_be_held
    }

    /// The name of the lock, the semaphore or the rate limiter that the call was about, as it was
    /// given to the client; `None` if the call was about none of them.
    #[must_use]
    pub fn lock_name(&self) -> Option<&str> {
        self.0.subject.as_ref().map(Subject::name)
    }

    predicates! {
        is_not_held => NotHeld,
        is_lost => Lost,
        is_unknown => Unknown,
        is_interrupted => Interrupted,
        is_exhausted => Exhausted,
        is_unavailable => Unavailable,
        is_closed => Closed,
        is_denied => Denied,
        is_wrong_type => WrongType,
        is_invalid_input => InvalidInput,
        is_conflict => Conflict,
        is_unsupported => Unsupported,
        is_server => Server,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.subject {
            Some(subject) => write!(f, "{subject}: {}", self.0.message),
            None => f.write_str(&self.0.message),
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotHeld => "not held",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
            Self::Interrupted => "interrupted",
            Self::Exhausted => "exhausted",
            Self::Unavailable => "unavailable",
            Self::Closed => "closed",
            Self::Denied => "denied",
            Self::WrongType => "wrong type",
            Self::InvalidInput => "invalid input",
            Self::Conflict => "conflict",
            Self::Unsupported => "unsupported",
            Self::Server => "server error",
        })
    }
}

/// An error of this kind, for a lock of the program's own, such as one in a test. Its text is that
/// of the kind.
///
/// ```
/// use distlock::{Error, ErrorKind};
///
/// let error = Error::from(ErrorKind::Unavailable);
/// assert!(error.is_unavailable() && error.to_string() == "unavailable");
/// ```
impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind, kind.to_string())
    }
}

/// The kind, the text, and the causes: all that a program shows which unwraps a result.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)?;
        let mut cause = self.source();
        while let Some(because) = cause {
            write!(f, ": {because}")?;
            cause = because.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}
