//! Redisson's layout: a hash with one field, `<uuid>:<thread>`, and how often that thread holds the
//! lock.
//!
//! Redisson's own clients take such a lock for one of theirs, and tell us of a release as they tell
//! each other. Holds are counted in this process only, so the count here is always 1.

use super::table::{Name, Table, Wakes, script};
use crate::server::shape::Shape;

pub(crate) fn table() -> Table {
    Table {
        keys: &[Name::Lock],
        lease_keys: 1,
        counter: Some(Name::Redisson("redisson_lock_token:")),
        holds_token: false,
        has_shares: false,
        acquire: script!(Shape::Array, "redisson/common.lua", "redisson/acquire.lua"),
        release: script!(Shape::Number, "redisson/release.lua"),
        keep: Some(script!(Shape::Number, "redisson/keep.lua")),
        extend: script!(Shape::Number, "redisson/extend.lua"),
        inspect: script!(Shape::Array, "redisson/common.lua", "redisson/inspect.lua"),
        force: script!(Shape::Number, "redisson/common.lua", "redisson/force.lua"),
        exchange: None,
        wakes: Wakes::Channel(Name::Redisson("redisson_lock__channel:")),
        no_fences: None,
        no_owner: None,
        numbered_tokens: true,
    }
}
