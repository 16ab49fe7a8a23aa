//! Interrupts: ending another thread's wait for a lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::bell::Bell;
use super::locked;

/// Ends the waits of the threads that were given it.
///
/// Plain threads cannot be interrupted from outside, so a wait that shall be interruptible is handed an
/// `Interrupt`; any thread that has a clone of it can end the wait. It stays set until [`reset`](Interrupt::reset), so a wait that
/// begins later ends at once. Clones are the same interrupt.
///
/// ```
/// # fn main() -> Result<(), distlock::Error> {
/// use distlock::{Client, Interrupt, Lock};
///
/// let client = Client::open("memory://")?;
/// let held = client.lock("report").guard()?;
/// let interrupt = Interrupt::new();
/// std::thread::scope(|scope| {
///     let waiter = scope.spawn(|| client.lock("report").lock_interruptibly(&interrupt));
///     interrupt.interrupt();
///     assert!(waiter.join().unwrap().unwrap_err().is_interrupted());
/// });
/// # drop(held);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    set: AtomicBool,
    waiting: Mutex<Vec<Weak<Bell>>>,
}

impl Interrupt {
    /// An interrupt that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every wait that was given this interrupt, now and until [`reset`](Interrupt::reset).
    pub fn interrupt(&self) {
        self.shared.set.store(true, Ordering::SeqCst);
        for bell in locked(&self.shared.waiting).iter().filter_map(Weak::upgrade) {
            bell.ring();
        }
    }

    /// Lets waits last again.
    pub fn reset(&self) {
        self.shared.set.store(false, Ordering::SeqCst);
    }

    /// Whether it is set.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.shared.set.load(Ordering::SeqCst)
    }

    /// Has `bell` rung by this interrupt until the returned value is dropped.
    ///
    /// The caller looks at [`is_interrupted`](Self::is_interrupted) *after* this, so an interrupt is either seen there or rings.
    pub(crate) fn rings(&self, bell: &Arc<Bell>) -> Ringing<'_> {
        locked(&self.shared.waiting).push(Arc::downgrade(bell));
        Ringing { interrupt: self, bell: Arc::downgrade(bell) }
    }
}

/// An interrupt's hold on a bell; ends when dropped.
pub(crate) struct Ringing<'a> {
    interrupt: &'a Interrupt,
    bell: Weak<Bell>,
}

impl Drop for Ringing<'_> {
    fn drop(&mut self) {
        let mut waiting = locked(&self.interrupt.shared.waiting);
        if let Some(at) = waiting.iter().position(|bell| bell.ptr_eq(&self.bell)) {
            waiting.swap_remove(at);
        }
    }
}
