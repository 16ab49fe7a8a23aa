//! No answer means *maybe run*: never a grant, never an orphan, never somebody else's answer (R4,
//! R5, R6).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, ClientBuilder, Lock, LockOptions};

use crate::faults::{PATIENCE, impatient, nothing_is_left, pool_of, through_proxy, warm_up};
use crate::helpers::{SOON, error, get, is_free, keys, ms};
use crate::support::{Fault, Planned, Proxy, Rule, Server, eventually, within};

/// How soon an orphan is gone after it appeared. Leases in these tests last 30 s.
const ABOUT_A_SECOND: Duration = ms(2000);

/// How often the server has set a key, in scripts and without.
fn sets(server: &Server) -> u64 {
    server.command_count("set")
}

/// The token of an attempt that a fault hit.
fn token_of(command: &[Vec<u8>]) -> String {
    let mut words = command.iter().map(|word| String::from_utf8_lossy(word).into_owned());
    words.find(|word| word.len() == 36 && word.matches('-').count() == 4).expect("a token in it")
}

/// Delivers what is held, and waits until the server has made an orphan of it.
fn deliver_late(server: &Server, held: &Planned) {
    let before = sets(server);
    held.wait_held(SOON).release();
    eventually(SOON, || sets(server) > before);
}

#[track_caller]
fn gone_soon(server: &Server) {
    let appeared = Instant::now();
    nothing_is_left(server);
    let took = appeared.elapsed();
    assert!(took < ABOUT_A_SECOND, "the orphan was there for {took:?}");
}

#[test]
fn attempt_whose_reply_was_swallowed_is_repeated_with_its_token() {
    for (command, options) in
        [("SET", LockOptions::new()), ("EVALSHA", LockOptions::new().fenced())]
    {
        let (server, proxy) = through_proxy();
        let client = impatient(&proxy.url()).build().unwrap();
        let lock = client.lock_with("x", options).unwrap();
        let lost = proxy.add(Rule::on(command, Fault::SwallowReply).next(1));
        within(PATIENCE..SOON, || lock.lock().unwrap());
        let token = token_of(&lost.wait_fired(SOON).command);
        assert_eq!(get(&server, "x"), Some(token));
        // The whole lease again, counted from the attempt that was answered.
        assert!(lock.remaining().unwrap() > ms(25_000));
        lock.unlock().unwrap();
        assert_eq!(get(&server, "x"), None);
    }
}

#[test]
fn late_copy_after_the_release_is_removed_although_a_later_attempt_succeeded() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    for _ in 0..2 {
        let lock = client.lock("x");
        let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
        lock.lock().unwrap();
        lock.unlock().unwrap();
        assert!(keys(&server).is_empty());
        deliver_late(&server, &late);
        gone_soon(&server);
    }
}

#[test]
fn late_copy_while_the_lock_is_held_changes_nothing() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("x");
    let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    lock.lock().unwrap();
    let token = get(&server, "x");
    deliver_late(&server, &late);
    assert_eq!(get(&server, "x"), token);
    assert!(lock.is_valid());
    lock.unlock().unwrap();
    assert!(keys(&server).is_empty());
}

#[test]
fn try_lock_without_an_answer_leaves_nothing_behind() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lost = proxy.add(Rule::on("SET", Fault::SwallowReply).next(1));
    let error = error(client.lock("x").try_lock(Duration::ZERO));
    assert!(error.is_unavailable(), "{error:?}");
    lost.wait_fired(SOON);
    gone_soon(&server);
}

#[test]
fn try_lock_whose_request_arrives_late_leaves_nothing_behind() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    assert!(error(client.lock("x").try_lock(Duration::ZERO)).is_unavailable());
    // The withdrawal has been answered before: "not ours" proved nothing. The first time it is
    // asked for, the server does not know its script.
    eventually(SOON, || server.command_count("evalsha") + server.command_count("eval") > 1);
    deliver_late(&server, &late);
    gone_soon(&server);
}

