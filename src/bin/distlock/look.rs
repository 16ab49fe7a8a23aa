//! What there is under a key: locks of this crate, those of Redisson, and what others have written
//! there. Everything here only reads.

use distlock::{Client, Layout, LockOptions, LockState, Result};

use crate::search::{is_deadline, is_pattern, is_redisson_owner, search};

/// What stands under a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock,
    ReadWrite,
    Semaphore,
    Redisson,
    Timestamp,
    /// A text or a field that this crate has not written, such as the text of a `SET NX PX`.
    Foreign,
    /// Nothing: nobody holds it.
    Free,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::ReadWrite => "read-write",
            Self::Semaphore => "semaphore",
            Self::Redisson => "redisson",
            Self::Timestamp => "timestamp",
            Self::Foreign => "foreign",
            Self::Free => "free",
        }
    }
}

pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) kind: Kind,
    pub(crate) state: LockState,
}

impl Seen {
    /// Whether a client of this crate or of Redisson has written it: a number may be anything.
    fn is_surely_a_lock(&self) -> bool {
        self.kind == Kind::Redisson
            || self.state.holders.iter().any(|holder| holder.client.is_some())
    }
}

/// Looks at a key as each kind of lock in turn: in a cluster, nothing sends a `TYPE` to the node
/// that has the key.
pub(crate) fn look(client: &Client, key: &str) -> Result<Seen> {
    let seen = |kind, state| Seen { key: key.to_owned(), kind, state };
    let no_text = match as_text(client, key) {
        Ok((kind, state)) => return Ok(seen(kind, state)),
        Err(error) if error.is_wrong_type() => error,
        Err(error) => return Err(error),
    };
    for kind in [Kind::ReadWrite, Kind::Semaphore, Kind::Redisson] {
        match inspect(client, key, kind) {
            // Leases that have run out may still stand there.
            Ok(state) if state.holders.is_empty() => return Ok(seen(Kind::Free, state)),
            Ok(state) if kind == Kind::Redisson && !has_owners(&state) => {
                return Ok(seen(Kind::Foreign, state));
            }
            Ok(state) => return Ok(seen(kind, state)),
            Err(error) if error.is_wrong_type() => {}
            Err(error) => return Err(error),
        }
    }
    Err(no_text)
}

/// Whether Redisson can have written it. Any hash of one number has the form of its locks.
fn has_owners(state: &LockState) -> bool {
    state.holders.iter().all(|holder| is_redisson_owner(&holder.token))
}

/// What the text under a key is.
fn as_text(client: &Client, key: &str) -> Result<(Kind, LockState)> {
    let state = inspect(client, key, Kind::Lock)?;
    let Some(holder) = state.holders.first() else { return Ok((Kind::Free, state)) };
    if holder.client.is_some() {
        return Ok((Kind::Lock, state));
    }
    if is_deadline(holder.token.as_bytes()) {
        match inspect(client, key, Kind::Timestamp) {
            Ok(state) if state.holders.is_empty() => return Ok((Kind::Free, state)),
            Ok(state) => return Ok((Kind::Timestamp, state)),
            Err(error) if error.is_wrong_type() => {}
            Err(error) => return Err(error),
        }
    }
    Ok((Kind::Foreign, state))
}

fn inspect(client: &Client, key: &str, kind: Kind) -> Result<LockState> {
    let options = LockOptions::new();
    match kind {
        Kind::ReadWrite => client.rw_lock_with(key, options.fenced())?.read_lock().inspect(),
        Kind::Semaphore => client.semaphore_with(key, 1, options.fenced())?.inspect(),
        Kind::Redisson => {
            client.lock_with(key, options.layout(Layout::Redisson).fenced())?.inspect()
        }
        Kind::Timestamp => client.lock_with(key, options.layout(Layout::Timestamp))?.inspect(),
        Kind::Lock | Kind::Foreign | Kind::Free => {
            client.lock_with(key, options.fenced())?.inspect()
        }
    }
}

/// What there is under these keys and patterns; without one, all that is surely a lock.
pub(crate) fn all(client: &Client, keys: &[String]) -> Result<Vec<Seen>> {
    if keys.is_empty() {
        let mut seen = matching(client, "*", false)?;
        seen.retain(Seen::is_surely_a_lock);
        return Ok(seen);
    }
    let mut seen = Vec::new();
    for key in keys {
        if is_pattern(key) {
            seen.extend(matching(client, key, true)?);
        } else {
            seen.push(look(client, key)?);
        }
    }
    Ok(seen)
}

/// What is held under the keys that match. Skips keys that hold no lock.
fn matching(client: &Client, pattern: &str, foreign: bool) -> Result<Vec<Seen>> {
    let mut found = Vec::new();
    for key in search(client, pattern, foreign)? {
        match look(client, &key) {
            Ok(seen) if seen.kind != Kind::Free => found.push(seen),
            // A name that no lock can have, too.
            Err(error) if !(error.is_wrong_type() || error.is_invalid_input()) => {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(found)
}
