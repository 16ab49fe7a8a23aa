//! A connection that failed is never used again: no command gets the reply of another, and callers
//! do not notice closed connections.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use distlock::{Client, ClientBuilder, LockOptions};

use crate::faults::{PATIENCE, impatient, pool_of, through_proxy, warm_up};
use crate::helpers::{SOON, close_connections, error, is_free, keys, ms};
use crate::support::{Fault, Proxy, Rule, Server, eventually, within};

/// Many threads ask for an echo of their own text over few connections, while replies are delayed
/// beyond the command timeout, cut and dribbled.
fn every_reply_is_its_own(proxy: &Proxy, client: &Client) {
    proxy.set_jitter(ms(3));
    let done = AtomicBool::new(false);
    let answered: usize = thread::scope(|scope| {
        let askers: Vec<_> = (0..6)
            .map(|thread| {
                let done = &done;
                scope.spawn(move || {
                    let mut answered = 0;
                    for n in 0.. {
                        if done.load(Ordering::SeqCst) {
                            break;
                        }
                        let words = format!("{thread}:{n}");
                        match client.execute(|connection| {
                            redis::cmd("ECHO").arg(&words).query::<String>(connection)
                        }) {
                            Ok(heard) => {
                                assert_eq!(heard, words);
                                answered += 1;
                            }
                            Err(error) => assert!(error.is_unavailable(), "{error:?}"),
                        }
                    }
                    answered
                })
            })
            .collect();
        for round in 0..6 {
            for fault in [
                Fault::DelayReply(PATIENCE * 2),
                Fault::SwallowReply,
                Fault::CutAfter,
                Fault::DribbleReply(ms(1)),
                Fault::TruncateReply,
                Fault::CutBefore,
            ] {
                let hit = proxy.add(Rule::on("ECHO", fault).skip(round).next(1));
                hit.wait_fired(SOON);
            }
        }
        done.store(true, Ordering::SeqCst);
        askers.into_iter().map(|asker| asker.join().unwrap()).sum()
    });
    assert!(answered > 30, "{answered}");
}

#[test]
fn no_command_gets_the_reply_of_another() {
    let (_server, proxy) = through_proxy();
    let patience = ms(150);
    let client =
        Client::builder(&proxy.url()).pool_size(3).command_timeout(patience).build().unwrap();
    every_reply_is_its_own(&proxy, &client);
}

#[test]
fn no_command_gets_the_reply_of_another_in_the_programs_own_pool() {
    let (_server, proxy) = through_proxy();
    let pool = pool_of(&proxy.url(), 3, false);
    let client = Client::builder(&proxy.url()).pool(pool).command_timeout(ms(150)).build().unwrap();
    every_reply_is_its_own(&proxy, &client);
}

fn echo(client: &Client, words: &str) -> distlock::Result<String> {
    client.execute(|connection| redis::cmd("ECHO").arg(words).query(connection))
}

/// What an ECHO of these words is answered, once there is an answer.
#[track_caller]
fn heard(client: &Client, words: &str) -> String {
    let mut heard = None;
    eventually(SOON, || {
        heard = echo(client, words).ok();
        heard.is_some()
    });
    heard.unwrap()
}

/// The server's numbers of its connections, without the one that asks.
fn connections(server: &Server) -> HashSet<u64> {
    let mut asking = server.connection();
    let own: u64 = redis::cmd("CLIENT").arg("ID").query(&mut asking).unwrap();
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut asking).unwrap();
    let number = |line: &str| line.strip_prefix("id=")?.split(' ').next()?.parse().ok();
    list.lines().filter_map(number).filter(|number| *number != own).collect()
}

#[test]
fn connection_that_timed_out_is_closed_and_its_siblings_are_not_trusted() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).pool_size(4).build().unwrap();
    warm_up(&client, 4);
    let before = connections(&server);
    let late = proxy.add(Rule::on("ECHO", Fault::DelayReply(PATIENCE * 2)).next(1));
    assert!(error(echo(&client, "late")).is_unavailable());
    late.wait_fired(SOON);
    // One call after another is enough: whichever of the four connections is used, it must be a new
    // one, perhaps always the same.
    for n in 0..20 {
        assert_eq!(heard(&client, &n.to_string()), n.to_string());
    }
    warm_up(&client, 4);
    eventually(SOON, || proxy.open() == 4);
    let kept: Vec<_> = connections(&server).intersection(&before).copied().collect();
    assert_eq!(kept, [0; 0], "four new ones");
}

