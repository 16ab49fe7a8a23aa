//! Renewal over servers and links that are slow, silent or away.

use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use distlock::Client;

use super::{FIRST_WAIT, assert_renewed, assert_valid_for, handed_over};
use crate::faults::through_proxy;
use crate::helpers::{Notes, SOON, client, error, get, lease, ms, pttl};
use crate::support::{Fault, Mode, Proxy, Rule, Server, eventually, on_time};

#[test]
fn a_script_flush_costs_no_lease() {
    let server = Server::start();
    let client = client(&server);
    let locks: Vec<_> =
        (0..5).map(|i| client.lock_with(&format!("job-{i}"), lease(ms(2_400))).unwrap()).collect();
    locks.iter().for_each(|lock| lock.lock().unwrap());
    for _ in 0..3 {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection()).unwrap();
        assert_renewed(&locks, 1);
    }
    locks.iter().for_each(|lock| lock.unlock().unwrap());
}

#[test]
fn an_extend_without_an_answer_is_tried_again_and_nothing_is_lost() {
    let faults = [
        Fault::SwallowReply,
        Fault::CutAfter,
        Fault::CutBefore,
        Fault::TruncateReply,
        Fault::GarbleReply,
    ];
    thread::scope(|scope| {
        for fault in faults {
            scope.spawn(move || {
                let server = Server::start();
                let proxy = Proxy::start(server.port());
                let lock =
                    Client::open(&proxy.url()).unwrap().lock_with("job", lease(ms(2400))).unwrap();
                lock.lock().unwrap();
                // From here on only renewal talks to the server.
                let rule = proxy.add(Rule::on("EVALSHA", fault).next(1));
                rule.wait_fired(SOON);
                assert_valid_for(&lock, ms(2500));
                assert_eq!(rule.fired(), 1);
                lock.unlock().unwrap();
            });
        }
    });
}

#[test]
fn an_outage_shorter_than_the_lease_costs_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let length = ms(2_400);
    let lock = Client::open(&proxy.url()).unwrap().lock_with("job", lease(length)).unwrap();
    lock.lock().unwrap();
    let is_renewed = |times| assert_renewed(std::slice::from_ref(&lock), times);
    // The next extend is due after a third of the lease.
    let outage = length / 3 + ms(300);
    proxy.freeze();
    assert_valid_for(&lock, outage);
    proxy.thaw();
    is_renewed(1);
    server.stop_process();
    assert_valid_for(&lock, outage);
    server.cont();
    is_renewed(2);
    lock.unlock().unwrap();
}

#[test]
fn an_outage_longer_than_the_lease_ends_the_validity_on_time() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::builder(&proxy.url()).command_timeout(ms(300)).build().unwrap();
    let lock = client.lock_with("job", lease(ms(600))).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    lock.lock().unwrap();
    let frozen_at = Instant::now();
    proxy.freeze();
    eventually(SOON, || !lock.is_valid());
    assert!(frozen_at.elapsed() <= ms(2000), "{:?}", frozen_at.elapsed());
    assert_eq!(told.recv_timeout(SOON), Ok(distlock::LostReason::Expired));
    assert!(error(lock.unlock()).is_lost());
    proxy.thaw();
    // The lease is withdrawn, even if an extend that was under way has made it whole again.
    eventually(SOON, || get(&server, "job").is_none());
    lock.with(|_| ()).unwrap();
}

#[test]
fn one_silent_extend_delays_no_other_renewal() {
    // A silent extend that is waited for for a second costs leases, and no longer ones than these.
    on_time(ms(60), one_extend_is_silent_and_others_are_renewed);
}

