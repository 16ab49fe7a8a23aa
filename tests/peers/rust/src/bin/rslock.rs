//! rslock, on a current-thread runtime and with a connection per thread.

use std::collections::HashMap;
use std::time::Duration;

use peers::{OWN_PAUSE, Peer, Result, hex};
use rslock::{Lock, LockError, LockManager};
use tokio::runtime::{Builder, Runtime};

struct Rslock {
    runtime: Runtime,
    patient: LockManager,
    hasty: LockManager,
    held: HashMap<String, Lock>,
}

impl Peer for Rslock {
    fn connect(url: &str, sleep: Duration) -> Result<Self> {
        let mut patient = LockManager::new(vec![url]);
        let pause = if sleep.is_zero() { OWN_PAUSE } else { sleep };
        patient.set_retry(u32::MAX, pause);
        // Shares the connection; a clone has its own retry.
        let mut hasty = patient.clone();
        hasty.set_retry(1, pause);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Rslock { runtime, patient, hasty, held: HashMap::new() })
    }

    fn lock(&mut self, key: &str, lease: Duration) -> Result<()> {
        let lock = self.runtime.block_on(self.patient.acquire_no_guard(key, lease))?;
        self.held.insert(key.into(), lock);
        Ok(())
    }

    fn try_lock(&mut self, key: &str, lease: Duration) -> Result<bool> {
        match self.runtime.block_on(self.hasty.lock(key, lease)) {
            Ok(lock) => {
                self.held.insert(key.into(), lock);
                Ok(true)
            }
            Err(LockError::Unavailable) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn unlock(&mut self, key: &str) -> Result<bool> {
        let Some(lock) = self.held.remove(key) else { return Ok(false) };
        self.runtime.block_on(lock.release());
        Ok(true)
    }

    fn value(&self, key: &str) -> Option<String> {
        self.held.get(key).map(|lock| hex(&lock.val))
    }
}

fn main() {
    peers::main::<Rslock>();
}
