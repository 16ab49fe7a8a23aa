//! Validity: counted from before the question, by the monotonic clock, and checked again after
//! every answer (R1, R2).

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use distlock::testing::FakeClock;
use distlock::{Client, LockOptions, Renewal};

use crate::faults::through_proxy;
use crate::helpers::{Asked, Notes, SOON, error, get, keys, ms};
use crate::support::{Fault, Rule, Server, eventually};

const LEASE: Duration = ms(3000);
/// How long the answer is under way.
const LATE: Duration = ms(1500);
/// 1 % of the lease and 2 ms.
const DRIFT: Duration = ms(32);

/// A client that waits for a late answer, even if the machine makes it later.
fn patient(url: &str) -> Client {
    Client::builder(url).command_timeout(SOON).build().unwrap()
}

fn unrenewed() -> LockOptions {
    LockOptions::new().lease(LEASE).renewal(Renewal::Never)
}

#[test]
fn validity_counts_from_before_the_first_byte() {
    let (_server, proxy) = through_proxy();
    let lock = patient(&proxy.url()).lock_with("x", unrenewed()).unwrap();
    let late = proxy.add(Rule::on("SET", Fault::DelayReply(LATE)).next(1));
    lock.lock().unwrap();
    let remaining = lock.remaining().unwrap();
    late.wait_fired(SOON);
    assert!(remaining <= LEASE - LATE - DRIFT, "{remaining:?}");
    assert!(lock.is_valid(), "there was time to spare");
    lock.unlock().unwrap();
}

#[test]
fn validity_of_a_scripts_grant_counts_from_before_its_first_byte() {
    let (_server, proxy) = through_proxy();
    let lock = patient(&proxy.url()).lock_with("x", unrenewed().fenced()).unwrap();
    // The server does not know the script yet: it is sent twice, and the first time counts.
    let unknown = proxy.add(Rule::on("EVALSHA", Fault::DelayReply(LATE / 2)).next(1));
    let known = proxy.add(Rule::on("EVAL", Fault::DelayReply(LATE / 2)).next(1));
    lock.lock().unwrap();
    let remaining = lock.remaining().unwrap();
    assert_eq!((unknown.fired(), known.fired()), (1, 1));
    assert!(remaining <= LEASE - LATE - DRIFT, "{remaining:?}");
    lock.unlock().unwrap();
}

#[test]
fn time_to_connect_is_not_taken_off_the_validity() {
    let server = Server::builder().password("secret").start();
    let proxy = crate::support::Proxy::start(server.port());
    let url = proxy.url_with("default", "secret");
    let client =
        Client::builder(&url).connect_timeout(ms(8000)).command_timeout(ms(8000)).build().unwrap();
    let lock = client.lock_with("x", unrenewed()).unwrap();
    let late = proxy.add(Rule::on("AUTH", Fault::DelayReply(ms(3000))).next(1));
    lock.lock().unwrap();
    late.wait_fired(SOON);
    assert!(lock.is_valid(), "the lease was granted after the connection was there");
    lock.unlock().unwrap();
}

#[test]
fn an_extended_validity_counts_from_before_the_extend_was_sent() {
    let (_server, proxy) = through_proxy();
    let lock = patient(&proxy.url()).lock_with("x", unrenewed()).unwrap();
    lock.lock().unwrap();
    let late = proxy.add(Rule::any(Fault::DelayReply(LATE)).next(1));
    lock.extend(LEASE * 2).unwrap();
    let remaining = lock.remaining().unwrap();
    late.wait_fired(SOON);
    assert!(remaining > LEASE && remaining <= LEASE * 2 - LATE - DRIFT, "{remaining:?}");
    lock.unlock().unwrap();
}

#[test]
fn validity_ends_one_percent_and_two_milliseconds_before_the_lease() {
    let server = Server::start();
    for url in ["memory://".to_owned(), server.url()] {
        let clock = FakeClock::new();
        let client = Client::builder(&url).clock(clock.clone()).build().unwrap();
        let lock = client
            .lock_with("x", LockOptions::new().lease(ms(10_000)).renewal(Renewal::Never))
            .unwrap();
        lock.lock().unwrap();
        assert_eq!(lock.remaining(), Some(ms(9_898)));
        clock.advance(ms(9_897));
        assert!(lock.is_valid());
        assert_eq!(lock.remaining(), Some(ms(1)));
        clock.advance(ms(1));
        assert!(!lock.is_valid());
        assert_eq!(lock.remaining(), Some(Duration::ZERO));
        // Released if the server confirms that before the loss is told; otherwise lost.
        let unlocked = lock.unlock();
        assert!(
            unlocked.as_ref().is_ok() || unlocked.as_ref().is_err_and(distlock::Error::is_lost),
            "{unlocked:?}"
        );
    }
}

