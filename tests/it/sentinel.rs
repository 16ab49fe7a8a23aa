//! Locks on a primary that sentinels watch: found, and followed when it moves (R23).
//!
//! The servers and their sentinels are real; what real sentinels say only in trouble is said by
//! fake ones.

mod answers;
mod changes;
mod distant;
mod logins;
mod thawed;

use std::time::{Duration, Instant};

use distlock::{Client, ClientBuilder, LockOptions};

use self::answers::wait_until_asked_anew;
use crate::helpers::{SOON, Underway, error, get, ms};
use crate::support::sentinels::{SERVICE, Sentinel, Sentinels};
use crate::support::{
    Fault, Proxy, Rule, eventually, in_own_process, on_time, thread_count, thread_names, within,
};

/// How long a failover may take, from the loss of the primary to the first grant at the new one.
const FAILED_OVER: Duration = Duration::from_secs(20);

fn builder(all: &Sentinels) -> ClientBuilder {
    Client::builder(&all.url()).command_timeout(ms(1000))
}

#[test]
fn the_primary_is_found_by_a_url_and_by_a_list_of_sentinels() {
    let all = Sentinels::start();
    for client in [
        Client::open(&all.url()).unwrap(),
        Client::sentinel(all.urls(), SERVICE).unwrap(),
        // One alone is its own majority.
        Client::sentinel(&all.urls()[2..], SERVICE).unwrap(),
    ] {
        let guard = within(..SOON, || client.lock("x").guard()).unwrap();
        assert!(get(&all.servers[0], "x").is_some());
        guard.release().unwrap();
    }
}

#[test]
fn locks_work_as_on_one_server() {
    let all = Sentinels::start();
    let client = Client::open(&all.url()).unwrap();
    let lock = client.lock_with("x", LockOptions::new().fenced()).unwrap();
    let first = lock.guard().unwrap().fence();
    let second = lock.guard().unwrap();
    assert!(second.fence() > first);
    let other = Client::open(&all.url()).unwrap();
    let waiting = Underway::start(move || other.lock("x").guard().map(|guard| guard.is_valid()));
    eventually(SOON, || {
        let queue = redis::cmd("ZCARD").arg("{x}:queue").query(&mut all.servers[0].connection());
        queue == Ok(1)
    });
    second.release().unwrap();
    assert!(waiting.result().unwrap(), "it was handed over");
    assert!(client.execute(|conn| redis::cmd("PING").query::<String>(conn)).is_ok());
    client.close(SOON).unwrap();
}

#[test]
fn a_planned_failover_is_followed() {
    let all = Sentinels::start();
    let client = builder(&all).build().unwrap();
    client.lock("x").with(|_| ()).unwrap();
    let new = all.fail_over();
    within(..FAILED_OVER, || client.lock("x").lock()).unwrap();
    assert!(get(&all.servers[new], "x").is_some());
    client.lock("x").unlock().unwrap();
}

#[test]
fn a_killed_primary_is_left_for_the_next() {
    let all = Sentinels::start();
    let client = builder(&all).build().unwrap();
    client.lock("x").with(|_| ()).unwrap();
    all.servers[0].kill();
    within(..FAILED_OVER, || client.lock("x").lock()).unwrap();
    assert!(get(&all.servers[1], "x").is_some());
    client.lock("x").unlock().unwrap();
}

#[test]
fn a_primary_that_froze_and_was_replaced_gets_nothing_more_when_it_goes_on() {
    // 1. the primary is frozen, a client is idle; 2. the sentinels make another server the primary;
    // 3. the old one goes on. It calls itself a master, and takes writes, until the sentinels
    // demote it some seconds later.
    on_time(ms(100), || {
        let all = Sentinels::start();
        let way = Proxy::start(all.sentinels[0].port());
        let questions = way.add(Rule::on("SENTINEL", Fault::DelayReply(Duration::ZERO)));
        let builder = Client::sentinel_builder([way.url()], SERVICE).command_timeout(ms(1000));
        let client = builder.build().unwrap();
        client.lock("x").with(|_| ()).unwrap();
        all.servers[0].stop_process();
        all.wait_for_primary(1);
        wait_until_asked_anew(|| questions.fired());
        all.servers[0].cont();
        let start = Instant::now();
        client.lock("y").lock().unwrap();
        let took = start.elapsed();
        assert!(took < Duration::from_secs(1), "the old primary may be a replica by now");
        assert_eq!(get(&all.servers[0], "y"), None);
        assert!(get(&all.servers[1], "y").is_some());
        client.lock("y").unlock().unwrap();
    });
}

#[test]
fn a_client_has_a_thread_for_each_sentinel_and_ends_it() {
    in_own_process("sentinel::a_client_has_a_thread_for_each_sentinel_and_ends_it", || {
        let all = Sentinels::start();
        let before = thread_count();
        let client = builder(&all).build().unwrap();
        assert_eq!(thread_count(), before, "a client that has done nothing has no threads");
        client.lock("x").with(|_| ()).unwrap();
        let named = |name| thread_names().iter().filter(|its| its.starts_with(name)).count();
        eventually(SOON, || named("distlock-connec") + named("distlock-asks") == 0);
        // A thread names itself once it runs.
        eventually(SOON, || named("distlock-sentin") == 3);
        let clients = || -> Vec<usize> {
            let clients = |sentinel: &Sentinel| {
                let list: String = sentinel.ask(&["CLIENT", "LIST", "TYPE", "normal"]);
                let ours =
                    |line: &&str| !line.contains("name=sentinel-") && !line.contains("cmd=client");
                list.lines().filter(ours).count()
            };
            all.sentinels.iter().map(clients).collect()
        };
        assert!(clients().iter().all(|count| *count > 0), "{:?}", clients());
        client.close(SOON).unwrap();
        // Something may refer to the client for longer.
        eventually(SOON, || clients().iter().all(|count| *count == 0));
        drop(client);
        eventually(SOON, || thread_count() == before);
    });
}

#[test]
fn a_service_that_no_sentinel_knows_is_an_error_at_once() {
    let all = Sentinels::start();
    let client = Client::sentinel(all.urls(), "nobodys").unwrap();
    let failed = within(..SOON, || error(client.lock("x").lock()));
    assert!(failed.is_invalid_input(), "{failed}");
}

#[test]
fn a_sentinel_is_no_server_for_locks() {
    let all = Sentinels::start();
    for database in ["", "3"] {
        let client = Client::open(&format!("{}{database}", all.urls()[0])).unwrap();
        let refused = within(..SOON, || error(client.lock("x").lock()));
        assert!(refused.is_unsupported() && refused.to_string().contains("sentinel"), "{refused}");
    }
}
