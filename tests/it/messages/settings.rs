//! What a program asks for, and cannot have.

use std::time::Duration;

use distlock::{Client, Layout, LockOptions, Queue, Retry};

use super::{Case, shows};
use crate::helpers::{memory, ms};

#[test]
fn urls() {
    let case = |url: &'static str| Case::new(url, Client::open(url));
    let cases = [
        "`localhost:6379`",
        "`redis:///3`",
        "`redis://host:70000/`",
        "`redis://user:pass/word@host/`",
        "`redis://user@host/`",
        "`redis://host/?password=secret`",
        "`redis://host/orders`",
        "`redis://host/1?db=2`",
        "`redis://host/?ssl=true`",
        "`redis://host/#3`",
        "`redis://host/?timeout=5`",
        "`redis+sentinel://host`",
        "`memory://name?x`",
    ]
    .map(|quoted| Case { when: quoted, ..case(quoted.trim_matches('`')) });
    shows("urls", &cases);
}

/// A client of an address at which nobody may listen: nothing is sent to it.
const URL: &str = "redis://localhost/";

#[test]
fn clients() {
    let second = Duration::from_secs(1);
    let redlock = |urls: &[&str]| Client::redlock(urls);
    let sentinel = |name, urls: &[&str]| Client::sentinel(urls, name);
    let cluster = |urls: &[&str]| Client::cluster(urls);
    let pool = || r2d2::Pool::builder().build_unchecked(redis::Client::open(URL).unwrap());
    let nodes = ["redis://a/", "redis://b/", "redis://c/"];
    shows(
        "clients",
        &[
            Case::new("`pool_size(0)`", Client::builder(URL).pool_size(0).build()),
            Case::new(
                "`command_timeout(2 h)`",
                Client::builder(URL).command_timeout(second * 7200).build(),
            ),
            Case::new(
                "a `key_prefix` of 1,024 bytes",
                Client::builder(URL).key_prefix("p".repeat(1024)).build(),
            ),
            Case::new("a `name` with a space", Client::builder(URL).name("a b").build()),
            Case::new(
                "`root_certificates` that are no PEM",
                Client::builder("rediss://h/").root_certificates("none").build(),
            ),
            Case::new("`redlock` with two nodes", redlock(&nodes[..2])),
            Case::new("a node twice", redlock(&["redis://a/", "redis://b/", "redis://a:6379/"])),
            Case::new(
                "`redlock_builder` with `pool`",
                Client::redlock_builder(nodes).pool(pool()).build(),
            ),
            Case::new("`sentinel` without sentinels", sentinel("orders", &[])),
            Case::new("a service `my orders`", sentinel("my orders", &["redis://a/"])),
            Case::new(
                "`sentinel_builder` with `pool`",
                Client::sentinel_builder(["redis://a/"], "orders").pool(pool()).build(),
            ),
            Case::new(
                "sentinels with and without TLS",
                sentinel("orders", &["redis://a/", "rediss://b/"]),
            ),
            Case::new("a sentinel with a database", sentinel("orders", &["redis://a/3"])),
            Case::new(
                "two users for the sentinels",
                sentinel("orders", &["redis://u:p@a/", "redis://v:p@b/"]),
            ),
            Case::new("a sentinel's unix socket", sentinel("orders", &["redis+unix:///s"])),
            Case::new(
                "`credentials` without sentinels",
                Client::builder(URL).credentials("u", "p").build(),
            ),
            Case::new("`cluster` without nodes", cluster(&[])),
            Case::new(
                "`cluster_builder` with `pool`",
                Client::cluster_builder(["redis://a/"]).pool(pool()).build(),
            ),
            Case::new(
                "nodes of a cluster with and without TLS",
                cluster(&["redis://a/", "rediss://b/"]),
            ),
            Case::new("a node of a cluster with a database", cluster(&["redis://a/3"])),
            Case::new(
                "two users for the nodes of a cluster",
                cluster(&["redis://u:p@a/", "redis://v:p@b/"]),
            ),
            Case::new("a unix socket of a cluster", cluster(&["redis+unix:///s"])),
        ],
    );
}

