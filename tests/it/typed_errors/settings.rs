//! Leases, waits, names and other settings: those that cannot work are refused by the first call,
//! and all others work.

use std::time::{Duration, Instant};

use distlock::{Client, Interrupt, LockOptions, Renewal, Retry};
use proptest::prelude::*;

use crate::faults::PATIENCE;
use crate::helpers::{Elsewhere, SOON, Underway, delete, error, get, keys, ms, put};
use crate::support::{Server, within};

#[test]
fn leases_are_accepted_between_their_bounds_only() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    for (lease, accepted) in [
        (Duration::ZERO, false),
        (Duration::from_nanos(1), false),
        (ms(99), false),
        (Duration::from_micros(99_999), false),
        (ms(100), true),
        (Duration::from_micros(100_999), true),
        (day, true),
        (day + Duration::from_micros(999), true),
        (day + ms(1), false),
        (Duration::from_secs(1 << 53), false),
        (Duration::MAX, false),
    ] {
        let options = LockOptions::new().lease(lease).renewal(Renewal::Never);
        let made = client.lock_with("x", options.clone());
        assert_eq!(made.is_ok(), accepted, "{lease:?}");
        assert_eq!(Client::builder(&server.url()).lock_options(options).build().is_ok(), accepted);
        let lock = client.lock_with("y", LockOptions::new()).unwrap();
        lock.lock().unwrap();
        let extended = lock.extend(lease);
        if accepted {
            let lock = made.unwrap();
            lock.lock().unwrap();
            let set: i64 = redis::cmd("PTTL").arg("x").query(&mut server.connection()).unwrap();
            let millis = i64::try_from(lease.as_millis()).unwrap();
            assert!(set <= millis && set > millis - 5000, "{lease:?}: {set}");
            let _ = lock.unlock();
            extended.unwrap();
        } else {
            assert!(error(made).is_invalid_input());
            assert!(error(extended).is_invalid_input());
            assert!(
                lock.is_valid() && lock.remaining().unwrap() > ms(20_000),
                "nothing was changed"
            );
        }
        // The shortest leases have long run out here.
        let _ = lock.unlock();
    }
}

#[test]
fn settings_that_cannot_work_are_refused_when_they_are_given() {
    let client = Client::open("memory://").unwrap();
    let huge = "o".repeat(1025);
    for options in [
        LockOptions::new().retry(Retry::fixed(Duration::ZERO)),
        LockOptions::new().retry(Retry::fixed(Duration::from_micros(999))),
        LockOptions::new().retry(Retry::jittered(ms(5), ms(4))),
        LockOptions::new().retry(Retry::fixed(ms(5)).attempts(0)),
        LockOptions::new().owner(""),
        LockOptions::new().owner(huge.clone()),
        LockOptions::new().local_hand_offs(u32::MAX),
        LockOptions::new().local_hand_offs(1_000_001),
    ] {
        let made = error(client.lock_with("x", options.clone()).map(drop));
        assert!(made.is_invalid_input(), "{options:?}: {made:?}");
        assert!(
            error(Client::builder("memory://").lock_options(options).build()).is_invalid_input()
        );
    }
    for wait in
        [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(3601), Duration::MAX]
    {
        assert!(
            error(Client::builder("redis://localhost").command_timeout(wait).build())
                .is_invalid_input()
        );
        assert!(
            error(Client::builder("redis://localhost").connect_timeout(wait).build())
                .is_invalid_input()
        );
    }
    for size in [0, 1025, u32::MAX] {
        assert!(
            error(Client::builder("redis://localhost").pool_size(size).build()).is_invalid_input()
        );
    }
    for url in [
        "",
        "redis",
        "redis://",
        "redis://:x@",
        "http://localhost",
        "redis://localhost:99999",
        "redis://localhost/x",
        "redis://a b/",
        "\0",
    ] {
        let built = Client::open(url);
        assert!(built.as_ref().is_ok() || error(built).is_invalid_input(), "{url:?}");
    }
}

