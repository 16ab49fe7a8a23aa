//! The plain layout: a string key that holds the token.

use super::queue::{KEYS, extend, queue_scripts, serving};
use super::table::{Table, Wakes, script};
use crate::server::shape::Shape;

pub(crate) fn table() -> Table {
    Table {
        keys: KEYS,
        lease_keys: 1,
        counter: None,
        holds_token: true,
        has_shares: false,
        acquire: script!(
            Shape::Array,
            "plain/acquire_uncontended.lua",
            "queue/keys.lua",
            "plain/mutex.lua",
            "queue/foreign.lua",
            "queue/asked.lua",
            "queue/queue.lua",
            "queue/acquire_refused.lua",
            "queue/conditions.lua",
            "queue/fences.lua",
            "queue/take.lua",
            "queue/serve.lua",
            "queue/take_turn.lua",
            "queue/acquire.lua"
        ),
        release: serving!(
            Number,
            first "plain/release_uncontended.lua",
            "plain/mutex.lua",
            "queue/release.lua"
        ),
        extend: extend!("plain/mutex.lua"),
        inspect: script!(Shape::Array, "plain/inspect.lua"),
        force: serving!(Number, "plain/mutex.lua", "plain/force.lua"),
        wakes: Wakes::Queue(Box::new(queue_scripts!("plain/mutex.lua"))),
        no_fences: None,
        no_owner: None,
        numbered_tokens: false,
    }
}
