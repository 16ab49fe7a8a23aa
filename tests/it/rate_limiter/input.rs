//! Input that cannot work is refused by the first call, and nothing is sent.

use std::thread;
use std::time::Duration;

use distlock::{Client, Error, RateLimiter};

use super::{LONG, SOON, everywhere, get, ms, open, run};
use crate::holds::forked;
use crate::support::{Proxy, Server, in_own_process};

fn errors(limiter: &RateLimiter) -> [Error; 3] {
    [
        limiter.check().unwrap_err(),
        limiter.check_n(0).unwrap_err(),
        limiter.acquire(SOON).unwrap_err(),
    ]
}

#[test]
fn settings_that_cannot_work_are_refused_by_the_first_call() {
    everywhere(|client| {
        let long = "x".repeat(1025);
        for (name, count, window) in [
            ("", 3, LONG),
            (&long, 3, LONG),
            ("ip", 0, LONG),
            ("ip", u64::MAX, LONG),
            ("ip", 1_000_000_000_000_001, LONG),
            ("ip", 3, Duration::ZERO),
            ("ip", 3, Duration::from_micros(999)),
            ("ip", 3, Duration::MAX),
            ("ip", 3, Duration::from_secs(1 << 32)),
        ] {
            let limiter = client.rate_limiter(name, count, window);
            for error in errors(&limiter).into_iter().chain(errors(&limiter.smooth())) {
                assert!(error.is_invalid_input(), "{count} in {window:?}: {error}");
                // A name that is too long is not repeated.
                let told = (name != long).then_some(name);
                assert_eq!(error.lock_name(), told);
                let starts =
                    told.map_or_else(String::new, |name| format!("rate limiter {name:?}: "));
                assert!(error.to_string().starts_with(&starts), "{error}");
                assert!(error.to_string().len() < 200, "{error}");
            }
        }
    });
}

#[test]
fn what_can_never_fit_is_an_error_and_takes_nothing() {
    everywhere(|client| {
        for limiter in super::both(client, 3, LONG) {
            for n in [4, 1 << 53, u64::MAX] {
                assert!(limiter.check_n(n).unwrap_err().is_invalid_input());
            }
            assert!(limiter.check_n(3).unwrap().allowed);
            assert!(!limiter.check_n(3).unwrap().allowed, "not yet is no error");
        }
    });
}

#[test]
fn nothing_is_sent_for_what_cannot_work() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    errors(&client.rate_limiter("ip", 0, LONG));
    client.rate_limiter("ip", 3, LONG).check_n(4).unwrap_err();
    assert_eq!(proxy.accepted(), 0);
}

#[test]
fn a_part_of_a_millisecond_makes_a_window_longer() {
    for limiter in super::both(&super::in_memory().0, 1, Duration::from_micros(1001)) {
        assert!(limiter.check().unwrap().allowed);
        assert_eq!(limiter.check().unwrap().retry_after, ms(2));
    }
}

#[test]
fn foreign_data_is_reported_and_left_alone() {
    let server = Server::start();
    for limiter in super::both(&open(&server), 3, LONG) {
        run(&server, &["RPUSH", limiter.key(), "element"]);
        for error in errors(&limiter) {
            assert!(error.is_wrong_type(), "{error}");
            assert_eq!(error.lock_name(), Some("both"));
        }
        let kind: String =
            redis::cmd("TYPE").arg(limiter.key()).query(&mut server.connection()).unwrap();
        assert_eq!(kind, "list");
        // A token, a deadline and a fraction; values that INCR or Lua cannot count on from; and the
        // state of the other form.
        let foreign = [
            "d9b2d63d-a233-4123-847a-7090be1f8a1c",
            "",
            " 1",
            "1.5",
            "0x10",
            "007",
            "-0",
            "9223372036854775807",
            "nan 12",
            "-1 12",
            "1 x",
        ];
        for value in foreign {
            run(&server, &["SET", limiter.key(), value]);
            for error in errors(&limiter) {
                assert!(error.is_wrong_type(), "{value:?}: {error}");
            }
            assert_eq!(get(&server, limiter.key()).as_deref(), Some(value));
        }
    }
}

#[test]
fn the_two_forms_never_misread_each_other() {
    everywhere(|client| {
        let smooth = client.rate_limiter("x", 3, LONG).smooth();
        let fixed = client.rate_limiter("{x}:smooth", 3, LONG);
        assert_eq!(fixed.key(), smooth.key());
        assert!(smooth.check().unwrap().allowed);
        assert!(fixed.check().unwrap_err().is_wrong_type());
        assert_eq!(smooth.check_n(0).unwrap().remaining, 2);
    });
}

#[test]
fn debug_shows_what_was_asked_for() {
    let client = Client::open("memory://").unwrap();
    let text = format!("{:?}", client.rate_limiter("ip", 3, LONG).smooth());
    assert!(text.contains("\"ip\"") && text.contains("Smooth") && text.contains("60s"), "{text}");
}

#[test]
fn a_forked_child_is_refused_before_it_waits_for_anything() {
    in_own_process(
        "rate_limiter::input::a_forked_child_is_refused_before_it_waits_for_anything",
        || {
            let client = Client::open("memory://").unwrap();
            let limiters = super::both(&client, 1, ms(1));
            // The child may have a copy of a mutex that these threads hold, and that copy stays
            // locked for ever.
            for limiter in limiters.clone() {
                thread::spawn(move || while limiter.acquire(SOON).is_ok() {});
            }
            for _ in 0..5 {
                forked(|| {
                    for (step, limiter) in (1..).zip(&limiters) {
                        let errors =
                            [limiter.acquire(SOON).unwrap_err(), limiter.check().unwrap_err()];
                        errors.iter().all(Error::is_unsupported).then_some(()).ok_or(step)?;
                    }
                    Ok(())
                });
            }
        },
    );
}

#[test]
fn a_decision_says_the_limit_and_when_all_permits_are_back() {
    everywhere(|client| {
        for limiter in super::both(client, 4, ms(40_000)) {
            let free = limiter.check_n(0).unwrap();
            assert_eq!((free.limit, free.remaining, free.reset), (4, 4, Duration::ZERO));
            let one = limiter.check().unwrap();
            let all = limiter.check_n(3).unwrap();
            let pause = ms(100);
            thread::sleep(pause);
            let none = limiter.check().unwrap();
            assert_eq!([one.limit, all.limit, none.limit], [4; 3]);
            assert!(one.allowed && all.allowed && !none.allowed);
            let is_smooth = limiter.key().ends_with("smooth");
            // Smooth, each permit takes its own time; otherwise the window ends for all of them.
            let least = if is_smooth { ms(9_000) } else { ms(30_000) };
            assert!(
                one.reset > least && one.reset <= if is_smooth { ms(10_000) } else { ms(40_000) }
            );
            assert!(all.reset > ms(30_000) && all.reset <= ms(40_000), "{all:?}");
            // The window does not slide. Half of the pause is compared, because the server reads
            // its clock twice, once for the milliseconds.
            assert!(none.reset + pause / 2 < all.reset, "{none:?} after {all:?}");
            assert!(none.retry_after <= none.reset, "{none:?}");
            assert_eq!(none.retry_after_secs(), none.retry_after.as_secs_f64().ceil() as u64);
        }
    });
}