#[test]
fn options() {
    let (here, new) = (memory(), LockOptions::new);
    let with = |options| here.lock_with("job", options);
    let client = Client::open(URL).unwrap();
    let quorum = Client::redlock(["redis://a/", "redis://b/", "redis://c/"]).unwrap();
    let cluster = Client::cluster(["redis://a/"]).unwrap();
    let server = |options| client.lock_with("job", options);
    let lock = here.lock("job");
    lock.lock().unwrap();
    let limiter = |name: &str, count, window| here.rate_limiter(name, count, window).check();
    let long = "n".repeat(1025);
    let no_queue = with(new().queue(Queue::None)).unwrap();
    shows(
        "options",
        &[
            Case::new("`lock(\"\")`", here.lock("").lock()),
            Case::new("a name of 1,025 bytes", here.lock(&long).lock()),
            Case::new("`lease(10 ms)`, `extend(10 ms)`", lock.extend(ms(10))),
            Case::new("`Retry::fixed(0 ms)`", with(new().retry(Retry::fixed(ms(0))))),
            Case::new("`attempts(0)`", with(new().retry(Retry::fixed(ms(5)).attempts(0)))),
            Case::new("`local_hand_offs(2,000,000)`", with(new().local_hand_offs(2_000_000))),
            Case::new("`owner(\"\")`", with(new().owner(""))),
            Case::new(
                "an `owner` with `Layout::Timestamp`",
                server(new().layout(Layout::Timestamp).owner("me")),
            ),
            Case::new(
                "`fenced` with `Layout::Timestamp`",
                server(new().layout(Layout::Timestamp).fenced()),
            ),
            Case::new("`fenced` on a quorum", quorum.lock_with("job", new().fenced())),
            Case::new("an `owner` on a quorum", quorum.lock_with("job", new().owner("me"))),
            Case::new("`at_least(25 h)`", with(new().at_least(ms(90_000_000)))),
            Case::new("`run_once(0 ms)`", lock.run_once(ms(0), |_| ())),
            Case::new("`at_least` with an `owner`", with(new().at_least(ms(5)).owner("me"))),
            Case::new(
                "`at_least` with `Layout::Timestamp`",
                server(new().layout(Layout::Timestamp).at_least(ms(5))),
            ),
            Case::new("`at_least` on a quorum", quorum.lock_with("job", new().at_least(ms(5)))),
            Case::new("another layout than plain, elsewhere", with(new().layout(Layout::Redisson))),
            Case::new("`replicas(1)` without a server", with(new().replicas(1))),
            Case::new("`new_condition(\"\")`", lock.new_condition("")),
            Case::new("a condition with `Queue::None`", no_queue.new_condition("c")),
            Case::new("`execute` in memory", here.execute(|_| Ok(()))),
            Case::new("`execute` on a cluster", cluster.execute(|_| Ok(()))),
            Case::new("`execute` on a quorum", quorum.execute(|_| Ok(()))),
            Case::new("`semaphore(\"\", 3)`", here.semaphore("", 3).acquire()),
            Case::new("a semaphore of no permits", here.semaphore("s", 0).acquire()),
            Case::new("`acquire_many(0)`", here.semaphore("s", 3).acquire_many(0)),
            Case::new(
                "`acquire_many` of more than there are",
                here.semaphore("s", 3).acquire_many(4),
            ),
            Case::new("`acquire_many(1,025)`", here.semaphore("s", 2000).acquire_many(1025)),
            Case::new("a semaphore on a quorum", quorum.semaphore("s", 3).acquire()),
            Case::new(
                "a semaphore with `Layout::Redisson`",
                client.semaphore_with("s", 3, new().layout(Layout::Redisson)),
            ),
            Case::new(
                "a semaphore with an `owner`",
                here.semaphore_with("s", 3, new().owner("me")),
            ),
            Case::new("a read-write lock on a quorum", quorum.rw_lock("rw").read()),
            Case::new(
                "a condition of the read side",
                here.rw_lock("rw").read_lock().new_condition("c"),
            ),
            Case::new(
                "`downgrade` of another guard",
                here.rw_lock("rw").downgrade(here.lock("job").guard().unwrap()),
            ),
            Case::new("a limiter without a name", limiter("", 1, ms(10))),
            Case::new("a limiter with a name of 1,025 bytes", limiter(&long, 1, ms(10))),
            Case::new("a limiter of no permits", limiter("ip", 0, ms(10))),
            Case::new("a limiter with a window of 0 ms", limiter("ip", 1, ms(0))),
            Case::new("`check_n` of more than fit", here.rate_limiter("ip", 1, ms(10)).check_n(2)),
            Case::new("a limiter on a quorum", quorum.rate_limiter("ip", 1, ms(10)).check()),
        ],
    );
    lock.unlock().unwrap();
}
