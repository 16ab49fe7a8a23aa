//! Claims: locks that belong to a value, and to no thread.

mod ends;
mod threads;

use std::time::Duration;

use distlock::{Client, Interrupt, LockOptions, RedisLock, Renewal, Retry};

use crate::faults::nothing_is_left;
use crate::helpers::{
    Elsewhere, SOON, Underway, client, error, get, keys, memory, ms, on_another_thread,
};
use crate::support::{Server, eventually, within};

#[test]
fn a_claim_is_not_reentrant() {
    let client = memory();
    let lock = client.lock("job");
    let claim = lock.claim().unwrap();
    assert!(!lock.try_lock(Duration::ZERO).unwrap() && !lock.try_lock(ms(20)).unwrap());
    assert!(lock.try_claim(ms(20)).unwrap().is_none());
    let again = Underway::behind(&client, "job", {
        let lock = lock.clone();
        move || lock.lock().and_then(|()| lock.unlock())
    });
    claim.release().unwrap();
    again.result().unwrap();
}

#[test]
fn a_thread_that_holds_the_lock_is_refused_a_claim_at_once() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("job");
    // On a thread of its own, which would wait for itself otherwise.
    let refused = Underway::start(move || {
        let guard = lock.guard().unwrap();
        let (interrupt, limit) = (Interrupt::new(), SOON * 60);
        let with_other_options = client.lock_with("job", LockOptions::new().fenced()).unwrap();
        for refused in [
            lock.claim().map(drop),
            lock.claim_interruptibly(&interrupt).map(drop),
            lock.try_claim(limit).map(drop),
            lock.try_claim_interruptibly(limit, &interrupt).map(drop),
            with_other_options.claim().map(drop),
        ] {
            let refused = error(refused);
            assert!(refused.is_conflict() && refused.lock_name() == Some("job"));
        }
        // As with a hold, an interrupt that is set when the call begins ends it.
        interrupt.interrupt();
        assert!(error(lock.claim_interruptibly(&interrupt)).is_interrupted());
        assert!(guard.is_valid() && lock.hold_count() == 1);
        // Another thread waits for it, as for any hold.
        on_another_thread(|| assert!(lock.try_claim(Duration::ZERO).unwrap().is_none()));
        assert!(lock.force_unlock().unwrap());
        assert!(error(lock.claim()).is_conflict(), "lost or not");
        assert!(error(guard.release()).is_lost());
        lock.claim().unwrap().release().unwrap();
    });
    refused.result();
}

#[test]
fn what_speaks_of_a_threads_hold_does_not_see_a_claim() {
    let lock = memory().lock_with("job", LockOptions::new().fenced()).unwrap();
    let claim = lock.claim().unwrap();
    assert!(claim.fence().is_some() && claim.fence_i64().is_some());
    assert_eq!((lock.is_held(), lock.hold_count(), lock.is_valid()), (false, 0, false));
    assert_eq!((lock.remaining(), lock.fence()), (None, None));
    assert!(lock.is_locked().unwrap());
    assert!(error(lock.unlock()).is_not_held() && error(lock.extend(SOON)).is_not_held());
    let condition = lock.new_condition("c").unwrap();
    assert!(error(condition.wait()).is_not_held() && error(condition.notify_one()).is_not_held());
    claim.ensure_valid().unwrap();
    claim.release().unwrap();
}

#[test]
fn attempts_are_used_up_by_a_claim_as_by_a_hold() {
    let server = Server::start();
    let _held = client(&server).lock("job").claim().unwrap();
    let options = LockOptions::new().retry(Retry::fixed(ms(5)).attempts(3));
    let lock = client(&server).lock_with("job", options).unwrap();
    assert!(error(lock.claim()).is_exhausted());
    assert!(lock.try_claim(SOON).unwrap().is_none());
}

#[test]
fn an_interrupt_or_the_deadline_ends_the_wait_of_a_claim_and_leaves_nothing() {
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let holder = Elsewhere::holds(&other.lock("job"));
    let lock = mine.lock("job");
    let interrupt = Interrupt::new();
    let waits: [fn(&RedisLock, &Interrupt) -> distlock::Result<()>; 2] = [
        |lock, interrupt| lock.claim_interruptibly(interrupt).map(drop),
        |lock, interrupt| lock.try_claim_interruptibly(SOON * 6, interrupt).map(drop),
    ];
    for wait in waits {
        interrupt.reset();
        let waiter = Underway::start({
            let (lock, interrupt) = (lock.clone(), interrupt.clone());
            move || wait(&lock, &interrupt)
        });
        eventually(SOON, || keys(&server).contains(&"{job}:queue".to_owned()));
        interrupt.interrupt();
        assert!(error(waiter.result()).is_interrupted());
        eventually(SOON, || !keys(&server).contains(&"{job}:queue".to_owned()));
    }
    assert!(error(lock.claim_interruptibly(&interrupt)).is_interrupted());
    assert!(within(ms(50)..SOON, || lock.try_claim(ms(50)).unwrap().is_none()));
    holder.unlock().unwrap();
    drop((mine, lock));
    nothing_is_left(&server);
}

#[test]
fn a_server_that_is_down_is_an_error_of_a_claim_and_never_none() {
    let server = Server::start();
    let url = server.url();
    drop(server);
    let client = Client::builder(&url).max_outage(ms(300)).build().unwrap();
    let lock = client.lock("job");
    assert!(error(lock.try_claim(ms(50))).is_unavailable());
    assert!(error(lock.claim()).is_unavailable());
}

#[test]
fn a_claim_has_the_options_of_its_lock() {
    let server = Server::start();
    let client = client(&server);
    let options = LockOptions::new().owner("worker-7").lease(ms(2000)).renewal(Renewal::Never);
    let lock = client.lock_with("job", options).unwrap();
    let claim = lock.claim().unwrap();
    assert_eq!(get(&server, "job").as_deref(), Some("worker-7"));
    eventually(SOON, || get(&server, "job").is_none());
    assert!(!claim.is_valid() && error(claim.release()).is_lost());
    assert!(error(client.lock("").claim()).is_invalid_input());
}
