//! A connection that a caller's code uses.

use std::time::Instant;

use redis::{ConnectionLike, RedisError, RedisResult, Value};

use super::node::Node;
use super::{demotion, reply};
use crate::base::error::ErrorKind;
use crate::base::store_error::StoreError;

/// The commands of a caller of `execute`.
pub(crate) type Work<'a, T> = &'a mut dyn FnMut(&mut dyn ConnectionLike) -> RedisResult<T>;

/// Runs a caller's commands, and runs them once more if the connection was dropped.
pub(crate) fn execute<T>(
    node: &Node,
    deadline: Instant,
    work: Work<'_, T>,
) -> Result<T, StoreError> {
    let mut run = || {
        let mut value = None;
        let talked = node.pooled(deadline, &mut |exchange, _, _| {
            exchange.state.was_lent = true;
            let mut observed =
                Observed { connection: exchange.connection.commands(), failed: None };
            let result = work(&mut observed);
            match observed.failed {
                // The connection is of no more use, even if the caller's code swallowed the
                // error.
                Some(failed) => {
                    value = result.ok();
                    Err(failed)
                }
                None => Ok(result),
            }
        });
        match value {
            Some(value) => Ok(Ok(value)),
            None => talked,
        }
    };
    let result = match run() {
        Err(error) if error.dropped => run(),
        result => result,
    }?;
    result.map_err(|error| match error.code() {
        Some(code) => reply::refused(code, error.detail().unwrap_or_default()),
        None => StoreError::not_sent(ErrorKind::Server, "the commands failed")
            .because(error.category().to_owned()),
    })
}

/// Remembers whether the connection failed or the server said that it is a replica, even if the
/// caller's code swallows the error.
struct Observed<'a> {
    connection: &'a mut dyn ConnectionLike,
    failed: Option<RedisError>,
}

impl Observed<'_> {
    fn note<T>(
        &mut self,
        result: RedisResult<T>,
        replies: impl Fn(&T) -> &[Value],
    ) -> RedisResult<T> {
        let failed = match &result {
            Ok(value) => demotion::said_in(replies(value)),
            Err(error) if error.is_io_error() || error.is_unrecoverable_error() => {
                Some(error.clone())
            }
            Err(error) => demotion::said_by(error),
        };
        if failed.is_some() {
            self.failed = failed;
        }
        result
    }
}

impl ConnectionLike for Observed<'_> {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        let result = self.connection.req_packed_command(command);
        self.note(result, std::slice::from_ref)
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let result = self.connection.req_packed_commands(commands, offset, count);
        self.note(result, Vec::as_slice)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }

    fn check_connection(&mut self) -> bool {
        self.connection.check_connection()
    }

    fn is_open(&self) -> bool {
        self.connection.is_open()
    }
}
