//! `try_lock` ends by its deadline, whatever the server does or does not answer (R13).

use std::thread;
use std::time::Duration;

use distlock::{Client, LockOptions};

use super::{Out, SLACK, WAYS};
use crate::faults::{PATIENCE, impatient, pool_of, through_proxy, warm_up};
use crate::helpers::{Elsewhere, SOON, Underway, error, ms};
use crate::support::fake::{self, FakeServer, Reply};
use crate::support::{Mode, Proxy, Server, eventually, on_time, within};

/// A command timeout so long that a second one would stand out, also on a machine under load.
const LONG: Duration = ms(1500);
/// How much longer than planned a call may take: not quite a second command timeout.
const LATE: Duration = ms(1300);

fn timed(url: &str) -> distlock::ClientBuilder {
    Client::builder(url).command_timeout(LONG).connect_timeout(LONG)
}

/// `try_lock` by several threads, alone and behind each other. Each ends within its deadline and
/// one command timeout, as unavailable.
fn try_lock_ends_in_time(client: &Client, timeouts: &[Duration]) {
    thread::scope(|scope| {
        for timeout in timeouts {
            for name in ["own", "same", "same", "same"] {
                scope.spawn(move || {
                    let lock = client.lock(&if name == "own" {
                        format!("{timeout:?}")
                    } else {
                        format!("same{timeout:?}")
                    });
                    // Local turns: no thread takes more than one command timeout after its own
                    // deadline.
                    let error = within(*timeout / 2..*timeout + LONG + LATE, || {
                        error(lock.try_lock(*timeout))
                    });
                    assert!(error.is_unavailable(), "{error:?}");
                    assert!(!lock.is_held());
                });
            }
        }
    });
}

#[test]
fn try_lock_ends_by_its_deadline_whatever_the_outage() {
    thread::scope(|scope| {
        for way in WAYS {
            for warm in [true, false] {
                scope.spawn(move || {
                    let (server, proxy) = through_proxy();
                    let client = timed(&proxy.url()).build().unwrap();
                    if warm {
                        warm_up(&client, 3);
                    }
                    way.begin(&server, &proxy);
                    try_lock_ends_in_time(&client, &[Duration::ZERO, ms(200), ms(700)]);
                    way.end(&server, &proxy);
                });
            }
        }
    });
}

#[test]
fn try_lock_ends_by_its_deadline_when_connections_freeze() {
    let (_server, proxy) = through_proxy();
    let client = timed(&proxy.url()).build().unwrap();
    warm_up(&client, 4);
    proxy.freeze();
    try_lock_ends_in_time(&client, &[Duration::ZERO, ms(300)]);
    proxy.thaw();
}

#[test]
fn try_lock_over_the_programs_own_pool_ends_by_its_deadline() {
    for way in [Out::Refused, Out::Closed] {
        let (server, proxy) = through_proxy();
        let client = timed(&proxy.url()).pool(pool_of(&proxy.url(), 2, false)).build().unwrap();
        way.begin(&server, &proxy);
        try_lock_ends_in_time(&client, &[Duration::ZERO, ms(300)]);
    }
}

/// At once if the resolver says that there is no such name; if it could not ask anybody, in time.
#[test]
fn name_that_does_not_resolve_is_unavailable_in_time() {
    let client = timed("redis://no-such-host.invalid:6399/").max_outage(ms(600)).build().unwrap();
    let lock = client.lock("x");
    for timeout in [Duration::ZERO, ms(300)] {
        let error = within(..timeout + LONG + LATE, || error(lock.try_lock(timeout)));
        assert!(error.is_unavailable(), "{error:?}");
    }
    let error = within(..LONG + SLACK * 2, || error(lock.lock()));
    assert!(error.is_unavailable(), "{error:?}");
}

/// A server that takes every command, and never answers this one.
fn silent_on(name: &'static str) -> FakeServer {
    FakeServer::start(
        move |_, command| {
            if fake::is(command, name) { Reply::Silence } else { Reply::usual(command) }
        },
    )
}

