//! Threads of one process queue for a lock in order, and only the one whose turn it is asks the
//! server.

use std::collections::HashSet;
use std::sync::mpsc;
use std::time::Duration;

use distlock::{Client, LockOptions, Queue, RedisLock, Renewal};

use super::polling;
use crate::helpers::{
    Elsewhere, Notes, SOON, Underway, client, delete, error, is_free, memory, ms,
    on_another_thread, put,
};
use crate::support::{Proxy, Server, eventually, within};

/// Makes `count` threads queue one after another, releases, and returns the order in which they got
/// the lock.
fn order_of_service(client: &Client, lock: &RedisLock, count: usize) -> Vec<usize> {
    let holder = Elsewhere::holds(lock);
    let (served, order) = mpsc::channel();
    let waiters: Vec<_> = (0..count)
        .map(|number| {
            let (lock, served) = (lock.clone(), served.clone());
            Underway::behind(client, lock.name().to_owned().as_str(), move || {
                // By different calls: all of them wait in the same queue.
                match number % 3 {
                    0 => lock.lock().unwrap(),
                    1 => assert!(lock.try_lock(SOON).unwrap()),
                    _ => lock.lock_interruptibly(&distlock::Interrupt::new()).unwrap(),
                }
                served.send(number).unwrap();
                lock.unlock().unwrap();
            })
        })
        .collect();
    holder.unlock().unwrap();
    waiters.into_iter().for_each(Underway::result);
    order.try_iter().collect()
}

#[test]
fn threads_of_one_process_are_served_first_come_first_served() {
    let expected: Vec<_> = (0..9).collect();
    let server = Server::start();
    let client = client(&server);
    for hand_offs in [16, 2, 0] {
        let lock = client.lock_with("job", LockOptions::new().local_hand_offs(hand_offs)).unwrap();
        assert_eq!(
            order_of_service(&client, &lock, 9),
            expected,
            "with {hand_offs} hand-offs in a row"
        );
    }
    // Also if leases are never handed on, and if threads ask for different things.
    let lock = client
        .lock_with("job", LockOptions::new().renewal(Renewal::Never).queue(Queue::None))
        .unwrap();
    assert_eq!(order_of_service(&client, &lock, 9), expected);
}

#[test]
fn a_thread_that_gives_up_its_place_does_not_hold_up_those_behind_it() {
    let client = memory();
    let lock = client.lock("job");
    let holder = Elsewhere::holds(&lock);
    let impatient = {
        let lock = lock.clone();
        Underway::behind(&client, "job", move || lock.try_lock(ms(100)))
    };
    let patient = {
        let lock = lock.clone();
        Underway::behind(&client, "job", move || lock.lock().and_then(|()| lock.unlock()))
    };
    assert!(!impatient.result().unwrap());
    assert_eq!(client.waiting("job"), 1);
    holder.unlock().unwrap();
    patient.result().unwrap();
    assert!(is_free(&lock));
}

#[test]
fn threads_behind_another_of_their_process_send_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock("job");
    let holder = Elsewhere::holds(&lock);
    let before = proxy.requests();
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            let lock = lock.clone();
            Underway::behind(&client, "job", move || lock.lock().and_then(|()| lock.unlock()))
        })
        .collect();
    assert!(!lock.try_lock(ms(200)).unwrap());
    assert_eq!(proxy.requests(), before);
    holder.unlock().unwrap();
    waiters.into_iter().for_each(|waiter| waiter.result().unwrap());
}

