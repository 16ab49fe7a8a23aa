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

/// How often it is looked at which connections are needed. Those that fewer than one in [`RARE`] check-outs needed since the last look are closed,
const LOOK: Duration = Duration::from_millis(2500);
const RARE: u64 = 50;
/// down to so many.
const KEPT: usize = 1;
/// So long it is worth waiting for a connection that is in use before another one is opened, which takes about as long:
const WORTH: Duration = Duration::from_millis(1);
/// unless so many have had to wait lately. A thousand waiters that each ask once a second meet now and then, and need no more than two connections.
const PRESSED: u32 = 8;

/// A place for one connection. Whoever checks it out opens the connection in it.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) connection: Option<Connection>,
    pub(super) state: super::wire::State,
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
    /// For the thread that closes what is not needed: the pool was closed.
    closed: Condvar,
}

#[derive(Default)]
struct State {
    /// The one used last is on top.
    #[allow(clippy::vec_box, reason = "each goes in and out all the time, and a connection is some hundred bytes long")]
    idle: Vec<Box<Slot>>,
    /// How many are checked out.
    out: usize,
    /// Who waits for one, and what it is handed over by. Nobody waits while one is idle.
    waiting: VecDeque<(u64, Sender<Box<Slot>>)>,
    last_ticket: u64,
    /// How many more have had to wait, lately, than have found one idle.
    pressed: u32,
    /// How many check-outs since the last look have found so many out, by that number.
    needed: Vec<u64>,
    /// Whether there is a thread that closes what is not needed.
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
        let (size, alone) = (self.shared.size, CheckedOut { slot: None, pool: None });
        let pooled = |slot| Some(CheckedOut { slot: Some(slot), pool: Some(&self.shared) });
        let mut state = locked(&self.shared.state);
        if state.closed {
            return Some(alone);
        }
        if let Some(slot) = state.check_out(size) {
            drop(state);
            return pooled(slot);
        }
        let (give, given) = bounded(1);
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.waiting.push_back((ticket, give));
        drop(state);
        for longest in [WORTH, Duration::MAX] {
            if let Ok(slot) = given.recv_timeout(wait().min(longest)) {
                return pooled(slot);
            }
            let mut state = locked(&self.shared.state);
            // It may have come at the very moment at which the wait was over.
            if let Ok(slot) = given.try_recv() {
                return pooled(slot);
            }
            if state.closed {
                return Some(alone);
            }
            if state.out < size {
                state.forget(ticket);
                state.out += 1;
                return pooled(Box::default());
            }
        }
        let mut state = locked(&self.shared.state);
        state.forget(ticket);
        given.try_recv().ok().and_then(pooled)
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
        state.idle.push(slot);
        if state.idle.len() + state.out > KEPT && !state.sweeping {
            let shared = Arc::clone(self);
            // Without a thread they stay open until there is one.
            state.sweeping = thread::Builder::new().name("distlock-pool".into()).spawn(move || shared.sweep()).is_ok();
        }
    }

    /// Closes what is not needed, until few enough are left.
    fn sweep(&self) {
        let mut state = locked(&self.state);
        let mut next = Instant::now() + LOOK;
        while state.idle.len() + state.out > KEPT && !state.closed {
            let left = next.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                state = self.closed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let surplus = (state.idle.len() + state.out).saturating_sub(enough(&state.needed)).min(state.idle.len());
            let unused: Vec<_> = state.idle.drain(..surplus).collect();
            state.needed.clear();
            drop(state);
            drop(unused);
            next = Instant::now() + LOOK;
            state = locked(&self.state);
        }
        state.sweeping = false;
    }
}

impl State {
    /// One that is idle, or a new one where that is better than to wait.
    fn check_out(&mut self, size: usize) -> Option<Box<Slot>> {
        let out = self.out;
        if out >= self.needed.len() {
            self.needed.resize(out + 1, 0);
        }
        self.needed[out] += 1;
        if let Some(slot) = self.idle.pop() {
            self.pressed = self.pressed.saturating_sub(1);
            self.out += 1;
            return Some(slot);
        }
        if out == 0 || (out < size && self.pressed >= PRESSED) {
            self.out += 1;
            return Some(Box::default());
        }
        self.pressed = (self.pressed + 1).min(2 * PRESSED);
        None
    }

    fn forget(&mut self, ticket: u64) {
        self.waiting.retain(|(waiting, _)| *waiting != ticket);
    }
}

/// How many connections are enough for check-outs of which so many found none out, one, two, and so on.
fn enough(needed: &[u64]) -> usize {
    let all: u64 = needed.iter().sum();
    needed.iter().rposition(|&count| count * RARE > all).map_or(0, |found| found + 1).max(KEPT)
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
    fn a_connection_that_comes_back_at_once_spares_another() {
        let mut state = State::default();
        let slot = state.check_out(8).expect("the first");
        assert!(state.check_out(8).is_none(), "the first will be back soon");
        (state.idle, state.out) = (vec![slot], 0);
        assert!(state.check_out(8).is_some());
        assert_eq!((state.out, state.idle.len()), (1, 0));
    }

    #[test]
    fn a_connection_that_does_not_come_back_is_not_waited_for() {
        let pool = OwnPool::new(2);
        let held = pool.check_out(|| LONG);
        assert!(pool.check_out(|| LONG).is_some(), "another one is opened");
        drop(held);
    }

    #[test]
    fn where_many_have_to_wait_nobody_waits_for_long() {
        let mut state = State { out: 1, ..State::default() };
        let waited = (0..100).take_while(|_| state.check_out(8).is_none()).count();
        assert_eq!((waited, state.out), (PRESSED as usize, 2));
        assert!(state.check_out(8).is_some());
        state.out = 8;
        assert!(state.check_out(8).is_none(), "and never more than there may be");
    }

    #[test]
    fn what_is_needed_now_and_then_is_not_kept() {
        assert_eq!(enough(&[]), KEPT);
        assert_eq!(enough(&[850, 130, 15, 1]), 2);
        assert_eq!(enough(&[10, 10, 10, 10]), 4);
        assert_eq!(enough(&[3, 1]), 2);
    }

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
