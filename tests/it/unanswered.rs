//! No answer means *maybe run*: never a grant, never an orphan, never another command's answer (R4,
//! R5, R6).

mod connections;
mod late_copies;

use std::time::{Duration, Instant};

use distlock::{Client, LockOptions};

use crate::faults::{impatient, nothing_is_left, through_proxy};
use crate::helpers::{SOON, error, get, is_token, keys, ms};
use crate::support::{Fault, Rule, Server, eventually, within};

/// How soon an orphan is gone after it appeared. Leases in these tests last 30 s.
const ABOUT_A_SECOND: Duration = ms(3000);

/// A client that gives up an answer after a second: one that is half a second late still counts.
fn gives_up(url: &str) -> Client {
    Client::builder(url).command_timeout(ms(1000)).build().unwrap()
}

/// The token of an attempt that a fault hit.
fn token_of(command: &[Vec<u8>]) -> String {
    let mut words = command.iter().map(|word| String::from_utf8_lossy(word).into_owned());
    words.find(|word| is_token(word)).expect("a token in it")
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
        let client = Client::open(&proxy.url()).unwrap();
        let lock = client.lock_with("x", options).unwrap();
        let lost = proxy.add(Rule::on(command, Fault::SwallowReply).next(1));
        // What comes behind the reply tells at once that it is missing.
        within(..SOON, || lock.lock().unwrap());
        let token = token_of(&lost.wait_fired(SOON).command);
        assert_eq!(get(&server, "x"), Some(token));
        // The whole lease again, counted from the attempt that was answered.
        assert!(lock.remaining().unwrap() > ms(25_000));
        lock.unlock().unwrap();
        assert_eq!(get(&server, "x"), None);
    }
}

#[test]
fn try_lock_without_an_answer_leaves_nothing_behind() {
    let (server, proxy) = through_proxy();
    let client = gives_up(&proxy.url());
    // The attempt needs no new connection, and is certainly sent.
    eventually(SOON, || client.ping().is_ok());
    // It never comes, and nothing comes behind it.
    let silence = proxy.add(Rule::on("SET", Fault::HoldReply).next(1));
    let error = error(client.lock("x").try_lock(Duration::ZERO));
    assert!(error.is_unavailable(), "{error:?}");
    let _held = silence.wait_held(SOON);
    gone_soon(&server);
}

/// Every way to lose an attempt or its reply, each with an end and with a reset.
#[test]
fn lock_survives_whatever_happens_to_an_attempt() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
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
                // A new name each time, as the cleaner still withdraws the last one.
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
                    // A nonsense reply is a typed error, and what the attempt may have left is
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
