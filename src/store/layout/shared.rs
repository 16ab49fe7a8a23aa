//! The layout of a lock with shares: a sorted set of tokens, each with its own end.

use super::queue::{KEYS, extend, queue_scripts, serving};
use super::table::{Table, Wakes, script};
use crate::server::shape::Shape;

pub(crate) fn table() -> Table {
    Table {
        keys: KEYS,
        lease_keys: 1,
        counter: None,
        holds_token: false,
        has_shares: true,
        acquire: script!(
            Shape::Array,
            "queue/keys.lua",
            "shared/room.lua",
            "queue/foreign.lua",
            "queue/asked.lua",
            "queue/fences.lua",
            "queue/take.lua",
            "shared/acquire_uncontended.lua",
            "queue/queue.lua",
            "queue/acquire_refused.lua",
            "queue/conditions.lua",
            "queue/serve.lua",
            "queue/take_turn.lua",
            "queue/acquire.lua"
        ),
        release: serving!(
            Number,
            "shared/room.lua",
            early "shared/release_uncontended.lua",
            "queue/release.lua"
        ),
        extend: extend!("shared/room.lua"),
        inspect: script!(Shape::Array, "queue/keys.lua", "shared/inspect.lua"),
        force: serving!(Number, "shared/room.lua", "shared/force.lua"),
        wakes: Wakes::Queue(Box::new(queue_scripts!("shared/room.lua"))),
        no_fences: None,
        no_owner: None,
        numbered_tokens: false,
    }
}
