//! Servers that are down, frozen, silent, loading or full: `lock()` rides that out, `try_lock` ends
//! by its deadline, and nobody connects too often (R13, R14).

mod causes;
mod deadlines;
mod disturbances;
pub mod incurable;
mod knocks;
mod recovery;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Client, LockOptions};

use crate::faults::{PATIENCE, impatient, nothing_is_left, through_proxy};
use crate::helpers::{SOON, Underway, error, get, ms};
use crate::loss::{HOUR, renewal_finds, timed};
use crate::support::{Fault, Mode, Proxy, Rule, Server, eventually, within};

/// How much longer than planned a wait may take on a machine under load.
const SLACK: Duration = ms(2000);

/// Every way in which a server can be unreachable.
#[derive(Clone, Copy, Debug)]
enum Out {
    Refused,
    Closed,
    Silent,
    Frozen,
}

const WAYS: [Out; 4] = [Out::Refused, Out::Closed, Out::Silent, Out::Frozen];

impl Out {
    fn begin(self, server: &Server, proxy: &Proxy) {
        match self {
            Out::Refused => proxy.set_mode(Mode::Refuse),
            Out::Closed => proxy.set_mode(Mode::Close),
            Out::Silent => proxy.set_mode(Mode::Silent),
            Out::Frozen => return server.stop_process(),
        }
        proxy.cut_all();
    }

    fn end(self, server: &Server, proxy: &Proxy) {
        if let Out::Frozen = self {
            return server.cont();
        }
        // Connections that it has accepted meanwhile stay silent for ever. As after the return of a
        // host, they have to be given up.
        proxy.set_mode(Mode::Forward);
    }
}

#[test]
fn server_that_is_down_at_the_start_is_waited_for() {
    let server = Server::start();
    server.kill();
    let client = Client::open(&server.url()).unwrap();
    let lock = client.lock("x");
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    thread::sleep(ms(300));
    assert!(!waiting.is_done());
    server.restart();
    waiting.result().unwrap();
}

#[test]
fn lock_rides_out_every_outage_while_it_waits_and_has_the_lock_soon_after() {
    thread::scope(|scope| {
        for way in WAYS {
            scope.spawn(move || {
                let (server, proxy) = through_proxy();
                let client = impatient(&proxy.url()).build().unwrap();
                eventually(SOON, || client.ping().is_ok());
                way.begin(&server, &proxy);
                let lock = client.lock("x");
                let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
                thread::sleep(ms(900));
                assert!(!waiting.is_done(), "{way:?}");
                way.end(&server, &proxy);
                within(..PATIENCE + SLACK, || waiting.result())
                    .unwrap_or_else(|error| panic!("{way:?}: {error:?}"));
                nothing_is_left(&server);
            });
        }
    });
}

#[test]
fn outage_longer_than_max_outage_ends_all_waits_with_unavailable_at_about_the_same_time() {
    thread::scope(|scope| {
        for way in WAYS {
            scope.spawn(move || {
                let (server, proxy) = through_proxy();
                let outage = ms(1000);
                let client = impatient(&proxy.url()).max_outage(outage).build().unwrap();
                eventually(SOON, || client.ping().is_ok());
                way.begin(&server, &proxy);
                // Some threads wait for a lock of their own, and others behind another thread of
                // this process.
                // A thread that starts late ends with the others, and waits for less.
                let start = Instant::now();
                let waiting: Vec<_> = ["a", "b", "same", "same", "same", "same", "same"]
                    .into_iter()
                    .map(|name| {
                        let lock = client.lock(name);
                        Underway::start(move || (lock.lock(), start.elapsed()))
                    })
                    .collect();
                for waiter in waiting {
                    let (result, took) = waiter.result();
                    let error = error(result);
                    assert!(error.is_unavailable(), "{way:?}: {error:?}");
                    // One more command may have been under way when the turn was passed on.
                    assert!(
                        (outage / 2..outage + PATIENCE * 2 + SLACK).contains(&took),
                        "{way:?}: {took:?}"
                    );
                }
                way.end(&server, &proxy);
                eventually(SOON, || client.lock("same").try_lock(Duration::ZERO).unwrap_or(false));
                client.lock("same").unlock().unwrap();
            });
        }
    });
}

#[test]
fn max_outage_may_be_endless_or_zero() {
    let (_server, proxy) = through_proxy();
    proxy.set_mode(Mode::Refuse);
    let impatient_client = impatient(&proxy.url()).max_outage(Duration::ZERO).build().unwrap();
    assert!(within(..SLACK, || error(impatient_client.lock("x").lock())).is_unavailable());
    let client = impatient(&proxy.url()).max_outage(Duration::MAX).build().unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let lock = client.lock("x");
            Underway::start(move || lock.lock().and_then(|()| lock.unlock()))
        })
        .collect();
    thread::sleep(ms(400));
    assert!(waiting.iter().all(|waiter| !waiter.is_done()));
    proxy.set_mode(Mode::Forward);
    waiting.into_iter().for_each(|waiter| waiter.result().unwrap());
}

