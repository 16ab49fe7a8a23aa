//! Waits that end with the time, or by an interrupt.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

#[test]
fn a_wait_while_ends_when_ready_or_when_the_time_is_over() {
    everywhere(|open| {
        let (lock, condition) = lock_and_condition(&open());
        lock.lock().unwrap();
        assert!(condition.wait_while_timeout(SOON, || false).unwrap(), "ready before any wait");
        assert!(!condition.wait_while_timeout(Duration::ZERO, || true).unwrap(), "without a wait");
        let asked = AtomicU32::new(0);
        let unready = || asked.fetch_add(1, Ordering::SeqCst) < 100;
        within(A_WHILE.., || assert!(!condition.wait_while_timeout(A_WHILE, unready).unwrap()));
        assert!(asked.into_inner() >= 2, "before the first wait, and after it");
        assert_eq!(lock.hold_count(), 1);
        lock.unlock().unwrap();
        // A notification that changes nothing does not end it, and the next one does.
        let ready = std::sync::Arc::new(AtomicU32::new(0));
        let seen = std::sync::Arc::clone(&ready);
        let ended = waiting(open(), move |condition| {
            condition.wait_while_timeout(SOON * 6, || seen.load(Ordering::SeqCst) < 2).unwrap()
        });
        for _ in 0..2 {
            let (lock, condition) = lock_and_condition(&open());
            lock.lock().unwrap();
            ready.fetch_add(1, Ordering::SeqCst);
            condition.notify_one().unwrap();
            lock.unlock().unwrap();
            // The waiter waits again, or has ended.
            thread::sleep(A_WHILE);
        }
        assert!(ended.recv_timeout(SOON).unwrap());
    });
}

#[test]
fn a_timed_wait_can_be_interrupted() {
    everywhere(|open| {
        let (lock, condition) = lock_and_condition(&open());
        let interrupt = Interrupt::new();
        lock.lock().unwrap();
        assert!(!condition.wait_timeout_interruptibly(A_WHILE / 10, &interrupt).unwrap());
        lock.unlock().unwrap();
        let its = interrupt.clone();
        let ended = waiting(open(), move |condition| {
            condition.wait_timeout_interruptibly(SOON * 6, &its).unwrap_err().is_interrupted()
        });
        interrupt.interrupt();
        assert!(ended.recv_timeout(SOON).unwrap());
    });
}
