//! Locking: who waits for whom, in which order, for how long, and what travels to the server
//! meanwhile.

use std::collections::HashSet;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, Layout, Lock, LockOptions, Queue, RedisLock, Renewal, Retry};

use crate::helpers::{
    Asked, Elsewhere, Notes, SOON, Underway, client, delete, error, get, is_free, keys, lease,
    memory, ms,
};
use crate::helpers::{on_another_thread, pttl, put};
use crate::support::{Fault, Proxy, Rule, Server, eventually, within};

/// Polls, so that a wake-up that may or may not come decides nothing.
fn polling(pause: Duration) -> LockOptions {
    LockOptions::new().queue(Queue::None).retry(Retry::fixed(pause))
}

#[test]
fn lock_puts_a_token_with_a_lease_under_the_name() {
    let server = Server::start();
    let lock = client(&server).lock("orders:42");
    assert_eq!((lock.name(), lock.key()), ("orders:42", "orders:42"));
    lock.lock().unwrap();
    let token = get(&server, "orders:42").unwrap();
    assert_eq!(token.len(), 36, "a UUID");
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
    // Whoever deletes a key by hand wakes nobody: this is for the next attempt to find.
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
    // A lock of our own in the same place, so that both kinds of waiting are seen.
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
fn a_wait_without_limit_is_one() {
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
    // On the very same thread, too: a hold belongs to a client as much as to a thread.
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

/// Has `count` threads queue one after the other, releases, and returns the order in which they got
/// the lock.
fn order_of_service(client: &Client, lock: &RedisLock, count: usize) -> Vec<usize> {
    let holder = Elsewhere::holds(lock);
    let (served, order) = mpsc::channel();
    let waiters: Vec<_> = (0..count)
        .map(|number| {
            let (lock, served) = (lock.clone(), served.clone());
            Underway::behind(client, lock.name().to_owned().as_str(), move || {
                // Each in its own way: they all queue in the same line.
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
    // Also where leases are never handed on, and where threads ask for different things.
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
    // A connection that stays would be counted for ever; the one that looked before may be for a
    // moment.
    eventually(SOON, || server.client_count() == 0);
    client.ping().unwrap();
    assert_eq!(server.client_count(), 1);
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
    // It asks, and nobody has answered it yet or ever.
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
fn a_refusal_is_no_answer_any_more_once_the_server_has_fallen_silent() {
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
    // The same for the one that asks itself.
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

#[test]
fn attempts_end_a_wait_after_as_many_refusals() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON);
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    for queue in [Queue::None, Queue::Fifo] {
        // In the queue, when the inbox opens, whoever waits asks once more than that.
        let (at_least, extra) = (ms(55), usize::from(queue == Queue::Fifo));
        let before = notes.attempts();
        let options = LockOptions::new().queue(queue).retry(Retry::fixed(ms(30)).attempts(3));
        let lock = client.lock_with("job", options).unwrap();
        assert!(within(at_least..ms(3000), || error(lock.lock())).is_exhausted());
        assert!((3..=3 + extra).contains(&(notes.attempts() - before)));
        assert!(!within(at_least..ms(3000), || lock.try_lock(Duration::MAX).unwrap()));
        assert!(!lock.try_lock(SOON).unwrap());
        assert!((9..=9 + extra).contains(&(notes.attempts() - before)));
    }
    delete(&server, "job");
    eventually(SOON, || keys(&server).is_empty());
}

#[test]
fn attempts_end_the_wait_for_a_local_turn_too() {
    let client = memory();
    let holder = Elsewhere::holds(&client.lock("job"));
    let lock = client
        .lock_with("job", LockOptions::new().retry(Retry::fixed(ms(30)).attempts(3)))
        .unwrap();
    for trying in [false, true] {
        let start = Instant::now();
        let waiter = {
            let lock = lock.clone();
            Underway::start(move || {
                if trying { lock.try_lock(Duration::MAX) } else { lock.lock().map(|()| true) }
            })
        };
        let ended = waiter.result();
        assert!((ms(55)..ms(3000)).contains(&start.elapsed()));
        if trying {
            assert!(!ended.unwrap());
        } else {
            assert!(error(ended).is_exhausted());
        }
    }
    holder.unlock().unwrap();
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    lock.unlock().unwrap();
}

#[test]
fn a_fixed_pause_bounds_how_often_a_waiter_asks() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON);
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let lock = client.lock_with("job", polling(ms(50))).unwrap();
    assert!(!lock.try_lock(ms(500)).unwrap());
    assert!((2..=11).contains(&notes.attempts()), "{} attempts", notes.attempts());
    let times: Vec<_> = notes.asked().iter().map(|(at, ..)| *at).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= ms(49)));
}

#[test]
fn without_settings_a_waiter_does_not_ask_in_a_hot_loop() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON);
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    let lock = client.lock_with("job", LockOptions::new().queue(Queue::None)).unwrap();
    assert!(!lock.try_lock(ms(400)).unwrap());
    // Every 20 to 80 ms.
    assert!((1..=21).contains(&notes.attempts()), "{} attempts", notes.attempts());
}

