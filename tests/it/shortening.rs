//! Moving the end of a lease to an earlier time if the server does not answer, or is not even
//! asked.

use std::sync::mpsc;
use std::thread;

use distlock::{Client, Lock, LockOptions};

use crate::faults::{PATIENCE, impatient, nothing_is_left, through_proxy};
use crate::helpers::{SOON, Underway, error, get, ms};
use crate::support::{Fault, Rule, Server, eventually};

#[test]
fn a_shortening_that_was_not_sent_leaves_the_lease_as_it_was() {
    let server = Server::start();
    let client = impatient(&server.url()).pool_size(1).build().unwrap();
    let lock = client.lock_with("job", LockOptions::new().lease(ms(2_000))).unwrap();
    lock.lock().unwrap();
    let (done, until_done) = mpsc::channel::<()>();
    let (busy, is_busy) = mpsc::channel();
    thread::scope(|scope| {
        let client = &client;
        scope.spawn(move || {
            // The only connection is in use.
            let used = client.execute(|_| {
                busy.send(()).unwrap();
                let _ = until_done.recv_timeout(SOON);
                Ok(())
            });
            used.unwrap();
        });
        is_busy.recv_timeout(SOON).unwrap();
        let refused = error(lock.extend(ms(300)));
        assert!(refused.is_unavailable(), "nothing was sent: {refused}");
        assert!(lock.remaining().unwrap() > ms(700), "{:?}", lock.remaining());
        drop(done);
    });
    // Renewal goes on, and so does everything else.
    thread::sleep(ms(2_500));
    assert!(lock.is_valid());
    lock.extend(ms(300)).unwrap();
    lock.unlock().unwrap();
    nothing_is_left(&server);
}

#[test]
fn a_lease_that_may_be_shortened_unseen_is_not_handed_to_another_thread() {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).build().unwrap();
    let lock = client.lock("job");
    lock.lock().unwrap();
    let doomed = get(&server, "job");
    let waiter = {
        let (client, server_says) = (client.clone(), Client::open(&server.url()).unwrap());
        Underway::behind(&client.clone(), "job", move || {
            let lock = client.lock("job");
            lock.lock().unwrap();
            let token = server_says.lock("job").inspect().unwrap().unwrap().token;
            let left = lock.remaining();
            lock.unlock().unwrap();
            (token, left)
        })
    };
    // The extend script's third argument allows an earlier end.
    let shortens =
        |command: &[Vec<u8>]| command.len() == 7 && command.last().is_some_and(|last| last == b"1");
    let lost = proxy.add(Rule::on("EVALSHA", Fault::SwallowReply).when(shortens));
    assert!(error(lock.extend(ms(20_000))).is_unknown());
    lost.wait_fired(SOON);
    lock.unlock().unwrap();
    let (token, left) = waiter.result();
    assert_ne!(Some(token), doomed, "a lease of its own");
    assert!(left.unwrap() > ms(20_000), "{left:?}");
    nothing_is_left(&server);
}

#[test]
fn a_shortening_that_was_cancelled_can_be_asked_for_again() {
    let server = Server::start();
    let client = impatient(&server.url()).build().unwrap();
    let lock = client.lock("job");
    lock.lock().unwrap();
    server.kill();
    // It depends on the idle connection whether the first shortening was certainly not sent, or may
    // have been. The lease is valid in both cases.
    let first = error(lock.extend(ms(20_000)));
    assert!((first.is_unknown() || first.is_unavailable()) && lock.is_valid());
    let before = lock.remaining().unwrap();
    let second = error(lock.extend(ms(10_000)));
    if first.is_unavailable() {
        assert!(
            second.is_unavailable() && lock.remaining().unwrap() > before - PATIENCE * 4,
            "{second}"
        );
    }
    server.restart();
    eventually(SOON, || lock.is_locked().is_ok());
    assert!(lock.unlock().is_err(), "the server has lost it");
}