#[test]
fn extreme_settings_that_can_work_do() {
    let server = Server::start();
    for url in ["memory://".to_owned(), server.url()] {
        let client = Client::open(&url).unwrap();
        for options in [
            LockOptions::new().retry(Retry::fixed(Duration::MAX)),
            LockOptions::new().retry(Retry::jittered(ms(1), Duration::MAX).attempts(u32::MAX)),
            LockOptions::new().retry(Retry::fixed(Duration::MAX).attempts(1)),
            LockOptions::new().local_hand_offs(1_000_000).fenced(),
            LockOptions::new().local_hand_offs(0).fenced(),
            LockOptions::new().owner("o".repeat(1024)),
            LockOptions::new().renewal(Renewal::AtMost(0)),
            LockOptions::new().renewal(Renewal::AtMost(u32::MAX)),
        ] {
            let lock = client.lock_with("x", options.clone()).unwrap();
            for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
                assert!(lock.try_lock(wait).unwrap(), "{options:?}");
                lock.unlock().unwrap();
            }
            // First behind another thread of this process, then behind nobody.
            let holder = Elsewhere::holds(&lock);
            assert!(!lock.try_lock(ms(1)).unwrap());
            let waiting = {
                let lock = lock.clone();
                Underway::start(move || {
                    lock.try_lock(Duration::MAX).map(|held| held && lock.unlock().is_ok())
                })
            };
            std::thread::sleep(ms(20));
            holder.unlock().unwrap();
            match waiting.result() {
                Ok(held) => assert!(
                    held || format!("{options:?}").contains("attempts: Some(1)"),
                    "{options:?}"
                ),
                Err(error) => panic!("{options:?}: {error:?}"),
            }
        }
        client.close(Duration::MAX).unwrap();
    }
}

#[test]
fn endless_pauses_and_waits_end_when_the_lease_runs_out_or_on_an_interrupt() {
    let server = Server::start();
    put(&server, "x", "another", ms(700));
    let client = Client::open(&server.url()).unwrap();
    // The pause is endless, but the other lease runs out: the lock is taken then, and not after the
    // pause.
    let lock =
        client.lock_with("x", LockOptions::new().retry(Retry::fixed(Duration::MAX))).unwrap();
    assert!(within(..SOON, || lock.try_lock(Duration::MAX)).unwrap());
    lock.unlock().unwrap();
    let interrupt = Interrupt::new();
    let holder = Elsewhere::holds(&lock);
    let waiting = {
        let (lock, interrupt) = (lock.clone(), interrupt.clone());
        Underway::behind(&client, "x", move || {
            lock.try_lock_interruptibly(Duration::MAX, &interrupt)
        })
    };
    interrupt.interrupt();
    assert!(error(waiting.result()).is_interrupted());
    holder.unlock().unwrap();
}

#[test]
fn names_are_refused_by_the_first_call_that_would_use_them() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("p:").build().unwrap();
    for (name, accepted) in [
        (String::new(), false),
        ("n".repeat(1022), true),
        ("n".repeat(1023), false),
        ("n".repeat(1_000_000), false),
    ] {
        let lock = client.lock(&name);
        let outcomes = [
            lock.try_lock(Duration::ZERO).map(drop),
            lock.lock(),
            lock.inspect().map(drop),
            lock.force_unlock().map(drop),
        ];
        for outcome in outcomes {
            assert_eq!(outcome.is_ok(), accepted);
            if let Err(error) = outcome {
                assert!(error.is_invalid_input() && format!("{error:?}").len() < 500, "{error:?}");
            }
        }
    }
    // An empty name is invalid even if a prefix would make a key of it; odd names are ordinary
    // names.
    let odd = ["a b", "ключ", "{", "}", "{}", "a}b", "{a}b", "\n", "\0", "*", ":", "🔒"];
    for name in odd.into_iter().chain(["a\r\nDEL x"]) {
        let lock = client.lock(name);
        lock.lock().unwrap();
        assert_eq!(
            keys(&server).iter().filter(|key| **key == format!("p:{name}")).count(),
            1,
            "{name:?}"
        );
        assert_eq!(lock.key(), format!("p:{name}"));
        lock.unlock().unwrap();
    }
    drop(client);
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::MAX),
        (0..2_000_000_000_u64).prop_map(Duration::from_nanos),
        any::<u64>().prop_map(Duration::from_millis),
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
    ]
}

