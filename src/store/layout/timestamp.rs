//! The timestamp layout: a string key that holds the deadline in epoch milliseconds, the oldest
//! form of all.
//!
//! A deadline does not say whose it is. Ours go with a mark, a companion key that names the
//! deadline and the token, so that it tells a lost reply, a late release or a withdrawal from
//! a later lease as in any other layout. Against an old client, which knows only the deadline,
//! nothing helps.

use super::table::{Name, Table, Wakes, script};
use crate::server::shape::Shape;

pub(crate) fn table() -> Table {
    Table {
        keys: &[Name::Lock, Name::Companion("owner")],
        lease_keys: 2,
        counter: None,
        holds_token: false,
        has_shares: false,
        acquire: script!(Shape::Array, "timestamp/common.lua", "timestamp/acquire.lua"),
        release: script!(Shape::Number, "timestamp/common.lua", "timestamp/release.lua"),
        keep: None,
        extend: script!(Shape::Number, "timestamp/common.lua", "timestamp/extend.lua"),
        inspect: script!(Shape::Array, "timestamp/common.lua", "timestamp/inspect.lua"),
        force: script!(Shape::Number, "timestamp/common.lua", "timestamp/force.lua"),
        // Old clients tell nobody of a release.
        exchange: None,
        wakes: Wakes::Nobody,
        no_fences: Some("the timestamp layout has no fences: its old clients do not use them"),
        no_owner: Some("the timestamp layout holds a deadline and has no place for an owner"),
        numbered_tokens: false,
    }
}
