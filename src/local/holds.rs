//! Thread-local hold counts: what this thread holds, and what happens when a thread ends while it
//! holds.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::SharedLock;
use super::owned::Owned;
use crate::lease::lost::Ended;

/// A lock that this thread holds.
pub(crate) struct Hold {
    pub(crate) lock: Arc<SharedLock>,
    pub(crate) owned: Owned,
    /// How often the thread has locked and not yet unlocked.
    pub(crate) count: u32,
    /// What its `Validity` values look at; `None`: there is none.
    pub(crate) over: Option<OverOnDrop>,
}

impl Hold {
    /// Becomes true when the hold ends.
    pub(crate) fn over(&mut self) -> Over {
        self.over.get_or_insert_with(OverOnDrop::default).over()
    }
}

/// Whether a hold or a claim has ended.
#[derive(Clone, Default)]
pub(crate) struct Over(Arc<AtomicBool>);

impl Over {
    pub(crate) fn ended() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Ends with the hold, or with the claim.
#[derive(Default)]
pub(crate) struct OverOnDrop(Over);

impl OverOnDrop {
    pub(crate) fn over(&self) -> Over {
        self.0.clone()
    }
}

impl Drop for OverOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::SeqCst);
    }
}

/// The result of an unlock.
pub(crate) enum Dropped {
    NotHeld,
    /// Still held; `lost`: whether the lease is known to be lost.
    Held {
        lost: bool,
    },
    Last(Hold),
}

/// This thread's holds, by the address of the lock. Each hold keeps its lock alive, so no two locks
/// have the same address.
struct Holds(RefCell<HashMap<usize, Hold, BuildHasherDefault<AddressHasher>>>);

thread_local! {
    static HOLDS: Holds =
        const { Holds(RefCell::new(HashMap::with_hasher(BuildHasherDefault::new()))) };
}

/// Hashes an address. No attacker can choose the addresses, so the hash need not resist attacks and
/// can be cheap: a thread looks up its hold each time it locks again or asks whether its lease is
/// valid.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, address: usize) {
        // Addresses differ in their middle bits. The product carries those upwards, and the hash
        // table uses the bits at both ends.
        let product = (self.0 ^ address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ (product >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn address(lock: &Arc<SharedLock>) -> usize {
    Arc::as_ptr(lock).addr()
}

/// Whether this thread holds `lock`.
pub(crate) fn has(lock: &Arc<SharedLock>) -> bool {
    with(lock, |_| ()).is_some()
}

/// Looks at this thread's hold of `lock`; `None` if it has none.
pub(crate) fn with<R>(lock: &Arc<SharedLock>, look: impl FnOnce(&mut Hold) -> R) -> Option<R> {
    // The map is gone already, or in use further up this call chain: in both cases this thread can
    // hold nothing here.
    HOLDS
        .try_with(|holds| holds.0.try_borrow_mut().ok()?.get_mut(&address(lock)).map(look))
        .ok()
        .flatten()
}

/// Enters a hold. Returns a hold that cannot be kept, such as this one if the thread is ending: no
/// hold is dropped unseen.
pub(crate) fn enter(hold: Hold) -> Result<(), Hold> {
    debug_assert!(hold.count > 0, "a hold without a level");
    let mut hold = Some(hold);
    let _ = HOLDS.try_with(|holds| {
        if let Ok(mut holds) = holds.0.try_borrow_mut() {
            hold = hold.take().and_then(|hold| holds.insert(address(&hold.lock), hold));
        }
    });
    hold.map_or(Ok(()), Err)
}

/// Removes the whole hold, with all its levels.
pub(crate) fn take(lock: &Arc<SharedLock>) -> Option<Hold> {
    HOLDS
        .try_with(|holds| holds.0.try_borrow_mut().ok()?.remove(&address(lock)).map(ended))
        .ok()
        .flatten()
}

/// Tells every `Validity` of the hold that it has ended, before the release.
fn ended(mut hold: Hold) -> Hold {
    hold.over = None;
    hold
}

/// Removes one level of the hold.
pub(crate) fn drop_one(lock: &Arc<SharedLock>) -> Dropped {
    HOLDS
        .try_with(|holds| {
            let mut holds = holds.0.try_borrow_mut().ok()?;
            let hold = holds.get_mut(&address(lock))?;
            if hold.count > 1 {
                hold.count -= 1;
                return Some(Dropped::Held { lost: hold.owned.lease.expiry.is_over() });
            }
            holds.remove(&address(lock)).map(|hold| Dropped::Last(ended(hold)))
        })
        .ok()
        .flatten()
        .unwrap_or(Dropped::NotHeld)
}

impl Drop for Holds {
    /// The thread ends, or panicked, while it holds (R11).
    ///
    /// No I/O here, nothing that can wait for a server, no logging, and no panic: a panic in a
    /// thread-local destructor aborts the process. The cleaner does the rest. Its thread runs: it
    /// was started before the lease was handed out.
    fn drop(&mut self) {
        for (_, mut hold) in self.0.get_mut().drain() {
            let context = &hold.lock.context;
            if context.is_forked() {
                // The hold is the parent's. It is not even dropped: the drop could wait for a mutex
                // that another thread held when this process was copied.
                std::mem::forget(hold);
                continue;
            }
            hold.over = None;
            hold.owned.ends(context, &hold.lock.subject);
            context.counters.abandoned(&hold.lock.subject);
            if hold.owned.lease.remove_user() {
                context.finish(&hold.owned.lease, Ended::Abandoned);
            }
            hold.lock.queue().leave(hold.owned.turn);
        }
    }
}
