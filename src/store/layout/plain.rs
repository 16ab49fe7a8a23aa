//! The plain layout: a string key that holds the token.

use super::queue::{KEYS, acquire, extend, in_room, inspect, queue_scripts, release, serving};
use super::table::{Table, Wakes};

pub(crate) fn table() -> Table {
    Table {
        keys: KEYS,
        lease_keys: 1,
        counter: None,
        holds_token: true,
        has_shares: false,
        acquire: acquire!("plain/acquire_uncontended.lua", "plain/mutex.lua"),
        release: release!("plain/release_uncontended.lua", "plain/mutex.lua"),
        keep: Some(in_room!(
            Number,
            "plain/mutex.lua",
            "queue/queue.lua",
            "queue/conditions.lua",
            "queue/ours.lua",
            "plain/keep.lua"
        )),
        extend: extend!("plain/mutex.lua"),
        inspect: inspect!("plain/holders.lua"),
        force: serving!(Number, "plain/mutex.lua", "plain/force.lua"),
        exchange: None,
        wakes: Wakes::Queue(Box::new(queue_scripts!("plain/mutex.lua"))),
        no_fences: None,
        no_owner: None,
        numbered_tokens: false,
    }
}
