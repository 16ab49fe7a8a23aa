//! Demotions: all connections to a server that has become a replica are dropped (R22).
//!
//! Redis closes no connection on a demotion. A connection that was kept could write nothing, for as
//! long as it lasts, while a new connection to the same name finds the new master. A subscription
//! that was kept would miss what the new master publishes only to its own subscribers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{RedisError, ServerError, Value};

/// How often a server has said that it is a replica.
#[derive(Clone, Default)]
pub(crate) struct Demotions(Arc<AtomicU64>);

impl Demotions {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// For a connection that the node does not keep. Called before the connection is opened.
    pub(crate) fn watch(&self) -> DemotionWatch {
        DemotionWatch { count: Arc::clone(&self.0), seen: self.0.load(Ordering::SeqCst) }
    }
}

/// Tells the reader of a connection whether the server has become a replica since.
pub(crate) struct DemotionWatch {
    count: Arc<AtomicU64>,
    seen: u64,
}

impl DemotionWatch {
    pub(crate) fn is_over(&self) -> bool {
        self.count.load(Ordering::SeqCst) != self.seen
    }
}

/// Whether only a replica gives this error: `UNBLOCKED` to a `WAIT` during which it has become one.
/// Redis 6.2 wraps the error of a command inside a script, and then it has no code of its own.
pub(crate) fn is_a_replicas(code: &str, details: &str) -> bool {
    matches!(code, "READONLY" | "MASTERDOWN" | "UNBLOCKED")
        || details.contains("READONLY You can't write against a read only")
        || details.contains("MASTERDOWN Link with MASTER is down")
}

/// As [`is_a_replicas`], for an error that came instead of a reply.
pub(crate) fn says(error: &RedisError) -> bool {
    error.code().is_some_and(|code| is_a_replicas(code, error.detail().unwrap_or_default()))
}

/// The first error among these replies that only a replica gives.
pub(crate) fn said_in(replies: &[Value]) -> Option<RedisError> {
    replies.iter().find_map(|reply| match reply {
        Value::ServerError(error) if is_said(error) => Some(error.clone().into()),
        _ => None,
    })
}

/// As [`said_in`], among the errors that made a pipeline or a transaction fail.
pub(crate) fn said_by(error: &RedisError) -> Option<RedisError> {
    let errors = error.clone().into_server_errors()?;
    errors.iter().find(|(_, error)| is_said(error)).map(|(_, error)| error.clone().into())
}

fn is_said(error: &ServerError) -> bool {
    is_a_replicas(error.code(), error.details().unwrap_or_default())
}

/// Whether the reply to ROLE is a replica's. `false` also if this user may not ask, or if a proxy
/// does not know the command.
pub(crate) fn is_replicas_role(reply: &Value) -> bool {
    role(reply).is_some_and(|name| name == b"slave" || name == b"replica")
}

/// Whether ROLE was answered by a sentinel.
pub(crate) fn is_sentinels_role(reply: &Value) -> bool {
    role(reply) == Some(b"sentinel")
}

fn role(reply: &Value) -> Option<&[u8]> {
    let Value::Array(role) = reply else { return None };
    let Some(Value::BulkString(name)) = role.first() else { return None };
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replicas_errors_are_known_with_and_without_their_code() {
        for (code, details) in [
            ("READONLY", "You can't write against a read only replica."),
            (
                "READONLY",
                "You can't write against a read only replica. script: 1f, on @user_script:1.",
            ),
            (
                "UNBLOCKED",
                "force unblock from blocking operation, instance state changed (master -> \
                 replica?)",
            ),
            ("MASTERDOWN", "Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
            (
                "ERR",
                "Error running script (call to f_1f): @user_script:4: @user_script: 4: -READONLY \
                 You can't write against a read only replica. ",
            ),
        ] {
            assert!(is_a_replicas(code, details), "{code} {details}");
        }
        for (code, details) in [
            ("ERR", "unknown command 'READONLY'"),
            ("OOM", "command not allowed"),
            ("NOREPLICAS", "Not enough good replicas to write."),
        ] {
            assert!(!is_a_replicas(code, details), "{code} {details}");
        }
        let replica = (redis::ErrorKind::Server(redis::ServerErrorKind::ReadOnly), "no write here");
        assert!(says(&replica.into()));
    }
}
