//! Thread-local hold counts: what this thread holds, and what a dying thread leaves.

use std::cell::RefCell;
use std::sync::Arc;

use super::SharedLock;
use crate::base::options::LockOptions;
use crate::lease::{Ended, Lease};

/// A lock that this thread holds.
pub(crate) struct Hold {
    pub(crate) lock: Arc<SharedLock>,
    pub(crate) options: Arc<LockOptions>,
    pub(crate) lease: Arc<Lease>,
    /// The turn that comes with it.
    pub(crate) ticket: u64,
    /// How often it was locked and not yet unlocked.
    pub(crate) count: u32,
    pub(crate) fence: Option<u64>,
}

/// What an unlock came to.
pub(crate) enum Dropped {
    NotHeld,
    /// Held still; whether the lease is lost.
    Held {
        lost: bool,
    },
    Last(Hold),
}

/// Few at a time, so a scan by identity beats any map.
struct Holds(RefCell<Vec<Hold>>);

thread_local! {
    static HOLDS: Holds = const { Holds(RefCell::new(Vec::new())) };
}

/// Looks at this thread's hold of `lock`; `None` if it has none.
pub(crate) fn with<R>(lock: &Arc<SharedLock>, look: impl FnOnce(&mut Hold) -> R) -> Option<R> {
    // Gone already, or in use further up this very call chain: both mean that this thread can hold nothing here.
    HOLDS
        .try_with(|holds| holds.0.try_borrow_mut().ok()?.iter_mut().rev().find(|hold| Arc::ptr_eq(&hold.lock, lock)).map(look))
        .ok()
        .flatten()
}

/// Enters a hold. Gives it back where the thread is ending and can hold nothing any more.
pub(crate) fn enter(hold: Hold) -> Result<(), Hold> {
    let mut hold = Some(hold);
    let _ = HOLDS.try_with(|holds| {
        if let Ok(mut holds) = holds.0.try_borrow_mut() {
            holds.extend(hold.take());
        }
    });
    hold.map_or(Ok(()), Err)
}

/// Takes the whole hold out, with all its levels.
pub(crate) fn take(lock: &Arc<SharedLock>) -> Option<Hold> {
    HOLDS
        .try_with(|holds| {
            let mut holds = holds.0.try_borrow_mut().ok()?;
            let at = holds.iter().rposition(|hold| Arc::ptr_eq(&hold.lock, lock))?;
            Some(holds.swap_remove(at))
        })
        .ok()
        .flatten()
}

/// Takes one level off.
pub(crate) fn drop_one(lock: &Arc<SharedLock>) -> Dropped {
    HOLDS
        .try_with(|holds| {
            let mut holds = holds.0.try_borrow_mut().ok()?;
            let at = holds.iter().rposition(|hold| Arc::ptr_eq(&hold.lock, lock))?;
            let hold = &mut holds[at];
            hold.count -= 1;
            Some(if hold.count == 0 { Dropped::Last(holds.swap_remove(at)) } else { Dropped::Held { lost: hold.lease.is_over() } })
        })
        .ok()
        .flatten()
        .unwrap_or(Dropped::NotHeld)
}

impl Drop for Holds {
    /// The thread ends, or panicked, while it holds (R11).
    ///
    /// No I/O here, nothing that can wait for a server, no logging, and no panic: a panic in a thread-local destructor aborts the process.
    /// The cleaner does the rest. It runs: it was started before the lease was asked for.
    fn drop(&mut self) {
        for hold in self.0.get_mut().drain(..) {
            let background = &hold.lock.background;
            if background.is_forked() {
                // The parent's. Not even dropped: that could wait for a mutex that another thread held when this process was copied.
                std::mem::forget(hold);
                continue;
            }
            background.finish(&hold.lease, Ended::Abandoned);
            hold.lock.turn.leave(hold.ticket);
        }
    }
}
