//! The fixed window: what it lets through, when it ends, and the counter that it shares with older
//! code.

use std::thread;
use std::time::{Duration, Instant};

use distlock::Client;
use redis::Connection;

use super::{LONG, SOON, everywhere, get, in_memory, ms, open, pttl, run, take_all};
use crate::support::{Fault, Proxy, Rule, Server, eventually};

#[test]
fn the_count_passes_and_no_more() {
    everywhere(|client| {
        let limiter = client.rate_limiter("ip:127.0.0.1", 3, LONG);
        for left in [2, 1, 0] {
            let decision = limiter.check().unwrap();
            assert_eq!(
                (decision.allowed, decision.remaining, decision.retry_after),
                (true, left, Duration::ZERO)
            );
        }
        for _ in 0..5 {
            let decision = limiter.check().unwrap();
            assert_eq!((decision.allowed, decision.remaining), (false, 0));
            assert!((LONG - SOON..=LONG).contains(&decision.retry_after), "{decision:?}");
        }
        assert!(client.rate_limiter("ip:127.0.0.2", 3, LONG).check().unwrap().allowed);
    });
}

#[test]
fn a_window_ends_when_it_said_and_does_not_slide() {
    let (client, clock) = in_memory();
    let limiter = client.rate_limiter("ip", 3, ms(1000));
    assert_eq!(take_all(&limiter).0, 3);
    clock.advance(ms(600));
    for _ in 0..100 {
        assert_eq!(limiter.check().unwrap().retry_after, ms(400));
    }
    clock.advance(ms(400) - Duration::from_nanos(1));
    assert_eq!(limiter.check().unwrap().retry_after, Duration::from_nanos(1));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(take_all(&limiter).0, 3);
}

#[test]
fn a_window_on_the_server_does_not_slide() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 3, ms(2_000));
    let start = Instant::now();
    assert!(limiter.check().unwrap().allowed);
    assert_eq!(take_all(&limiter).0, 2);
    let (mut last, mut refusals) = (Duration::MAX, 0);
    while let refused = limiter.check().unwrap()
        && !refused.allowed
    {
        // The server reads its clock once for the TTL, and once more for the fraction of a
        // millisecond.
        assert!(refused.retry_after <= last.saturating_add(ms(1)), "it comes nearer and nearer");
        (last, refusals) = (refused.retry_after, refusals + 1);
        assert!(start.elapsed() < SOON, "it never ends while somebody asks");
    }
    assert!(refusals > 0);
    assert!(start.elapsed() >= ms(1_999), "not before its end: {:?}", start.elapsed());
}

#[test]
fn refused_calls_are_not_counted() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 3, LONG);
    assert_eq!(take_all(&limiter).0, 3);
    for _ in 0..50 {
        assert!(!limiter.check().unwrap().allowed);
    }
    assert_eq!(get(&server, "ip").as_deref(), Some("3"));
}

#[test]
fn retry_after_is_exact_to_the_millisecond() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 1, LONG);
    assert_eq!(take_all(&limiter).0, 1);
    let mut watcher = server.connection();
    let mut rest = || redis::cmd("PTTL").arg("ip").query::<u128>(&mut watcher).unwrap();
    for _ in 0..100 {
        let before = rest();
        let told = limiter.check().unwrap().retry_after;
        let after = rest();
        // The key still exists in the whole millisecond in which its TTL is 0.
        assert!(
            (ms(0)..=LONG).contains(&told) && (after..=before + 1).contains(&told.as_millis()),
            "{after} {told:?} {before}"
        );
    }
}

#[test]
fn there_is_room_after_retry_after() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 2, ms(30));
    for _ in 0..20 {
        let refused = take_all(&limiter).1;
        assert!(refused.retry_after <= ms(30) && !refused.retry_after.is_zero(), "{refused:?}");
        thread::sleep(refused.retry_after);
        assert!(limiter.check().unwrap().allowed, "{refused:?}");
    }
}

