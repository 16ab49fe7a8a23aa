//! The book of leases that renewal looks after.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::bulk;
use super::pace::Pace;
use crate::lease::granted::Lease;

/// The leases, and when renewal looks at each next.
#[derive(Default)]
pub(super) struct Book {
    pub(super) entries: Vec<Option<Entry>>,
    pub(super) free: Vec<usize>,
    pub(super) due: BTreeSet<(Instant, usize)>,
    pub(super) sleep: Sleep,
    /// How far ahead the last added lease was due; zero if none was added since the thread last had
    /// nothing to do.
    pub(super) linger: Duration,
    pub(super) pace: Pace,
    pub(super) closed: bool,
}

pub(super) struct Entry {
    pub(super) lease: Arc<Lease>,
    /// When to look at it next.
    pub(super) due: Instant,
    /// When to extend it; before `due`, if it has been tried in vain since.
    wanted: Instant,
}

/// A lease that is due.
pub(super) struct Found {
    pub(super) lease: Arc<Lease>,
    pub(super) extends_left: u32,
    /// Since when it is to be extended.
    pub(super) wanted: Instant,
}

impl Entry {
    fn is_of(&self, lease: &Lease) {
        debug_assert!(std::ptr::eq(&*self.lease, lease), "an entry of another lease");
    }
}

/// What the thread sleeps for. Only a thread that enters an earlier due time wakes it: most leases
/// are short and gone before then.
#[derive(Default, Clone, Copy)]
pub(super) enum Sleep {
    #[default]
    Awake,
    Until(Instant),
    Forever,
}

impl Book {
    pub(super) fn index_of(&self, lease: &Lease) -> Option<usize> {
        lease.entry.load(Ordering::SeqCst).checked_sub(1)
    }

    pub(super) fn with_entry<R>(
        &mut self,
        lease: &Lease,
        f: impl FnOnce(&mut Entry) -> R,
    ) -> Option<R> {
        let index = self.index_of(lease)?;
        let entry = self.entries.get_mut(index)?.as_mut();
        entry.inspect(|entry| entry.is_of(lease)).map(f)
    }

    /// Looks at it next at `due`, to extend it.
    pub(super) fn set_due(&mut self, lease: &Lease, due: Instant) {
        self.try_again(lease, due);
        self.with_entry(lease, |entry| entry.wanted = due);
    }

    /// Looks at it next at `due`: the last try was in vain.
    pub(super) fn try_again(&mut self, lease: &Lease, due: Instant) {
        if let (Some(index), Some(old)) = (
            self.index_of(lease),
            self.with_entry(lease, |entry| std::mem::replace(&mut entry.due, due)),
        ) {
            let was_due = self.due.remove(&(old, index));
            debug_assert!(was_due, "each entry has one due time");
            self.due.insert((due, index));
        }
    }

    pub(super) fn insert(&mut self, lease: &Arc<Lease>, due: Instant) {
        debug_assert_eq!(self.index_of(lease), None, "a lease has one entry");
        let index = self.free.pop().unwrap_or(self.entries.len());
        if index == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[index] = Some(Entry { lease: Arc::clone(lease), due, wanted: due });
        self.due.insert((due, index));
        lease.entry.store(index + 1, Ordering::SeqCst);
    }

    /// Returns when the lease was due; `None`: it was not there any more.
    pub(super) fn remove(&mut self, lease: &Lease) -> Option<Instant> {
        let index = lease.entry.swap(0, Ordering::SeqCst).checked_sub(1)?;
        let entry = self.entries.get_mut(index).and_then(Option::take)?;
        entry.is_of(lease);
        let was_due = self.due.remove(&(entry.due, index));
        debug_assert!(was_due, "each entry has one due time");
        self.free.push(index);
        Some(entry.due)
    }

    /// The leases that are due. If there are none, sets until when to sleep.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Found> {
        self.sleep = Sleep::Awake;
        let mut found = Vec::new();
        for (due, index) in &self.due {
            if *due > now {
                break;
            }
            if let Some(Some(entry)) = self.entries.get(*index) {
                if found.len() >= bulk(&entry.lease) {
                    break;
                }
                found.push(Found {
                    lease: Arc::clone(&entry.lease),
                    extends_left: entry.lease.extends_left.load(Ordering::SeqCst),
                    wanted: entry.wanted,
                });
            }
        }
        if found.is_empty() {
            self.sleep = match self.due.first() {
                Some((due, _)) => Sleep::Until(*due),
                // Leases come and go, and the next will be due about as far ahead as the last: so
                // it need not wake the thread.
                None if !self.linger.is_zero() => {
                    Sleep::Until(now + std::mem::take(&mut self.linger))
                }
                None => Sleep::Forever,
            };
        }
        found
    }
}
