//! Replies: what the server's words and failures mean.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{RedisError, ServerError, Value};

use super::demotion;
use crate::base::error::ErrorKind;
use crate::base::store_error::StoreError;

/// A cause in words that may reach a log: no token, no password, no URL (R19).
#[derive(Debug)]
struct Words(String);

impl std::fmt::Display for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Words {}

impl Words {
    /// What the server said. "unknown command" quotes its arguments, and one of them is a token.
    fn said(code: &str, details: &str) -> Self {
        let details = details.split("with args beginning").next().unwrap_or_default();
        let details: String = details.chars().take(200).collect();
        Self(format!(
            "the server said: {}",
            format!("{code} {details}").trim_end().trim_end_matches(',')
        ))
    }

    /// What failed: the system's words, or redis-rs's category; never its details, which may quote
    /// what was sent.
    fn failed(error: &RedisError) -> Self {
        // A read that took too long says that it would block.
        let io = if error.is_timeout() {
            Some(io::ErrorKind::TimedOut)
        } else {
            io_error(error).map(io::Error::kind)
        };
        Self(io.map_or_else(|| error.category().to_owned(), |kind| kind.to_string()))
    }
}

/// The system's error inside redis-rs's error, whose source is an `Arc` around it.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?.downcast_ref()
}

/// Whether a connection has failed without a word from the server. A refusal is a word: a user
/// without a permission must not make the server look down to others.
pub(crate) fn says_nothing(error: &RedisError) -> bool {
    let refused = error.code().is_some() && !demotion::says(error);
    !refused && !error.is_timeout()
}

/// An error reply. The server refused the command before it carried anything out, or the script in
/// the middle.
pub(crate) fn refused(code: &str, details: &str) -> StoreError {
    let (kind, message, permanent) = match inner_code(code, details) {
        "NOAUTH" | "WRONGPASS" => (ErrorKind::Denied, "the server rejected the credentials", true),
        "DENIED" => (ErrorKind::Denied, "the server refuses clients of other machines", true),
        "NOPERM" => (ErrorKind::Denied, "this user lacks a permission", true),
        "WRONGTYPE" => (ErrorKind::WrongType, "the key holds data of another type", true),
        "LOADING" => (ErrorKind::Unavailable, "the server is loading its data", false),
        "BUSY" => (ErrorKind::Unavailable, "the server is busy with a script", false),
        "CLUSTERDOWN" | "TRYAGAIN" => (ErrorKind::Unavailable, "the server is not ready", false),
        _ if demotion::is_a_replicas(code, details) => (ErrorKind::Unavailable, REPLICA, false),
        "NOREPLICAS" => {
            (ErrorKind::Unavailable, "the server has too few replicas to accept a lock", false)
        }
        "OOM" => (ErrorKind::Server, "the server is out of memory", true),
        "MISCONF" => (ErrorKind::Server, "the server cannot persist and accepts no writes", true),
        "MOVED" | "ASK" | "CROSSSLOT" => {
            (ErrorKind::Unsupported, "the server is part of a Redis Cluster", true)
        }
        _ if details.contains("max number of clients") => {
            (ErrorKind::Unavailable, "the server has too many clients", false)
        }
        _ => (ErrorKind::Server, "the server refused the command", true),
    };
    let error = StoreError::not_sent(kind, message).because(Words::said(code, details));
    let error = if permanent { error.permanent() } else { error };
    // What a script did before one of its commands was refused stays done. A server that is out of
    // memory, or a replica, refuses the first command that writes.
    let half_way =
        kind == ErrorKind::Denied && (in_a_script(code) || details.contains("user_script"));
    if half_way { error.maybe_run() } else { error }
}

/// The code of an error, or that of the error which it wraps: Redis 6.2 wraps the errors of the
/// commands inside a script, and every version those that a script itself raises.
fn inner_code<'a>(code: &'a str, details: &str) -> &'a str {
    const WRAPPED: [(&str, &str); 7] = [
        ("WRONGTYPE", "WRONGTYPE"),
        ("OOM command not allowed", "OOM"),
        ("NOREPLICAS", "NOREPLICAS"),
        ("MISCONF", "MISCONF"),
        // A command that the script's user may not run has no code: 6.2 and 8 say so, each in its
        // own words.
        ("The user executing the script", "NOPERM"),
        ("ACL failure in script", "NOPERM"),
        // Before the log-in, a long command is refused even before it is read.
        ("unauthenticated", "NOAUTH"),
    ];
    let wrapped = || WRAPPED.iter().find(|(words, _)| details.contains(words));
    if code == "ERR" || in_a_script(code) {
        wrapped().map_or(code, |(_, inner)| inner)
    } else {
        code
    }
}

/// Whether an error without a code begins with the place in the script: so it does when a script of
/// Redis 6.2 returns what a `pcall` gave it.
fn in_a_script(code: &str) -> bool {
    code.starts_with("@user_script")
}

const REPLICA: &str = "the server is a replica and cannot keep a lock";

/// The error for a server that says at log-in that it is a replica. Nothing of ours was sent.
pub(crate) fn replica() -> StoreError {
    StoreError::not_sent(ErrorKind::Unavailable, REPLICA)
}

/// The primary is another server since before the answer came.
pub(crate) fn moved() -> StoreError {
    let mut moved = StoreError::not_sent(
        ErrorKind::Unavailable,
        "the primary moved to another server before the reply",
    )
    .maybe_run();
    moved.dropped = true;
    moved
}

