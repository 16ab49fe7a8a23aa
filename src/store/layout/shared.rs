//! The layout of a lock with shares: a sorted set of tokens, each with its own end.

use super::queue::{KEYS, acquire, extend, inspect, queue_scripts, release, serving};
use super::table::{Table, Wakes};

pub(crate) fn table() -> Table {
    Table {
        keys: KEYS,
        lease_keys: 1,
        counter: None,
        holds_token: false,
        has_shares: true,
        acquire: acquire!("shared/acquire_uncontended.lua", "shared/room.lua"),
        release: release!("shared/release_uncontended.lua", "shared/room.lua"),
        keep: None,
        extend: extend!("shared/room.lua"),
        inspect: inspect!("shared/holders.lua"),
        force: serving!(Number, "shared/room.lua", "shared/force.lua"),
        exchange: Some(serving!(Number, "shared/room.lua", "shared/exchange.lua")),
        wakes: Wakes::Queue(Box::new(queue_scripts!("shared/room.lua"))),
        no_fences: None,
        no_owner: None,
        numbered_tokens: false,
    }
}
