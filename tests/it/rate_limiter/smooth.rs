//! The smooth form: what passes in any period, and the state that it keeps.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use distlock::RateLimiter;

use super::{LONG, SOON, everywhere, get, in_memory, ms, open, pttl, run, take_all};
use crate::helpers::keys;
use crate::support::{Server, eventually};

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What passed: the time of the call, the time of the answer, and how many permits.
type Passed = (Duration, Duration, u64);

/// Asserts that in no period more permits passed than were there at first and came back meanwhile.
fn assert_never_too_many(passed: &[Passed], count: u64, window: Duration) {
    for (first, (asked, ..)) in passed.iter().enumerate() {
        let mut sum = 0;
        for (_, answered, permits) in &passed[first..] {
            sum += permits;
            let time = answered.saturating_sub(*asked);
            let most = count as f64 * (1.0 + time.as_secs_f64() / window.as_secs_f64());
            assert!(
                sum as f64 <= most + 1e-6,
                "{sum} passed in {time:?}, with {count} in {window:?}"
            );
        }
    }
}

#[test]
fn in_no_period_do_more_permits_pass_than_were_there_and_came_back() {
    for seed in 1..=60 {
        let mut numbers = Numbers::new(seed);
        let (client, clock) = in_memory();
        let (count, window) = (1 + numbers.below(20), ms(1 + numbers.below(3000)));
        let limiter = client.rate_limiter("ip", count, window).smooth();
        let start = clock.now();
        let (mut passed, mut total) = (Vec::new(), 0);
        for _ in 0..300 {
            let wanted = 1 + numbers.below(count);
            let decision = limiter.check_n(wanted).unwrap();
            let now = clock.now() - start;
            let pause = match (decision.allowed, numbers.below(4)) {
                (true, _) => {
                    passed.push((now, now, wanted));
                    total += wanted;
                    Duration::ZERO
                }
                (false, 0) => Duration::from_nanos(numbers.below(window.as_nanos() as u64)),
                (false, 1) => {
                    // Not a moment earlier; a µs is far less than the time of one permit.
                    let short = decision.retry_after.saturating_sub(Duration::from_micros(1));
                    clock.advance(short);
                    assert!(!limiter.check_n(wanted).unwrap().allowed);
                    clock.advance(decision.retry_after - short + Duration::from_nanos(1));
                    assert!(
                        limiter.check_n(wanted).unwrap().allowed,
                        "seed {seed}: not even after {:?}",
                        decision.retry_after
                    );
                    let now = clock.now() - start;
                    passed.push((now, now, wanted));
                    total += wanted;
                    Duration::ZERO
                }
                (false, _) => decision.retry_after,
            };
            clock.advance(pause);
        }
        assert_never_too_many(&passed, count, window);
        assert!(total > 3 * count, "seed {seed}: only {total} of {count} per {window:?} passed");
    }
}

#[test]
fn on_the_server_too_no_period_lets_more_permits_pass() {
    let server = Server::start();
    let client = open(&server);
    let (count, window) = (10, ms(200));
    let start = Instant::now();
    let passed: Mutex<Vec<Passed>> = Mutex::default();
    thread::scope(|scope| {
        for thread in 1..=4 {
            let (client, passed) = (&client, &passed);
            scope.spawn(move || {
                let limiter = client.rate_limiter("ip", count, window).smooth();
                let mut numbers = Numbers::new(thread);
                while start.elapsed() < ms(1500) {
                    let wanted = 1 + numbers.below(3);
                    let asked = start.elapsed();
                    let decision = limiter.check_n(wanted).unwrap();
                    if decision.allowed {
                        passed.lock().unwrap().push((asked, start.elapsed(), wanted));
                    } else if numbers.below(3) == 0 {
                        thread::sleep(decision.retry_after);
                    }
                }
            });
        }
    });
    let mut passed = passed.into_inner().unwrap();
    passed.sort();
    assert_never_too_many(&passed, count, window);
    let total: u64 = passed.iter().map(|(.., permits)| permits).sum();
    assert!(total >= 40, "10 at once, and 50 a second for a second and a half: {total}");
}