#[test]
fn a_check_is_one_script_and_one_round_trip() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    for limiter in [client.rate_limiter("ip", 3, LONG), client.rate_limiter("ip", 3, LONG).smooth()]
    {
        // Opens a connection, and loads the script.
        assert!(limiter.check().unwrap().allowed);
        let scripts = server.command_count("evalsha");
        for call in 2..12 {
            assert_eq!(limiter.check().unwrap().allowed, call <= 3);
        }
        assert_eq!(server.command_count("evalsha") - scripts, 10);
        let rule = proxy.add(Rule::on("EVALSHA", Fault::HoldReply).next(1));
        let requests = proxy.requests();
        thread::scope(|scope| {
            let check = scope.spawn(|| limiter.check());
            let held = rule.wait_held(SOON);
            eventually(SOON, || proxy.requests() == requests + 1);
            held.release();
            assert!(!check.join().unwrap().unwrap().allowed);
        });
        assert_eq!(proxy.requests(), requests + 1);
    }
}

/// What the old Java code does.
fn ip_limit(jedis: &mut Connection, ip: &str, seconds: u64, count: u64) -> bool {
    let calls: u64 = redis::cmd("INCR").arg(ip).query(jedis).unwrap();
    if calls == 1 {
        redis::cmd("EXPIRE").arg(ip).arg(seconds).exec(jedis).unwrap();
    }
    calls <= count
}

#[test]
fn ip_limit_of_the_old_code_shares_the_limit() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("ip:").build().unwrap();
    let mut jedis = server.connection();
    for ours_first in [true, false] {
        run(&server, &["DEL", "ip:a"]);
        let limiter = client.rate_limiter("a", 4, ms(60_000));
        assert_eq!(limiter.key(), "ip:a");
        let mut passed = 0;
        for call in 0..20 {
            let ours = (call % 2 == 0) == ours_first;
            passed += u32::from(if ours {
                limiter.check().unwrap().allowed
            } else {
                ip_limit(&mut jedis, "ip:a", 60, 4)
            });
        }
        assert_eq!(passed, 4);
        // It also counts what it refuses. We have to tolerate that, and nobody makes the window
        // longer.
        assert_eq!(get(&server, "ip:a").as_deref(), Some("12"));
        let refused = limiter.check().unwrap();
        assert_eq!((refused.allowed, refused.remaining), (false, 0));
        assert!((ms(50_000)..=ms(60_000)).contains(&refused.retry_after), "{refused:?}");
        assert!((50_000..=60_000).contains(&pttl(&server, "ip:a")));
    }
}

#[test]
fn a_counter_without_ttl_is_healed() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 3, ms(60_000));
    // What the old code leaves if it dies between INCR and EXPIRE, and if it counts on after that.
    for (left, allowed) in [("1", true), ("3", false), ("99", false)] {
        run(&server, &["SET", "ip", left]);
        let decision = limiter.check().unwrap();
        assert_eq!(decision.allowed, allowed);
        assert!(
            allowed || (ms(50_000)..=ms(60_000)).contains(&decision.retry_after),
            "{decision:?}"
        );
        assert!(
            (50_000..=60_000).contains(&pttl(&server, "ip")),
            "{left}: {}",
            pttl(&server, "ip")
        );
    }
    let limiter = open(&server).rate_limiter("ip", 3, ms(50));
    run(&server, &["SET", "ip", "99"]);
    assert!(limiter.acquire(SOON).unwrap(), "its window ends as any other");
}

#[test]
fn a_ttl_beyond_the_window_is_shortened_to_it() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 3, ms(1000));
    // What remains if the server's clock is set back by an hour, or if somebody calls EXPIRE with
    // another time.
    for (counted, allowed) in [("1", true), ("3", false), ("99", false)] {
        run(&server, &["SET", "ip", counted, "PX", "3600000"]);
        let decision = limiter.check().unwrap();
        assert_eq!(decision.allowed, allowed);
        assert!(allowed || decision.retry_after <= ms(1000), "{decision:?}");
        assert!(pttl(&server, "ip") <= 1000, "{counted}: {}", pttl(&server, "ip"));
    }
    let start = Instant::now();
    run(&server, &["SET", "ip", "99", "PX", "3600000"]);
    assert!(limiter.acquire(SOON).unwrap());
    assert!(
        start.elapsed() >= ms(999),
        "a whole window, from when it was seen: {:?}",
        start.elapsed()
    );
}

