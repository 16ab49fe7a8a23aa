//! The pool: r2d2 counts and queues, but never connects.
//!
//! r2d2's own connector backs off after an outage, hangs on a silent server, and reports a wrong
//! password as a timeout. So r2d2 keeps *slots*: making one cannot fail, and the thread that checks
//! one out opens the connection in it.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use r2d2::PooledConnection;
use scheduled_thread_pool::{OnPoolDropBehavior, ScheduledThreadPool};

use super::connection::Connection;
use super::program_pool::ProgramPool;
use super::settings::{Among, PoolThread, Settings};
use crate::base::locked;

/// How long an unused connection is kept: the connections that a rush opened are closed after it.
/// r2d2 looks every 30 s.
const IDLE: Duration = Duration::from_secs(20);

/// A place for one connection.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) connection: Option<Connection>,
    pub(crate) state: super::exchange::ConnectionState,
    /// How many failures the node had seen when the connection was opened (R6).
    pub(crate) generation: u64,
    /// Where its commands are packed.
    pub(crate) buffer: Vec<u8>,
}

impl Slot {
    /// Whether it has a connection that was opened after so many failures.
    pub(crate) fn is_open(&self, generation: u64) -> bool {
        self.connection.is_some() && self.generation == generation
    }
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
    Programs(Arc<ProgramPool>),
}

impl Pool {
    pub(crate) fn new(settings: &Settings) -> Self {
        match &settings.pool {
            Some(pool) => Self::Programs(Arc::new(ProgramPool::new(pool.clone()))),
            None if matches!(settings.among, Among::Quorum(_)) => Self::One(Mutex::default()),
            None => Self::Own(OwnPool {
                size: settings.pool_size,
                timeout: settings.command_timeout,
                thread: Arc::clone(&settings.pool_thread),
                state: RwLock::new(Stage::New),
            }),
        }
    }

    /// One more pool of this kind. There is only one of the program's.
    pub(crate) fn another(&self) -> Self {
        match self {
            Self::Own(pool) => Self::Own(pool.another()),
            Self::One(_) => Self::One(Mutex::default()),
            Self::Programs(pool) => Self::Programs(Arc::clone(pool)),
        }
    }
}

/// A pool of the client's own. Its thread starts with the first check-out.
pub(crate) struct OwnPool {
    size: u32,
    timeout: Duration,
    thread: PoolThread,
    state: RwLock<Stage>,
}

enum Stage {
    New,
    Open(r2d2::Pool<Slots>),
    Closed,
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
    fn another(&self) -> Self {
        let thread = Arc::clone(&self.thread);
        Self { size: self.size, timeout: self.timeout, thread, state: RwLock::new(Stage::New) }
    }

    /// A slot, as soon as one is free. `None`: none within `wait`, or the pool could not be
    /// started.
    pub(crate) fn check_out(&self, wait: impl Fn() -> Duration) -> Option<CheckedOut> {
        let open = match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            Stage::New => None,
            Stage::Open(pool) => match pool.try_get() {
                // An idle slot is taken without a look at the clock.
                Some(slot) => return Some(CheckedOut::Pooled(slot)),
                None => Some(pool.clone()),
            },
            Stage::Closed => return Some(CheckedOut::Alone(Box::default())),
        };
        let pool = match open {
            Some(pool) => pool,
            None => match self.open()? {
                Some(pool) => pool,
                None => return Some(CheckedOut::Alone(Box::default())),
            },
        };
        pool.get_timeout(wait()).ok().map(CheckedOut::Pooled)
    }

    /// A slot that is `wanted`, as soon as one is free. `None`: none within `wait`.
    pub(crate) fn find(
        &self,
        wait: impl Fn() -> Duration,
        wanted: impl Fn(&Slot) -> bool,
    ) -> Option<CheckedOut> {
        // Kept until all have been looked at: otherwise the pool would hand out the same one again.
        let mut others = Vec::new();
        for _ in 0..self.size {
            let mut slot = self.check_out(&wait)?;
            if wanted(slot.slot()) {
                return Some(slot);
            }
            others.push(slot);
        }
        None
    }

    /// The pool, made if it has not been. `Some(None)`: it is closed.
    fn open(&self) -> Option<Option<r2d2::Pool<Slots>>> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let Stage::New = *state {
            *state = Stage::Open(self.pool(self.start()?));
        }
        let Stage::Open(pool) = &*state else { return Some(None) };
        Some(Some(pool.clone()))
    }

    /// The thread of all pools, started if it has not been.
    fn start(&self) -> Option<Arc<ScheduledThreadPool>> {
        let mut thread = locked(&self.thread);
        if let Some(started) = thread.upgrade() {
            return Some(started);
        }
        // This panics if the system has no thread left.
        let start = || {
            let builder =
                ScheduledThreadPool::builder().num_threads(1).thread_name_pattern("distlock-pool");
            // Otherwise the thread would outlive the pool until its next look for idle slots.
            builder.on_drop_behavior(OnPoolDropBehavior::DiscardPendingScheduled).build()
        };
        let started = std::panic::catch_unwind(start).ok().map(Arc::new)?;
        *thread = Arc::downgrade(&started);
        Some(started)
    }

    fn pool(&self, thread: Arc<ScheduledThreadPool>) -> r2d2::Pool<Slots> {
        r2d2::Pool::builder()
            .max_size(self.size)
            // Slots are made when they are needed: a slot that was made later would lie on top of
            // one that already has a connection, and be taken first.
            .min_idle(Some(0))
            .test_on_check_out(false)
            .idle_timeout(Some(IDLE))
            .max_lifetime(None)
            .connection_timeout(self.timeout)
            .thread_pool(thread)
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
