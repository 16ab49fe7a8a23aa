//! Interrupts: ending another thread's wait for a lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::bell::Bell;
use super::locked;

/// Ends the waits that were started with it, in any thread.
///
/// Plain threads cannot be interrupted from outside, so an interruptible wait takes an `Interrupt`.
/// Any thread that has a clone of it can end the wait. It stays set until
/// [`reset`](Interrupt::reset), so a wait that begins later ends at once. Clones are the same
/// interrupt. It does not survive a fork: a child has to make its own.
///
/// ```
/// # fn main() -> Result<(), distlock::Error> {
/// use distlock::{Client, Interrupt};
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
    shared: Arc<Signal>,
}

#[derive(Debug, Default)]
struct Signal {
    set: AtomicBool,
    /// How often it was set.
    count: AtomicU64,
    waiting: Mutex<Bells>,
}

/// The bells to ring, by number. Thousands of threads may wait with one interrupt, and each removes
/// its own bell again.
#[derive(Debug, Default)]
struct Bells {
    bells: HashMap<u64, Weak<Bell>>,
    last: u64,
}

/// An interrupt as one wait sees it. The thread that waits may look only after the interrupt was
/// reset again, and has been interrupted all the same.
#[derive(Clone, Copy)]
pub(crate) struct Interruption<'a> {
    interrupt: &'a Interrupt,
    /// How often it had been set before the wait.
    before: u64,
}

impl<'a> Interruption<'a> {
    /// For a wait that begins now.
    pub(crate) fn of(interrupt: &'a Interrupt) -> Self {
        Self { interrupt, before: interrupt.shared.count.load(Ordering::SeqCst) }
    }

    pub(crate) fn has_happened(self) -> bool {
        self.interrupt.is_interrupted()
            || self.interrupt.shared.count.load(Ordering::SeqCst) != self.before
    }

    /// As [`Interrupt::rings`].
    pub(crate) fn rings(self, bell: &Arc<Bell>) -> Ringing<'a> {
        self.interrupt.rings(bell)
    }
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
        self.shared.count.fetch_add(1, Ordering::SeqCst);
        for bell in locked(&self.shared.waiting).bells.values().filter_map(Weak::upgrade) {
            bell.ring();
        }
    }

    /// Clears the interrupt: it ends no wait that begins from now on. Waits that it has interrupted
    /// end all the same.
    pub fn reset(&self) {
        self.shared.set.store(false, Ordering::SeqCst);
    }

    /// Whether it is set.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.shared.set.load(Ordering::SeqCst)
    }

    /// Lets this interrupt ring `bell` until the returned value is dropped.
    ///
    /// The caller checks [`is_interrupted`](Self::is_interrupted) *after* this, so it either sees
    /// the interrupt there or its bell rings.
    pub(crate) fn rings(&self, bell: &Arc<Bell>) -> Ringing<'_> {
        let mut waiting = locked(&self.shared.waiting);
        waiting.last += 1;
        let number = waiting.last;
        waiting.bells.insert(number, Arc::downgrade(bell));
        Ringing { interrupt: self, number }
    }
}

/// A bell's registration with an interrupt, until dropped.
pub(crate) struct Ringing<'a> {
    interrupt: &'a Interrupt,
    number: u64,
}

impl Drop for Ringing<'_> {
    fn drop(&mut self) {
        locked(&self.interrupt.shared.waiting).bells.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::base::bell::Rung;
    use crate::base::clock::Clock;

    fn is_rung(bell: &Bell) -> bool {
        bell.wait(&Clock::default(), Some(Instant::now())) != Rung::Silent
    }

    #[test]
    fn each_bell_is_rung_until_it_is_taken_out_in_whatever_order() {
        let interrupt = Interrupt::new();
        let bells: Vec<_> = (0..5).map(|_| Bell::new()).collect();
        let mut ringing: Vec<_> = bells.iter().map(|bell| Some(interrupt.rings(bell))).collect();
        // One bell may be registered twice.
        let again = interrupt.rings(&bells[3]);
        for out in [2, 0, 3, 4, 1] {
            ringing[out] = None;
            interrupt.interrupt();
            for (bell, ringing) in
                bells.iter().zip(&ringing).filter(|(bell, _)| !Arc::ptr_eq(bell, &bells[3]))
            {
                assert_eq!(is_rung(bell), ringing.is_some());
            }
            assert!(is_rung(&bells[3]));
        }
        drop(again);
        interrupt.interrupt();
        assert!(!is_rung(&bells[3]) && locked(&interrupt.shared.waiting).bells.is_empty());
    }

    #[test]
    fn a_wait_that_ends_costs_the_same_however_many_others_wait() {
        let interrupt = Interrupt::new();
        let bell = Bell::new();
        // The quickest of many runs, so that other work of the machine does not count.
        let quickest = || {
            let one = || {
                let ringing: Vec<_> = (0..16).map(|_| interrupt.rings(&bell)).collect();
                let begun = Instant::now();
                drop(ringing);
                begun.elapsed()
            };
            (0..200).map(|_| one()).min().unwrap_or_default()
        };
        let alone = quickest();
        let _others: Vec<_> =
            (0..20_000).map(|_| Bell::new()).map(|other| interrupt.rings(&other)).collect();
        let among_many = quickest();
        assert!(
            among_many < alone * 20 + Duration::from_micros(10),
            "{among_many:?} instead of {alone:?}"
        );
    }
}