#[test]
fn late_copy_of_an_interrupted_lock_is_removed() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("x");
    let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    let interrupt = distlock::Interrupt::new();
    let interrupted = thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.lock_interruptibly(&interrupt));
        let held = late.wait_held(SOON);
        interrupt.interrupt();
        let result = waiting.join().unwrap();
        let before = sets(&server);
        held.release();
        eventually(SOON, || sets(&server) > before);
        result
    });
    assert!(error(interrupted).is_interrupted());
    gone_soon(&server);
}

/// Every way to lose an attempt or its reply, each with an end and with a reset.
#[test]
fn lock_survives_whatever_happens_to_an_attempt() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).command_timeout(PATIENCE / 3).build().unwrap();
    let faults = [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::GarbleReply,
        Fault::TruncateReply,
        Fault::DribbleReply(ms(1)),
        Fault::ReplaceReply(b":7\r\n".to_vec()),
        Fault::ReplaceReply(b"*2\r\n:1\r\n".to_vec()),
    ];
    let mut number = 0;
    for resets in [false, true] {
        proxy.set_resets(resets);
        for options in [LockOptions::new(), LockOptions::new().fenced()] {
            for fault in &faults {
                // A name of its own: the background goes on withdrawing the last one.
                number += 1;
                let name = format!("x{number}");
                let lock = client.lock_with(&name, options.clone()).unwrap();
                let about_it = name.clone().into_bytes();
                let hit = proxy.add(
                    Rule::any(fault.clone())
                        .when(move |command| command.contains(&about_it))
                        .next(1),
                );
                let outcome = lock.lock();
                hit.wait_fired(SOON);
                if let Err(error) = outcome {
                    // A reply without sense is a typed error, and what it may have left is
                    // withdrawn.
                    assert!(
                        matches!(fault, Fault::ReplaceReply(_)) && error.is_server(),
                        "{fault:?}: {error:?}"
                    );
                    eventually(SOON, || get(&server, &name).is_none());
                    continue;
                }
                assert!(lock.is_valid() && get(&server, &name).is_some(), "{fault:?}");
                lock.unlock().unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
                assert_eq!(get(&server, &name), None, "{fault:?}");
            }
        }
    }
}

#[test]
fn cut_attempt_costs_no_pause_and_no_error() {
    for fault in [Fault::CutBefore, Fault::CutAfter] {
        let (server, proxy) = through_proxy();
        let client = Client::open(&proxy.url()).unwrap();
        let lock = client.lock("x");
        client.ping().unwrap();
        let hit = proxy.add(Rule::on("SET", fault).next(1));
        assert!(
            lock.try_lock(Duration::ZERO).unwrap(),
            "one attempt, and at once another where its idle connection was closed"
        );
        hit.wait_fired(SOON);
        lock.unlock().unwrap();
        assert!(keys(&server).is_empty());
    }
}

/// Many threads ask for their own words over few connections, while replies are delayed beyond
/// patience, cut and dribbled.
fn every_reply_is_its_own(proxy: &Proxy, client: &Client) {
    proxy.set_jitter(ms(3));
    let done = AtomicBool::new(false);
    let answered: usize = thread::scope(|scope| {
        let askers: Vec<_> = (0..6)
            .map(|thread| {
                let done = &done;
                scope.spawn(move || {
                    let mut answered = 0;
                    for n in 0.. {
                        if done.load(Ordering::SeqCst) {
                            break;
                        }
                        let words = format!("{thread}:{n}");
                        match client.execute(|connection| {
                            redis::cmd("ECHO").arg(&words).query::<String>(connection)
                        }) {
                            Ok(heard) => {
                                assert_eq!(heard, words);
                                answered += 1;
                            }
                            Err(error) => assert!(error.is_unavailable(), "{error:?}"),
                        }
                    }
                    answered
                })
            })
            .collect();
        for round in 0..6 {
            for fault in [
                Fault::DelayReply(PATIENCE * 2),
                Fault::SwallowReply,
                Fault::CutAfter,
                Fault::DribbleReply(ms(1)),
                Fault::TruncateReply,
                Fault::CutBefore,
            ] {
                let hit = proxy.add(Rule::on("ECHO", fault).skip(round).next(1));
                hit.wait_fired(SOON);
            }
        }
        done.store(true, Ordering::SeqCst);
        askers.into_iter().map(|asker| asker.join().unwrap()).sum()
    });
    assert!(answered > 30, "{answered}");
}

