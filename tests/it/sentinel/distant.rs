//! Sentinels that are far away, have been gone for long, or have not heard yet.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use distlock::{Client, ClientBuilder};

use super::answers::{client, locks_at};
use crate::helpers::{SOON, get, ms};
use crate::support::fake::{FakeServer, Reply, is};
use crate::support::fake_sentinel::{Says, sentinel};
use crate::support::sentinels::SERVICE;
use crate::support::{Mode, Proxy, Server, eventually, on_time};

/// A client of a primary that is 20 ms away.
fn builder(primary: &Proxy, sentinels: &[&FakeServer]) -> ClientBuilder {
    primary.set_delay(ms(10), ms(10));
    Client::sentinel_builder(sentinels.iter().map(|its| its.url()), SERVICE)
}

#[test]
fn sentinels_that_hang_leave_time_for_the_primary() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let says = Says::default();
    says.at(proxy.port(), 1);
    let good = sentinel(&Arc::new(says));
    let hung = [0; 2].map(|_| FakeServer::start(|_, _| Reply::Silence));
    // A client that still waits for an answer of theirs does not ask them again, so each attempt
    // has its own.
    on_time(ms(40), || {
        let builder = builder(&proxy, &[&hung[0], &good, &hung[1]]);
        let client = builder.command_timeout(ms(400)).max_outage(SOON / 2).build().unwrap();
        for _ in 0..3 {
            client.lock("x").with(|_| ()).unwrap();
            proxy.cut_all();
        }
    });
}

#[test]
fn sentinels_that_are_far_away_have_half_of_the_time() {
    let server = Server::start();
    let good = sentinel(&Says::new(&server, 1));
    let far = Proxy::start(good.port());
    far.set_delay(ms(400), ms(400));
    let builder = Client::sentinel_builder([far.url()], SERVICE);
    let client = builder.command_timeout(SOON).connect_timeout(SOON).build().unwrap();
    client.lock("x").with(|_| ()).unwrap();
}

#[test]
fn a_sentinel_that_is_named_at_two_addresses_is_asked_at_both() {
    for gone in 0..2 {
        let (old, new) = (Server::start(), Server::start());
        let says = Says::new(&old, 5);
        let sentinel = sentinel(&says);
        let ways = [0; 2].map(|_| Proxy::start(sentinel.port()));
        let client = Client::sentinel(ways.each_ref().map(Proxy::url), SERVICE).unwrap();
        assert!(locks_at(&client, &old));
        // Asked again and again, at both.
        thread::sleep(ms(2_500));
        ways[gone].set_mode(Mode::Refuse);
        ways[gone].cut_all();
        says.name(&new, 6);
        old.kill();
        eventually(SOON, || locks_at(&client, &new));
    }
}

/// Has a sentinel publish something, and returns once the client has heard it.
fn wait_until_heard(sentinel: &FakeServer, publish: impl Fn()) {
    eventually(SOON, || sentinel.count("PING") > 0);
    let before = sentinel.count("PING");
    publish();
    eventually(SOON, || sentinel.count("PING") > before);
    // It is asked at once for what it has told of.
    eventually(SOON, || {
        let commands = sentinel.commands();
        let ping = commands.iter().rposition(|(_, command)| is(command, "PING"));
        commands[ping.unwrap()..].iter().any(|(_, command)| is(command, "SENTINEL"))
    });
}

/// 1. a sentinel, or the client, is stopped; 2. the primary moves away and back; 3. the stopped one
///    goes on, and hears of the first move.
#[test]
fn old_news_of_a_failover_lead_nobody_away_from_the_primary() {
    let (primary, other) = (Server::start(), Server::start());
    let all = [0; 3].map(|_| Says::new(&primary, 7));
    let sentinels = all.each_ref().map(sentinel);
    let client = client(&sentinels.each_ref());
    assert!(locks_at(&client, &primary));
    wait_until_heard(&sentinels[1], || all[1].publish(&primary, &other));
    // A primary that was left would be avoided for three seconds.
    assert!(client.lock("y").try_lock(ms(1_500)).unwrap());
    assert!(get(&primary, "y").is_some());
    client.lock("y").unlock().unwrap();
}

/// A user of the sentinels who may ask, and not subscribe.
#[test]
fn without_subscriptions_the_sentinels_are_asked_now_and_then() {
    let (old, new) = (Server::start(), Server::start());
    let all = [0; 3].map(|_| Says::new(&old, 5));
    all.iter().for_each(|says| says.refuse_subscriptions());
    let sentinels = all.each_ref().map(sentinel);
    let client = client(&sentinels.each_ref());
    assert!(locks_at(&client, &old));
    all.iter().for_each(|says| says.name(&new, 6));
    eventually(SOON, || locks_at(&client, &new));
}

/// One sentinel publishes the failover, and hangs. The others have not heard of it, and name the
/// old primary, or one that was the primary long ago.
#[test]
fn those_who_have_not_heard_of_the_failover_lead_nobody_back() {
    let (ancient, old, new) = (Server::start(), Server::start(), Server::start());
    let all = [0; 3].map(|_| Says::new(&old, 5));
    let sentinels = all.each_ref().map(sentinel);
    let client = client(&sentinels.each_ref());
    assert!(locks_at(&client, &old));
    all[0].name(&ancient, 0);
    // The client listens at each of them: the last one is as good as any.
    wait_until_heard(&sentinels[2], || all[2].publish_and_hang(&old, &new));
    let asked = old.command_count("set");
    let since = Instant::now();
    while since.elapsed() < ms(2_000) {
        let lock = client.lock("y");
        if lock.try_lock(ms(50)).is_ok_and(|got| got) {
            assert_eq!(get(&old, "y"), None, "the old primary granted it");
            let _ = lock.unlock();
        }
    }
    assert_eq!(old.command_count("set"), asked, "the old primary was asked after the news");
    all[..2].iter().for_each(|says| says.name(&new, 6));
    eventually(SOON, || locks_at(&client, &new));
}
