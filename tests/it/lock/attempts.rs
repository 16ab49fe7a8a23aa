//! Attempts: how many there are, how far apart they are, and the token that all attempts of one
//! acquisition share.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use distlock::{Client, LockOptions, Queue, Retry};

use super::polling;
use crate::helpers::{
    Asked, Elsewhere, Notes, SOON, Underway, delete, error, keys, memory, ms, put,
};
use crate::support::{Server, eventually, within};

#[test]
fn a_limit_of_attempts_ends_a_wait_after_that_many_refusals() {
    let server = Server::start();
    put(&server, "job", "somebody", SOON);
    let (client, notes) = Notes::of(Client::builder(&server.url()));
    for queue in [Queue::None, Queue::Fifo] {
        // With the queue, a waiter asks one extra time when its inbox opens.
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
fn a_limit_of_attempts_ends_the_wait_for_a_local_turn_too() {
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
fn all_attempts_of_one_acquisition_share_a_token_that_no_other_has() {
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
