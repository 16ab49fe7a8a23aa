//! The locks that CMD runs under: how they are taken, and how they end.

use std::time::{Duration, Instant};

use distlock::{Claim, Client, Error, Interrupt, Permit, RedisLock, Result, Semaphore, Validity};

use crate::args::{LockKind, Run};
use crate::table::short;

/// A lock, a side of a read-write lock, or a semaphore.
pub(crate) enum Lockable {
    Lock(RedisLock),
    Semaphore(Semaphore),
}

impl Lockable {
    fn new(client: &Client, key: &str, args: &Run) -> Result<Self> {
        let options = args.options();
        Ok(match args.kind() {
            LockKind::Lock => Self::Lock(client.lock_with(key, options)?),
            LockKind::Read => Self::Lock(client.rw_lock_with(key, options)?.read_lock().clone()),
            LockKind::Write => Self::Lock(client.rw_lock_with(key, options)?.write_lock().clone()),
            LockKind::Permits(of) => Self::Semaphore(client.semaphore_with(key, of, options)?),
        })
    }

    /// `None`: somebody else had it for as long as `wait` says.
    fn take(&self, wait: Option<Duration>, interrupt: &Interrupt) -> Result<Option<Held>> {
        Ok(match (self, wait) {
            (Self::Lock(lock), None) => Some(Held::Claim(lock.claim_interruptibly(interrupt)?)),
            (Self::Lock(lock), Some(wait)) => {
                lock.try_claim_interruptibly(wait, interrupt)?.map(Held::Claim)
            }
            (Self::Semaphore(semaphore), None) => {
                Some(Held::Permit(semaphore.acquire_interruptibly(interrupt)?))
            }
            (Self::Semaphore(semaphore), Some(wait)) => {
                semaphore.try_acquire_interruptibly(wait, interrupt)?.map(Held::Permit)
            }
        })
    }

    /// Who has it, and for how much longer, in words.
    pub(crate) fn holders(&self) -> Result<String> {
        let state = match self {
            Self::Lock(lock) => lock.inspect(),
            Self::Semaphore(semaphore) => semaphore.inspect(),
        }?;
        let holders = state.holders.iter().map(|holder| {
            let who = holder.client.as_deref().unwrap_or("a client without a name");
            let rest = match holder.remaining {
                Some(rest) => format!("for another {}", short(rest)),
                None => "without an end".to_owned(),
            };
            let how = if holder.is_kept { "kept after its unlock by" } else { "held by" };
            format!("{how} {who} {rest}")
        });
        let holders: Vec<_> = holders.collect();
        Ok(if holders.is_empty() { "free by now".into() } else { holders.join(", ") })
    }
}

enum Held {
    Claim(Claim),
    Permit(Permit),
}

impl Held {
    fn validity(&self) -> Validity {
        match self {
            Self::Claim(claim) => claim.validity(),
            Self::Permit(permit) => permit.validity(),
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Claim(claim) => claim.lock().name(),
            Self::Permit(permit) => permit.name(),
        }
    }

    fn release(self) -> Result<()> {
        match self {
            Self::Claim(claim) => claim.release(),
            Self::Permit(permit) => permit.release(),
        }
    }
}

/// What came of an attempt to take all locks.
pub(crate) enum Taken {
    All(Holds),
    /// This one was not free in time; none is held.
    Not(Lockable),
}

/// All locks that CMD needs, held.
pub(crate) struct Holds(Vec<Held>);

impl Holds {
    /// Takes one after the other, in an order that all processes share; whatever ends this early
    /// releases what has been taken.
    pub(crate) fn take(client: &Client, args: &Run, interrupt: &Interrupt) -> Result<Taken> {
        // Without an end also if it is so late that it is never.
        let until = args.wait().and_then(|wait| Instant::now().checked_add(wait));
        let mut holds = Vec::new();
        let keys = args.keys();
        let locks: Result<Vec<_>> =
            keys.iter().map(|key| Lockable::new(client, key, args)).collect();
        for lock in locks? {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let Some(held) = lock.take(left, interrupt)? else { return Ok(Taken::Not(lock)) };
            holds.push(held);
        }
        Ok(Taken::All(Self(holds)))
    }

    pub(crate) fn are_valid(&self) -> bool {
        self.0.iter().all(|held| held.validity().is_valid())
    }

    /// How long all of them are valid unless they are extended.
    pub(crate) fn remaining(&self) -> Duration {
        self.0.iter().map(|held| held.validity().remaining()).min().unwrap_or_default()
    }

    /// The variables in which CMD learns about them; `None`: there is nothing to say.
    pub(crate) fn environment(&self) -> [(&'static str, Option<String>); 3] {
        let lines = |of: &dyn Fn(&Held) -> Option<String>| {
            self.0.iter().map(of).collect::<Option<Vec<_>>>().map(|lines| lines.join("\n"))
        };
        [
            ("DISTLOCK_KEY", lines(&|held| Some(held.name().to_owned()))),
            ("DISTLOCK_FENCE", lines(&|held| Some(held.validity().fence()?.to_string()))),
            ("DISTLOCK_REMAINING_MS", Some(self.remaining().as_millis().to_string())),
        ]
    }

    /// Releases them, the last first. What went wrong with each.
    pub(crate) fn release(self) -> Vec<Error> {
        self.0.into_iter().rev().filter_map(|held| held.release().err()).collect()
    }
}
