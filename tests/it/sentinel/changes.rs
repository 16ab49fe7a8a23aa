//! Sentinels that come and go, and news that come at a bad moment.

use distlock::Client;

use super::answers::{client, client_of_one_near, locks_at};
use crate::helpers::{SOON, Underway, error, get, ms};
use crate::support::fake::FakeServer;
use crate::support::fake_sentinel::{Says, sentinel};
use crate::support::sentinels::SERVICE;
use crate::support::{Fault, Proxy, Rule, Server, eventually, on_time};

#[test]
fn a_majority_that_has_not_heard_of_a_failover_yet_leads_nobody_back() {
    let (old, new) = (Server::start(), Server::start());
    let all = [0; 3].map(|_| Says::new(&old, 5));
    let [first, second, third] = all.each_ref().map(sentinel);
    all[0].name(&new, 6);
    let (client, _ways) = on_time(ms(20), || {
        let (client, ways) = client_of_one_near(&second, [&first, &third]);
        assert!(locks_at(&client, &new));
        (client, ways)
    });
    // The only one that has heard is gone, and everybody has to ask.
    drop(first);
    new.kill();
    let lock = client.lock("y");
    let refused = lock.try_lock(ms(1500));
    new.restart();
    assert!(error(refused).is_unavailable(), "the client went back to the old primary");
    assert_eq!(get(&old, "y"), None, "the client went back to the old primary");
    all.iter().for_each(|says| says.name(&new, 6));
    let _ = lock.unlock();
}

/// 1. a connection to the old primary is being opened; 2. the news come; 3. it is open.
#[test]
fn a_connection_that_was_opened_while_the_news_came_is_not_used() {
    let (old, new) = (Server::start(), Server::start());
    let proxy = Proxy::start(old.port());
    let all = [0; 3].map(|_| Says::default()).map(std::sync::Arc::new);
    all.iter().for_each(|says| says.at(proxy.port(), 5));
    let sentinels = all.each_ref().map(sentinel);
    let urls = sentinels.iter().map(FakeServer::url);
    let builder = Client::sentinel_builder(urls, SERVICE).command_timeout(SOON);
    let client = builder.connect_timeout(SOON).build().unwrap();
    client.ping().unwrap();
    // The idle connection is in use, so the lock needs a new one.
    let busy = proxy.add(Rule::on("GET", Fault::HoldReply).next(1));
    let asking = {
        let client = client.clone();
        let get = |connection: &mut dyn redis::ConnectionLike| {
            redis::cmd("GET").arg("q").query::<Option<String>>(connection)
        };
        Underway::start(move || client.execute(get))
    };
    let held = busy.wait_held(SOON);
    let log_in = proxy.add(Rule::on("PING", Fault::HoldReply).next(1));
    let lock = client.lock("y");
    let locking = {
        let lock = lock.clone();
        Underway::start(move || lock.lock().map(|()| lock.unlock()))
    };
    let logging_in = log_in.wait_held(SOON);
    all.iter().for_each(|says| says.name(&new, 6));
    eventually(SOON, || locks_at(&client, &new));
    let before = old.command_count("set");
    logging_in.release();
    held.release();
    let _ = asking.result();
    let _ = locking.result().unwrap();
    assert_eq!(old.command_count("set"), before, "the old primary was asked after the news");
}

#[test]
fn a_client_that_reaches_no_sentinel_stays_at_the_primary_that_it_knows() {
    let server = Server::start();
    let says = Says::new(&server, 5);
    let sentinels = [sentinel(&says)];
    let client = client(&sentinels.each_ref());
    assert!(locks_at(&client, &server));
    drop(sentinels);
    server.kill();
    assert!(error(client.lock("x").try_lock(ms(200))).is_unavailable());
    server.restart();
    assert!(locks_at(&client, &server));
}

#[test]
fn a_server_that_must_not_be_used_is_left_when_the_sentinels_name_another() {
    let (wrong, right) = (Server::builder().arg("cluster-enabled", "yes").start(), Server::start());
    let says = Says::new(&wrong, 5);
    let sentinels = [sentinel(&says)];
    let client = client(&sentinels.each_ref());
    assert!(error(client.lock("x").try_lock(ms(300))).is_unsupported());
    says.name(&right, 6);
    eventually(SOON, || client.lock("x").with(|_| ()).is_ok());
}