#[test]
fn all_attempts_of_one_acquisition_have_one_token_and_no_other_has_it() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON);
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    // Without the queue, where nothing makes it ask between its attempts.
    let options = LockOptions::new().queue(Queue::None).retry(Retry::fixed(ms(5)).attempts(3));
    let lock = client.lock_with("job", options).unwrap();
    assert!(error(lock.lock()).is_exhausted());
    assert!(error(lock.lock()).is_exhausted());
    let asked: Vec<_> = notes
        .asked()
        .into_iter()
        .filter_map(|(_, _, asked)| match asked {
            Asked::Acquire { token, attempt } => Some((token, attempt)),
            _ => None,
        })
        .collect();
    assert_eq!(asked.iter().map(|(_, attempt)| *attempt).collect::<Vec<_>>(), [1, 2, 3, 1, 2, 3]);
    let tokens: Vec<HashSet<_>> =
        asked.chunks(3).map(|attempts| attempts.iter().map(|(token, _)| token).collect()).collect();
    assert!(tokens.iter().all(|tokens| tokens.len() == 1) && tokens[0].is_disjoint(&tokens[1]));
}

#[test]
fn locking_again_with_other_options_is_a_conflict() {
    let client = memory();
    let lock = client.lock_with("job", lease(ms(20_000))).unwrap();
    let same = client.lock_with("job", lease(ms(20_000))).unwrap();
    let other = client.lock_with("job", lease(ms(10_000))).unwrap();
    lock.lock().unwrap();
    same.lock().unwrap();
    for refused in [
        other.lock(),
        other.try_lock(Duration::ZERO).map(drop),
        other.guard().map(drop),
        client.lock("job").lock(),
    ] {
        assert!(error(refused).is_conflict());
    }
    assert_eq!((lock.hold_count(), other.hold_count()), (2, 2));
    lock.unlock().unwrap();
    // Any handle of the lock takes a hold back.
    other.unlock().unwrap();
    other.lock().unwrap();
    other.unlock().unwrap();
}

#[test]
fn a_thread_with_other_options_waits_for_its_turn_and_gets_what_it_asked_for() {
    let server = Server::start();
    let client = client(&server);
    let holder = Elsewhere::holds(&client.lock("job"));
    let lock = client.lock_with("job", lease(ms(5_000)).renewal(Renewal::Never)).unwrap();
    let waiter = {
        let lock = lock.clone();
        Underway::behind(&client, "job", move || {
            lock.lock().unwrap();
            let remaining = lock.remaining().unwrap();
            lock.unlock().unwrap();
            remaining
        })
    };
    holder.unlock().unwrap();
    assert!(waiter.result() < ms(5_000), "not the lease of thirty seconds that the other had");
}

#[test]
fn the_owners_value_stands_under_the_key() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock_with("job", LockOptions::new().owner("worker-7")).unwrap();
    for _ in 0..2 {
        lock.lock().unwrap();
        assert_eq!(get(&server, "job").as_deref(), Some("worker-7"));
        lock.unlock().unwrap();
        assert_eq!(get(&server, "job"), None);
    }
}

