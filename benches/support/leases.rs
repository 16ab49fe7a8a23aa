//! A client that holds many leases and is watched.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock::{ClientBuilder, LockOptions, RedisLock};

use super::watch::{Seen, Watch};

/// Holds them until it is dropped.
pub struct Leases {
    _locks: Vec<RedisLock>,
    client: distlock::Client,
    pub seen: Arc<Mutex<Seen>>,
    lost: Arc<Mutex<Vec<String>>>,
}

impl Leases {
    /// Takes so many locks, one by one.
    pub fn hold(client: ClientBuilder, count: usize, lease: Duration) -> Self {
        let (seen, lost) = (Arc::<Mutex<Seen>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let for_store = Arc::clone(&seen);
        let wrap = move |inner| Arc::new(Watch { inner, seen: Arc::clone(&for_store) }) as Arc<_>;
        let client =
            client.lock_options(LockOptions::new().lease(lease)).wrap(wrap).build().unwrap();
        let names = || (0..count).map(|at| format!("renewal:{at}"));
        let locks: Vec<RedisLock> = names().map(|name| client.lock(&name)).collect();
        for (lock, name) in locks.iter().zip(names()) {
            let lost = Arc::clone(&lost);
            lock.on_lost(move |_| lost.lock().unwrap().push(name.clone()));
        }
        locks.iter().for_each(|lock| lock.lock().unwrap());
        Self { _locks: locks, client, seen, lost }
    }

    /// The names of those that were lost.
    pub fn lost(&self) -> Vec<String> {
        self.lost.lock().unwrap().clone()
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // There is no wait for the rest: leases that are not withdrawn in time are flushed.
        let _ = self.client.close(Duration::from_secs(5));
    }
}