#[test]
fn there_is_no_double_burst() {
    let (client, clock) = in_memory();
    let limiter = client.rate_limiter("ip", 10, ms(1000)).smooth();
    // As around the end of a fixed window, where 19 pass.
    assert!(limiter.check().unwrap().allowed);
    clock.advance(ms(999));
    let before = take_all(&limiter).0;
    clock.advance(ms(1));
    assert_eq!((before, take_all(&limiter).0), (10, 0));
}

#[test]
fn there_is_no_double_burst_on_the_server() {
    let server = Server::start();
    let client = open(&server);
    // Whether more permits passed around the end of a window than were there and came back. On a
    // busy machine the end may be missed.
    let around_the_end = |limiter: RateLimiter| {
        assert!(limiter.check().unwrap().allowed);
        thread::sleep(ms(250));
        let start = Instant::now();
        let mut passed = take_all(&limiter).0;
        thread::sleep(ms(60));
        passed += take_all(&limiter).0;
        passed as f64 > 50.0 + 50.0 * start.elapsed().as_secs_f64() / 0.3
    };
    let limiter = |turn| client.rate_limiter(&format!("ip:{turn}"), 50, ms(300));
    assert!((0..20).any(|turn| around_the_end(limiter(turn))));
    assert!(!(0..5).any(|turn| around_the_end(limiter(turn).smooth())));
}

#[test]
fn permits_come_back_one_by_one() {
    let (client, clock) = in_memory();
    let limiter = client.rate_limiter("ip", 4, ms(1000)).smooth();
    assert_eq!(take_all(&limiter), (4, limiter.check().unwrap()));
    assert_eq!(limiter.check().unwrap().retry_after, ms(250));
    assert_eq!(limiter.check_n(4).unwrap().retry_after, ms(1000));
    clock.advance(ms(250));
    assert_eq!(take_all(&limiter).0, 1);
    clock.advance(ms(600));
    assert_eq!(limiter.check_n(0).unwrap().remaining, 2);
    assert_eq!(limiter.check_n(3).unwrap().retry_after, ms(150));
    clock.advance(LONG);
    assert_eq!(take_all(&limiter).0, 4, "never are there more than the count");
}

#[test]
fn there_is_room_after_retry_after() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 3, ms(60)).smooth();
    assert!(take_all(&limiter).0 >= 3);
    for _ in 0..20 {
        let refused = take_all(&limiter).1;
        assert!(refused.retry_after <= ms(20) && !refused.retry_after.is_zero(), "{refused:?}");
        thread::sleep(refused.retry_after);
        assert!(limiter.check().unwrap().allowed, "{refused:?}");
    }
}

#[test]
fn the_state_is_one_key_that_expires_when_nothing_is_in_use() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("slow", 4, ms(20_000)).smooth();
    for taken in 1..=4 {
        let _ = limiter.check().unwrap();
        assert!(
            (1..=5_000 * taken).contains(&pttl(&server, limiter.key())),
            "a permit is in use for 5 s"
        );
    }
    assert_eq!(keys(&server), [limiter.key()]);
    let limiter = open(&server).rate_limiter("ip", 4, ms(2000)).smooth();
    (0..4).for_each(|_| assert!(limiter.check().unwrap().allowed));
    eventually(SOON, || pttl(&server, limiter.key()) == -2);
    assert_eq!(limiter.check_n(0).unwrap().remaining, 4);
}

#[test]
fn a_fixed_window_of_the_same_name_is_another_limit() {
    everywhere(|client| {
        let [smooth, fixed] = super::both(client, 3, LONG);
        assert_eq!((fixed.key(), smooth.key()), ("both", "{both}:smooth"));
        assert_eq!((take_all(&smooth).0, take_all(&fixed).0), (3, 3));
        assert_eq!(smooth.clone().smooth().key(), smooth.key());
    });
}

