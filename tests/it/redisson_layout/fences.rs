//! Fences in Redisson's layout: they always grow and stay behind the server's clock, also if a
//! block of them is kept for hand-offs in this process.

use std::sync::mpsc;

use distlock::{Client, RedisLock};

use super::{ask, client, free, options};
use crate::helpers::{Underway, error};
use crate::support::Server;

const COUNTER: &str = "redisson_lock_token:{a}";

fn fenced(client: &Client, hand_offs: u32) -> RedisLock {
    client.lock_with("a", options().fenced().local_hand_offs(hand_offs)).unwrap()
}

/// Locks and unlocks, and returns the fence of the hold.
fn next(lock: &RedisLock) -> u64 {
    lock.with(|guard| guard.fence().unwrap()).unwrap()
}

/// The counter is behind the server's clock, in µs.
fn is_behind_the_clock(server: &Server) {
    let counter: u64 = ask(server, &["GET", COUNTER]);
    let (seconds, micros): (u64, u64) = ask(server, &["TIME"]);
    let clock = seconds * 1_000_000 + micros;
    assert!(counter <= clock, "{counter}, and it is {clock}");
}

#[test]
fn many_local_hand_offs_never_make_the_counter_outrun_the_servers_clock() {
    let server = Server::start();
    let lock = fenced(&client(&server.url()), 1000);
    for _ in 0..3 {
        // Holds with a lease each, as fast as possible.
        let fences: Vec<_> = (0..200).map(|_| next(&lock)).collect();
        assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
        is_behind_the_clock(&server);
        let () = ask(&server, &["DEL", COUNTER]);
        let fence = next(&lock);
        assert!(fence > fences[199], "{fence} after {}", fences[199]);
    }
}

#[test]
fn fences_grow_from_one_thread_to_the_next() {
    let server = Server::start();
    let client = client(&server.url());
    let lock = fenced(&client, 1000);
    let (tell, told) = mpsc::channel();
    for _ in 0..3 {
        let guard = lock.guard().unwrap();
        tell.send(guard.fence().unwrap()).unwrap();
        let waiters: Vec<_> = (0..8)
            .map(|_| {
                let (lock, tell) = (lock.clone(), tell.clone());
                Underway::behind(&client, "a", move || {
                    lock.with(|guard| tell.send(guard.fence().unwrap()).unwrap()).unwrap();
                })
            })
            .collect();
        guard.release().unwrap();
        waiters.into_iter().for_each(Underway::result);
        is_behind_the_clock(&server);
    }
    let fences: Vec<_> = told.try_iter().collect();
    assert!(fences.len() == 27 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[test]
fn the_first_block_of_fences_after_a_loss_repeats_no_fence_that_was_given_out() {
    let server = Server::start();
    let client = client(&server.url());
    let [one, block] = [0, 1_000_000].map(|hand_offs| fenced(&client, hand_offs));
    let mut connection = server.connection();
    // As quickly after each other as possible: a block covers at most a thousand microseconds.
    for _ in 0..100 {
        let last = next(&one);
        redis::cmd("DEL").arg(COUNTER).exec(&mut connection).unwrap();
        let fence = next(&block);
        assert!(fence > last, "{fence} after {last}");
    }
}

#[test]
fn a_counter_near_the_largest_whole_number_is_refused_and_left_alone() {
    let server = Server::start();
    let client = client(&server.url());
    let last = (1_u64 << 53) - (1 << 32);
    for hand_offs in [0, 1000] {
        let lock = fenced(&client, hand_offs);
        let () = ask(&server, &["SET", COUNTER, &last.to_string()]);
        assert_eq!(next(&lock), last + 1);
        for counter in [last + 1, 1 << 53] {
            let () = ask(&server, &["SET", COUNTER, &counter.to_string()]);
            assert!(error(lock.lock()).is_wrong_type(), "{counter}");
            assert_eq!(ask::<u64>(&server, &["GET", COUNTER]), counter);
            assert!(free(&server, "a"));
        }
    }
}
