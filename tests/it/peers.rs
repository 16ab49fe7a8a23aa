//! Other lock libraries on the same locks: the drivers of `tests/peers/`, run against private
//! servers, in both directions.
//!
//! Leases are a second or two here, and holds outlast them two or three times; `long` has leases of
//! a minute, and is marked slow.

mod cluster;
mod driver;
mod failover;
mod fleet;
mod long;
mod redisson;
mod rows;
mod sharing;
mod shown;
mod waking;

use std::time::Duration;

use distlock::{Client, Layout, LockOptions, Queue, RedisLock};

use crate::helpers::ms;
use crate::support::Server;
use driver::{Peer, start};

/// How long our client must wait at least, and may wait at most, until a lease of a second runs
/// out. The lease may have begun a moment ago.
const EXPIRY: std::ops::Range<Duration> = ms(800)..ms(10_000);

/// Leases in the layout that Jedis, redis-py and redsync write. Without a queue, as its processes
/// hand the lock to each other.
fn plain() -> LockOptions {
    LockOptions::new().queue(Queue::None)
}

fn timestamp() -> LockOptions {
    LockOptions::new().layout(Layout::Timestamp)
}

/// Hand-offs inside this process publish nothing, so Redisson's waiters would wait behind all of
/// them.
fn redisson() -> LockOptions {
    LockOptions::new().layout(Layout::Redisson).local_hand_offs(0)
}

/// The lock "a" of a new client, as another process would have it.
fn lock(server: &Server, options: LockOptions) -> RedisLock {
    Client::open(&server.url()).unwrap().lock_with("a", options).unwrap()
}

fn ask<T: redis::FromRedisValue>(server: &Server, command: &[&str]) -> T {
    redis::cmd(command[0]).arg(&command[1..]).query(&mut server.connection()).unwrap()
}