#[test]
fn a_clock_that_is_set_back_does_not_stop_the_limit() {
    let server = Server::start();
    let limiter = open(&server).rate_limiter("ip", 3, ms(300)).smooth();
    // What remains if the clock is set back by an hour: a state from an hour ahead.
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut server.connection()).unwrap();
    let level = "2.1234567890123457";
    let state = format!("{level} {}000000 100000", seconds + 3600);
    run(&server, &["SET", limiter.key(), &state, "PX", "3600000"]);
    let refused = limiter.check().unwrap();
    assert!(!refused.allowed && refused.retry_after <= ms(100), "{refused:?}");
    let state = get(&server, limiter.key()).unwrap();
    assert!(
        state.starts_with(&format!("{level} {}", seconds / 1000)),
        "counted from now on, and with all digits: {state}"
    );
    assert!(pttl(&server, limiter.key()) <= 300);
    thread::sleep(refused.retry_after);
    assert!(limiter.check().unwrap().allowed);
}

#[test]
fn a_smaller_count_waits_for_no_permits_that_it_does_not_have() {
    everywhere(|client| {
        assert!(client.rate_limiter("ip", 1000, LONG).smooth().check_n(1000).unwrap().allowed);
        let smaller = client.rate_limiter("ip", 3, LONG).smooth();
        let refused = smaller.check().unwrap();
        assert_eq!((refused.allowed, refused.remaining), (false, 0));
        assert!(refused.retry_after <= LONG / 3, "{refused:?}");
        assert!(smaller.check_n(0).unwrap().allowed, "a look is never refused");
    });
}

#[test]
fn a_limit_gives_nobody_room_that_another_count_or_window_has_used() {
    // The first limit takes all its permits at once. The second limit waits, and must not make the
    // first one forget them.
    for (first, second, comes_back) in
        [((1000, LONG), (3, LONG), LONG / 3), ((100, LONG), (1, LONG / 10), LONG)]
    {
        let (client, clock) = in_memory();
        let limiter = |(count, window)| client.rate_limiter("ip", count, window).smooth();
        let (first, second) = (limiter(first), limiter(second));
        let all = first.check_n(0).unwrap().remaining;
        assert!(first.check_n(all).unwrap().allowed);
        let refused = second.check().unwrap();
        assert!(!refused.allowed && refused.retry_after <= comes_back, "{refused:?}");
        clock.advance(refused.retry_after);
        assert!(second.check().unwrap().allowed);
        let left = first.check_n(0).unwrap().remaining;
        let back = all as f64 * refused.retry_after.as_secs_f64() / LONG.as_secs_f64();
        assert!(left as f64 <= back, "{left} of {all} are there, after {refused:?}");
    }
}

#[test]
fn small_rates_and_large_ones_are_exact() {
    let year = Duration::from_secs(365 * 24 * 60 * 60);
    everywhere(|client| {
        let most = 1_000_000_000_000_000;
        for limiter in super::both(client, most, 100 * year) {
            assert_eq!(limiter.check_n(most - 1).unwrap().remaining, 1);
            assert!(!limiter.check_n(most).unwrap().allowed);
        }
        let slow = client.rate_limiter("slow", 1, 100 * year).smooth();
        assert!(slow.check().unwrap().allowed);
        let refused = slow.check().unwrap();
        assert!((99 * year..=100 * year).contains(&refused.retry_after), "{refused:?}");
        let fast = client.rate_limiter("fast", 1_000_000, ms(1000)).smooth();
        assert!(fast.check_n(1_000_000).unwrap().allowed);
        let refused = fast.check_n(1_000_000).unwrap();
        assert!(!refused.allowed && refused.retry_after <= ms(1000), "{refused:?}");
    });
}