#[test]
fn server_that_comes_back_empty_while_the_lock_is_held_is_a_loss() {
    let server = Server::start();
    // The restart may take as long as it likes: only the test lets time pass.
    let (builder, clock) = timed(Client::builder(&server.url()));
    let lock = builder.build().unwrap().lock_with("x", LockOptions::new().lease(HOUR)).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    lock.on_lost(move |lost| tell.lock().unwrap().send(lost.reason()).unwrap());
    lock.lock().unwrap();
    server.restart();
    renewal_finds(&clock, || !lock.is_valid());
    assert_eq!(told.recv_timeout(SOON).unwrap(), distlock::LostReason::Taken);
    assert!(!lock.is_valid() && error(lock.unlock()).is_lost());
    assert!(lock.try_lock(SOON).unwrap());
    lock.unlock().unwrap();
}

#[test]
fn server_that_comes_back_empty_lets_a_waiter_in() {
    let server = Server::start();
    redis::cmd("SET").arg("x").arg("another").exec(&mut server.connection()).unwrap();
    let client = Client::open(&server.url()).unwrap();
    let lock = client.lock("x");
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    thread::sleep(ms(200));
    assert!(!waiting.is_done());
    server.restart();
    waiting.result().unwrap();
}

#[test]
fn lease_outlives_an_outage_shorter_than_itself() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock_with("x", LockOptions::new().lease(ms(4000))).unwrap();
    lock.lock().unwrap();
    let token = get(&server, "x");
    proxy.set_mode(Mode::Refuse);
    proxy.cut_all();
    thread::sleep(ms(1800));
    proxy.set_mode(Mode::Forward);
    // Beyond the end of the lease as it was when the outage began.
    thread::sleep(ms(2700));
    assert!(lock.is_valid());
    assert_eq!(get(&server, "x"), token);
    lock.unlock().unwrap();
}

#[test]
fn outage_longer_than_the_lease_is_a_loss_that_is_told_in_time() {
    let (_server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock_with("x", LockOptions::new().lease(ms(900))).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    lock.on_lost(move |lost| tell.lock().unwrap().send(lost.reason()).unwrap());
    lock.lock().unwrap();
    proxy.freeze();
    assert_eq!(
        within(..ms(900) + SLACK, || told.recv_timeout(SOON)).unwrap(),
        distlock::LostReason::Expired
    );
    assert!(!lock.is_valid());
    proxy.thaw();
    assert!(error(lock.unlock()).is_lost());
}

#[test]
fn loading_server_is_waited_for() {
    let (_server, proxy) = through_proxy();
    let loading = proxy.add(Rule::any(Fault::Answer(
        b"-LOADING Redis is loading the dataset in memory\r\n".to_vec(),
    )));
    let client = Client::open(&proxy.url()).unwrap();
    let start = Instant::now();
    assert!(error(client.lock("x").try_lock(Duration::ZERO)).is_unavailable());
    assert!(error(client.ping()).is_unavailable());
    let lock = client.lock("x");
    let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
    thread::sleep(ms(400));
    assert!(!waiting.is_done());
    let seconds = start.elapsed().as_secs() + 1;
    let asked = loading.fired() as u64;
    assert!(asked < 30 * seconds, "one thread asks, with pauses: {asked} times in {seconds} s");
    loading.remove();
    waiting.result().unwrap();
}

#[test]
fn server_with_too_many_clients_is_waited_for() {
    for password in [None, Some("secret")] {
        let mut builder = Server::builder().arg("maxclients", "3");
        if let Some(password) = password {
            builder = builder.password(password);
        }
        let server = builder.start();
        let mut taken: VecDeque<_> = (0..3).map(|_| server.connection()).collect();
        let client = Client::open(&server.url()).unwrap();
        let lock = client.lock("x");
        let error = error(lock.try_lock(Duration::ZERO));
        assert!(error.is_unavailable(), "{error:?}");
        let waiting = Underway::start(move || lock.lock().and_then(|()| lock.unlock()));
        thread::sleep(ms(300));
        assert!(!waiting.is_done());
        taken.clear();
        waiting.result().unwrap();
    }
}

/// Another client keeps trying in a way that never works. The client with the right settings still
/// opens new connections.
fn is_not_shut_out_by(misconfigured: Client, well: impl Fn() -> Client) {
    let tries = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                assert!(error(misconfigured.ping()).is_unavailable());
                tries.fetch_add(1, Ordering::SeqCst);
                thread::sleep(ms(5));
            }
        });
        eventually(SOON, || tries.load(Ordering::SeqCst) > 2);
        let well: Vec<_> = (0..10).map(|_| well().ping()).collect();
        done.store(true, Ordering::SeqCst);
        well.into_iter().for_each(Result::unwrap);
    });
}

#[cfg(feature = "tls")]
#[test]
fn client_that_speaks_tls_to_a_plain_port_shuts_nobody_out() {
    let server = Server::start();
    let url = server.url().replace("redis://", "rediss://");
    is_not_shut_out_by(impatient(&url).command_timeout(ms(100)).build().unwrap(), || {
        Client::open(&server.url()).unwrap()
    });
}

#[test]
fn client_with_too_little_time_to_connect_shuts_nobody_out() {
    let (_server, proxy) = through_proxy();
    proxy.set_delay(ms(40), ms(40));
    for hasty in [
        Client::builder(&proxy.url()).connect_timeout(ms(5)),
        Client::builder(&proxy.url()).command_timeout(ms(5)),
    ] {
        is_not_shut_out_by(hasty.build().unwrap(), || Client::open(&proxy.url()).unwrap());
    }
}
