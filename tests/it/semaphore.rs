//! Semaphores on a server: who waits and how, what it costs, and what is left.
//!
//! What holds in every store is in `contract/permits.rs`.

mod calls;
mod crowds;
mod ends;
mod killed;
mod leases;
mod outages;
mod permissions;

use std::time::{Duration, Instant};

use distlock::testing::{Answer, Ask, Bell, Key, Place, Token};
use distlock::{Client, Interrupt, LockOptions, Permit, Queue, Retry, Semaphore};

use crate::faults::{nothing_is_left, through_proxy};
use crate::helpers::{
    SOON, Underway, client, delete, error, get, inboxes, keys, lease, memory, ms,
};
use crate::support::{Server, eventually, within};

type Wait = fn(&Semaphore, &Interrupt) -> distlock::Result<Option<Permit>>;

/// How many wait in the server's queue.
fn waiting(server: &Server) -> usize {
    redis::cmd("ZCARD").arg("{s}:queue").query(&mut server.connection()).unwrap()
}

/// Acquires on another thread, and returns once that waits in the server's queue.
fn waits(server: &Server, semaphore: &Semaphore, permits: u32) -> Underway<Permit> {
    let before = waiting(server);
    let semaphore = semaphore.clone();
    let waiter = Underway::start(move || semaphore.acquire_many(permits).unwrap());
    eventually(SOON, || waiting(server) > before);
    waiter
}

#[test]
fn every_thread_has_a_place_of_its_own_and_their_order_is_the_servers() {
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let (mine, theirs) = (mine.semaphore("s", 2), other.semaphore("s", 2));
    let taken = theirs.acquire_many(2).unwrap();
    // Threads of one process, and between them one of another.
    let waiters = [&mine, &mine, &theirs, &mine].map(|semaphore| waits(&server, semaphore, 2));
    assert_eq!(waiting(&server), 4);
    taken.release().unwrap();
    for (number, waiter) in waiters.into_iter().enumerate() {
        let permit = waiter.result();
        assert_eq!(waiting(&server), 3 - number);
        permit.release().unwrap();
    }
    nothing_is_left(&server);
}

#[test]
fn one_release_grants_to_all_that_fit() {
    let server = Server::start();
    let semaphore = client(&server).semaphore("s", 3);
    let all = semaphore.acquire_many(3).unwrap();
    // Once the server knows who listens.
    eventually(SOON, || {
        drop(semaphore.try_acquire(ms(1)).unwrap());
        inboxes(&server) == 1
    });
    let waiters = [1, 2, 2].map(|permits| waits(&server, &semaphore, permits));
    all.release().unwrap();
    // Before any of them asks again.
    let holders = semaphore.holders().unwrap();
    assert_eq!(holders.iter().map(|holder| holder.permits).sum::<u32>(), 3);
    assert_eq!(holders.len(), 2);
    let [one, two, last] = waiters;
    let first = [one.result(), two.result()];
    assert!(!last.is_done());
    drop(first);
    last.result().release().unwrap();
}

