//! Locking: who waits for whom, in which order, for how long, and what is sent to the server
//! meanwhile.

mod attempts;
mod names;
mod options;
mod turns;

use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, Lock, LockOptions, Queue, Retry};

use crate::helpers::{
    Elsewhere, Notes, SOON, Underway, client, delete, error, get, keys, lease, memory, ms,
    on_another_thread, pttl, put,
};
use crate::support::{Proxy, Server, eventually, within};

/// Polls, so that the test does not depend on wake-ups.
fn polling(pause: Duration) -> LockOptions {
    LockOptions::new().queue(Queue::None).retry(Retry::fixed(pause))
}

#[test]
fn lock_puts_a_token_with_a_lease_under_the_name() {
    let server = Server::start();
    let client = Client::builder(&server.url()).name("billing-3").build().unwrap();
    let lock = client.lock("orders:42");
    assert_eq!((lock.name(), lock.key()), ("orders:42", "orders:42"));
    lock.lock().unwrap();
    let token = get(&server, "orders:42").unwrap();
    let (uuid, name) = token.split_once('@').unwrap();
    assert_eq!((uuid.len(), name), (36, "billing-3"), "{token}");
    assert!((25_000..=30_000).contains(&pttl(&server, "orders:42")));
    lock.unlock().unwrap();
    assert_eq!(get(&server, "orders:42"), None);
    lock.lock().unwrap();
    assert_ne!(get(&server, "orders:42").unwrap(), token, "never reused");
    lock.unlock().unwrap();
}

#[test]
fn lock_waits_until_a_foreign_key_has_gone() {
    let server = Server::start();
    // Deleting a key by hand wakes nobody: the next attempt finds the lock free.
    let lock = client(&server).lock_with("job", polling(ms(20))).unwrap();
    put(&server, "job", "somebody", SOON);
    let waiter = Underway::start({
        let lock = lock.clone();
        move || lock.lock().and_then(|()| lock.unlock())
    });
    thread::sleep(ms(50));
    assert!(!waiter.is_done());
    assert_eq!(get(&server, "job").as_deref(), Some("somebody"));
    delete(&server, "job");
    waiter.result().unwrap();
}

#[test]
fn lock_takes_over_as_soon_as_a_foreign_lease_runs_out() {
    let server = Server::start();
    put(&server, "job", "somebody", ms(300));
    // A pause that is longer than the rest of the lease is cut short.
    let lock = client(&server).lock_with("job", polling(SOON * 10)).unwrap();
    within(ms(200)..SOON, || lock.lock().unwrap());
    lock.unlock().unwrap();
}

#[test]
fn try_lock_zero_asks_once_and_does_not_wait() {
    let server = Server::start();
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let lock = client.lock("job");
    put(&server, "job", "somebody", SOON);
    assert!(!within(..ms(1000), || lock.try_lock(Duration::ZERO).unwrap()));
    assert_eq!(notes.attempts(), 1);
    assert_eq!(keys(&server), ["job"], "it has not queued");
    delete(&server, "job");
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    assert_eq!(notes.attempts(), 2);
    lock.unlock().unwrap();
}

#[test]
fn try_lock_gives_up_at_its_deadline_and_not_before() {
    let server = Server::start();
    let lock = client(&server).lock("job");
    put(&server, "job", "somebody", SOON);
    assert!(!within(ms(150)..ms(2000), || lock.try_lock(ms(150)).unwrap()));
    assert!(!lock.is_held());
    // Instead of the foreign key a lock of our own, so that both kinds of waiting are tested.
    delete(&server, "job");
    let holder = Elsewhere::holds(&lock);
    assert!(!within(ms(150)..ms(2000), || lock.try_lock(ms(150)).unwrap()));
    holder.unlock().unwrap();
}

#[test]
fn try_lock_gets_a_lock_that_becomes_free_in_time() {
    let server = Server::start();
    let lock = client(&server).lock("job");
    put(&server, "job", "somebody", ms(150));
    assert!(within(ms(50)..SOON, || lock.try_lock(SOON).unwrap()));
    lock.unlock().unwrap();
}

#[test]
fn a_wait_without_a_limit_ends_only_with_the_lock() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock_with("job", polling(ms(20))).unwrap();
    for foreign in [true, false] {
        let holder = (!foreign).then(|| Elsewhere::holds(&lock));
        if foreign {
            put(&server, "job", "somebody", SOON * 6);
        }
        let waiter = Underway::start({
            let lock = lock.clone();
            move || lock.try_lock(Duration::MAX).unwrap() && lock.unlock().is_ok()
        });
        thread::sleep(ms(50));
        assert!(!waiter.is_done());
        match holder {
            Some(holder) => holder.unlock().unwrap(),
            None => delete(&server, "job"),
        }
        assert!(waiter.result());
    }
}

#[test]
fn waits_of_any_length_are_accepted() {
    let lock = memory().lock("job");
    for timeout in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_secs(u64::MAX / 2),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ] {
        assert!(lock.try_lock(timeout).unwrap());
        lock.unlock().unwrap();
    }
}

#[test]
fn two_clients_in_one_process_exclude_each_other() {
    let server = Server::start();
    let (mine, theirs) = (client(&server).lock("job"), client(&server).lock("job"));
    mine.lock().unwrap();
    // On the same thread, too: a hold belongs to a client as well as to a thread.
    assert!(!theirs.try_lock(Duration::ZERO).unwrap());
    assert!(!theirs.is_held() && error(theirs.unlock()).is_not_held());
    mine.unlock().unwrap();
    assert!(theirs.try_lock(Duration::ZERO).unwrap());
    theirs.unlock().unwrap();
}

