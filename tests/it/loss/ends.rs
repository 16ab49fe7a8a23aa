//! The end of a lease, moved by hand: both ways, within its bounds, and without an answer.

use std::time::Duration;

use distlock::{Client, Lock, LostReason, Renewal};

use super::{assert_lost, assert_told_once, has_told, timed, told_of};
use crate::helpers::{SOON, client, error, get, lease, ms, on_another_thread, pttl};
use crate::support::{Fault, Proxy, Rule, Server, eventually};

#[test]
fn the_end_of_a_lease_moves_both_ways() {
    let server = Server::start();
    let client = client(&server);
    for renewal in [Renewal::UntilUnlock, Renewal::Never, Renewal::AtMost(3)] {
        let lock = client.lock_with("job", lease(ms(20_000)).renewal(renewal)).unwrap();
        lock.lock().unwrap();
        for (length, least) in [(60_000, 50_000), (5_000, 2_000), (30_000, 20_000), (4_000, 100)] {
            lock.extend(ms(length)).unwrap();
            let (ours, theirs) = (lock.remaining().unwrap(), pttl(&server, "job"));
            let theirs = ms(u64::try_from(theirs).unwrap());
            assert!(ms(least) < ours && ours < ms(length), "{ours:?} after extend({length})");
            // The server's value was read after ours, so it may be a little less; but never less
            // than our validity at the same moment.
            assert!(
                theirs <= ms(length) && theirs + ms(1) >= lock.remaining().unwrap(),
                "{theirs:?}"
            );
        }
        lock.unlock().unwrap();
        assert_eq!(get(&server, "job"), None);
    }
}

#[test]
fn a_lease_that_was_shortened_by_hand_runs_out_or_is_renewed_as_its_options_say() {
    let server = Server::start();
    let (builder, clock) = timed(Client::builder(&server.url()));
    let short = builder.build().unwrap();
    let never = short.lock_with("never", lease(ms(20_000)).renewal(Renewal::Never)).unwrap();
    let told = told_of(&never);
    never.lock().unwrap();
    never.extend(ms(5_000)).unwrap();
    clock.advance(ms(5_000));
    assert_eq!(told.recv_timeout(SOON).map(|(_, _, reason)| reason), Ok(LostReason::Expired));
    assert_lost(&never, 1);
    let renewed = client(&server).lock_with("renewed", lease(ms(20_000))).unwrap();
    renewed.lock().unwrap();
    renewed.extend(ms(4800)).unwrap();
    eventually(ms(4790), || pttl(&server, "renewed") > 10_000);
    assert!(renewed.is_valid());
    renewed.unlock().unwrap();
}

#[test]
fn an_end_outside_the_bounds_is_refused_and_changes_nothing() {
    let server = Server::start();
    let lock = client(&server).lock("job");
    assert!(error(lock.extend(SOON)).is_not_held());
    lock.lock().unwrap();
    let before = pttl(&server, "job");
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
    // The shortest end, by a clock that stands still: a tenth of a second may be over before
    // anybody has looked.
    let (builder, _clock) = timed(Client::builder("memory://"));
    let lock = builder.build().unwrap().lock("job");
    lock.lock().unwrap();
    lock.extend(ms(100)).unwrap();
    assert!(lock.is_valid() && lock.remaining().unwrap() <= ms(100));
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

#[test]
fn a_shortening_without_an_answer_counts_as_done() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (builder, clock) = timed(Client::builder(&proxy.url()));
    let client = builder.build().unwrap();
    let lock = client.lock_with("job", lease(ms(20_000)).renewal(Renewal::Never)).unwrap();
    let told = told_of(&lock);
    lock.lock().unwrap();
    let lost = proxy.add(Rule::on("EVALSHA", Fault::SwallowReply).next(1));
    assert!(error(lock.extend(ms(3_000))).is_unknown());
    lost.wait_fired(SOON);
    assert!(lock.remaining().unwrap() < ms(3_000));
    // A late copy of the shortening could end the lease unnoticed, so no extend makes the validity
    // longer any more.
    let _ = lock.extend(SOON);
    assert!(lock.remaining().unwrap() < ms(3_000));
    clock.advance(ms(3_000));
    assert_told_once(&told, &has_told(LostReason::Expired));
    assert_lost(&lock, 1);
}
