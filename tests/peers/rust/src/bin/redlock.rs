//! redlock: a TCP connection per command, by its own design.

use std::collections::HashMap;
use std::time::Duration;

use peers::{OWN_PAUSE, Peer, Result, hex};
use redlock::{Lock, RedLock};

struct Redlock {
    patient: RedLock,
    hasty: RedLock,
    held: HashMap<String, Vec<u8>>,
}

fn attempt(manager: &RedLock, key: &str, lease: Duration) -> Result<Option<Vec<u8>>> {
    let lease_ms = usize::try_from(lease.as_millis())?;
    Ok(manager.lock(key.as_bytes(), lease_ms)?.map(|lock| lock.val))
}

impl Peer for Redlock {
    fn connect(url: &str, sleep: Duration) -> Result<Self> {
        let mut patient = RedLock::new(vec![url]);
        let pause = if sleep.is_zero() { OWN_PAUSE } else { sleep };
        patient.set_retry(u32::MAX, u32::try_from(pause.as_millis())?);
        let mut hasty = patient.clone();
        // It pauses after its last attempt too: below one millisecond here.
        hasty.set_retry(1, 1);
        Ok(Redlock { patient, hasty, held: HashMap::new() })
    }

    fn lock(&mut self, key: &str, lease: Duration) -> Result<()> {
        let value = attempt(&self.patient, key, lease)?.ok_or("gave up")?;
        self.held.insert(key.into(), value);
        Ok(())
    }

    fn try_lock(&mut self, key: &str, lease: Duration) -> Result<bool> {
        let value = attempt(&self.hasty, key, lease)?;
        let granted = value.is_some();
        self.held.extend(value.map(|value| (key.into(), value)));
        Ok(granted)
    }

    fn unlock(&mut self, key: &str) -> Result<bool> {
        let Some(val) = self.held.remove(key) else { return Ok(false) };
        let manager = &self.patient;
        manager.unlock(&Lock {
            resource: key.into(),
            val,
            validity_time: 0,
            lock_manager: manager,
        });
        Ok(true)
    }

    fn value(&self, key: &str) -> Option<String> {
        self.held.get(key).map(|value| hex(value))
    }
}

fn main() {
    peers::main::<Redlock>();
}