/// The primary has become another server while a connection to it was opened. Another attempt leads
/// to the new one.
pub(crate) fn moved_meanwhile() -> StoreError {
    let mut moved = StoreError::not_sent(ErrorKind::Unavailable, "the primary has just moved");
    moved.stale = true;
    moved
}

/// A connection could not be opened. Nothing of ours was sent.
pub(crate) fn connecting(error: &RedisError) -> StoreError {
    if let Some(code) = error.code() {
        return refused(code, error.detail().unwrap_or_default());
    }
    #[cfg(feature = "tls")]
    if let Some(incurable) = io_error(error).and_then(super::tls::incurable) {
        return incurable;
    }
    if error.kind() == redis::ErrorKind::Parse {
        let message = "what answers at this address is no Redis server";
        return StoreError::not_sent(ErrorKind::Unsupported, message).permanent();
    }
    StoreError::not_sent(ErrorKind::Unavailable, "the server could not be reached")
        .because(Words::failed(error))
}

/// Reads the reply to AUTH. Any error is about the credentials, unless the server cannot serve
/// anybody, or nobody from here.
pub(crate) fn logged_in(reply: Value) -> Result<(), StoreError> {
    let is_about_the_address =
        matches!(&reply, Value::ServerError(said) if said.code() == "DENIED");
    let Err(error) = value(reply) else { return Ok(()) };
    if is_about_the_address || error.kind == ErrorKind::Unavailable {
        return Err(error);
    }
    let denied =
        StoreError::not_sent(ErrorKind::Denied, "the server refused the user or the password")
            .permanent();
    Err(match error.source {
        Some(source) => denied.because(source),
        None => denied,
    })
}

/// The error for a command that was sent and had no reply that could be understood.
pub(crate) fn unanswered(error: &RedisError) -> StoreError {
    if error.is_connection_refusal() {
        let mut refused = connecting(error);
        refused.dropped = true;
        return refused;
    }
    if let Some(code) = error.code() {
        let mut refused = refused(code, error.detail().unwrap_or_default());
        // A replica carries out no write; another connection may lead to the master (R22).
        refused.dropped = demotion::says(error);
        refused.may_have_run = !refused.dropped;
        return refused;
    }
    if error.kind() == redis::ErrorKind::UnexpectedReturnType {
        return nonsense();
    }
    let message = if error.is_timeout() {
        "the server did not answer in time"
    } else {
        "the connection failed before the reply"
    };
    let mut unanswered = StoreError::not_sent(ErrorKind::Unavailable, message)
        .maybe_run()
        .because(Words::failed(error));
    unanswered.dropped = !error.is_timeout();
    unanswered
}

/// The error for a reply that its command cannot have.
pub(crate) fn misshapen() -> RedisError {
    (redis::ErrorKind::UnexpectedReturnType, "the reply does not fit the command").into()
}

/// The error for a subscription that the server has ended: the slot of a channel has left the node,
/// or the node has become a replica.
pub(crate) fn left() -> RedisError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}

/// The error for a connection on which the reply to an earlier command of the program comes first.
pub(crate) fn out_of_step() -> RedisError {
    io::Error::from(io::ErrorKind::InvalidData).into()
}

/// The error for a reply that no version of our scripts gives: the server is not ours, or is
/// broken.
pub(crate) fn nonsense() -> StoreError {
    StoreError::not_sent(ErrorKind::Server, "the server's reply cannot be understood").maybe_run()
}

/// Whether the server turned the connection away before it read anything: it already has its
/// largest number of clients.
pub(crate) fn turned_away(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else { return false };
    error.details().is_some_and(|details| details.contains("max number of clients"))
}

/// Whether the server refuses this command to the user. It names the command in its own words.
pub(crate) fn refuses(error: &ServerError, command: &str) -> bool {
    let details = error.details().unwrap_or_default();
    error.code() == "NOPERM" && details.contains(&format!("'{command}'"))
}

/// Whether the server does not know a script, and so did not run it.
pub(crate) fn unknown_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// The reply as a value, or what an error reply means.
pub(crate) fn value(reply: Value) -> Result<Value, StoreError> {
    match reply {
        Value::ServerError(error) => {
            Err(refused(error.code(), error.details().unwrap_or_default()))
        }
        value => Ok(value),
    }
}

/// The reply as a number.
pub(crate) fn number(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(number) => Ok(*number),
        Value::BulkString(bytes) => {
            std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).ok_or_else(nonsense)
        }
        _ => Err(nonsense()),
    }
}

/// The reply as a list.
pub(crate) fn list(value: &Value) -> Result<&[Value], StoreError> {
    match value {
        Value::Array(values) => Ok(values),
        _ => Err(nonsense()),
    }
}

/// The reply as a list of numbers, none of them negative.
pub(crate) fn counts(value: &Value) -> Result<Vec<u64>, StoreError> {
    let count = |value: &Value| match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| nonsense()),
        _ => Err(nonsense()),
    };
    list(value)?.iter().map(count).collect()
}

/// The reply as a string of bytes, which need not be text.
pub(crate) fn bytes(value: &Value) -> Result<&[u8], StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.as_bytes()),
        _ => Err(nonsense()),
    }
}

/// The reply as text; what is not UTF-8 in it is replaced.
pub(crate) fn text(value: &Value) -> Result<String, StoreError> {
    bytes(value).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests;