#[test]
fn no_reply_is_taken_for_anothers() {
    let (_server, proxy) = through_proxy();
    let patience = ms(150);
    let client =
        Client::builder(&proxy.url()).pool_size(3).command_timeout(patience).build().unwrap();
    every_reply_is_its_own(&proxy, &client);
}

#[test]
fn no_reply_is_taken_for_anothers_in_the_programs_own_pool() {
    let (_server, proxy) = through_proxy();
    let pool = pool_of(&proxy.url(), 3, false);
    let client = Client::builder(&proxy.url()).pool(pool).command_timeout(ms(150)).build().unwrap();
    every_reply_is_its_own(&proxy, &client);
}

fn echo(client: &Client, words: &str) -> distlock::Result<String> {
    client.execute(|connection| redis::cmd("ECHO").arg(words).query(connection))
}

#[test]
fn connection_that_timed_out_is_closed_and_its_siblings_are_not_trusted() {
    let (_server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).pool_size(4).build().unwrap();
    warm_up(&client, 4);
    assert_eq!((proxy.accepted(), proxy.open()), (4, 4));
    let late = proxy.add(Rule::on("ECHO", Fault::DelayReply(PATIENCE * 2)).next(1));
    assert!(error(echo(&client, "late")).is_unavailable());
    late.wait_fired(SOON);
    // One after another is enough: whichever of the four is given out has to be a new one, or stay
    // with the first new one.
    for n in 0..20 {
        eventually(SOON, || {
            echo(&client, &n.to_string()).is_ok_and(|heard| heard == n.to_string())
        });
    }
    warm_up(&client, 4);
    assert_eq!(proxy.accepted(), 8, "four new ones");
    eventually(SOON, || proxy.open() == 4);
}

#[test]
fn connection_of_the_programs_own_pool_that_timed_out_is_closed() {
    let (_server, proxy) = through_proxy();
    for tried in [false, true] {
        let pool = pool_of(&proxy.url(), 1, tried);
        let client = impatient(&proxy.url()).pool(pool.clone()).build().unwrap();
        let before = proxy.accepted();
        let late = proxy.add(Rule::on("ECHO", Fault::DelayReply(PATIENCE * 2)).next(1));
        assert!(error(echo(&client, "late")).is_unavailable());
        late.wait_fired(SOON);
        assert_eq!(echo(&client, "next").unwrap(), "next");
        assert!(proxy.accepted() > before);
        // The program's own use of its pool goes on.
        let heard: String = redis::cmd("ECHO").arg("own").query(&mut *pool.get().unwrap()).unwrap();
        assert_eq!(heard, "own");
    }
}

/// Everything works at once, on the first try, although every idle connection has been closed.
fn nothing_is_noticed(server: &Server, builder: impl Fn() -> ClientBuilder, connections: usize) {
    let close_idle = |client: &Client, killed: bool| {
        warm_up(client, connections);
        if killed {
            redis::cmd("CLIENT")
                .arg("KILL")
                .arg("TYPE")
                .arg("normal")
                .arg("SKIPME")
                .arg("yes")
                .exec(&mut server.connection())
                .unwrap();
        } else {
            server.restart();
        }
    };
    for killed in [true, false] {
        // Each with a client of its own: the background of the last one would meet the next outage
        // and shut the gate for a moment.
        let closed = || {
            let client = builder().build().unwrap();
            close_idle(&client, killed);
            client
        };
        {
            let client = closed();
            let lock = client.lock("x");
            assert!(within(..SOON, || lock.try_lock(Duration::ZERO)).unwrap());
            close_idle(&client, true);
            lock.extend(ms(20_000)).unwrap();
            close_idle(&client, true);
            lock.unlock().unwrap();
        }
        closed().ping().unwrap();
        assert_eq!(echo(&closed(), "x").unwrap(), "x");
        let client = closed();
        assert!(!client.lock("x").is_locked().unwrap());
        redis::cmd("SET").arg("x").arg("another").exec(&mut server.connection()).unwrap();
        close_idle(&client, true);
        assert!(!client.lock("x").try_lock(Duration::ZERO).unwrap());
        redis::cmd("DEL").arg("x").exec(&mut server.connection()).unwrap();
        assert!(is_free(&client.lock("x")));
    }
}

