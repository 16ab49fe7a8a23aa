//! What a store with a queue promises to those who wait in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock::testing::{
    Answer, Ask, Bell, Clock, Gone, Grant, Key, Listening, Place as InQueue, Rung, Token,
};

use super::{LEASE, Place, deadline, key};
use crate::helpers::{SOON, ms};
use crate::support::eventually;

/// A waiter in the store's queue.
struct Waiter {
    token: Token,
    bell: Arc<Bell>,
    listening: Listening,
}

impl Waiter {
    /// Listens, asks and is refused. Its place in the queue names this attempt.
    fn queue(place: &Place, key: &Key, attempt: u64) -> Waiter {
        let (token, bell) = (place.token(), Bell::new());
        let listening =
            place.store.listen(key, &token, &bell).expect("a store that queues can wake");
        let waiter = Waiter { token, bell, listening };
        let listen = || Some(&*waiter.listening.address);
        let answer = place.store.try_acquire(&Ask {
            key,
            token: &waiter.token,
            attempt,
            lease: LEASE,
            fences: 0,
            place: Some(InQueue { listen: &listen, alive_for: LEASE, first_lease: ms(3000) }),
            contended: true,
            may_be_mine: true,
            deadline: deadline(),
        });
        assert!(matches!(answer.unwrap(), Answer::Refused { .. }));
        waiter
    }

    /// The grant that it receives. Hints, which only say "ask again", do not count.
    fn heard(&self, within: Duration) -> Option<Grant> {
        let until = Instant::now() + within;
        loop {
            match self.bell.wait(&Clock::default(), Some(until)) {
                Rung::Grant(grant) => return Some(grant),
                Rung::Silent => return None,
                Rung::Hint => {}
            }
        }
    }
}

/// Whether the store has a queue. If so, returns once the store knows that its waiters listen,
/// which may take a moment. A store without a queue says so in both ways.
fn queues(place: &Place) -> bool {
    let listening = place.store.listen(&key("a"), &place.token(), &Bell::new());
    assert_eq!(place.store.abilities().wakes, listening.is_some());
    // Some stores only say when to ask again.
    let listens = place.wakes && listening.is_some_and(|listening| listening.queues);
    if listens {
        eventually(SOON, || {
            // In a cluster it is at the same node.
            let (probe, holder) = (key("{a}probe"), place.token());
            place.ask(&probe, &holder, LEASE);
            let waiter = Waiter::queue(place, &probe, 1);
            place.release(&probe, &holder);
            let heard = waiter.heard(ms(50)).is_some();
            place.withdraw(&probe, &waiter.token);
            heard
        });
    }
    listens
}

pub(super) fn a_release_hands_the_lock_to_the_first_in_the_queue(place: &Place) {
    if !queues(place) {
        return;
    }
    let (a, holder) = (key("a"), place.token());
    place.ask(&a, &holder, LEASE);
    let (first, second) = (Waiter::queue(place, &a, 7), Waiter::queue(place, &a, 2));
    assert_eq!(place.release(&a, &holder), Gone::Released);
    // The grant names the attempt that was refused, and is for a short lease at first.
    assert_eq!(first.heard(SOON), Some(Grant { attempt: 7, fences: None }));
    assert_eq!(place.holder(&a), Some(first.token.text()));
    assert!(place.remaining(&a).unwrap() <= ms(3000));
    assert!(!place.is_granted(&a, &place.token()), "nobody overtakes");
    assert_eq!(second.heard(ms(20)), None);
    assert_eq!(place.release(&a, &first.token), Gone::Released);
    assert_eq!(second.heard(SOON), Some(Grant { attempt: 2, fences: None }));
    assert_eq!(place.holder(&a), Some(second.token.text()));
    assert_eq!(place.release(&a, &second.token), Gone::Released);
    assert_eq!(place.holder(&a), None);
}

pub(super) fn a_waiter_that_withdrew_or_does_not_listen_is_passed_over(place: &Place) {
    if !queues(place) {
        return;
    }
    let (a, holder) = (key("a"), place.token());
    place.ask(&a, &holder, LEASE);
    let withdrawn = Waiter::queue(place, &a, 1);
    drop(Waiter::queue(place, &a, 1));
    let last = Waiter::queue(place, &a, 1);
    assert_eq!(place.withdraw(&a, &withdrawn.token), Gone::NotOurs);
    // In whatever way the lock is freed.
    assert!(place.store.force_release(&a, place.share, deadline()).unwrap());
    assert!(last.heard(SOON).is_some());
    assert_eq!(place.holder(&a), Some(last.token.text()));
    assert_eq!(withdrawn.heard(ms(20)), None);
    // A waiter that was served and no longer wants the lock passes it on.
    let next = Waiter::queue(place, &a, 3);
    assert_eq!(place.withdraw(&a, &last.token), Gone::Released);
    assert_eq!(next.heard(SOON), Some(Grant { attempt: 3, fences: None }));
}