fn any_options() -> impl Strategy<Value = LockOptions> {
    let retry =
        proptest::option::of((any_duration(), any_duration(), proptest::option::of(any::<u32>())));
    let renewal = prop_oneof![
        Just(Renewal::UntilUnlock),
        Just(Renewal::Never),
        any::<u32>().prop_map(Renewal::AtMost)
    ];
    let owner = proptest::option::of("\\PC{0,12}");
    (any_duration(), retry, renewal, owner, any::<bool>(), prop_oneof![0..20_u32, any::<u32>()])
        .prop_map(|(lease, retry, renewal, owner, fenced, hand_offs)| {
            let mut options =
                LockOptions::new().lease(lease).renewal(renewal).local_hand_offs(hand_offs);
            if let Some((min, max, attempts)) = retry {
                let retry = Retry::jittered(min, max);
                options = options.retry(attempts.map_or(retry, |n| retry.attempts(n)));
            }
            if let Some(owner) = owner {
                options = options.owner(owner);
            }
            if fenced { options.fenced() } else { options }
        })
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(300))]

    /// All settings are refused at once, or lock, extend and unlock work with them.
    #[test]
    fn any_settings_work_or_are_refused(
        name in "\\PC{0,40}",
        options in any_options(),
        wait in any_duration(),
        extend in any_duration(),
    ) {
        let client = Client::open("memory://").unwrap();
        let start = Instant::now();
        match client.lock_with(&name, options.clone()) {
            Err(error) => prop_assert!(error.is_invalid_input(), "{error:?}"),
            Ok(lock) => match lock.try_lock(wait) {
                Err(error) => {
                    prop_assert!(error.is_invalid_input() && name.is_empty(), "{error:?}");
                }
                Ok(held) => {
                    prop_assert!(held);
                    prop_assert!(lock.remaining().unwrap() <= Duration::from_secs(86_400));
                    let fenced = format!("{options:?}").contains("fenced: true");
                    prop_assert_eq!(lock.fence().is_some(), fenced);
                    if let Err(error) = lock.extend(extend) {
                        prop_assert!(error.is_invalid_input(), "{error:?}");
                    }
                    lock.unlock().unwrap();
                }
            },
        }
        client.close(wait).unwrap_or_else(|error| assert!(error.is_unknown()));
        prop_assert!(start.elapsed() < SOON);
    }
}

proptest! {
    #![proptest_config(cases(12))]

    /// The same against a server, while another holds the lock: refused, in time, and no key is
    /// left without an end.
    #[test]
    fn any_settings_are_refused_in_time_by_a_server(options in any_options(), wait in 0..30_u64) {
        static SERVER: std::sync::OnceLock<Server> = std::sync::OnceLock::new();
        let server = SERVER.get_or_init(Server::start);
        let client = Client::open(&server.url()).unwrap();
        let Ok(lock) = client.lock_with("x", options) else { return Ok(()) };
        put(server, "x", "another", SOON * 6);
        let start = Instant::now();
        prop_assert!(!lock.try_lock(ms(wait)).unwrap());
        prop_assert!(start.elapsed() < ms(wait) + PATIENCE * 10);
        delete(server, "x");
        prop_assert!(lock.try_lock(Duration::MAX).unwrap());
        let end: i64 = redis::cmd("PTTL").arg("x").query(&mut server.connection()).unwrap();
        prop_assert!((1..=86_400_000).contains(&end), "{end}");
        lock.unlock().unwrap();
        prop_assert_eq!(get(server, "x"), None);
    }
}
