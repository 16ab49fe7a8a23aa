//! The plain layout: a string key that holds the token.

use super::table::{Name, QueueScripts, Table, Wakes, script};
use crate::server::shape::Shape;

pub(crate) fn table() -> Table {
    Table {
        keys: &[
            Name::Lock,
            Name::Companion("fence"),
            Name::Companion("queue"),
            Name::Companion("waiters"),
            Name::Companion("conditions"),
        ],
        lease_keys: 1,
        counter: None,
        holds_token: true,
        acquire: script!(
            Shape::Array,
            "plain/acquire_uncontended.lua",
            "plain/queue.lua",
            "plain/acquire_refused.lua",
            "plain/serve.lua",
            "plain/take.lua",
            "plain/acquire.lua"
        ),
        release: script!(
            Shape::Number,
            "plain/release_uncontended.lua",
            "plain/queue.lua",
            "plain/serve.lua",
            "plain/release.lua"
        ),
        extend: script!(Shape::Number, "plain/extend.lua"),
        inspect: script!(Shape::Array, "plain/inspect.lua"),
        force: script!(Shape::Number, "plain/queue.lua", "plain/serve.lua", "plain/force.lua"),
        wakes: Wakes::Queue(Box::new(QueueScripts {
            acquire_alone: script!(Shape::Array, "plain/acquire_alone.lua"),
            release_alone: script!(Shape::Number, "plain/release_alone.lua"),
            withdraw: script!(
                Shape::Number,
                "plain/queue.lua",
                "plain/serve.lua",
                "plain/withdraw.lua"
            ),
            wait: script!(
                Shape::Array,
                "plain/queue.lua",
                "plain/serve.lua",
                "plain/take.lua",
                "plain/condition.lua",
                "plain/wait.lua"
            ),
            notify: script!(
                Shape::Number,
                "plain/queue.lua",
                "plain/serve.lua",
                "plain/condition.lua",
                "plain/notify.lua"
            ),
        })),
        no_fences: None,
        no_owner: None,
        numbered_tokens: false,
    }
}
