//! What the reply to a command looks like.

use redis::Value;

/// What a command answers when it is carried out. An error reply fits everywhere.
///
/// Replies have no names: whatever stands next in the stream is taken for the answer. Should one
/// come twice, all that follow belong to the command before theirs, and a refusal may be read as a
/// grant. A reply of another shape gives that away at once, and costs nothing; where the last reply
/// had the same shape, an ECHO of a number follows the command in the same packet, and must answer
/// with that number (R6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// OK or nil.
    Set,
    /// An integer.
    Number,
    Array,
    Pong,
    /// The number of an ECHO, as text: nothing else answers so.
    Tag,
}

impl Shape {
    pub(super) fn fits(self, reply: &Value) -> bool {
        match reply {
            Value::ServerError(_) => true,
            Value::Okay | Value::Nil => self == Self::Set,
            Value::Int(_) => self == Self::Number,
            Value::Array(_) => self == Self::Array,
            Value::SimpleString(_) => self == Self::Pong,
            Value::BulkString(_) => self == Self::Tag,
            _ => false,
        }
    }
}