#[test]
fn an_owner_is_refused_by_its_own_value_all_the_same() {
    let server = Server::start();
    let (mine, theirs) = (client(&server), client(&server));
    let options = || LockOptions::new().owner("worker-7");
    let lock = mine.lock_with("job", options()).unwrap();
    lock.lock().unwrap();
    // Another thread of the client, another client, and a value that somebody left there.
    assert!(!on_another_thread(|| lock.try_lock(ms(30)).unwrap()));
    assert!(!theirs.lock_with("job", options()).unwrap().try_lock(ms(100)).unwrap());
    put(&server, "left", "worker-7", SOON);
    let left = mine.lock_with("left", options()).unwrap();
    assert!(!left.try_lock(Duration::ZERO).unwrap() && !left.try_lock(ms(100)).unwrap());
    assert_eq!(
        get(&server, "left").as_deref(),
        Some("worker-7"),
        "and not withdrawn: it is not ours"
    );
    lock.unlock().unwrap();
}

#[test]
fn an_owner_believes_already_mine_after_an_unanswered_attempt() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock_with("job", LockOptions::new().owner("worker-7")).unwrap();
    let cut = proxy.add(Rule::on("SET", Fault::CutAfter).next(1));
    within(..SOON, || lock.lock().unwrap());
    assert_eq!(cut.fired(), 1);
    assert_eq!(get(&server, "job").as_deref(), Some("worker-7"));
    lock.unlock().unwrap();
    assert_eq!(get(&server, "job"), None);
}

#[test]
fn owners_that_cannot_work_are_refused() {
    let client = memory();
    for owner in [String::new(), "x".repeat(1025)] {
        assert!(error(client.lock_with("job", LockOptions::new().owner(owner))).is_invalid_input());
    }
    client.lock_with("job", LockOptions::new().owner("x".repeat(1024))).unwrap();
    let timestamp = LockOptions::new().owner("x").layout(Layout::Timestamp);
    assert!(error(client.lock_with("job", timestamp)).is_invalid_input());
}

#[test]
fn the_key_is_the_prefix_and_the_name() {
    let server = Server::start();
    let prefixed = Client::builder(&server.url()).key_prefix("lock:").build().unwrap();
    let lock = prefixed.lock("orders");
    assert_eq!((lock.name(), lock.key()), ("orders", "lock:orders"));
    lock.lock().unwrap();
    assert_eq!(keys(&server), ["lock:orders"]);
    // The same key by another way is the same lock to the server, and a bare name is another.
    assert!(!client(&server).lock("lock:orders").try_lock(Duration::ZERO).unwrap());
    assert!(client(&server).lock("orders").try_lock(Duration::ZERO).unwrap());
    assert_eq!(error(on_another_thread(|| lock.unlock())).lock_name(), Some("orders"));
    lock.unlock().unwrap();
}

#[test]
fn names_that_cannot_be_used_are_reported_by_the_first_call_that_would() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("p:").build().unwrap();
    let longest = "x".repeat(1022);
    for name in [String::new(), "x".repeat(1023), "ü".repeat(600), "x".repeat(1_000_000)] {
        let lock = client.lock(&name);
        assert_eq!(lock.name(), name);
        let failed = [
            lock.lock(),
            lock.try_lock(Duration::ZERO).map(drop),
            lock.try_lock(SOON).map(drop),
            lock.guard().map(drop),
            lock.with(|_| ()),
            lock.inspect().map(drop),
            lock.is_locked().map(drop),
            lock.force_unlock().map(drop),
            lock.lock_interruptibly(&distlock::Interrupt::new()),
        ];
        for failed in failed {
            let error = error(failed);
            assert!(error.is_invalid_input());
            assert!(error.to_string().len() < 200, "it does not repeat a megabyte");
        }
        assert!(!lock.is_held());
    }
    assert_eq!(server.client_count(), 0, "nothing was sent");
    client.lock(&longest).with(|_| ()).unwrap();
}