#[test]
fn without_contention_a_permit_is_two_round_trips() {
    let (_server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let fenced = LockOptions::new().fenced();
    for semaphore in
        [client.semaphore("s", 3), client.semaphore_with("s", 3, fenced.clone()).unwrap()]
    {
        // The server does not know the scripts yet.
        semaphore.acquire().unwrap().release().unwrap();
        semaphore.available().unwrap();
        let before = proxy.requests();
        for permits in [1, 3, 2] {
            semaphore.acquire_many(permits).unwrap().release().unwrap();
        }
        assert_eq!(proxy.requests() - before, 6);
        assert_eq!(semaphore.available().unwrap(), 3);
        assert_eq!(proxy.requests() - before, 7);
    }
}

#[test]
fn each_permit_has_a_fence_and_none_is_reserved_for_others() {
    let server = Server::start();
    let mut last = 0;
    for client in [memory(), client(&server)] {
        let semaphore = client.semaphore_with("s", 5, LockOptions::new().fenced()).unwrap();
        let permits = [1, 3, 1].map(|permits| semaphore.acquire_many(permits).unwrap());
        let fences = permits.each_ref().map(|permit| permit.fence().unwrap());
        assert!(0 < fences[0] && fences[0] < fences[1] && fences[1] < fences[2], "{fences:?}");
        assert!(permits.iter().all(|permit| permit.fence_i64().is_some()));
        assert!(client.semaphore("s", 6).acquire().unwrap().fence().is_none());
        last = fences[2];
    }
    assert_eq!(get(&server, "{s}:fence"), Some(last.to_string()));
}

#[test]
fn an_interrupt_or_the_deadline_ends_a_wait_and_leaves_nothing() {
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let taken = other.semaphore("s", 3).acquire_many(2).unwrap();
    let semaphore = mine.semaphore("s", 3);
    let interrupt = Interrupt::new();
    let waits: [Wait; 2] = [
        |semaphore, interrupt| semaphore.acquire_many_interruptibly(2, interrupt).map(Some),
        |semaphore, interrupt| semaphore.try_acquire_many_interruptibly(2, SOON * 6, interrupt),
    ];
    for wait in waits {
        interrupt.reset();
        let waiter = Underway::start({
            let (semaphore, interrupt) = (semaphore.clone(), interrupt.clone());
            move || wait(&semaphore, &interrupt).map(drop)
        });
        eventually(SOON, || waiting(&server) == 1);
        interrupt.interrupt();
        let ended = error(waiter.result());
        assert!(ended.is_interrupted() && ended.lock_name() == Some("s"));
        eventually(SOON, || waiting(&server) == 0);
    }
    assert!(error(semaphore.acquire_interruptibly(&interrupt)).is_interrupted());
    assert!(error(semaphore.try_acquire_interruptibly(SOON, &interrupt)).is_interrupted());
    assert!(within(ms(50)..SOON, || semaphore.try_acquire_many(2, ms(50)).unwrap().is_none()));
    // Nobody waits any more, so one more fits at once.
    semaphore.try_acquire(Duration::ZERO).unwrap().unwrap().release().unwrap();
    taken.release().unwrap();
    drop((mine, semaphore));
    nothing_is_left(&server);
}

#[test]
fn attempts_are_used_up_and_without_a_queue_waiters_poll() {
    let server = Server::start();
    let other = client(&server);
    let taken = other.semaphore("s", 1).acquire().unwrap();
    let client = client(&server);
    let with = |options| client.semaphore_with("s", 1, options).unwrap();
    let few = with(LockOptions::new().retry(Retry::fixed(ms(5)).attempts(3)));
    assert!(error(few.acquire()).is_exhausted() && few.try_acquire(SOON).unwrap().is_none());
    let polling = with(LockOptions::new().queue(Queue::None).retry(Retry::fixed(ms(5))));
    let before = server.command_count("evalsha");
    let waiter = Underway::start(move || polling.acquire().unwrap());
    eventually(SOON, || server.command_count("evalsha") > before + 10);
    assert_eq!(waiting(&server), 0);
    taken.release().unwrap();
    waiter.result().release().unwrap();
}

#[test]
fn each_caller_is_held_to_its_own_number_of_permits() {
    let server = Server::start();
    let client = client(&server);
    let (few, many) = (client.semaphore("s", 2), client.semaphore("s", 3));
    let permits = [few.acquire().unwrap(), many.acquire().unwrap()];
    assert!(few.try_acquire(Duration::ZERO).unwrap().is_none());
    assert_eq!((few.available().unwrap(), many.available().unwrap()), (0, 1));
    let third = many.try_acquire(Duration::ZERO).unwrap().unwrap();
    assert_eq!((few.available().unwrap(), many.available().unwrap()), (0, 0));
    drop(permits);
    assert_eq!(few.available().unwrap(), 1);
    third.release().unwrap();
}

#[test]
fn a_semaphore_has_the_name_the_key_and_the_options_of_its_client() {
    let server = Server::start();
    let client = Client::builder(&server.url())
        .key_prefix("app:")
        .lock_options(lease(ms(700)).fenced())
        .build()
        .unwrap();
    let semaphore = client.semaphore("s", 9);
    assert_eq!((semaphore.name(), semaphore.key(), semaphore.permits()), ("s", "app:s", 9));
    let permit = semaphore.acquire().unwrap();
    assert!(permit.fence().is_some() && permit.remaining() <= ms(700) && permit.name() == "s");
    assert_eq!(keys(&server), ["app:s", "{app:s}:fence"]);
    assert!(format!("{semaphore:?} {permit:?}").contains("\"s\""));
    assert_eq!(client.remembered(), (1, 1));
    drop((semaphore, permit));
    eventually(SOON, || client.remembered() == (0, 0));
}

#[test]
fn a_semaphore_of_the_clients_options_says_at_its_first_call_what_cannot_be() {
    let owned = Client::builder("memory://").lock_options(LockOptions::new().owner("me"));
    let owned = owned.build().unwrap().semaphore("s", 1);
    assert!(error(owned.acquire()).is_invalid_input());
    assert!(error(memory().semaphore("s", 0).try_acquire(SOON)).is_invalid_input());
    assert!(error(memory().semaphore_with("s", 0, LockOptions::new())).is_invalid_input());
    let server = Server::start();
    for client in [memory(), client(&server)] {
        let most = client.semaphore("s", u32::MAX);
        assert!(error(most.acquire_many(u32::MAX)).is_invalid_input());
        let large = most.acquire_many(1024).unwrap();
        assert_eq!((large.permits(), most.available().unwrap()), (1024, u32::MAX - 1024));
        large.release().unwrap();
        assert_eq!(most.available().unwrap(), u32::MAX);
    }
}

#[test]
fn a_lock_whose_owner_looks_like_a_share_is_a_lock() {
    let server = Server::start();
    for url in ["memory://looks-like-a-share".to_owned(), server.url()] {
        let [client, other] = [(); 2].map(|()| Client::open(&url).unwrap());
        let [ours, theirs] = [(&client, "p1/2:aa"), (&other, "p1/2:bb")]
            .map(|(client, owner)| client.lock_with("s", LockOptions::new().owner(owner)).unwrap());
        let claim = ours.claim().unwrap();
        assert!(theirs.try_claim(Duration::ZERO).unwrap().is_none());
        assert_eq!(ours.inspect().unwrap().holders[0].permits, 1);
        assert!(error(client.semaphore("s", 2).acquire()).is_wrong_type());
        claim.release().unwrap();
    }
}

#[test]
fn a_sorted_set_of_somebody_else_is_no_semaphore_and_is_left_alone() {
    let server = Server::start();
    let semaphore = client(&server).semaphore("s", 3);
    // Scores that would have expired long ago, and members that look a little like ours.
    for members in
        [["10", "alice"], ["9e15", "a#1"], ["9e15", "p1/3:aa@x#x"], ["-inf", "q1/3:aa@x"]]
    {
        let mut connection = server.connection();
        redis::cmd("ZADD").arg("s").arg(&members).exec(&mut connection).unwrap();
        assert!(error(semaphore.available()).is_wrong_type(), "{members:?}");
        assert!(error(semaphore.holders()).is_wrong_type(), "{members:?}");
        assert!(error(semaphore.try_acquire(SOON)).is_wrong_type(), "{members:?}");
        let length: u32 = redis::cmd("ZCARD").arg("s").query(&mut connection).unwrap();
        assert_eq!(length, 1, "{members:?}");
        delete(&server, "s");
    }
    // A reader of a read-write lock is not ours either.
    redis::cmd("ZADD").arg("s").arg(&["9e15", "r:aa@x"]).exec(&mut server.connection()).unwrap();
    assert!(error(semaphore.available()).is_wrong_type());
    assert!(error(semaphore.acquire()).is_wrong_type());
}

#[test]
fn a_grant_that_nobody_waits_for_comes_back() {
    let server = Server::start();
    let (mine, other) = (client(&server), client(&server));
    let theirs = other.semaphore("s", 2);
    // Starts what looks after leases in the background.
    mine.semaphore("s", 2).acquire().unwrap().release().unwrap();
    let taken = theirs.acquire_many(2).unwrap();
    let store = mine.store_of_permits(2, &LockOptions::new()).unwrap();
    let (key, token, bell) = (Key::new("s".into()), Token::new("p2/2:aa-bb@x"), Bell::new());
    // Another waiter keeps the inbox.
    let _stays = store.listen(&key, &Token::new("p1/2:cc-dd@x"), &bell).unwrap();
    let listening = store.listen(&key, &token, &bell).unwrap();
    let listen = || Some(&*listening.address);
    let ask = Ask {
        key: &key,
        token: &token,
        attempt: 1,
        lease: SOON * 60,
        fences: 0,
        place: Some(Place { listen: &listen, alive_for: SOON * 6, first_lease: SOON * 6 }),
        contended: true,
        may_be_mine: true,
        deadline: Instant::now() + SOON,
    };
    // Until the server knows that the inbox listens, an attempt gets no place.
    eventually(SOON, || {
        assert!(matches!(store.try_acquire(&ask).unwrap(), Answer::Refused { .. }));
        waiting(&server) == 1
    });
    drop(listening);
    taken.release().unwrap();
    eventually(SOON, || theirs.available().unwrap() == 2);
    nothing_is_left(&server);
}