#[test]
fn an_inner_unlock_says_that_the_lease_is_known_to_be_lost() {
    let clock = FakeClock::new();
    let client = Client::builder("memory://").clock(clock.clone()).build().unwrap();
    let options = LockOptions::new().lease(ms(10_000)).renewal(Renewal::Never);
    let lock = client.lock_with("x", options).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    lock.lock().unwrap();
    lock.lock().unwrap();
    clock.advance(ms(9_898));
    told.recv_timeout(SOON).unwrap();
    assert!(error(lock.unlock()).is_lost());
    assert_eq!(lock.hold_count(), 1);
    let _ = lock.unlock();
}

#[test]
fn grant_that_comes_after_the_validity_is_no_grant_and_is_withdrawn() {
    let server = Server::start();
    for (late, granted) in [(ms(9_897), true), (ms(9_898), false), (ms(60_000), false)] {
        let clock = FakeClock::new();
        let (client, notes) = Notes::of(Client::builder(&server.url()).clock(clock.clone()));
        let lock = client
            .lock_with("x", LockOptions::new().lease(ms(10_000)).renewal(Renewal::Never))
            .unwrap();
        notes.after(move |asked| {
            if matches!(asked, Asked::Acquire { .. }) {
                clock.advance(late);
            }
        });
        if granted {
            assert!(lock.try_lock(Duration::ZERO).unwrap(), "{late:?}");
            assert_eq!(lock.remaining(), Some(ms(1)));
            lock.unlock().unwrap();
        } else {
            let error = error(lock.try_lock(Duration::ZERO));
            assert!(error.is_unavailable(), "{error:?}");
            assert!(!lock.is_held() && !lock.is_valid());
        }
        // Long before the lease ends on the server.
        eventually(ms(5_000), || keys(&server).is_empty());
    }
}

#[test]
fn after_a_grant_that_came_too_late_the_same_token_asks_for_a_whole_lease() {
    let server = Server::start();
    let clock = FakeClock::new();
    let (client, notes) =
        Notes::of(Client::builder(&server.url()).clock(clock.clone()).max_outage(ms(3_600_000)));
    let lock = client
        .lock_with("x", LockOptions::new().lease(ms(10_000)).renewal(Renewal::Never))
        .unwrap();
    let answers = AtomicUsize::new(0);
    let advancing = clock.clone();
    notes.after(move |asked| {
        if matches!(asked, Asked::Acquire { .. }) && answers.fetch_add(1, Ordering::SeqCst) == 0 {
            advancing.advance(ms(9_900));
        }
    });
    // The pause between the attempts is measured by this clock, too, so the clock has to run.
    let ticking = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let (running, ticked) = (std::sync::Arc::clone(&ticking), clock.clone());
    let ticker = std::thread::spawn(move || {
        while running.load(Ordering::SeqCst) {
            ticked.advance(ms(1));
            std::thread::sleep(ms(1));
        }
    });
    lock.lock().unwrap();
    ticking.store(false, Ordering::SeqCst);
    ticker.join().unwrap();
    let tokens: Vec<String> = notes
        .asked()
        .into_iter()
        .filter_map(
            |(_, _, asked)| {
                if let Asked::Acquire { token, .. } = asked { Some(token) } else { None }
            },
        )
        .collect();
    assert_eq!(tokens.len(), 2);
    assert_eq!(tokens[0], tokens[1]);
    assert_eq!(get(&server, "x"), Some(tokens[0].clone()));
    assert!(lock.remaining().unwrap() > ms(9_000));
    lock.unlock().unwrap();
    assert!(keys(&server).is_empty());
}

#[test]
fn only_tokens_read_a_clock_that_is_not_monotonic() {
    let (mut looked_at, mut readers) = (0, Vec::new());
    let mut todo = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            looked_at += 1;
            let text = fs::read_to_string(&path).unwrap();
            if text.contains("SystemTime::now") || text.contains("UNIX_EPOCH") {
                readers.push(path);
            }
        }
    }
    readers.sort();
    // The command shows when others say that they have asked. It judges no lease by that.
    let allowed = ["bin/distlock/table.rs", "lease/token.rs"];
    assert!(looked_at > 20 && readers.len() == allowed.len(), "{readers:?}");
    assert!(readers.iter().zip(allowed).all(|(path, its)| path.ends_with(its)), "{readers:?}");
}
