//! What the reply to a command looks like.

use redis::Value;

/// The shape of a command's reply when it is carried out. An error reply fits every shape.
///
/// Replies have no names: the next one in the stream is taken for the answer. If one came twice,
/// each later command would get the reply of the command before it, and a refusal might be read as
/// a grant. A reply of another shape gives that away at once, and costs nothing. If the last reply
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
    /// The number of an ECHO, as text: no other command here has such a reply.
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
