//! A lease that is extended by hand: never shortened, within its bounds, and without an answer.

use std::time::Duration;

use distlock::{Client, Renewal};

use super::HOUR;
use crate::helpers::{SOON, client, delete, error, get, lease, ms, on_another_thread, pttl};
use crate::support::{Proxy, Server, eventually};

#[test]
fn an_extend_by_hand_never_shortens() {
    let server = Server::start();
    let client = client(&server);
    for renewal in [Renewal::UntilUnlock, Renewal::Never, Renewal::AtMost(3)] {
        let lock = client.lock_with("job", lease(ms(20_000)).renewal(renewal)).unwrap();
        lock.lock().unwrap();
        for (length, most, least) in [(60_000, 60_000, 50_000), (5_000, 60_000, 40_000)] {
            lock.extend(ms(length)).unwrap();
            let (ours, theirs) = (lock.remaining().unwrap(), pttl(&server, "job"));
            let theirs = ms(u64::try_from(theirs).unwrap());
            assert!(ms(least) < ours && ours < ms(most), "{ours:?} after extend({length})");
            // The server's value was read after ours, so it may be a little less; but never less
            // than our validity at the same moment.
            assert!(
                theirs <= ms(most) && theirs + ms(1) >= lock.remaining().unwrap(),
                "{theirs:?}"
            );
        }
        lock.unlock().unwrap();
        assert_eq!(get(&server, "job"), None);
    }
}

#[test]
fn an_end_outside_the_bounds_is_refused_and_changes_nothing() {
    let server = Server::start();
    let lock = client(&server).lock("job");
    assert!(error(lock.extend(SOON)).is_not_held());
    lock.lock().unwrap();
    let before = pttl(&server, "job");
    lock.extend(ms(100)).unwrap();
    for length in [
        Duration::ZERO,
        ms(99),
        Duration::from_micros(99_999),
        Duration::from_secs(24 * 60 * 60 + 1),
        Duration::MAX,
    ] {
        assert!(error(lock.extend(length)).is_invalid_input());
    }
    assert!(lock.is_valid() && pttl(&server, "job") > before - 5_000);
    lock.extend(Duration::from_secs(24 * 60 * 60)).unwrap();
    assert!(pttl(&server, "job") > 80_000_000);
    assert!(on_another_thread(|| error(lock.extend(SOON))).is_not_held());
    lock.unlock().unwrap();
}

#[test]
fn an_extend_without_an_answer_is_unknown_and_the_lock_is_still_held() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::builder(&proxy.url()).command_timeout(ms(1000)).build().unwrap();
    let lock = client.lock("job");
    lock.lock().unwrap();
    proxy.freeze();
    let before = lock.remaining().unwrap();
    assert!(error(lock.extend(SOON * 60)).is_unknown());
    assert!(lock.is_valid() && lock.remaining().unwrap() <= before, "validity does not move");
    proxy.thaw();
    eventually(SOON, || lock.extend(SOON * 60).is_ok());
    assert!(lock.remaining().unwrap() > SOON * 50);
    lock.unlock().unwrap();
}

/// Renewal would look at this lease in 20 minutes.
#[test]
fn what_an_extend_finds_lost_is_forgotten_at_once() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock_with("job", lease(HOUR)).unwrap();
    lock.lock().unwrap();
    delete(&server, "job");
    assert!(error(lock.extend(HOUR)).is_lost() && error(lock.unlock()).is_lost());
    drop(lock);
    eventually(SOON, || client.remembered() == (0, 0));
}
