//! How a claim ends: by a drop anywhere, by a loss, by the close of its client; and not by a fork.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distlock::{Claim, Client, LockOptions, LostReason};
use log::Level;

use crate::faults::{impatient, nothing_is_left, through_proxy};
use crate::helpers::{
    Asked, Notes, SOON, Underway, client, delete, error, get, is_free, keys, lease, memory, ms,
    on_another_thread,
};
use crate::holds::forked;
use crate::logs;
use crate::support::{Server, eventually, in_own_process, within};

#[test]
fn a_claim_outlives_the_thread_that_took_it_and_all_handles() {
    logs::keep();
    let server = Server::start();
    let claim = on_another_thread(|| {
        client(&server).lock_with("claims-outlive", lease(ms(3000))).unwrap().claim().unwrap()
    });
    thread::sleep(ms(4500));
    claim.ensure_valid().unwrap();
    assert!(get(&server, "claims-outlive").is_some());
    claim.release().unwrap();
    eventually(SOON, || server.client_count() == 0 && keys(&server).is_empty());
    assert!(logs::lines(Level::Warn, &["claims-outlive"]).is_empty());
}

#[test]
fn a_claim_is_released_by_a_panic_and_at_the_end_of_a_thread_that_keeps_it() {
    struct AtEnd(Box<dyn Fn() + Send>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    thread_local! {
        static KEPT: RefCell<Option<Claim>> = const { RefCell::new(None) };
        static LAST: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
    }
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let lock = mine.lock("job");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _claim = lock.claim().unwrap();
        panic!("planned")
    }));
    assert!(panicked.is_err() && is_free(&other.lock("job")));
    let kept = lock.clone();
    thread::spawn(move || KEPT.set(Some(kept.claim().unwrap()))).join().unwrap();
    within(..SOON, || assert!(other.lock("job").try_lock(SOON).unwrap()));
    other.lock("job").unlock().unwrap();
    // A thread that is ending cannot lock. It can take a claim.
    let (again, kept, (tell, told)) = (lock.clone(), lock.clone(), mpsc::channel());
    let at_end = AtEnd(Box::new(move || {
        let locked = kept.lock().map_err(|error| error.is_unsupported());
        let claimed = kept.claim().and_then(Claim::release);
        tell.send((locked, claimed)).unwrap();
    }));
    thread::spawn(move || {
        // Registered before this crate's own thread-local, so destroyed after it.
        LAST.set(Some(at_end));
        again.with(|_| ()).unwrap();
    })
    .join()
    .unwrap();
    let (locked, claimed) = told.recv_timeout(SOON).unwrap();
    assert_eq!(locked, Err(true));
    claimed.unwrap();
    drop(lock);
    eventually(SOON, || mine.remembered() == (0, 0));
}

#[test]
fn a_lost_claim_is_told_once_and_its_late_release_leaves_the_next_owner_alone() {
    logs::keep();
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let lock = mine.lock("claims-lost");
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send((lost.name().to_owned(), lost.reason())).unwrap());
    let claim = lock.claim().unwrap();
    // A thread behind it does not wait until the lost claim is dropped.
    let behind = Underway::behind(&mine, "claims-lost", {
        let lock = lock.clone();
        move || lock.claim().unwrap()
    });
    delete(&server, "claims-lost");
    assert!(error(claim.extend(SOON)).is_lost());
    assert!(!claim.is_valid() && claim.remaining() == Duration::ZERO);
    let next = behind.result();
    assert_eq!(told.recv_timeout(SOON), Ok(("claims-lost".to_owned(), LostReason::Taken)));
    drop(claim);
    let found = logs::lines(Level::Warn, &["claims-lost", "lost", "was dropped"]);
    assert_eq!(found.len(), 1);
    assert!(next.is_valid() && !is_free(&other.lock("claims-lost")));
    next.release().unwrap();
    // This waits for what is still to be told.
    mine.close(SOON).unwrap();
    assert!(told.try_recv().is_err(), "once");
}

#[test]
fn a_claim_whose_release_has_no_answer_is_unknown_and_released_in_the_background() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("x");
    let (released, dropped) = (lock.claim().unwrap(), client.lock("y").claim().unwrap());
    proxy.freeze();
    let unknown = error(released.release());
    assert!(unknown.is_unknown() && unknown.may_be_held() && unknown.lock_name() == Some("x"));
    within(..SOON, || drop(dropped));
    assert_eq!(keys(&server), ["x", "y"]);
    proxy.thaw();
    // Long before the leases of 30 s run out.
    nothing_is_left(&server);
    assert!(lock.try_claim(SOON).unwrap().is_some());
}