#[test]
fn idle_connections_that_the_server_closed_are_not_noticed() {
    let server = Server::start();
    nothing_is_noticed(&server, || Client::builder(&server.url()), 8);
}

#[test]
fn idle_connections_of_the_programs_own_pool_that_the_server_closed_are_not_noticed() {
    let server = Server::start();
    nothing_is_noticed(
        &server,
        || Client::builder(&server.url()).pool(pool_of(&server.url(), 6, false)),
        6,
    );
}

#[test]
fn idle_connections_of_the_programs_own_tried_pool_are_not_noticed() {
    let server = Server::start();
    nothing_is_noticed(
        &server,
        || Client::builder(&server.url()).pool(pool_of(&server.url(), 6, true)),
        6,
    );
}

/// Renewal sends its extends at once and reads the answers one by one: each belongs to its lease,
/// also when the connection fails among them.
#[test]
fn answers_in_bulk_stay_with_their_leases_when_the_connection_fails() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let options = || LockOptions::new().lease(ms(6000));
    let (first, second) = (
        client.lock_with("first", options()).unwrap(),
        client.lock_with("second", options()).unwrap(),
    );
    // Has the server know the script of renewal, for everything but the first lease.
    first.lock().unwrap();
    first.extend(ms(6000)).unwrap();
    second.lock().unwrap();
    let of =
        |key: &'static [u8]| move |command: &[Vec<u8>]| command.len() == 7 && command[3] == key;
    let unknown = proxy.add(
        Rule::on("EVALSHA", Fault::Answer(b"-NOSCRIPT flushed\r\n".to_vec()))
            .when(of(b"first"))
            .next(1),
    );
    let cut = proxy.add(Rule::on("EVAL", Fault::CutBefore).when(of(b"first")).next(1));
    let not_ours = proxy
        .add(Rule::on("EVALSHA", Fault::Answer(b":0\r\n".to_vec())).when(of(b"second")).next(1));
    let (tell, lost) = std::sync::mpsc::channel();
    for lock in [&first, &second] {
        let tell = std::sync::Mutex::new(tell.clone());
        lock.on_lost(move |lost| tell.lock().unwrap().send(lost.name().to_owned()).unwrap());
    }
    assert_eq!(lost.recv_timeout(SOON).unwrap(), "second");
    [unknown, cut, not_ours].iter().for_each(|rule| drop(rule.wait_fired(SOON)));
    assert!(first.is_valid() && !second.is_valid());
    assert!(lost.try_recv().is_err());
    first.unlock().unwrap();
    assert!(error(second.unlock()).is_lost());
    assert_eq!(keys(&server), ["second"]);
}

#[test]
fn late_copy_is_removed_after_a_wait_in_a_condition_has_released_the_lease() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock_with("x", LockOptions::new().lease(SOON)).unwrap();
    let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    lock.lock().unwrap();
    let held = late.wait_held(SOON);
    let condition = lock.new_condition("ready").unwrap();
    thread::scope(|scope| {
        let (before, server) = (sets(&server), &server);
        scope.spawn(move || {
            // It has entered once the lock is free, and then the late copy makes an orphan in its
            // way.
            eventually(SOON, || get(server, "x").is_none());
            held.release();
            eventually(SOON, || sets(server) > before);
        });
        assert!(!within(..ABOUT_A_SECOND * 2, || condition.wait_timeout(ms(600))).unwrap());
    });
    lock.unlock().unwrap();
    gone_soon(&server);
}

#[test]
fn late_copy_is_removed_after_the_lease_was_taken_away() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("x");
    let late = proxy.add(Rule::on("SET", Fault::HoldRequest).next(1));
    lock.lock().unwrap();
    assert!(lock.force_unlock().unwrap());
    assert!(error(lock.extend(ms(60_000))).is_lost());
    deliver_late(&server, &late);
    gone_soon(&server);
    assert!(error(lock.unlock()).is_lost());
}