#[test]
fn connection_of_the_programs_own_pool_that_timed_out_is_closed() {
    let (_server, proxy) = through_proxy();
    for tried in [false, true] {
        let pool = pool_of(&proxy.url(), 1, tried);
        let client = impatient(&proxy.url()).pool(pool.clone()).build().unwrap();
        let before = proxy.accepted();
        let late = proxy.add(Rule::on("ECHO", Fault::DelayReply(PATIENCE * 2)).next(1));
        assert!(error(echo(&client, "late")).is_unavailable());
        late.wait_fired(SOON);
        assert_eq!(heard(&client, "next"), "next");
        assert!(proxy.accepted() > before);
        // The program can still use its pool.
        let mut own = None;
        eventually(SOON, || {
            own = pool.get().ok();
            own.is_some()
        });
        let heard: String = redis::cmd("ECHO").arg("own").query(&mut *own.unwrap()).unwrap();
        assert_eq!(heard, "own");
    }
}

/// Everything works at once, on the first try, although every idle connection has been closed.
fn nothing_is_noticed(server: &Server, builder: impl Fn() -> ClientBuilder, connections: usize) {
    let close_idle = |client: &Client, killed: bool| {
        warm_up(client, connections);
        if killed {
            close_connections(&mut server.connection());
        } else {
            server.restart();
        }
    };
    for killed in [true, false] {
        // Each round has its own client: the background threads of the last one would meet the next
        // outage and close the gate for a moment.
        let closed = || {
            let client = builder().build().unwrap();
            close_idle(&client, killed);
            client
        };
        {
            let client = closed();
            let lock = client.lock("x");
            assert!(within(..SOON, || lock.try_lock(Duration::ZERO)).unwrap());
            close_idle(&client, true);
            lock.extend(ms(20_000)).unwrap();
            close_idle(&client, true);
            lock.unlock().unwrap();
        }
        closed().ping().unwrap();
        assert_eq!(echo(&closed(), "x").unwrap(), "x");
        let client = closed();
        assert!(!client.lock("x").is_locked().unwrap());
        redis::cmd("SET").arg("x").arg("another").exec(&mut server.connection()).unwrap();
        close_idle(&client, true);
        assert!(!client.lock("x").try_lock(Duration::ZERO).unwrap());
        redis::cmd("DEL").arg("x").exec(&mut server.connection()).unwrap();
        assert!(is_free(&client.lock("x")));
    }
}

#[test]
fn callers_do_not_notice_that_the_server_closed_idle_connections() {
    let server = Server::start();
    nothing_is_noticed(&server, || Client::builder(&server.url()), 8);
}

#[test]
fn callers_do_not_notice_that_the_server_closed_idle_connections_of_the_programs_own_pool() {
    let server = Server::start();
    nothing_is_noticed(
        &server,
        || Client::builder(&server.url()).pool(pool_of(&server.url(), 6, false)),
        6,
    );
}

#[test]
fn callers_do_not_notice_closed_idle_connections_of_a_pool_that_tests_them() {
    let server = Server::start();
    nothing_is_noticed(
        &server,
        || Client::builder(&server.url()).pool(pool_of(&server.url(), 6, true)),
        6,
    );
}

/// Renewal sends its extends at once and reads the answers one by one: each answer belongs to its
/// lease, also if the connection fails between them.
#[test]
fn answers_in_bulk_stay_with_their_leases_when_the_connection_fails() {
    let (server, proxy) = through_proxy();
    let client = Client::open(&proxy.url()).unwrap();
    let options = || LockOptions::new().lease(ms(6000));
    let (first, second) = (
        client.lock_with("first", options()).unwrap(),
        client.lock_with("second", options()).unwrap(),
    );
    // From here on the server knows the renewal script; only for the first lease it answers
    // otherwise.
    first.lock().unwrap();
    first.extend(ms(6000)).unwrap();
    second.lock().unwrap();
    let of =
        |key: &'static [u8]| move |command: &[Vec<u8>]| command.len() == 6 && command[3] == key;
    let unknown = proxy.add(
        Rule::on("EVALSHA", Fault::Answer(b"-NOSCRIPT flushed\r\n".to_vec()))
            .when(of(b"first"))
            .next(1),
    );
    let cut = proxy.add(Rule::on("EVAL", Fault::CutBefore).when(of(b"first")).next(1));
    let not_ours = proxy
        .add(Rule::on("EVALSHA", Fault::Answer(b":0\r\n".to_vec())).when(of(b"second")).next(1));
    let (tell, lost) = std::sync::mpsc::channel();
    for lock in [&first, &second] {
        let tell = std::sync::Mutex::new(tell.clone());
        lock.on_lost(move |lost| tell.lock().unwrap().send(lost.name().to_owned()).unwrap());
    }
    assert_eq!(lost.recv_timeout(SOON).unwrap(), "second");
    [unknown, cut, not_ours].iter().for_each(|rule| drop(rule.wait_fired(SOON)));
    assert!(first.is_valid() && !second.is_valid());
    assert!(lost.try_recv().is_err());
    first.unlock().unwrap();
    assert!(error(second.unlock()).is_lost());
    assert_eq!(keys(&server), ["second"]);
}
