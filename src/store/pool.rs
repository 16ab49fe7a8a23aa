//! The pool: the client's own connections, or those of a program that has a pool already.
//!
//! r2d2 keeps the program's. The client's own it does not: its connector backs off after an outage, hangs on a silent server, and reports a wrong password
//! as a timeout; it closes idle connections only every 30 s; and it looks at the clock five times in each use, which is a good part of what an uncontended lock costs.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use redis::{Connection, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

use crate::base::locked;

/// How often the idle connections are looked at. One that nobody has used since the look before the last is closed: after one to two of these,
const LOOK: Duration = Duration::from_millis(2500);
/// unless so few are left.
const KEPT: usize = 1;

/// A place for one connection. Whoever checks it out opens the connection in it.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) connection: Option<Connection>,
    /// What the socket's timeouts are set to.
    pub(super) timeout: Option<Duration>,
    /// How many failures the node had seen when the connection was opened (R6).
    pub(super) generation: u64,
    /// Where its commands are packed.
    pub(super) buffer: Vec<u8>,
}

pub(super) enum Pool {
    Own(OwnPool),
    /// A single connection, for one thread alone.
    One(Mutex<Slot>),
    /// The program's.
    Theirs(r2d2::Pool<redis::Client>),
}

/// The client's own pool: at most so many connections, first come first served, the one used last first. What a rush has opened is closed after it.
pub(super) struct OwnPool {
    shared: Arc<Shared>,
}

struct Shared {
    size: usize,
    state: Mutex<State>,
    /// For the thread that closes what is idle: the pool was closed.
    closed: Condvar,
}

#[derive(Default)]
struct State {
    /// With the number of the look before which each was used last: cheaper than the time. The one used last is on top, so the least used sink to the
    /// bottom, and stay idle.
    idle: Vec<(Box<Slot>, u64)>,
    /// How often the idle ones were looked at.
    looks: u64,
    /// How many are checked out.
    out: usize,
    /// Who waits for one, and what it is handed over by. Nobody waits while one is idle, or while fewer than `size` are out.
    waiting: VecDeque<(u64, Sender<Box<Slot>>)>,
    last_ticket: u64,
    /// Whether there is a thread that closes what is idle.
    sweeping: bool,
    closed: bool,
}

/// A slot that was checked out. It goes back when dropped, also while its user panics.
pub(super) struct CheckedOut<'a> {
    slot: Option<Box<Slot>>,
    /// `None`: of a pool that has been closed. A grant may arrive just then, and somebody has to give it back.
    pool: Option<&'a Arc<Shared>>,
}

impl CheckedOut<'_> {
    pub(super) fn slot(&mut self) -> &mut Slot {
        self.slot.get_or_insert_default()
    }
}

impl Drop for CheckedOut<'_> {
    fn drop(&mut self) {
        if let (Some(slot), Some(pool)) = (self.slot.take(), self.pool) {
            pool.check_in(slot);
        }
    }
}

impl OwnPool {
    pub(super) fn new(size: u32) -> Self {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        Self { shared: Arc::new(Shared { size, state: Mutex::default(), closed: Condvar::new() }) }
    }

    /// A slot, as soon as one is free. `None`: none within `wait`.
    pub(super) fn check_out(&self, wait: impl Fn() -> Duration) -> Option<CheckedOut<'_>> {
        let (pool, alone) = (Some(&self.shared), CheckedOut { slot: None, pool: None });
        let mut state = locked(&self.shared.state);
        if state.closed {
            return Some(alone);
        }
        if state.out < self.shared.size {
            state.out += 1;
            // One that is idle is had without a look at the clock.
            let slot = state.idle.pop().map(|(slot, _)| slot);
            drop(state);
            return Some(CheckedOut { slot: Some(slot.unwrap_or_default()), pool });
        }
        let (give, given) = bounded(1);
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.waiting.push_back((ticket, give));
        drop(state);
        let slot = given.recv_timeout(wait()).ok().or_else(|| {
            let mut state = locked(&self.shared.state);
            state.waiting.retain(|(waiting, _)| *waiting != ticket);
            // It may have come at the very moment at which the wait was over.
            given.try_recv().ok()
        });
        match slot {
            Some(slot) => Some(CheckedOut { slot: Some(slot), pool }),
            None => locked(&self.shared.state).closed.then_some(alone),
        }
    }

    /// Closes what is idle and ends the thread; what is checked out follows when it comes back.
    pub(super) fn close(&self) {
        let mut state = locked(&self.shared.state);
        state.closed = true;
        state.waiting.clear();
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        self.shared.closed.notify_all();
        drop(idle);
    }
}

