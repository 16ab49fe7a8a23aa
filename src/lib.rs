//! Distributed locks on Redis for plain `std::thread` programs: a blocking, Java-like [`Lock`] that
//! queues in order and tells its holder when it is lost.
//!
//! As long as the server's clock runs at about the rate of ours and the lock's key is not lost,
//! **no two holders have overlapping validity**; a dead process frees its locks within one lease;
//! and a holder can always ask, without a round trip, whether its lease is valid. A lease does not
//! protect against a process that is paused for too long, a suspended host, or a key lost in a
//! failover; the *fence* does. This page is a short course. The [`guide`] has the whole promise
//! ([`guarantees`](guide::guarantees)), and says how to [port](guide::porting) from Jedis or
//! Redisson, which [layouts](guide::layouts) there are, what comes up in
//! [practice](guide::practice), with [jobs](guide::jobs), [in a shell](guide::command) and in
//! [operation](guide::operations), what each [error](guide::errors) means, how to run it
//! [safely](guide::security), and [how it works inside](guide::internals).
//!
//! # Install
//!
//! ```sh
//! cargo add distlock                    # redis://, redis+unix://, memory://
//! cargo add distlock --features tls     # and rediss://
//! cargo install distlock --features cli # the command, for shell scripts and crontabs
//! ```
//!
//! The examples below use `memory://`, a store inside the process. With a server, the URL is, for
//! example, `redis://127.0.0.1/`, and nothing else changes.
//!
//! # The first lock
//!
//! A program needs one [`Client`], as it needs one connection pool: make one, and clone it. A
//! client hands out locks by name. The same name is the same lock, in every process.
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
//! While the closure runs, the thread has a *lease*: ownership for 30 seconds, which a background
//! thread extends until the unlock. If the process dies, the lease ends by itself.
//! [`with`](RedisLock::with) returns the closure's value only if the lease lasted until its end.
//! Otherwise the error is [`is_lost`](Error::is_lost): another process may have worked at the same
//! time.
//!
//! # Guards, and `lock` and `unlock`
//!
//! A [`LockGuard`] unlocks when it is dropped, also in a panic. [`lock`](Lock::lock) and
//! [`unlock`](Lock::unlock) are the pair that Java code knows.
//!
//! ```
//! # fn main() -> distlock::Result<()> {
//! # let lock = distlock::Client::open("memory://")?.lock("orders:42");
//! let guard = lock.guard()?;
//! // … work …
//! guard.release()?; // like drop, but returns the result
//!
//! lock.lock()?;
//! // … work that neither returns early nor panics …
//! lock.unlock()?;
//! # Ok(())
//! # }
//! ```
//!
//! Prefer `with` and guards. An early return between `lock` and `unlock`, such as a `?`, keeps the
//! lock, and renewal keeps its lease alive. A thread of a worker pool then starts its next task
//! with the lock still held, and a `lock` in that task only adds one more hold. So both tasks run
//! under one hold of the lock, and each believes that the lock is its own.
//!
//! # Trying, and outages
//!
//! [`try_lock`](Lock::try_lock) waits at most for the given time; with
//! [`Duration::ZERO`](std::time::Duration::ZERO) it asks once. If somebody else has the lock, the
//! result is `Ok(false)`. If the server does not answer, the result is an error. The two are never
//! confused. [`lock`](Lock::lock) has no deadline, but waits through an outage only up to
//! [`max_outage`](ClientBuilder::max_outage). Errors that waiting cannot cure (a wrong password, a
//! key of another type) are returned at once.
//!
//! ```
//! # use distlock::Client;
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
//! If another thread must be able to end a wait, give the wait an [`Interrupt`]. Code that takes
//! any lock takes a `&dyn` [`Lock`]: the trait has the methods of Java's, and guards.
//!
//! # Losing a lock
//!
//! A lease can be lost: the server was away for too long, the process was paused, somebody deleted
//! the key. The holder is told. It should also check the lease before it does anything that cannot
//! be undone.
//!
//! ```
//! # use distlock::Client;
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
//! Threads that work for the holder, or for the owner of a claim, ask its [`Validity`].
//!
//! Between `ensure_valid` and the write the process may be paused once more. Only the protected
//! resource can close that gap, by comparing *fences*: numbers that grow with every acquisition.
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
//! Set options for all locks of a client with [`ClientBuilder::lock_options`], and for one lock
//! with [`Client::lock_with`].
//!
//! | [`LockOptions`] | default | |
//! |---|---|---|
//! | [`lease`](LockOptions::lease) | 30 s | how soon the lock of a dead process is free; 100 ms to 24 h |
//! | [`renewal`](LockOptions::renewal) | until unlock | other values: never, or at most *n* times |
//! | [`retry`](LockOptions::retry) | by the server's wake-ups | the pause between attempts, and how many there are |
//! | [`fenced`](LockOptions::fenced) | no | a fence for each acquisition |
//! | [`at_least`](LockOptions::at_least) | zero | how long a lock is kept even if it is unlocked, for [jobs on several instances](guide::jobs) |
//! | [`queue`](LockOptions::queue) | first come, first served | `Queue::None` where clients of other libraries share a lock of the plain layout |
//! | [`local_hand_offs`](LockOptions::local_hand_offs) | 16 | how many times in a row a lease may pass from thread to thread, and how many readers may join one |
//! | [`layout`](LockOptions::layout) | plain | how the lease is written in Redis |
//! | [`replicas`](LockOptions::replicas) | 0 | how many replicas must have confirmed a lock |
//! | [`fsynced`](LockOptions::fsynced) | no | whether the server's disk must have confirmed it |
//! | [`owner`](LockOptions::owner) | a fresh token | the program's own value in place of the token, which costs safety |
//!
//! | [`ClientBuilder`] | default | |
//! |---|---|---|
//! | [`command_timeout`](ClientBuilder::command_timeout) | 2 s | how long one command may take in total |
//! | [`connect_timeout`](ClientBuilder::connect_timeout) | 2 s | how long opening a connection may take in total |
//! | [`max_outage`](ClientBuilder::max_outage) | 30 s | how long `lock()` waits for a server that does not answer |
//! | [`slow_wait`](ClientBuilder::slow_wait) | 10 s | after how long a wait says in the log who holds the lock |
//! | [`pool_size`](ClientBuilder::pool_size) | 8 | connections, without the one for renewal and the one for wake-ups; as many again for locks that need confirmations; in a cluster for each node |
//! | [`pool`](ClientBuilder::pool) | its own | a pool that the program already has |
//! | [`key_prefix`](ClientBuilder::key_prefix) | none | the text before each name in Redis |
//! | [`name`](ClientBuilder::name) | host, process, random digits | shows in Redis who holds a lock |
//!
//! # Errors
//!
//! One type, [`Error`], with a predicate for each [`ErrorKind`]. The question that matters is
//! whether the lock may still be held on the server; [`Error::may_be_held`] answers it:
//!
//! | | does this thread hold it? | may what this call left still hold it on the server? |
//! |---|---|---|
//! | `NotHeld` | no | no |
//! | `Lost` | only by count: it must still call `unlock` for each `lock`, but the lease is gone | no longer than the rest of one lease; another may hold it |
//! | `Unknown` (of an unlock) | no | yes, until the background has removed it, or the lease ends |
//! | `Unknown` (of an `extend`, a `force_unlock` or a notification) | as before the call | yes |
//! | `Interrupted`, `Exhausted`, `Unavailable`, `Server` | as before the call | yes, after an unanswered attempt: until the background has withdrawn it, or the lease ends |
//! | `Denied`, `WrongType`, `Unsupported` | as before the call | no, unless the server refused one command of a script, or to confirm: as the row above |
//! | `Closed` | only by count, if it held it before: the close has ended the lease | yes, after an unanswered attempt; [`Client::close`] counts such locks |
//! | `InvalidInput` | as before the call | no |
//! | `Conflict` | yes, with other options, or it asked for a claim, or it reads and asked to write | yes, as before |
//!
//! A claim or a permit has no thread and no count: after any error of its release nothing is left
//! to release. After any error of `acquire` the caller has no permit.
//! This table is not for a wait in a condition, which releases the lock first: [`Condition::wait`]
//! says after which errors the lock is held.
//!
//! # Threads and reentrancy
//!
//! A hold belongs to its thread. The thread may lock again, which only counts up and needs no round
//! trip; it must unlock as often. An `unlock` by another thread is refused, and a guard cannot be
//! sent to another thread. If a thread ends or panics while it holds locks, the background releases
//! them and logs it. When `main` returns, Rust runs no destructors of other threads: join them.
//!
//! ```
//! # use distlock::Client;
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
//! Where a lock has to pass from thread to thread, as with a job that one thread takes and another
//! finishes, take it by [`claim`](RedisLock::claim). A [`Claim`] belongs to no thread, is `Send`
//! and `Sync`, and releases the lock when it is dropped. It is not reentrant. The guide has [an
//! example](guide::practice#a-lock-that-belongs-to-a-job).
//!
//! # Several processes, and order
//!
//! Waiting processes queue on the server. A release makes the first of them the owner and wakes
//! only that one, in a single step. Within a process, threads queue as well, and only one of them
//! talks to the server. A lease that is still valid passes from thread to thread a few times before
//! another process has its turn. If clients of other libraries share a lock of the plain layout,
//! turn the queue off in all processes ([`Queue::None`]): those clients would starve beside it.
//! [`guide::guarantees`] says which order is promised, and [`guide::internals`] how it works.
//!
//! # Conditions
//!
//! [`Lock::new_condition`] is the sixth method of Java's `Lock`, and works between processes. A
//! wait releases the lock and enters the condition in one step. It sleeps until another process
//! that holds the lock notifies it. When it returns, the thread has the lock again, with as many
//! holds. Conditions need the plain layout, or `memory://`, and the queue. As with any condition,
//! wait in a loop: [`Condition`] says when a waiter may wake for no reason.
//! `examples/bounded_buffer.rs` is the classic use.
//!
//! # Read-write lock and semaphore
//!
//! Many threads may hold the read side of an [`RwLock`] at once, or one the write side; each is a
//! [`RedisLock`]. A writer can go on as a reader, and a reader cannot become a writer. A
//! [`Semaphore`] has permits for all processes together; a [`Permit`] belongs to no thread, as a
//! claim. Waiters queue. The guide says [when to use which](guide::practice#many-at-a-time).
//!
//! ```
//! # use distlock::Client;
//! # fn main() -> distlock::Result<()> {
//! # let client = Client::open("memory://")?;
//! let reading = client.rw_lock("catalogue").read()?;
//! // … look something up, while others do …
//! reading.release()?;
//! let permit = client.semaphore("exports", 10).acquire()?; // ten at a time
//! permit.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Rate limiter
//!
//! A [`RateLimiter`] lets a given number of calls through in a window, counted over all processes
//! together. Permits come back all at once, at the end of a fixed window, or
//! [smoothly](RateLimiter::smooth), one by one.
//!
//! ```
//! # use distlock::Client;
//! use std::time::Duration;
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
//! Sentinel, `redis+sentinel://s1,s2,s3/mymaster`: the primary that sentinels name, followed when
//! it moves. Redis Cluster, `redis+cluster://n1,n2,n3`: each lock at the node that owns the slot of
//! its name, followed when the slot moves or the node is replaced. With either, a lock that all
//! [`replicas`](LockOptions::replicas) have confirmed is not lost in a failover.
//!
//! Redlock: the same locks, on a majority of independent servers. The locks survive the loss of a
//! minority of the servers. There are no fences, queue, conditions, read-write locks or semaphores.
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
//! Each client of `memory://` has its own store. Clients of `memory://name` in one process share
//! the store of that name, so two of them exclude each other as two processes would. The store has
//! queues, fences and conditions, as a server has. Only [`Client::execute`], confirmations by
//! replicas or the disk, and the layouts other than the plain one need a real server. A test can
//! also give its own lock to code that takes a `&dyn` [`Lock`].
//!
//! # Threads that the crate starts
//!
//! Each thread is started when it is first needed, and ends with the client or earlier.
//!
//! | thread | what it does |
//! |---|---|
//! | `distlock-renewal` | extends the leases of all locks of the client that need no confirmations; in a cluster up to one for each node |
//! | `distlock-confirm` | extends the leases of locks that do: one for each kind of confirmations, in a cluster up to one for each node |
//! | `distlock-cleaner` | withdraws what may have been left behind, releases what a dead thread held; in a cluster up to one for each node |
//! | `distlock-inbox` | receives wake-ups; started by the first wait on a contended lock; in a cluster one for each node where somebody has waited |
//! | `distlock-notify` | calls `on_lost` callbacks, and drops them; started by the first loss that has one, or the first such lock that is dropped |
//! | `distlock-events` | calls the program's `listener`; started with a client that has one |
//! | `distlock-log` | calls the program's logger, and ends |
//! | `distlock-pool` | closes connections that have not been used for a while |
//! | `distlock-connect` | opens one connection, and ends |
//! | `distlock-node-…`, `distlock-hold-…` | Redlock only: two for each node; one asks it, one extends leases there |
//! | `distlock-sentinel` | Sentinel only: one for each sentinel, listens to it; together they ask all of them every 2 s |
//! | `distlock-asks` | Sentinel only: asks one sentinel, and ends |
//! | `distlock-shard` | Cluster only: extends or withdraws at one of several nodes, and ends |
//!
//! # What it logs
//!
//! [`Client::stats`] counts what happens, and [`ClientBuilder::listener`] tells it. What goes wrong
//! is logged through the [`log`] crate, below the target `distlock`, without tokens, passwords and
//! URLs; the guide says [what each line means](guide::operations#every-line-of-the-log). A thread
//! of its own, `distlock-log`, calls the program's logger, so one that blocks or panics costs no
//! lock. A message is lost if the process ends before that, or if 1,024 wait for a slow logger.
//!
//! | level | |
//! |---|---|
//! | error | the program was not told of a loss, or something panicked in the background |
//! | warn | a lease was lost; a lock may be held for nobody; a call waits for long, for a lock or the server; the set-up makes locks slower or less safe |
//! | info | sentinels have named another primary |
//! | debug | what is tried again, and a thread that locks again what it holds |
//!
//! # Why it blocks
//!
//! A lock on a server is held for milliseconds to hours. Threads are the simple way to write such
//! programs, and because guards stay on their thread, reentrancy is only a counter.
#![forbid(unsafe_code)]