#[test]
fn odd_names_are_names() {
    let server = Server::start();
    let client = client(&server);
    let names = [
        "x",
        "{x}",
        "a}b",
        "{a}b}",
        "{}x",
        "x:",
        "{x}:",
        "x::",
        "a b",
        " ",
        "\r\n",
        "\0",
        "naïve ☃",
        "*",
        "'\"\\",
    ];
    let options = LockOptions::new().fenced();
    let locks: Vec<_> =
        names.iter().map(|name| client.lock_with(name, options.clone()).unwrap()).collect();
    for lock in &locks {
        assert!(lock.try_lock(Duration::ZERO).unwrap(), "{:?} is another's", lock.name());
    }
    for (lock, name) in locks.iter().zip(names) {
        assert_eq!(lock.key(), name);
        assert!(get(&server, name).is_some());
        assert!(!client_of_another(&server, name));
    }
    locks.iter().for_each(|lock| lock.unlock().unwrap());
    assert_eq!(keys(&server).len(), names.len(), "one fence for each, and no two share it");
}

/// Whether another client gets the lock.
fn client_of_another(server: &Server, name: &str) -> bool {
    client(server).lock(name).try_lock(Duration::ZERO).unwrap()
}

#[test]
fn companion_keys_share_the_slot_of_the_key() {
    let server = Server::start();
    let client = client(&server);
    let slot = |key: &str| {
        redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query::<u32>(&mut server.connection())
    };
    for name in ["orders", "a{b}c", "{x}", "a{b", "{user}:7"] {
        let lock = client.lock_with(name, LockOptions::new().fenced()).unwrap();
        lock.with(|_| ()).unwrap();
        let left = keys(&server);
        let [fence] = &left[..] else { panic!("{left:?}") };
        assert!(fence.ends_with("fence") && fence.contains(name));
        assert_eq!(crc_slot(fence), crc_slot(name), "{fence}");
        // The server's own word where it has one; a server outside a cluster refuses to say.
        if let (Ok(theirs), Ok(ours)) = (slot(fence), slot(name)) {
            assert_eq!(theirs, ours);
        }
        delete(&server, fence);
    }
}

/// The slot of a key, as the Redis Cluster specification has it: CRC16 (XMODEM) of the hash tag, or
/// of the whole key.
fn crc_slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    let crc = tag.unwrap_or(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16_384
}

#[test]
fn memory_is_a_store_of_its_own_unless_it_has_a_name() {
    let (own, another) = (memory(), memory());
    let (named, same) = (
        Client::open("memory://lock-names").unwrap(),
        Client::open("memory://lock-names").unwrap(),
    );
    for client in [&own, &another, &named] {
        assert!(client.lock("job").try_lock(Duration::ZERO).unwrap());
    }
    assert!(!same.lock("job").try_lock(Duration::ZERO).unwrap());
    assert!(
        Client::open("memory://lock-names-2")
            .unwrap()
            .lock("job")
            .try_lock(Duration::ZERO)
            .unwrap()
    );
    named.lock("job").unlock().unwrap();
    assert!(same.lock("job").try_lock(Duration::ZERO).unwrap());
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
fn a_lock_of_ones_own_needs_no_condition() {
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
fn settings_that_cannot_work_are_refused_where_they_are_given() {
    let client = memory();
    let day = Duration::from_secs(24 * 60 * 60);
    let bad = [
        lease(Duration::ZERO),
        lease(ms(99)),
        lease(day + ms(1)),
        lease(Duration::MAX),
        LockOptions::new().retry(Retry::fixed(Duration::ZERO)),
        LockOptions::new().retry(Retry::jittered(ms(5), ms(4))),
        LockOptions::new().retry(Retry::fixed(ms(5)).attempts(0)),
        LockOptions::new().local_hand_offs(1_000_001),
    ];
    for options in bad {
        assert!(error(client.lock_with("job", options.clone())).is_invalid_input(), "{options:?}");
        assert!(
            error(Client::builder("memory://").lock_options(options.clone()).build())
                .is_invalid_input(),
            "{options:?}"
        );
    }
    for options in [
        lease(ms(100)),
        lease(day),
        LockOptions::new().retry(Retry::jittered(ms(1), Duration::MAX)),
    ] {
        client.lock_with("job", options).unwrap().with(|_| ()).unwrap();
    }
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
    let holder = lock.inspect().unwrap().unwrap();
    assert_eq!((holder.token.as_str(), holder.remaining), ("somebody", None));
    assert!(lock.force_unlock().unwrap());
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    lock.unlock().unwrap();
}
