//! A lock of the program's own, behind the same trait: code that takes a `&dyn Lock` can be given
//! one.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use distlock::{ErrorKind, Interrupt, Lock, Result};

/// Excludes the threads of one process. Not re-entrant.
#[derive(Clone, Debug, Default)]
struct InProcess(Arc<State>);

#[derive(Debug, Default)]
struct State {
    holder: Mutex<Option<ThreadId>>,
    released: Condvar,
}

impl Lock for InProcess {
    fn lock(&self) -> Result<()> {
        let holder = self.0.holder.lock().unwrap();
        let mut free = self.0.released.wait_while(holder, |holder| holder.is_some()).unwrap();
        *free = Some(thread::current().id());
        Ok(())
    }

    fn lock_interruptibly(&self, _interrupt: &Interrupt) -> Result<()> {
        self.lock()
    }

    fn try_lock(&self, timeout: Duration) -> Result<bool> {
        let holder = self.0.holder.lock().unwrap();
        let (mut holder, _) =
            self.0.released.wait_timeout_while(holder, timeout, |holder| holder.is_some()).unwrap();
        let free = holder.is_none();
        if free {
            *holder = Some(thread::current().id());
        }
        Ok(free)
    }

    fn try_lock_interruptibly(&self, timeout: Duration, _interrupt: &Interrupt) -> Result<bool> {
        self.try_lock(timeout)
    }

    fn unlock(&self) -> Result<()> {
        *self.0.holder.lock().unwrap() = None;
        self.0.released.notify_one();
        Ok(())
    }
}

/// What a program has under test: it knows the trait only.
fn take(lock: &dyn Lock, items: &Mutex<Vec<u32>>) -> Result<Option<u32>> {
    lock.with(|| items.lock().unwrap().pop())
}

#[test]
fn code_that_takes_any_lock_can_be_given_the_programs_own() {
    let (lock, items) = (InProcess::default(), Mutex::new(vec![7]));
    let guard = (&lock as &dyn Lock).guard().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| take(&lock, &items).unwrap());
        let other = (&lock as &dyn Lock).try_guard(Duration::ZERO).unwrap();
        assert!(other.is_none());
        guard.release().unwrap();
        assert_eq!(waiting.join().unwrap(), Some(7));
    });
    assert!(lock.new_condition("c").unwrap_err().is_unsupported());
    // Dropping a guard unlocks, too.
    drop((&lock as &dyn Lock).guard().unwrap());
    assert!(lock.try_lock(Duration::ZERO).unwrap());
}

/// A lock of a test, which fails.
struct Down;

impl Lock for Down {
    fn lock(&self) -> Result<()> {
        Err(ErrorKind::Unavailable.into())
    }

    fn lock_interruptibly(&self, _interrupt: &Interrupt) -> Result<()> {
        self.lock()
    }

    fn try_lock(&self, _timeout: Duration) -> Result<bool> {
        Ok(true)
    }

    fn try_lock_interruptibly(&self, _timeout: Duration, _interrupt: &Interrupt) -> Result<bool> {
        Ok(true)
    }

    fn unlock(&self) -> Result<()> {
        Err(ErrorKind::Lost.into())
    }
}

#[test]
fn a_programs_own_lock_can_fail_like_ours() {
    let down: &dyn Lock = &Down;
    assert!(down.guard().unwrap_err().is_unavailable());
    assert!(down.with(|| ()).unwrap_err().is_unavailable());
    let guard = down.try_guard(Duration::ZERO).unwrap().unwrap();
    assert!(guard.release().unwrap_err().is_lost());
}