#[test]
fn the_shortest_window_counts() {
    everywhere(|client| {
        assert!(client.rate_limiter("ip", 1, LONG * 60).check().unwrap().allowed);
        let limiter = client.rate_limiter("ip", 1, ms(200));
        let refused = limiter.check().unwrap();
        assert!(!refused.allowed && refused.retry_after <= ms(200), "{refused:?}");
        assert!(limiter.acquire(SOON).unwrap());
    });
}

#[test]
fn a_counter_below_zero_counts_on_from_there() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 3, LONG);
    // A program that gives permits back with DECR, here after the window has ended: again there is
    // no TTL.
    run(&server, &["DECR", "ip"]);
    assert_eq!(take_all(&limiter).0, 4);
    assert!(pttl(&server, "ip") > 0);
}

#[test]
fn a_counter_is_never_seen_without_ttl() {
    let server = Server::start();
    let client = open(&server);
    let until = Instant::now() + ms(400);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let limiter = client.rate_limiter("ip", 3, ms(2));
                while Instant::now() < until {
                    let _ = limiter.check().unwrap();
                }
            });
        }
        let mut watcher = server.connection();
        while Instant::now() < until {
            assert_ne!(redis::cmd("PTTL").arg("ip").query(&mut watcher), Ok(-1));
        }
    });
    eventually(SOON, || pttl(&server, "ip") == -2);
}

#[test]
fn permits_are_taken_all_or_none() {
    everywhere(|client| {
        for limiter in super::both(client, 10, LONG) {
            assert_eq!(limiter.check_n(7).unwrap().remaining, 3);
            let refused = limiter.check_n(4).unwrap();
            assert_eq!((refused.allowed, refused.remaining), (false, 3));
            assert!(!refused.retry_after.is_zero());
            let looked = limiter.check_n(0).unwrap();
            assert_eq!(
                (looked.allowed, looked.remaining, looked.retry_after),
                (true, 3, Duration::ZERO)
            );
            assert!(limiter.check_n(3).unwrap().allowed);
            assert!(limiter.check_n(0).unwrap().allowed, "a look is never refused");
        }
    });
}

#[test]
fn a_look_leaves_nothing_behind() {
    let server = Server::start();
    for limiter in super::both(&open(&server), 10, LONG) {
        assert_eq!(limiter.check_n(0).unwrap().remaining, 10);
        assert_eq!(pttl(&server, limiter.key()), -2);
    }
}

#[test]
fn twice_the_count_can_pass_around_the_end_of_a_window() {
    let (client, clock) = in_memory();
    let limiter = client.rate_limiter("ip", 10, ms(1000));
    assert!(limiter.check().unwrap().allowed);
    clock.advance(ms(999));
    let before = take_all(&limiter).0;
    clock.advance(ms(1));
    assert_eq!(before + take_all(&limiter).0, 19, "within a millisecond");
}

/// They have one key. Nothing of the other's is changed, in memory as on a server.
#[test]
fn a_lock_of_the_same_name_and_the_counter_take_each_other_for_foreign_data() {
    everywhere(|client| {
        let (lock, limiter) = (client.lock("both"), client.rate_limiter("both", 3, LONG));
        let guard = lock.guard().unwrap();
        assert!(limiter.check().unwrap_err().is_wrong_type());
        guard.release().unwrap();
        assert!(limiter.check().unwrap().allowed);
        assert!(!lock.try_lock(ms(0)).unwrap(), "the window is taken for a holder");
        let holder = lock.inspect().unwrap().holders.pop().expect("the counter");
        assert_eq!(holder.token, "1");
        assert!(holder.remaining.is_some_and(|rest| rest > LONG / 2 && rest <= LONG));
        assert_eq!(limiter.check().unwrap().remaining, 1);
        assert!(lock.force_unlock().unwrap());
        assert_eq!(limiter.check_n(0).unwrap().remaining, 3);
        lock.with(|_| ()).unwrap();
        // The smooth form has a key of its own.
        let guard = lock.guard().unwrap();
        assert!(limiter.smooth().check().unwrap().allowed);
        guard.release().unwrap();
        // The end of a window is the end of that holder.
        let limiter = client.rate_limiter("both", 3, ms(150));
        assert!(limiter.check().unwrap().allowed);
        assert!(lock.try_lock(SOON).unwrap());
        lock.unlock().unwrap();
    });
}
