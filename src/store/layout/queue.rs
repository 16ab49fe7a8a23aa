//! The scripts of a layout with a queue, for any room.

use super::table::Name;

/// The keys of a lock with a queue: see `queue/keys.lua`.
pub(super) const KEYS: &[Name] = &[
    Name::Lock,
    Name::Companion("fence"),
    Name::Companion("queue"),
    Name::Companion("waiters"),
    Name::Companion("conditions"),
];

/// A script that looks into the room, and at no queue: the keys, the room, and these parts.
macro_rules! in_room {
    ($shape:ident, $room:literal, $($part:literal),+) => {
        $crate::store::layout::table::script!(
            $crate::server::shape::Shape::$shape,
            "queue/keys.lua",
            $room,
            "queue/foreign.lua",
            $($part),+
        )
    };
}
pub(super) use in_room;

/// A script that may serve the queue: what that needs behind the keys and the room, and these
/// parts. `first` comes before all.
macro_rules! serving {
    ($shape:ident, $(first $first:literal,)? $room:literal, $($part:literal),+) => {
        $crate::store::layout::table::script!(
            $crate::server::shape::Shape::$shape,
            $($first,)?
            "queue/keys.lua",
            $room,
            "queue/foreign.lua",
            "queue/queue.lua",
            "queue/conditions.lua",
            "queue/fences.lua",
            "queue/serve.lua",
            "queue/hand_over.lua",
            $($part),+
        )
    };
}
pub(super) use serving;

/// The script that acquires in this room. `first`: what settles the simple cases.
macro_rules! acquire {
    ($first:literal, $room:literal) => {
        $crate::store::layout::table::script!(
            $crate::server::shape::Shape::Array,
            $first,
            "queue/keys.lua",
            $room,
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
        )
    };
}
pub(super) use acquire;

/// The script that releases in this room. `first`: what settles the simple cases.
macro_rules! release {
    ($first:literal, $room:literal) => {
        $crate::store::layout::queue::serving!(Number, first $first, $room, "queue/release.lua")
    };
}
pub(super) use release;

/// The script that extends a lease in this room.
macro_rules! extend {
    ($room:literal) => {
        $crate::store::layout::queue::in_room!(Number, $room, "queue/ours.lua", "queue/extend.lua")
    };
}
pub(super) use extend;

/// The script that says who holds a lock, and who waits. `holders`: how this layout writes leases.
macro_rules! inspect {
    ($holders:literal) => {
        $crate::store::layout::table::script!(
            $crate::server::shape::Shape::Array,
            "queue/keys.lua",
            $holders,
            "queue/inspect.lua"
        )
    };
}
pub(super) use inspect;

/// What only a layout with a queue can do.
macro_rules! queue_scripts {
    ($room:literal) => {{
        use $crate::store::layout::queue::{in_room, serving};
        $crate::store::layout::table::QueueScripts {
            acquire_alone: in_room!(Array, $room, "queue/asked.lua", "queue/acquire_alone.lua"),
            release_alone: in_room!(Number, $room, "queue/ours.lua", "queue/release_alone.lua"),
            withdraw: serving!(Number, $room, "queue/withdraw.lua"),
            wait: serving!(
                Array,
                $room,
                "queue/take.lua",
                "queue/take_turn.lua",
                "queue/arrival.lua",
                "queue/wait.lua"
            ),
            notify: in_room!(
                Number,
                $room,
                "queue/queue.lua",
                "queue/conditions.lua",
                "queue/arrival.lua",
                "queue/notify.lua"
            ),
        }
    }};
}
pub(super) use queue_scripts;
