//! Claims: locks that belong to a value, and to no thread.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use distlock::{Claim, Client, Interrupt, LockOptions, LostReason, RedisLock, Renewal};
use log::Level;

use crate::faults::{impatient, nothing_is_left, through_proxy};
use crate::helpers::{
    Elsewhere, SOON, Underway, client, delete, error, get, is_free, keys, lease, memory, ms,
    on_another_thread,
};
use crate::holds::forked;
use crate::logs;
use crate::support::{Server, eventually, in_own_process, within};

#[test]
fn a_claim_moves_between_threads_and_is_shared_by_them() {
    fn moves<T: Send + Sync + 'static>() {}
    moves::<Claim>();
    let lock = memory().lock("job");
    let claim = Arc::new(lock.claim().unwrap());
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let claim = Arc::clone(&claim);
            thread::spawn(move || {
                claim.ensure_valid().unwrap();
                claim.extend(SOON * 6).unwrap();
                assert!(claim.remaining() > SOON * 3);
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(!is_free(&lock) && claim.lock().name() == "job");
    drop(claim);
    assert!(is_free(&lock));
}

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
    let client = memory();
    let refused = Underway::start(move || {
        let lock = client.lock("job");
        let guard = lock.guard().unwrap();
        let (interrupt, limit) = (Interrupt::new(), SOON * 60);
        for refused in [
            lock.claim().map(drop),
            lock.claim_interruptibly(&interrupt).map(drop),
            lock.try_claim(limit).map(drop),
            lock.try_claim_interruptibly(limit, &interrupt).map(drop),
        ] {
            let refused = error(refused);
            assert!(refused.is_conflict() && refused.lock_name() == Some("job"));
        }
        assert!(guard.is_valid() && lock.hold_count() == 1);
        // Another thread waits for it, as for any hold.
        on_another_thread(|| assert!(lock.try_claim(Duration::ZERO).unwrap().is_none()));
        guard.release().unwrap();
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
    thread_local!(static KEPT: RefCell<Option<Claim>> = const { RefCell::new(None) });
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
    drop(lock);
    eventually(SOON, || mine.remembered() == (0, 0));
}

#[test]
fn threads_of_one_process_pass_a_lease_on_between_claims_and_holds() {
    let server = Arc::new(Server::start());
    let client = client(&server);
    let lock = client.lock_with("job", LockOptions::new().fenced()).unwrap();
    // The first block of a counter is a single fence, which is not enough for a hand-off.
    lock.with(|_| ()).unwrap();
    let claim = lock.claim().unwrap();
    let (first, token) = (claim.fence(), get(&server, "job"));
    let holds = {
        let (lock, server) = (lock.clone(), Arc::clone(&server));
        Underway::behind(&client, "job", move || {
            lock.with(|guard| (guard.fence(), get(&server, "job"))).unwrap()
        })
    };
    let claims = |lock: RedisLock| {
        let server = Arc::clone(&server);
        Underway::behind(&client, "job", move || {
            let claim = lock.claim().unwrap();
            let found = (claim.fence(), get(&server, "job"));
            claim.release().unwrap();
            found
        })
    };
    let again = claims(lock.clone());
    let with_other_options = claims(client.lock("job"));
    claim.release().unwrap();
    let (second, third) = (holds.result(), again.result());
    assert!(token.is_some() && second.1 == token && third.1 == token, "one lease");
    assert!(first < second.0 && second.0 < third.0, "a fence for each");
    let (fence, another) = with_other_options.result();
    assert!(fence.is_none() && another.is_some() && another != token);
    assert!(is_free(&lock));
}

#[test]
fn claims_and_holds_of_many_threads_and_clients_are_never_there_at_once() {
    let server = Server::start();
    let (inside, rounds) = (AtomicU64::new(0), 150);
    let clients = [client(&server), client(&server)];
    let (give, take) = crossbeam_channel::unbounded::<Claim>();
    thread::scope(|scope| {
        for client in &clients {
            for thread in 0..4 {
                let (inside, give, take) = (&inside, give.clone(), take.clone());
                scope.spawn(move || {
                    let lock = client.lock("job");
                    for round in 0..rounds {
                        let enters = || assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        if (thread + round) % 2 == 0 {
                            let claim = lock.claim().unwrap();
                            enters();
                            // Whoever takes it out first releases it.
                            give.send(claim).unwrap();
                            let claim = take.recv().unwrap();
                            claim.ensure_valid().unwrap();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            claim.release().unwrap();
                        } else {
                            let guard = lock.guard().unwrap();
                            enters();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            guard.release().unwrap();
                        }
                    }
                });
            }
        }
    });
    assert!(is_free(&clients[0].lock("job")));
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
    // A thread behind it does not wait until its owner notices.
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
    let found = logs::lines(Level::Warn, &["claims-lost", "lost", "a claim was dropped"]);
    assert_eq!(found.len(), 1);
    assert!(next.is_valid() && !is_free(&other.lock("claims-lost")));
    next.release().unwrap();
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
    // What is leaked is released, too.
    std::mem::forget(client.lock("leaked").claim().unwrap());
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
fn many_threads_that_extend_one_claim_never_shorten_it() {
    let server = Server::start();
    let lock = client(&server).lock_with("job", lease(ms(1500))).unwrap();
    let claim = lock.claim().unwrap();
    let begin = Barrier::new(8);
    thread::scope(|scope| {
        for length in 1..=8 {
            let (claim, begin) = (&claim, &begin);
            scope.spawn(move || {
                begin.wait();
                for _ in 0..25 {
                    claim.extend(SOON * length).unwrap();
                    assert!(claim.remaining() > SOON * length - SOON / 2);
                }
            });
        }
    });
    assert!(claim.remaining() > SOON * 7);
    assert!(lock.inspect().unwrap().unwrap().remaining.unwrap() > SOON * 7);
    claim.release().unwrap();
    assert_eq!(get(&server, "job"), None);
}

#[test]
fn a_claim_has_the_options_of_its_lock() {
    let server = Server::start();
    let client = client(&server);
    let options = LockOptions::new().owner("worker-7").lease(ms(400)).renewal(Renewal::Never);
    let lock = client.lock_with("job", options).unwrap();
    let claim = lock.claim().unwrap();
    assert_eq!(get(&server, "job").as_deref(), Some("worker-7"));
    eventually(SOON, || get(&server, "job").is_none());
    assert!(!claim.is_valid() && error(claim.release()).is_lost());
    assert!(error(client.lock("").claim()).is_invalid_input());
}

#[test]
fn a_forked_child_releases_no_claim_of_its_parent() {
    in_own_process("claims::a_forked_child_releases_no_claim_of_its_parent", || {
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
