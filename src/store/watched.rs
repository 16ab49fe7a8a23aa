//! A connection in the hands of a caller's code.

use redis::{Connection, ConnectionLike, RedisError, RedisResult, Value};

/// Remembers whether the connection failed, also where the caller's code swallows the error.
pub(super) struct Watched<'a> {
    pub(super) connection: &'a mut Connection,
    pub(super) failed: Option<RedisError>,
}

impl Watched<'_> {
    fn note<T>(&mut self, result: RedisResult<T>) -> RedisResult<T> {
        if let Err(error) = &result
            && (error.is_io_error() || error.is_unrecoverable_error())
        {
            self.failed = Some(error.clone());
        }
        result
    }
}

impl ConnectionLike for Watched<'_> {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        let result = self.connection.req_packed_command(command);
        self.note(result)
    }

    fn req_packed_commands(&mut self, commands: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        let result = self.connection.req_packed_commands(commands, offset, count);
        self.note(result)
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