#[test]
fn only_the_thread_whose_turn_it_is_talks_to_the_server() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON);
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let lock = client.lock_with("job", polling(ms(10))).unwrap();
    let (first, others) = {
        let start = || {
            let lock = lock.clone();
            move || lock.lock().and_then(|()| lock.unlock())
        };
        let first = Underway::start(start());
        eventually(SOON, || notes.attempts() > 0);
        (first, (0..5).map(|_| Underway::behind(&client, "job", start())).collect::<Vec<_>>())
    };
    let seen = notes.attempts();
    eventually(SOON, || notes.attempts() > seen + 5);
    let threads: HashSet<_> = notes.asked().into_iter().map(|(_, thread, _)| thread).collect();
    assert_eq!(threads.len(), 1, "one thread asks, with {} waiting", client.waiting("job"));
    delete(&server, "job");
    first.result().unwrap();
    others.into_iter().for_each(|waiter| waiter.result().unwrap());
}

#[test]
fn behind_a_holder_try_lock_says_that_another_has_it() {
    let client = memory();
    let lock = client.lock("job");
    let holder = Elsewhere::holds(&lock);
    assert!(!within(..ms(1000), || lock.try_lock(Duration::ZERO).unwrap()));
    assert!(!within(ms(60)..ms(2000), || lock.try_lock(ms(60)).unwrap()));
    holder.unlock().unwrap();
}

/// A client whose server is reached through a proxy and has little time for each command.
fn impatient_client(proxy: &Proxy) -> Client {
    Client::builder(&proxy.url()).command_timeout(ms(150)).build().unwrap()
}

#[test]
fn behind_a_thread_that_was_refused_try_lock_says_that_another_has_it() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON);
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let lock = client.lock_with("job", polling(ms(20))).unwrap();
    let first = {
        let lock = lock.clone();
        Underway::start(move || lock.lock().and_then(|()| lock.unlock()))
    };
    eventually(SOON, || notes.attempts() > 1);
    assert!(!within(..ms(1000), || lock.try_lock(Duration::ZERO).unwrap()));
    assert!(!within(ms(60)..ms(2000), || lock.try_lock(ms(60)).unwrap()));
    delete(&server, "job");
    first.result().unwrap();
}

#[test]
fn behind_a_thread_without_an_answer_try_lock_says_that_the_server_is_silent() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = impatient_client(&proxy);
    let lock = client.lock_with("job", polling(ms(20))).unwrap();
    proxy.freeze();
    let first = {
        let lock = lock.clone();
        Underway::start(move || lock.lock().and_then(|()| lock.unlock()))
    };
    // It asks, and no server has answered so far.
    eventually(SOON, || {
        on_another_thread(|| error(lock.try_lock(ms(1))).is_unavailable())
            && client.waiting("job") == 0
    });
    assert!(error(within(..ms(2000), || lock.try_lock(Duration::ZERO))).is_unavailable());
    assert!(error(within(ms(100)..ms(2000), || lock.try_lock(ms(100)))).is_unavailable());
    proxy.thaw();
    first.result().unwrap();
}

#[test]
fn a_refusal_no_longer_counts_once_the_server_has_fallen_silent() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON * 6);
    let proxy = Proxy::start(server.port());
    let notes;
    let client;
    (client, notes) = Notes::of(Client::builder(&proxy.url()).command_timeout(ms(150)));
    let lock = client.lock_with("job", polling(ms(20))).unwrap();
    let first = {
        let lock = lock.clone();
        Underway::start(move || lock.lock().and_then(|()| lock.unlock()))
    };
    eventually(SOON, || notes.attempts() > 1);
    let behind = {
        let lock = lock.clone();
        Underway::behind(&client, "job", move || lock.try_lock(ms(900)))
    };
    proxy.freeze();
    assert!(error(behind.result()).is_unavailable());
    // The same for the thread that asks the server itself.
    proxy.thaw();
    delete(&server, "job");
    first.result().unwrap();
    put(&server, "job", "somebody", SOON * 6);
    let seen = notes.attempts();
    let alone = {
        let lock = lock.clone();
        Underway::start(move || lock.try_lock(ms(900)))
    };
    eventually(SOON, || notes.attempts() > seen + 1);
    proxy.freeze();
    assert!(error(alone.result()).is_unavailable());
    proxy.thaw();
}
