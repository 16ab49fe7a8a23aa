//! A wrapper of the real store that notes when leases were granted and extended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use distlock::testing::{
    Abilities, Answer, Ask, Bell, Extend, Gone, Key, LeaseStore, Listening, Look, Release, State,
    StoreError, Token, Withdraw, Within,
};
use distlock::{Error, LockOptions};

/// The observations.
#[derive(Default)]
pub struct Seen {
    /// For each lease, when it was last granted, or when its last successful extend was sent.
    last: HashMap<String, Instant>,
    /// How long after a third of the lease each extend was sent, in nanoseconds. Early ones count
    /// as 0.
    pub late: Vec<u64>,
    /// The rest of each lease when its extend was answered, as a share of the lease.
    pub margins: Vec<f64>,
    pub extends: u64,
    pub calls: u64,
    pub not_ours: u64,
    pub unknown: u64,
}

/// The store around the real one.
pub struct Watch {
    pub inner: Arc<dyn LeaseStore>,
    pub seen: Arc<Mutex<Seen>>,
}

impl Seen {
    /// Forgets everything but when each lease was last extended.
    pub fn begin(&mut self) {
        *self = Self { last: std::mem::take(&mut self.last), ..Self::default() };
    }

    /// From now on, does not note how late the extends of these leases are.
    pub fn leave_out<'a>(&mut self, keys: impl IntoIterator<Item = &'a String>) {
        for key in keys {
            self.last.remove(key);
        }
    }
}

impl LeaseStore for Watch {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        let answer = self.inner.try_acquire(ask)?;
        if let Answer::Granted { asked_at, .. } = answer {
            self.seen.lock().unwrap().last.insert(ask.key.as_str().to_owned(), asked_at);
        }
        Ok(answer)
    }

    fn extend(&self, leases: &[Extend<'_>], within: Within) -> Vec<Result<bool, StoreError>> {
        let sent = Instant::now();
        let answers = self.inner.extend(leases, within);
        let answered = Instant::now();
        let mut seen = self.seen.lock().unwrap();
        seen.calls += 1;
        for (lease, answer) in leases.iter().zip(&answers) {
            match answer {
                Ok(true) => seen.extends += 1,
                Ok(false) => seen.not_ours += 1,
                Err(_) => seen.unknown += 1,
            }
            let Some(last) = seen.last.get_mut(lease.key.as_str()) else { continue };
            let before = *last;
            if matches!(answer, Ok(true)) {
                *last = sent;
            }
            let late = sent.saturating_duration_since(before + lease.lease / 3);
            let left = (before + lease.lease).saturating_duration_since(answered);
            seen.late.push(u64::try_from(late.as_nanos()).unwrap());
            seen.margins.push(left.as_secs_f64() / lease.lease.as_secs_f64());
        }
        answers
    }

    fn extend_one(&self, lease: &Extend<'_>, deadline: Instant) -> Result<bool, StoreError> {
        self.inner.extend_one(lease, deadline)
    }

    fn release(&self, what: &Release<'_>, deadline: Instant) -> Result<Gone, StoreError> {
        self.inner.release(what, deadline)
    }

    fn withdraw(&self, what: &[Withdraw<'_>], deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        self.inner.withdraw(what, deadline)
    }

    fn listen(&self, key: &Key, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        self.inner.listen(key, token, bell)
    }

    fn shard(&self, key: &Key) -> u16 {
        self.inner.shard(key)
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn inspect(&self, key: &Key, look: Look, deadline: Instant) -> Result<State, StoreError> {
        self.inner.inspect(key, look, deadline)
    }

    fn force_release(&self, key: &Key, share: &str, deadline: Instant) -> Result<bool, StoreError> {
        self.inner.force_release(key, share, deadline)
    }

    fn supports(&self, options: &LockOptions) -> Result<(), Error> {
        self.inner.supports(options)
    }
}

/// As milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
