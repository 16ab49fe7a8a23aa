//! Leases of a minute, as fleets have them: kept by either side's watchdog beyond their length. The
//! test takes that long, so it is marked slow.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use distlock::LockOptions;

use super::{ask, lock, plain, redisson, start};
use crate::helpers::ms;
use crate::support::Server;

const MINUTE: Duration = Duration::from_secs(60);

/// What was seen of one lease: the shortest rest of it, and how often its end was moved.
#[derive(Default)]
struct Seen {
    least: Option<i64>,
    last: i64,
    extends: u32,
}

#[test]
#[ignore = "slow: .ci/full peers"]
fn leases_of_a_minute_are_kept_by_either_watchdog() {
    let (strings, hashes) = (Server::start(), Server::start());
    let peers = [
        ("jedis", strings.url()),
        ("redis-py", strings.url()),
        ("redsync", strings.url()),
        ("redisson", hashes.url()),
    ];
    let Some(peers) = start(peers) else { return };
    let [jedis, redis_py, redsync, java] = peers;
    let mut pollers = [
        jedis.with(&["kind nxpx", "sleep 100"]),
        redis_py.with(&["sleep 100"]),
        redsync.with(&["sleep 100"]),
    ];
    let mut java = java.with(&["watchdog 60000"]);

    let minute = |options: LockOptions| options.lease(MINUTE);
    let in_a_string = lock(&strings, minute(plain()));
    let in_a_hash = lock(&hashes, minute(redisson()));
    let begun = Instant::now();
    in_a_string.lock().unwrap();
    in_a_hash.lock().unwrap();
    java.says("lock b 0", "ok");
    let of_java =
        distlock::Client::open(&hashes.url()).unwrap().lock_with("b", minute(redisson())).unwrap();

    let mut seen: BTreeMap<&str, Seen> = BTreeMap::new();
    // Twice 34 s: a driver answers within a minute.
    for _ in 0..2 {
        let until = Instant::now() + Duration::from_secs(34);
        pollers.iter_mut().for_each(|peer| peer.send("try a 34000 5000"));
        java.send("try a 34000 5000");
        while Instant::now() < until {
            assert!(!of_java.try_lock(ms(50)).unwrap(), "after {:?}", begun.elapsed());
            for (whose, server, key) in [
                ("ours, plain", &strings, "a"),
                ("ours, Redisson", &hashes, "a"),
                ("Redisson's", &hashes, "b"),
            ] {
                let left: i64 = ask(server, &["PTTL", key]);
                let seen = seen.entry(whose).or_default();
                // An extend adds the third of the lease that has passed since the last.
                seen.extends += u32::from(seen.least.is_some() && left > seen.last + 5_000);
                seen.last = left;
                seen.least = Some(seen.least.map_or(left, |least| least.min(left)));
            }
            thread::sleep(ms(150));
        }
        pollers.iter().for_each(|peer| assert_eq!(peer.answer(), "no"));
        assert_eq!(java.answer(), "no");
    }
    let held = begun.elapsed();
    for (whose, Seen { least, extends, .. }) in &seen {
        eprintln!(
            "leases of 60 s, {whose}: held for {held:.1?}, extended {extends} times, {least:?} ms \
             left at the least"
        );
        // Each lease is extended after a third of its length: 40 s are left then.
        assert!(
            held > MINUTE && *extends >= 3 && least.is_some_and(|least| least > 25_000),
            "{whose}: {extends}, {least:?}"
        );
    }
    assert!(in_a_string.is_valid() && in_a_hash.is_valid());
    in_a_string.unlock().unwrap();
    in_a_hash.unlock().unwrap();
    java.says("unlock b", "ok");
    assert!(of_java.try_lock(Duration::ZERO).unwrap());
    of_java.unlock().unwrap();
}