#[test]
fn validity_of_a_claim_ends_with_it_and_keeps_nothing() {
    let lock = memory().lock_with("job", LockOptions::new().fenced()).unwrap();
    let claim = lock.claim().unwrap();
    let validity = claim.validity();
    assert!(validity.is_valid() && validity.remaining() > Duration::ZERO);
    assert_eq!((validity.fence(), validity.fence_i64()), (claim.fence(), claim.fence_i64()));
    claim.release().unwrap();
    assert!(!validity.is_valid() && error(validity.ensure_valid()).is_not_held());
    assert!(is_free(&lock));
    // The next claim is another one.
    let (claim, old) = (lock.claim().unwrap(), validity);
    let (validity, again) = (claim.validity(), claim.validity());
    assert!(!old.is_valid() && validity.is_valid());
    assert!(lock.force_unlock().unwrap() && error(claim.extend(SOON)).is_lost());
    assert!(error(validity.ensure_valid()).is_lost());
    drop(claim);
    assert!(error(validity.ensure_valid()).is_not_held() && !again.is_valid());
}

/// The lock may be another's before the answer to the release has come.
#[test]
fn validity_of_a_claim_ends_before_its_release_is_sent() {
    let (client, notes) = Notes::of(Client::builder("memory://"));
    for by_drop in [false, true] {
        let claim = client.lock("job").claim().unwrap();
        let (validity, (tell, told)) = (claim.validity(), mpsc::channel());
        assert!(validity.is_valid());
        notes.before(move |asked| {
            if *asked == Asked::Release {
                tell.send(validity.is_valid()).unwrap();
            }
        });
        if by_drop {
            drop(claim)
        } else {
            claim.release().unwrap()
        }
        assert_eq!(told.recv_timeout(SOON), Ok(false));
    }
}

#[test]
fn closing_the_client_releases_claims_and_their_owners_learn_of_it() {
    let server = Server::start();
    let client = client(&server);
    let (tell, told) = mpsc::channel();
    let claims: Vec<_> = (0..5)
        .map(|i| {
            let (lock, tell) = (client.lock(&format!("job-{i}")), tell.clone());
            lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
            lock.claim().unwrap()
        })
        .collect();
    let waiting = Underway::behind(&client, "job-0", {
        let lock = client.lock("job-0");
        move || lock.claim().map(drop)
    });
    // What is leaked is renewed until then, and released, too.
    std::mem::forget(client.lock_with("leaked", lease(ms(1500))).unwrap().claim().unwrap());
    thread::sleep(ms(2500));
    assert_eq!(keys(&server).len(), 6);
    client.close(SOON).unwrap();
    assert_eq!(keys(&server), [""; 0]);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [LostReason::Closed; 5]);
    assert!(error(waiting.result()).is_closed());
    for claim in claims {
        assert!(!claim.is_valid() && error(claim.release()).is_lost());
    }
    assert!(error(client.lock("job-0").claim()).is_closed());
}

#[test]
fn a_forked_child_releases_no_claim_of_its_parent() {
    in_own_process("claims::ends::a_forked_child_releases_no_claim_of_its_parent", || {
        let (server, proxy) = through_proxy();
        let client = Client::open(&proxy.url()).unwrap();
        let [released, dropped, kept] =
            ["released", "dropped", "kept"].map(|name| client.lock(name).claim().unwrap());
        let token = |name| get(&server, name);
        let tokens = ["released", "dropped", "kept"].map(token);
        let said = (proxy.requests(), proxy.accepted());
        let in_child = RefCell::new(Some((released, dropped)));
        forked(|| {
            let (released, dropped) = in_child.take().ok_or(1)?;
            if !released.release().is_err_and(|error| error.is_unsupported()) {
                return Err(2);
            }
            drop(dropped);
            if !kept.extend(SOON).is_err_and(|error| error.is_unsupported()) {
                return Err(3);
            }
            if !kept.lock().claim().is_err_and(|error| error.is_unsupported()) {
                return Err(4);
            }
            Ok(())
        });
        assert_eq!((proxy.requests(), proxy.accepted()), said, "the child said something");
        assert_eq!(["released", "dropped", "kept"].map(token), tokens);
        let (released, dropped) = in_child.take().unwrap();
        for claim in [released, dropped, kept] {
            claim.ensure_valid().unwrap();
            claim.release().unwrap();
        }
        nothing_is_left(&server);
    });
}
