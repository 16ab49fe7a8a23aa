//! Distributed locks on Redis for plain `std::thread` programs: a blocking, Java-like [`Lock`] that
//! queues in order and tells its holder when it is lost.
//!
//! As long as the server's clock runs at about the rate of ours and the lock's key is not lost,
//! **no two holders have overlapping validity**; a dead process frees its locks within one lease;
//! and a holder can always ask, without a round trip, whether its lease is valid. What a lease
//! cannot promise (a process that is paused for too long, a suspended host, a key lost in a
//! failover) the *fence* can: [`guide::guarantees`] has the whole promise. This page is a short
//! course.
//!
//! # Install
//!
//! ```sh
//! cargo add distlock                 # redis://, redis+unix://, memory://
//! cargo add distlock --features tls  # and rediss://
//! ```
//!
//! The examples below use `memory://`, the store inside the process. With a server, the URL is
//! `redis://127.0.0.1/`, and nothing else changes.
//!
//! # The first lock
//!
//! A [`Client`] belongs to a program, as a connection pool does: make one, clone it. It hands out
//! locks by name. The same name is the same lock, in every process.
//!
//! ```
//! use distlock::Client;
//!
//! # fn main() -> distlock::Result<()> {
//! let client = Client::open("memory://")?; // talks to nobody yet; client.ping()? would
//! let sum = client.lock("orders:42").with(|_guard| 1 + 2)?; // waits, if it has to
//! assert_eq!(sum, 3);
//! # Ok(())
//! # }
//! ```
//!
//! What the thread has while the closure runs is a *lease*: ownership for 30 seconds, which a
//! background thread extends until the unlock. If the process dies, the lease ends by itself.
//! [`with`](RedisLock::with) returns the closure's value only if the lease lasted until its end.
//! Otherwise the error is [`is_lost`](Error::is_lost): another may have worked at the same time.
//!
//! # Guards, and `lock` and `unlock`
//!
//! A [`LockGuard`] unlocks when it is dropped, also in a panic. [`lock`](Lock::lock) and
//! [`unlock`](Lock::unlock) are the pair that Java code knows.
//!
//! ```
//! use distlock::Lock;
//!
//! # fn main() -> distlock::Result<()> {
//! # let lock = distlock::Client::open("memory://")?.lock("orders:42");
//! let guard = lock.guard()?;
//! // … work …
//! guard.release()?; // as dropping it, but says what came of it
//!
//! lock.lock()?;
//! // … work that neither returns early nor panics …
//! lock.unlock()?;
//! # Ok(())
//! # }
//! ```
//!
//! Prefer `with` and guards. An early return between `lock` and `unlock`, such as a `?`, keeps the
//! lock, and renewal keeps its lease alive. A thread of a worker pool then takes its next task with
//! the lock held, and a `lock` in that task only counts one more hold: two tasks run under what
//! each of them takes for a lock of its own.
//!
//! # Trying, and outages
//!
//! [`try_lock`](Lock::try_lock) waits for as long as it is told, and
//! [`Duration::ZERO`](std::time::Duration::ZERO) asks once. That somebody else has the lock is
//! `Ok(false)`; that the server does not answer is an error. The two are never mixed up.
//! [`lock`](Lock::lock) has no deadline, but waits through an outage only up to
//! [`max_outage`](ClientBuilder::max_outage). What waiting cannot mend (a wrong password, a key of
//! another type) fails at once.
//!
//! ```
//! # use distlock::{Client, Lock};
//! use std::time::Duration;
//!
//! # fn main() -> distlock::Result<()> {
//! # let client = Client::open("memory://")?;
//! # let lock = client.lock("orders:42");
//! if let Some(guard) = lock.try_guard(Duration::from_secs(2))? {
//!     // … work …
//!     guard.release()?;
//! } else {
//!     // Another holds it, and has for two seconds.
//! }
//!
//! let nobody = Client::builder("redis://127.0.0.1:1/");
//! let nobody = nobody.max_outage(Duration::from_millis(300)).build()?;
//! assert!(nobody.lock("orders:42").lock().unwrap_err().is_unavailable());
//! # Ok(())
//! # }
//! ```
//!
//! A wait that another thread shall be able to end takes an [`Interrupt`].
//!
//! # Losing a lock
//!
//! A lease can be lost: the server was away for too long, the process was paused, somebody deleted
//! the key. The holder is told, and looks before it does what cannot be undone.
//!
//! ```
//! # use distlock::{Client, Lock};
//! # fn main() -> distlock::Result<()> {
//! # let lock = Client::open("memory://")?.lock("orders:42");
//! lock.on_lost(|lost| eprintln!("{} was lost: {:?}", lost.name(), lost.reason()));
//! let guard = lock.guard()?;
//! // … read, compute …
//! guard.ensure_valid()?; // no round trip
//! // … write …
//! lock.force_unlock()?; // an operator takes it away
//! assert!(guard.release().unwrap_err().is_lost());
//! # Ok(())
//! # }
//! ```
//!
//! Between `ensure_valid` and the write the process may be paused once more. That gap only the
//! protected resource can close, by comparing *fences*: numbers that grow with every acquisition.
//!
//! ```
//! # use distlock::{Client, LockOptions};
//! # fn main() -> distlock::Result<()> {
//! # let client = Client::open("memory://")?;
//! let lock = client.lock_with("orders:42", LockOptions::new().fenced())?;
//! let first = lock.with(|guard| guard.fence())?;
//! let second = lock.with(|guard| guard.fence())?;
//! assert!(first < second); // UPDATE … SET fence = :second WHERE fence <= :second
//! # Ok(())
//! # }
//! ```
//!
//! # Options
//!
//! For all locks of a client by [`ClientBuilder::lock_options`], for one by [`Client::lock_with`].
//!
//! | [`LockOptions`] | default | |
//! |---|---|---|
//! | [`lease`](LockOptions::lease) | 30 s | how soon the lock of a dead process is free; 100 ms to 24 h |
//! | [`renewal`](LockOptions::renewal) | until unlock | or never, or at most *n* times |
//! | [`retry`](LockOptions::retry) | by the server's wake-ups | the pause between attempts, and how many there are |
//! | [`fenced`](LockOptions::fenced) | no | a fence for each acquisition |
//! | [`queue`](LockOptions::queue) | first come, first served | `Queue::None` where clients of other libraries share the lock |
//! | [`local_hand_offs`](LockOptions::local_hand_offs) | 16 | how often in a row a lease may pass from thread to thread |
//! | [`layout`](LockOptions::layout) | plain | how it is written in Redis |
//! | [`owner`](LockOptions::owner) | a fresh token | the program's own value, which costs safety |
//!
//! | [`ClientBuilder`] | default | |
//! |---|---|---|
//! | [`command_timeout`](ClientBuilder::command_timeout) | 2 s | how long one command may take, all in all |
//! | [`connect_timeout`](ClientBuilder::connect_timeout) | 2 s | how long opening a connection may take, all in all |
//! | [`max_outage`](ClientBuilder::max_outage) | 30 s | how long `lock()` waits for a server that does not answer |
//! | [`pool_size`](ClientBuilder::pool_size) | 8 | connections; one for renewal and one for wake-ups come on top |
//! | [`pool`](ClientBuilder::pool) | its own | a pool that the program has already |
//! | [`key_prefix`](ClientBuilder::key_prefix) | none | what stands before each name in Redis |
//!
//! # Errors
//!
//! One type, [`Error`], with a predicate for each [`ErrorKind`]. The question that matters is
//! whether the lock may still be held on the server:
//!
//! | | does this thread hold it? | may it still be held on the server, by what this call left? |
//! |---|---|---|
//! | `NotHeld` | no | no |
//! | `Lost` | it owes an `unlock` for each `lock`, and has nothing | no longer than the rest of one lease; another may hold it |
//! | `Unknown` (of an unlock) | no | yes, until the background has removed it, or the lease ends |
//! | `Unknown` (of an `extend`, or a notification) | yes | yes |
//! | `Interrupted`, `Exhausted`, `Unavailable`, `Server` | no more than before | for a moment: what an unanswered attempt left is withdrawn in the background |
//! | `Denied`, `WrongType`, `InvalidInput`, `Unsupported` | no more than before | no |
//! | `Conflict` | yes, with other options | yes, as before |
//!
//! A wait in a condition gives the lock back first, so it has a table of its own: [`Condition`]
//! says after which errors the lock is held.
//!
//! # Threads and reentrancy
//!
//! A hold belongs to its thread. The thread may lock again, which costs a counter and no round
//! trip, and unlocks as often. Others are refused their `unlock`, and a guard cannot be sent to
//! them. A thread that ends or panics while it holds leaves its locks to the background, which
//! releases them and says so in the log. When `main` returns, other threads are not asked: join
//! them first.
//!
//! ```
//! # use distlock::{Client, Lock};
//! # fn main() -> distlock::Result<()> {
//! # let lock = Client::open("memory://")?.lock("orders:42");
//! lock.lock()?;
//! lock.lock()?;
//! assert_eq!(lock.hold_count(), 2);
//! std::thread::scope(|scope| {
//!     let other = scope.spawn(|| lock.unlock());
//!     assert!(other.join().unwrap().unwrap_err().is_not_held());
//! });
//! lock.unlock()?;
//! lock.unlock()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Several processes, and order
//!
//! Waiting processes queue on the server. A release makes the first of them the owner and wakes
//! just that one, in a single step. Within a process, threads queue as well, only one of them talks
//! to the server, and a lease that is still valid passes from thread to thread a few times before
//! another process has its turn. Where clients of other libraries share a lock, turn the queue off
//! for all ([`Queue::None`]): they would starve beside it. What order is promised, and what not, is
//! in [`guide::guarantees`]; how it works, in [`guide::internals`].
//!
//! # Conditions
//!
//! [`Lock::new_condition`] gives Java's sixth method its meaning between processes: a wait releases
//! the lock and enters the condition in one step, sleeps until another process that holds the lock
//! notifies it, and has the lock again, with as many holds, when it returns. It needs the plain
//! layout, or `memory://`, and the queue. As everywhere, wait in a loop: [`Condition`] says what
//! wakes a waiter for no reason. `examples/bounded_buffer.rs` is the classic use.
//!
//! # Rate limiter
//!
//! A [`RateLimiter`] lets so many calls through in a window, counted for all processes together: in
//! fixed windows, or [smoothly](RateLimiter::smooth).
//!
//! ```
//! # use distlock::Client;
//! use std::time::Duration;
//!
//! # fn main() -> distlock::Result<()> {
//! # let client = Client::open("memory://")?;
//! let limiter = client.rate_limiter("ip:127.0.0.1", 3, Duration::from_secs(10));
//! let decision = limiter.check()?;
//! assert!(decision.allowed && decision.remaining == 2);
//! # Ok(())
//! # }
//! ```
//!
//! # More than one server
//!
//! Redlock: the same locks, on a majority of independent servers. They survive the loss of a
//! minority. There are no fences and no queue.
//!
//! ```
//! # use distlock::Client;
//! # fn main() -> distlock::Result<()> {
//! let client = Client::redlock(["memory://a", "memory://b", "memory://c"])?;
//! client.lock("orders:42").with(|_guard| { /* work */ })?;
//! # Ok(())
//! # }
//! ```
//!
//! # Testing programs that use it
//!
//! `memory://` is a store of its own for each client; `memory://name` is shared in the process by
//! that name, so that two clients exclude each other as two processes would. It has queues, fences
//! and conditions as a server has; only [`Client::execute`] needs a real one. Code that takes a
//! `&dyn` [`Lock`] can be given a lock of the test's own.
//!
//! # Threads that the crate starts
//!
//! They are started when first needed, and end with the client.
//!
//! | thread | for |
//! |---|---|
//! | `distlock-renewal` | extends the leases of all locks of the client |
//! | `distlock-cleaner` | withdraws what may have been left behind, releases what a dead thread held |
//! | `distlock-inbox` | hears wake-ups; from the first wait on a contended lock |
//! | `distlock-notify` | calls `on_lost`; from the first loss on |
//! | `distlock-pool` | closes what a rush has opened and nobody uses any more, and ends |
//! | `distlock-connect` | opens one connection, and ends |
//! | `distlock-node-…` | Redlock only: one for each node |
//!
//! # What it logs
//!
//! Over the [`log`] crate, below the target `distlock`. Never tokens, passwords or URLs.
//!
//! | level | |
//! |---|---|
//! | error | an `on_lost` callback panicked, or could not be called |
//! | warn | a lease was lost; a thread ended while it held; a client ended before it could withdraw something; a client was dropped and could not release everything in time; a guard's unlock failed when it was dropped; a guard found nothing left to unlock; no thread could be started to hear wake-ups; this user may not subscribe; this user may not ask who listens; a quorum has an even number of nodes; a node of a quorum is a replica, or another one's second name |
//! | debug | a renewal or a withdrawal had no answer and is tried again; the subscription for wake-ups was lost |
//!
//! # Why it blocks
//!
//! A lock that is held over a network is held for milliseconds to hours, by something that works
//! meanwhile. Threads are the plain way to write that; guards that stay on their thread make
//! reentrancy a counter, and a program without a runtime does not need one for a lock. Every call
//! has a bound, and says which.
#![forbid(unsafe_code)]

mod base;
mod client;
pub mod guide;
mod lease;
mod limiter;
mod local;
mod lock;
mod store;

pub use base::error::{Error, ErrorKind, Result};
pub use base::interrupt::Interrupt;
pub use base::options::{Layout, LockOptions, Queue, Renewal, Retry};
pub use client::{Client, ClientBuilder};
pub use lease::lost::{Lost, LostReason};
pub use lease::store::Holder;
pub use limiter::RateLimiter;
pub use limiter::port::Decision;
pub use lock::Lock;
pub use lock::condition::{Condition, ConditionLock};
pub use lock::guard::LockGuard;
pub use lock::redis_lock::RedisLock;

/// Doors for this crate's own tests and tools. Not part of the API: anything here may change in any
/// release.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::base::bell::{Bell, Fences, Grant, Rung};
    pub use crate::base::clock::{Clock, FakeClock};
    pub use crate::base::key::Key;
    pub use crate::lease::store::{
        Abilities, Answer, Ask, End, Extend, Gone, InCondition, LeaseStore, Listening, Notify,
        Place, Release, StoreError, Withdraw, Within,
    };
    pub use crate::lease::token::Token;
}

/// The examples of the README are compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
