//! The pool: r2d2 counts and queues, but never connects.
//!
//! r2d2's own connector backs off after an outage, hangs on a silent server, and reports a wrong
//! password as a timeout. So r2d2 keeps *slots*: making one cannot fail, and the thread that checks
//! one out opens the connection in it.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use r2d2::PooledConnection;
use redis::{Connection, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use super::theirs::Theirs;
use crate::base::options::Confirm;

/// How long an unused connection is kept: the connections that a rush opened are closed after it.
/// r2d2 looks every 30 s.
const IDLE: Duration = Duration::from_secs(20);

/// A place for one connection.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) connection: Option<Connection>,
    pub(crate) state: super::exchange::Known,
    /// How many failures the node had seen when the connection was opened (R6).
    pub(crate) generation: u64,
    /// Where its commands are packed.
    pub(crate) buffer: Vec<u8>,
}

/// Makes slots for r2d2.
#[derive(Debug)]
pub(crate) struct Slots;

impl r2d2::ManageConnection for Slots {
    /// In a box: r2d2 moves it several times at each use.
    type Connection = Box<Slot>;
    type Error = Infallible;

    fn connect(&self) -> Result<Box<Slot>, Infallible> {
        Ok(Box::default())
    }

    fn is_valid(&self, _: &mut Box<Slot>) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Box<Slot>) -> bool {
        false
    }
}

pub(crate) enum Pool {
    Own(OwnPool),
    /// A single connection, for one thread alone.
    One(Mutex<Slot>),
    /// The program's.
    Theirs(Theirs),
}

/// The client's own pool. Its thread starts with the first check-out.
pub(crate) struct OwnPool {
    size: u32,
    timeout: Duration,
    state: RwLock<Stage>,
}

enum Stage {
    New,
    Open(Lanes),
    Closed,
}

/// A pool for each kind of confirmations that commands wait for, all with one thread.
struct Lanes {
    thread: Arc<ScheduledThreadPool>,
    pools: Vec<(Confirm, r2d2::Pool<Slots>)>,
}

impl Lanes {
    fn of(&self, lane: Confirm) -> Option<&r2d2::Pool<Slots>> {
        self.pools.iter().find(|(its, _)| *its == lane).map(|(_, pool)| pool)
    }
}

/// A slot that was checked out.
pub(crate) enum CheckedOut {
    Pooled(PooledConnection<Slots>),
    /// For a pool that has been closed: a grant may arrive just then, and has to be given back.
    Alone(Box<Slot>),
}

impl CheckedOut {
    pub(crate) fn slot(&mut self) -> &mut Slot {
        match self {
            Self::Pooled(slot) => slot,
            Self::Alone(slot) => slot,
        }
    }
}

impl OwnPool {
    pub(crate) fn new(size: u32, timeout: Duration) -> Self {
        Self { size, timeout, state: RwLock::new(Stage::New) }
    }

    /// A slot, as soon as one is free. `None`: none within `wait`, or the pool could not be
    /// started.
    pub(crate) fn check_out(
        &self,
        lane: Confirm,
        wait: impl Fn() -> Duration,
    ) -> Option<CheckedOut> {
        let known = match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            Stage::New => None,
            Stage::Open(lanes) => match lanes.of(lane).map(|pool| (pool.try_get(), pool)) {
                // An idle slot is taken without a look at the clock.
                Some((Some(slot), _)) => return Some(CheckedOut::Pooled(slot)),
                known => known.map(|(_, pool)| pool.clone()),
            },
            Stage::Closed => return Some(CheckedOut::Alone(Box::default())),
        };
        let pool = match known {
            Some(pool) => pool,
            None => match self.open(lane)? {
                Some(pool) => pool,
                None => return Some(CheckedOut::Alone(Box::default())),
            },
        };
        pool.get_timeout(wait()).ok().map(CheckedOut::Pooled)
    }

    /// The pool of this lane, made if there is none. `Some(None)`: all are closed.
    fn open(&self, lane: Confirm) -> Option<Option<r2d2::Pool<Slots>>> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let Stage::New = *state {
            *state = Stage::Open(Lanes { thread: self.start()?, pools: Vec::new() });
        }
        let Stage::Open(lanes) = &mut *state else { return Some(None) };
        if let Some(pool) = lanes.of(lane) {
            return Some(Some(pool.clone()));
        }
        let pool = self.pool(&lanes.thread);
        lanes.pools.push((lane, pool.clone()));
        Some(Some(pool))
    }

    fn start(&self) -> Option<Arc<ScheduledThreadPool>> {
        // This panics if the system has no thread left.
        let thread = || {
            let builder =
                ScheduledThreadPool::builder().num_threads(1).thread_name_pattern("distlock-pool");
            // Otherwise the thread would outlive the pool until its next look for idle slots.
            builder.on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled).build()
        };
        std::panic::catch_unwind(thread).ok().map(Arc::new)
    }

    fn pool(&self, thread: &Arc<ScheduledThreadPool>) -> r2d2::Pool<Slots> {
        r2d2::Pool::builder()
            .max_size(self.size)
            // Slots are made when they are needed: a slot that was made later would lie on top of
            // one that already has a connection, and be taken first.
            .min_idle(Some(0))
            .test_on_check_out(false)
            .idle_timeout(Some(IDLE))
            .max_lifetime(None)
            .connection_timeout(self.timeout)
            .thread_pool(Arc::clone(thread))
            // `build` would only add a wait for the first slots, and here there are none.
            .build_unchecked(Slots)
    }

    /// Closes the idle connections and ends the thread. A connection that is checked out is closed
    /// when it comes back.
    pub(crate) fn close(&self) {
        let was = std::mem::replace(
            &mut *self.state.write().unwrap_or_else(PoisonError::into_inner),
            Stage::Closed,
        );
        drop(was);
    }
}

/// A connection that its pool will discard. r2d2 asks whether a connection is open, and redis-rs
/// says yes even of one that timed out (R6).
///
/// redis-rs takes a connection for closed only when it reads the end of its stream, so this one has
/// a peer on this host that hangs up.
pub(crate) fn closed_connection() -> Option<Connection> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).ok()?;
    let address = ConnectionAddr::Tcp("127.0.0.1".into(), listener.local_addr().ok()?.port());
    let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
    let info = address.into_connection_info().ok()?.set_redis_settings(silent);
    let timeout = Duration::from_millis(500);
    let mut connection =
        redis::Client::open(info).ok()?.get_connection_with_timeout(timeout).ok()?;
    // Accepted first: a connection that was not accepted is reset, and that is not the end of a
    // stream.
    drop(listener.accept().ok()?);
    connection.set_read_timeout(Some(timeout)).ok()?;
    let _ = connection.recv_response();
    (!redis::ConnectionLike::is_open(&connection)).then_some(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_connection_can_be_made() {
        assert!(closed_connection().is_some());
    }
}