#[test]
fn handles_of_one_client_and_name_are_the_same_lock() {
    let client = memory();
    client.lock("job").lock().unwrap();
    let again = client.clone().lock("job");
    assert_eq!(again.hold_count(), 1);
    again.clone().lock().unwrap();
    assert_eq!(client.lock("job").hold_count(), 2);
    again.unlock().unwrap();
    again.unlock().unwrap();
    assert!(!client.lock("job").is_held());
}

#[test]
fn locks_of_one_client_do_not_wait_for_each_other() {
    let client = memory();
    let holder = Elsewhere::holds(&client.lock("a"));
    let waiter = {
        let lock = client.lock("a");
        Underway::behind(&client, "a", move || lock.lock().and_then(|()| lock.unlock()))
    };
    assert!(client.lock("b").try_lock(Duration::ZERO).unwrap());
    client.lock("b").unlock().unwrap();
    holder.unlock().unwrap();
    waiter.result().unwrap();
}

#[test]
fn a_lock_that_nobody_else_wants_costs_two_round_trips() {
    const CYCLES: u64 = 50;
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    for (options, sets) in [(LockOptions::new(), 1), (LockOptions::new().fenced(), 0)] {
        let lock = client.lock_with("job", options).unwrap();
        // The first cycle opens the connection and has the server keep the scripts.
        lock.with(|_| ()).unwrap();
        let requests = proxy.requests();
        let before = (server.command_count("set"), server.command_count("evalsha"));
        let (evals, hellos) = (server.command_count("eval"), server.client_count());
        for _ in 0..CYCLES {
            lock.lock().unwrap();
            lock.unlock().unwrap();
        }
        assert_eq!(proxy.requests() - requests, 2 * CYCLES);
        assert_eq!(server.command_count("evalsha") - before.1, (2 - sets) * CYCLES);
        if sets == 1 {
            assert_eq!(server.command_count("set") - before.0, CYCLES);
        }
        assert_eq!((server.command_count("eval"), server.client_count()), (evals, hellos));
    }
}

#[test]
fn asking_locally_and_locking_again_sends_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock("job");
    lock.with(|_| ()).unwrap();
    let guard = lock.guard().unwrap();
    let before = proxy.requests();
    for _ in 0..10 {
        lock.lock().unwrap();
        assert!(lock.try_lock(Duration::ZERO).unwrap() && lock.try_lock(ms(5)).unwrap());
        let again = lock.guard().unwrap();
        assert!(lock.is_held() && lock.hold_count() == 5 && lock.is_valid() && again.is_valid());
        again.ensure_valid().unwrap();
        assert!(lock.remaining().is_some() && lock.fence().is_none());
        drop(again);
        (0..3).for_each(|_| lock.unlock().unwrap());
    }
    assert_eq!(proxy.requests(), before);
    guard.release().unwrap();
    assert_eq!(proxy.requests() - before, 1);
}

#[test]
fn making_a_client_and_a_lock_connects_to_nothing() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("job");
    assert!(
        !lock.is_held() && !lock.is_valid() && lock.remaining().is_none() && lock.fence().is_none()
    );
    assert!(error(lock.unlock()).is_not_held());
    // A connection that stays open would always be counted. The one of the earlier look may be
    // counted for a moment.
    eventually(SOON, || server.client_count() == 0);
    client.ping().unwrap();
    assert_eq!(server.client_count(), 1);
}

#[test]
fn any_lock_can_be_used_through_the_trait() {
    fn book(lock: &dyn Lock) -> bool {
        let booked = lock.try_lock(ms(20)).unwrap();
        if booked {
            lock.unlock().unwrap();
        }
        booked
    }
    let lock = memory().lock("job");
    let boxed: Box<dyn Lock> = Box::new(lock.clone());
    assert!(book(&*boxed) && on_another_thread(|| book(&*boxed)));
    lock.lock().unwrap();
    assert!(!on_another_thread(|| book(&*boxed)));
    lock.unlock().unwrap();
}

#[test]
fn a_lock_type_of_the_programs_own_needs_no_conditions() {
    struct Free;
    impl Lock for Free {
        fn lock(&self) -> distlock::Result<()> {
            Ok(())
        }
        fn lock_interruptibly(&self, _: &distlock::Interrupt) -> distlock::Result<()> {
            Ok(())
        }
        fn try_lock(&self, _: Duration) -> distlock::Result<bool> {
            Ok(true)
        }
        fn try_lock_interruptibly(
            &self,
            _: Duration,
            _: &distlock::Interrupt,
        ) -> distlock::Result<bool> {
            Ok(true)
        }
        fn unlock(&self) -> distlock::Result<()> {
            Ok(())
        }
    }
    assert!(error(Free.new_condition("not-empty")).is_unsupported());
}

#[test]
fn a_lease_shorter_than_the_command_timeout_works() {
    let server = Server::start();
    let client = Client::builder(&server.url()).command_timeout(SOON).build().unwrap();
    let lock = client.lock_with("job", lease(ms(1200))).unwrap();
    let start = Instant::now();
    lock.with(|guard| {
        while start.elapsed() < ms(2000) {
            assert!(guard.is_valid());
            thread::sleep(ms(10));
        }
    })
    .unwrap();
}

#[test]
fn a_foreign_lock_without_an_end_is_waited_for() {
    let server = Server::start();
    redis::cmd("SET").arg("job").arg("somebody").exec(&mut server.connection()).unwrap();
    let lock = client(&server).lock("job");
    assert!(!lock.try_lock(ms(150)).unwrap());
    let holder = lock.inspect().unwrap().holders.remove(0);
    assert_eq!((holder.token.as_str(), holder.remaining), ("somebody", None));
    assert!(lock.force_unlock().unwrap());
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    lock.unlock().unwrap();
}
