//! Closing while servers are away or silent: it tries again, ends in time, and says what it does
//! not know.

use std::sync::Arc;
use std::thread;

use distlock::Client;

use crate::faults::{impatient, through_proxy};
use crate::helpers::{Notes, SOON, Underway, error, keys, ms};
use crate::support::{Fault, Mode, Proxy, Rule, Server, eventually, within};

#[test]
fn close_ends_in_time_when_the_server_is_silent_and_says_what_it_does_not_know() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let client = Client::open(&proxy.url()).unwrap();
    let lock = client.lock("job");
    lock.lock().unwrap();
    proxy.freeze();
    assert!(error(within(ms(150)..ms(1500), || client.close(ms(200)))).is_unknown());
    assert!(!lock.is_valid() && error(lock.unlock()).is_lost());
    proxy.thaw();
    eventually(SOON, || keys(&server).is_empty());
}

/// Three locks that are held when the server goes away.
fn three_held(client: &Client) -> Vec<distlock::RedisLock> {
    let locks: Vec<_> = (0..3).map(|i| client.lock(&format!("job-{i}"))).collect();
    locks.iter().for_each(|lock| lock.lock().unwrap());
    locks
}

#[test]
fn close_asks_again_until_the_server_is_back() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let held = three_held(&client);
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    let closing = Underway::start(move || client.close(SOON * 2));
    // Long enough for several tries. Each of them is refused.
    thread::sleep(ms(700));
    assert!(!closing.is_done() && keys(&server).len() == 3);
    proxy.set_mode(Mode::Forward);
    closing.result().unwrap();
    assert_eq!(keys(&server), [""; 0]);
    held.iter().for_each(|lock| assert!(error(lock.unlock()).is_lost()));
}

#[test]
fn close_says_how_many_locks_may_still_be_held() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let _held = three_held(&client);
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    let left = error(within(ms(250)..ms(1500), || client.close(ms(300))));
    assert!(left.is_unknown() && left.to_string().contains(" 3 of the client's locks"), "{left}");
    assert_eq!(keys(&server).len(), 3);
}

#[test]
fn a_second_close_returns_the_result_of_the_first() {
    let (_server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    client.lock("job").lock().unwrap();
    proxy.freeze();
    let first = error(client.close(ms(200)));
    let second = error(within(..ms(5000), || client.close(SOON)));
    assert!(first.is_unknown() && second.to_string() == first.to_string(), "{first}; {second}");
}

#[test]
fn close_of_a_quorum_is_ok_only_if_a_majority_confirmed() {
    for unlocked_before in [true, false] {
        let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
        let proxies: Vec<_> = servers.iter().map(|server| Proxy::start(server.port())).collect();
        // A node that was never asked for the lock has nothing to confirm: under load a node may
        // not be asked in time, and then another client tries.
        let locked_everywhere = || {
            let builder = Client::redlock_builder(proxies.iter().map(Proxy::url));
            let client = builder.command_timeout(ms(300)).connect_timeout(ms(300)).build().unwrap();
            let lock = client.lock("job");
            if lock.try_lock(SOON).unwrap_or(false)
                && servers.iter().all(|server| keys(server) == ["job"])
            {
                return Some((client, lock));
            }
            let _ = client.close(SOON);
            None
        };
        let (client, lock) = (0..20).find_map(|_| locked_everywhere()).unwrap();
        proxies.iter().skip(1).for_each(Proxy::freeze);
        if unlocked_before {
            assert!(error(lock.unlock()).is_unknown());
        }
        let left = error(client.close(ms(900)));
        assert!(
            left.is_unknown() && left.to_string().contains(" 1 of the client's locks"),
            "{left}"
        );
    }
}

/// What may still have to be withdrawn refers to the store, and the store to its withdrawals.
#[test]
fn a_closed_client_is_freed_although_an_attempt_had_no_answer() {
    let (_server, proxy) = through_proxy();
    let (client, notes) = Notes::of(impatient(&proxy.url()));
    let lost = proxy.add(Rule::on("SET", Fault::SwallowReply).next(1));
    client.lock("job").with(|_| ()).unwrap();
    lost.wait_fired(SOON);
    client.close(SOON).unwrap();
    drop(client);
    eventually(SOON, || Arc::strong_count(&notes) == 1);
}
