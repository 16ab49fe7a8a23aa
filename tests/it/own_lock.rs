//! A lock of the program's own, behind the same traits: code that takes a `&dyn Lock` can be given
//! one, conditions included.

use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use distlock::{Condition, ConditionLock, Interrupt, Lock, Result};

use crate::helpers::{SOON, ms};

/// Excludes the threads of one process. Not re-entrant.
#[derive(Clone, Debug, Default)]
struct InProcess(Arc<State>);

#[derive(Debug, Default)]
struct State {
    holder: Mutex<Option<ThreadId>>,
    released: Condvar,
    /// How many notifications there were, for as many conditions as there are: one.
    notified: Mutex<u32>,
    heard: Condvar,
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

    fn new_condition(&self, name: &str) -> Result<Condition> {
        Condition::new(Arc::new(self.clone()), name)
    }
}

impl ConditionLock for InProcess {
    fn wait_in(
        &self,
        _condition: &str,
        timeout: Option<Duration>,
        _interrupt: Option<&Interrupt>,
    ) -> Result<bool> {
        let notified = self.0.notified.lock().unwrap();
        let before = *notified;
        self.unlock()?;
        let timeout = timeout.unwrap_or(SOON);
        let (notified, waited) = self
            .0
            .heard
            .wait_timeout_while(notified, timeout, |notified| *notified == before)
            .unwrap();
        drop(notified);
        self.lock()?;
        Ok(!waited.timed_out())
    }

    fn notify(&self, _condition: &str, _most: u32) -> Result<()> {
        *self.0.notified.lock().unwrap() += 1;
        self.0.heard.notify_all();
        Ok(())
    }
}

/// What a program has under test: it knows the traits only.
fn take_when_there_is_something(lock: &dyn Lock, items: &Mutex<Vec<u32>>) -> Result<u32> {
    lock.lock()?;
    let not_empty = lock.new_condition("not-empty")?;
    not_empty.wait_while(|| items.lock().unwrap().is_empty())?;
    let item = items.lock().unwrap().pop().unwrap();
    lock.unlock()?;
    Ok(item)
}

#[test]
fn the_programs_own_lock_can_have_conditions() {
    let (lock, items) = (InProcess::default(), Arc::new(Mutex::new(Vec::new())));
    let (say, hear) = mpsc::channel();
    {
        let (lock, items) = (lock.clone(), Arc::clone(&items));
        thread::spawn(move || say.send(take_when_there_is_something(&lock, &items)).unwrap());
    }
    lock.lock().unwrap();
    items.lock().unwrap().push(7);
    lock.new_condition("not-empty").unwrap().notify_one().unwrap();
    lock.unlock().unwrap();
    assert_eq!(hear.recv_timeout(SOON).unwrap().unwrap(), 7);
}

#[test]
fn a_condition_of_the_programs_own_lock_reports_a_timeout() {
    let lock = InProcess::default();
    lock.lock().unwrap();
    let condition = lock.new_condition("c").unwrap();
    assert!(!condition.wait_timeout(ms(20)).unwrap());
    assert_eq!((condition.name(), lock.try_lock(Duration::ZERO).unwrap()), ("c", false));
    assert!(lock.new_condition("").unwrap_err().to_string().contains("1 to 256 bytes"));
}