mod base;
mod client;
pub mod guide;
mod lease;
mod limiter;
mod local;
mod lock;
mod server;
mod store;

pub use base::error::{Error, ErrorKind, Result};
pub use base::options::{Layout, LockOptions, Queue, Renewal, Retry, Side};
pub use base::{count::Histogram, interrupt::Interrupt, subject::Subject};
pub use client::{Client, ClientBuilder, Grants, Stats};
pub use lease::events::{Event, How, Listener};
pub use lease::lost::{Lost, LostReason};
pub use limiter::{RateLimiter, port::Decision};
pub use lock::Lock;
pub use lock::claim::Claim;
pub use lock::condition::Condition;
pub use lock::guard::{DynLockGuard, LockGuard};
pub use lock::permit::Permit;
pub use lock::redis_lock::RedisLock;
pub use lock::redis_lock::inspect::{Holder, LockState, Waiter};
pub use lock::rw_lock::RwLock;
pub use lock::semaphore::Semaphore;
pub use lock::validity::Validity;
/// [`Client::execute`] takes commands of `redis`, and [`ClientBuilder::pool`] a pool of `r2d2`.
pub use {r2d2, redis};

/// For this crate's own tests and tools. Not part of the API: it may change in any release.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    pub use crate::base::bell::{Bell, Fences, Grant, Rung};
    pub use crate::base::clock::{Clock, FakeClock};
    pub use crate::base::key::Key;
    pub use crate::base::log::flush_log;
    pub use crate::base::store_error::StoreError;
    pub use crate::base::within::Within;
    pub use crate::lease::store::{
        Abilities, Answer, Ask, Extend, Gone, Held, InCondition, LeaseStore, Listening, Look,
        Notify, Place, Release, State, Withdraw,
    };
    pub use crate::lease::token::Token;
    pub use crate::server::cluster::slot_of_name;
    pub use crate::store::scripts;
}

/// The examples of the README are compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
