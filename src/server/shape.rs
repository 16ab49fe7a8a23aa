//! What the reply to a command looks like.

use redis::Value;

/// The shape of a command's reply when it is carried out. An error reply fits every shape.
///
/// A reply of another shape belongs to another command (R6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// OK or nil.
    Set,
    /// An integer.
    Number,
    Array,
    Pong,
}

impl Shape {
    pub(super) fn fits(self, reply: &Value) -> bool {
        match reply {
            Value::ServerError(_) => true,
            Value::Okay | Value::Nil => self == Self::Set,
            Value::Int(_) => self == Self::Number,
            Value::Array(_) => self == Self::Array,
            Value::SimpleString(_) => self == Self::Pong,
            _ => false,
        }
    }
}