fn one_extend_is_silent_and_others_are_renewed() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (client, notes) = Notes::of(Client::builder(&proxy.url()));
    let locks: Vec<_> =
        (0..8).map(|i| client.lock_with(&format!("job-{i}"), lease(ms(1_200))).unwrap()).collect();
    let elsewhere = Client::open(&server.url()).unwrap();
    let (silent, other) =
        (elsewhere.lock("silent").guard().unwrap(), elsewhere.lock("other").guard().unwrap());
    let is_extend = |command: &[Vec<u8>]| {
        command.get(2).is_some_and(|keys| keys == b"1")
            && command.get(3).is_some_and(|key| key == b"silent")
    };
    let rule = proxy.add(Rule::on("EVALSHA", Fault::HoldReply).when(is_extend).next(1));
    for lock in &locks {
        lock.lock().unwrap();
        thread::sleep(ms(45));
    }
    // A lease of thirty seconds, whose extend could take a second.
    let (unlock_silent, waiting_silent) =
        handed_over(&client, &notes, "silent", silent, FIRST_WAIT);
    let _held = rule.wait_held(SOON);
    let (unlock_other, waiting_other) = handed_over(&client, &notes, "other", other, 1);
    let until = Instant::now() + ms(1_400);
    while Instant::now() < until {
        for lock in &locks {
            assert!(lock.is_valid(), "{}", lock.name());
        }
        thread::sleep(ms(5));
    }
    assert!(pttl(&server, "other") > 20_000 && rule.fired() == 1);
    drop((unlock_silent, unlock_other));
    waiting_silent.result().unwrap();
    waiting_other.result().unwrap();
    locks.iter().for_each(|lock| lock.unlock().unwrap());
}

#[test]
fn a_slow_link_is_not_taken_for_a_silent_one() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (client, notes) = Notes::of(Client::builder(&proxy.url()));
    proxy.set_delay(ms(100), ms(100));
    let lock = client.lock_with("job", lease(ms(3_000))).unwrap();
    lock.lock().unwrap();
    eventually(SOON, || notes.extends() >= 1 && notes.under_way() == 0);
    let connections = proxy.accepted();
    eventually(SOON, || notes.extends() >= 3 && notes.under_way() == 0);
    assert!(lock.is_valid());
    assert!(
        proxy.accepted() <= connections + 1,
        "{} connections after {connections}",
        proxy.accepted()
    );
    lock.unlock().unwrap();
}

#[test]
fn an_extend_that_is_refused_at_once_is_not_repeated_at_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (client, notes) = Notes::of(Client::builder(&proxy.url()));
    let lock = client.lock_with("job", lease(ms(1_500))).unwrap();
    let (tell, told) = mpsc::channel();
    lock.on_lost(move |lost| tell.send(lost.reason()).unwrap());
    lock.lock().unwrap();
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    assert_eq!(told.recv_timeout(SOON), Ok(distlock::LostReason::Expired));
    // The pauses become shorter towards the end.
    assert!((2..60).contains(&notes.extends()), "{} extends", notes.extends());
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn a_short_lease_is_kept_over_a_slow_link_with_a_password() {
    let server = Server::builder().password("secret").start();
    let proxy = Proxy::start(server.port());
    proxy.set_delay(ms(30), ms(30));
    let client = Client::open(&proxy.url_with("default", "secret")).unwrap();
    let lock = client.lock_with("job", lease(ms(3_000))).unwrap();
    lock.lock().unwrap();
    assert_renewed(std::slice::from_ref(&lock), 2);
    lock.unlock().unwrap();
}

#[test]
fn one_silent_log_in_delays_no_other_renewal() {
    let (_server, proxy) = through_proxy();
    let client = Client::builder(&proxy.url()).command_timeout(SOON).build().unwrap();
    // Half of what is left when it is renewed first is longer than the short lease.
    let long = client.lock_with("long", lease(ms(9_000))).unwrap();
    let short = client.lock_with("short", lease(ms(2_000))).unwrap();
    client.ping().unwrap();
    long.lock().unwrap();
    // The next connection is renewal's: its log-in is never answered, all others are.
    let stuck = proxy.add(Rule::on("ROLE", Fault::HoldRequest).next(1));
    let _held = stuck.wait_held(SOON);
    short.lock().unwrap();
    let until = Instant::now() + ms(3_200);
    while Instant::now() < until {
        assert!(short.is_valid(), "one log-in without an answer cost another lease");
        thread::sleep(ms(5));
    }
    assert!(long.is_valid());
}