#[test]
fn calls_to_a_server_that_never_answers_end_within_the_deadline_at_every_step() {
    for step in ["AUTH", "SELECT", "ROLE", "PING", "SET"] {
        // The step is reached only if those before it leave some time.
        on_time(ms(60), || {
            let server = silent_on(step);
            let url = format!("redis://:secret@127.0.0.1:{}/3", server.port());
            let client = impatient(&url).build().unwrap();
            let error = within(PATIENCE / 2..PATIENCE + SLACK, || {
                error(client.lock("x").try_lock(Duration::ZERO))
            });
            assert!(error.is_unavailable(), "{step}: {error:?}");
            assert!(server.count(step) >= 1);
        });
    }
}

#[test]
fn calls_to_a_server_that_stops_in_the_middle_of_a_reply_end_within_the_deadline() {
    for half in ["+O", "$5\r\nab", "*2\r\n:1\r\n", "-ER", ":", "$-"] {
        for step in ["AUTH", "PING", "SET"] {
            let server = FakeServer::start(move |_, command| {
                if fake::is(command, step) {
                    Reply::Bytes(half.as_bytes().to_vec())
                } else {
                    Reply::usual(command)
                }
            });
            let url = format!("redis://:secret@127.0.0.1:{}/", server.port());
            let client = impatient(&url).command_timeout(ms(100)).build().unwrap();
            // Half a reply and the start of the next one may be nonsense, which is noticed at once.
            let error =
                within(..ms(100) + SLACK, || error(client.lock("x").try_lock(Duration::ZERO)));
            assert!(error.is_unavailable(), "{step} {half:?}: {error:?}");
        }
    }
}

#[test]
fn threads_that_wait_behind_a_holder_get_false_and_not_unavailable() {
    let (_server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock_with("x", LockOptions::new().lease(SOON * 3)).unwrap();
    let holder = Elsewhere::holds(&lock);
    proxy.freeze();
    assert!(!lock.try_lock(ms(100)).unwrap(), "the lease is known to be held in this very process");
    proxy.thaw();
    holder.unlock().unwrap();
}

#[test]
fn refusal_followed_by_silence_is_unavailable() {
    let (server, proxy) = through_proxy();
    redis::cmd("SET").arg("x").arg("another").exec(&mut server.connection()).unwrap();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("x");
    eventually(SOON, || lock.try_lock(ms(100)).is_ok_and(|locked| !locked));
    let waiting = Underway::start(move || lock.try_lock(ms(1500)));
    thread::sleep(ms(200));
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    // A waiter that is not woken may be in the middle of a pause and know only its refusal. Both
    // answers are correct for what it knows.
    match waiting.result() {
        Ok(held) => assert!(!held),
        Err(error) => assert!(error.is_unavailable(), "{error:?}"),
    }
}

#[test]
fn calls_to_a_host_that_never_answers_a_packet_end_within_the_deadline() {
    // An address that is reserved for documentation: packets to it go nowhere, or the network
    // reports an error.
    let client = impatient("redis://192.0.2.1:6399/").build().unwrap();
    let error = within(..PATIENCE + SLACK, || error(client.lock("x").try_lock(Duration::ZERO)));
    assert!(error.is_unavailable(), "{error:?}");
}

/// The attempt is answered in time, and the withdrawal of its place would not be: the caller does
/// not wait for it (R13).
#[test]
fn slow_link_makes_no_caller_wait_for_a_withdrawal() {
    on_time(ms(60), || {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let holder = Client::open(&server.url()).unwrap().lock("x");
        let _held = holder.guard().unwrap();
        let client = Client::builder(&proxy.url()).command_timeout(ms(1000)).build().unwrap();
        let lock = client.lock("x");
        // The lock is known to be contended from here on, and the connection stands: one round trip
        // each for the attempt and its withdrawal.
        assert!(!lock.try_lock(ms(50)).unwrap());
        proxy.set_delay(ms(400), ms(400));
        let refused = within(ms(700)..ms(1400), || lock.try_lock(ms(10)));
        assert!(!refused.unwrap());
        let places = || {
            redis::cmd("EXISTS").arg("{x}:queue").query::<u32>(&mut server.connection()).unwrap()
        };
        eventually(SOON, || places() == 0);
    });
}