impl Drop for OwnPool {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn check_in(self: &Arc<Self>, mut slot: Box<Slot>) {
        let mut state = locked(&self.state);
        while let Some((_, give)) = state.waiting.pop_front() {
            match give.send(slot) {
                Ok(()) => return,
                Err(unsent) => slot = unsent.into_inner(),
            }
        }
        state.out -= 1;
        // What has no connection is of no use, and would only lie on top of those that have one.
        if state.closed || slot.connection.is_none() {
            drop(state);
            return drop(slot);
        }
        let looks = state.looks;
        state.idle.push((slot, looks));
        if state.idle.len() > KEPT && !state.sweeping {
            let shared = Arc::clone(self);
            // Without a thread they stay open until there is one.
            state.sweeping = thread::Builder::new().name("distlock-pool".into()).spawn(move || shared.sweep()).is_ok();
        }
    }

    /// Closes what nobody uses, until few enough are left.
    fn sweep(&self) {
        let mut state = locked(&self.state);
        let mut next = Instant::now() + LOOK;
        while state.idle.len() > KEPT && !state.closed {
            let left = next.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                state = self.closed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let looks = state.looks;
            let unused = state.idle.iter().take_while(|(_, used)| *used < looks).count().min(state.idle.len() - KEPT);
            let unused: Vec<_> = state.idle.drain(..unused).collect();
            state.looks += 1;
            drop(state);
            drop(unused);
            next = Instant::now() + LOOK;
            state = locked(&self.state);
        }
        state.sweeping = false;
    }
}

/// A connection that its pool will discard: r2d2 asks whether it is open, and redis-rs says so of one that timed out (R6).
///
/// redis-rs closes a connection only when it reads the end of its stream, so this one has a peer on this host that hangs up.
pub(super) fn closed_connection() -> Option<Connection> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).ok()?;
    let address = ConnectionAddr::Tcp("127.0.0.1".into(), listener.local_addr().ok()?.port());
    let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
    let info = address.into_connection_info().ok()?.set_redis_settings(silent);
    let timeout = Duration::from_millis(500);
    let mut connection = redis::Client::open(info).ok()?.get_connection_with_timeout(timeout).ok()?;
    // Accepted first: a connection that nobody accepted is reset, and that is no end of a stream.
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

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_full_pool_serves_those_who_wait_in_their_order() {
        let pool = OwnPool::new(1);
        let held = pool.check_out(|| LONG);
        let (say, hear) = bounded(8);
        thread::scope(|scope| {
            for number in 0..4 {
                let (pool, say) = (&pool, say.clone());
                scope.spawn(move || {
                    let _slot = pool.check_out(|| LONG);
                    say.send(number)
                });
                while locked(&pool.shared.state).waiting.len() <= number {
                    thread::yield_now();
                }
            }
            drop(held);
            assert_eq!(hear.iter().take(4).collect::<Vec<_>>(), [0, 1, 2, 3]);
        });
        let state = locked(&pool.shared.state);
        assert_eq!((state.out, state.waiting.len()), (0, 0));
    }

    #[test]
    fn a_wait_that_is_over_leaves_nothing_and_takes_nothing() {
        let pool = OwnPool::new(1);
        let held = pool.check_out(|| LONG);
        assert!(pool.check_out(|| Duration::ZERO).is_none());
        drop(held);
        assert!(pool.check_out(|| Duration::ZERO).is_some());
    }

    #[test]
    fn a_pool_that_is_closed_keeps_nobody_waiting() {
        let pool = OwnPool::new(1);
        let held = pool.check_out(|| LONG);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.check_out(|| LONG).is_some_and(|slot| slot.pool.is_none()));
            while locked(&pool.shared.state).waiting.is_empty() {
                thread::yield_now();
            }
            pool.close();
            assert!(waiting.join().expect("no panic"));
        });
        drop(held);
        assert_eq!(locked(&pool.shared.state).out, 0);
    }
}
