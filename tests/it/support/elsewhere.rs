//! A lock that another thread holds, or waits for.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use distlock::RedisLock;

use crate::helpers::SOON;

/// A thread that locks, and holds the lock until it is told to unlock it.
pub struct Elsewhere {
    unlock: Sender<()>,
    locked: Receiver<()>,
    thread: JoinHandle<distlock::Result<()>>,
}

impl Elsewhere {
    /// Returns once the other thread holds it.
    #[track_caller]
    pub fn holds(lock: &RedisLock) -> Elsewhere {
        let elsewhere = Elsewhere::locks(lock);
        elsewhere.has_it();
        elsewhere
    }

    /// Begins to lock on the other thread.
    pub fn locks(lock: &RedisLock) -> Elsewhere {
        let (unlock, told) = mpsc::channel::<()>();
        let (has_it, locked) = mpsc::channel();
        let lock = lock.clone();
        let thread = thread::spawn(move || {
            lock.lock()?;
            let _ = has_it.send(());
            // Disconnected: the test is over, passed or failed.
            let _ = told.recv();
            lock.unlock()
        });
        Elsewhere { unlock, locked, thread }
    }

    /// Waits until the other thread holds it.
    #[track_caller]
    pub fn has_it(&self) {
        self.locked.recv_timeout(SOON * 3).unwrap();
    }

    /// Whether the other thread holds it now.
    pub fn has_locked(&self) -> bool {
        self.locked.try_recv().is_ok()
    }

    /// Has the thread unlock as soon as it has locked, and returns the result of both.
    pub fn unlock(self) -> distlock::Result<()> {
        drop(self.unlock);
        self.thread.join().unwrap()
    }
}
