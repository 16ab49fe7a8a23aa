//! What the reply to a command looks like.

use redis::Value;

/// The shape of a command's reply when it is carried out. An error reply fits every shape.
///
/// Replies have no names: the next one in the stream is taken for the answer. If one came twice,
/// at once or later, a command would get the reply of an earlier one, and a refusal might be read
/// as a grant. So an ECHO of a number follows each command in the same packet, and must answer with
/// that number (R6). A reply of another shape gives an extra reply away even before that.
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
