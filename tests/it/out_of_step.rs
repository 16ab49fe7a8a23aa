//! Replies that come twice: every later reply on the connection would be taken as the answer to the
//! next command (R6).

use std::sync::mpsc;

use distlock::testing::FakeClock;
use distlock::{Client, Lock, LockOptions, RedisLock};

use crate::faults::{impatient, through_proxy};
use crate::helpers::{self, SOON, delete, error, get, ms, put};
use crate::support::{Fault, Proxy, Rule, Server, eventually};

/// A client with one connection through a proxy.
fn with_one_connection() -> (Server, Proxy, Client) {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).pool_size(1).build().unwrap();
    (server, proxy, client)
}

/// Asserts that a lock that somebody else holds is not granted because of an earlier reply.
fn refuses(client: &Client, server: &Server, lock: &RedisLock) {
    put(server, lock.name(), "somebody", SOON * 6);
    assert!(!matches!(lock.try_lock(ms(0)), Ok(true)), "the grant was another lock's");
    assert_eq!(get(server, lock.name()).as_deref(), Some("somebody"));
    // The connection has been replaced: from here on everything works.
    assert!(!lock.try_lock(ms(0)).unwrap());
    client.lock("third").lock().unwrap();
    client.lock("third").unlock().unwrap();
}

#[test]
fn a_grant_that_comes_twice_grants_no_other_lock() {
    let (server, proxy, client) = with_one_connection();
    let rule = proxy.add(Rule::on("SET", Fault::DuplicateReply).next(1));
    client.lock("first").lock().unwrap();
    rule.wait_fired(SOON);
    refuses(&client, &server, &client.lock("second"));
    client.lock("first").unlock().unwrap();
}

#[test]
fn a_fenced_grant_that_comes_twice_grants_no_other_lock() {
    let (server, proxy, client) = with_one_connection();
    let fenced = |name: &str| client.lock_with(name, LockOptions::new().fenced()).unwrap();
    // The server knows the script.
    fenced("first").with(|_| ()).unwrap();
    let rule = proxy.add(Rule::on("EVALSHA", Fault::DuplicateReply).next(1));
    let first = fenced("first");
    first.lock().unwrap();
    rule.wait_fired(SOON);
    refuses(&client, &server, &fenced("second"));
    first.unlock().unwrap();
}

#[test]
fn a_release_that_is_answered_twice_is_no_other_locks_release() {
    let (_server, proxy, client) = with_one_connection();
    let first = client.lock("first");
    first.with(|_| ()).unwrap();
    first.lock().unwrap();
    let rule = proxy.add(Rule::on("EVALSHA", Fault::DuplicateReply).next(1));
    first.unlock().unwrap();
    rule.wait_fired(SOON);
    // Nobody holds it. A forced unlock, which deletes anybody's lease, is not sent over a
    // connection whose sign of life is the reply to another command.
    assert!(!client.lock("second").force_unlock().unwrap());
}

#[test]
fn an_extension_that_is_answered_twice_extends_no_other_lease() {
    let (server, proxy) = through_proxy();
    let clock = FakeClock::new();
    let client = impatient(&proxy.url()).clock(clock.clone()).build().unwrap();
    let locks = ["first", "second", "third"].map(|name| client.lock(name));
    let (tell, told) = mpsc::channel();
    for lock in &locks {
        let tell = tell.clone();
        lock.on_lost(move |lost| tell.send(lost.name().to_owned()).unwrap());
        lock.lock().unwrap();
        // So that the server knows the renewal script.
        lock.extend(ms(30_000)).unwrap();
    }
    delete(&server, "third");
    // All three are extended at once: 1, 1, 0, and the first 1 comes twice.
    let rule = proxy.add(Rule::on("EVALSHA", Fault::DuplicateReply).next(1));
    clock.advance(ms(11_000));
    rule.wait_fired(SOON);
    // They are asked for again over a connection without doubled replies, long before the validity
    // ends.
    eventually(SOON, || {
        clock.advance(ms(20));
        assert!(
            locks[2].remaining().is_none_or(|left| left < ms(20_000)),
            "it was extended on another lease's answer"
        );
        told.try_recv().is_ok_and(|name| name == "third")
    });
    assert_eq!(told.recv_timeout(ms(100)).ok(), None);
    assert!(error(locks[2].unlock()).is_lost());
    locks[0].unlock().unwrap();
    locks[1].unlock().unwrap();
}

#[test]
fn an_error_that_comes_twice_is_not_the_answer_to_the_next_command() {
    let (server, proxy, client) = with_one_connection();
    // A hash where a lock should be.
    redis::cmd("HSET").arg("hash").arg("field").arg(1).exec(&mut server.connection()).unwrap();
    let hash = client.lock("hash");
    // The script that inspects the key after SET was refused.
    assert!(error(hash.inspect()).is_wrong_type());
    let rule = proxy.add(Rule::on("EVALSHA", Fault::DuplicateReply).next(1));
    assert!(error(hash.inspect()).is_wrong_type());
    rule.wait_fired(SOON);
    // A lock refused with an error would not be ours; and it is ours.
    let lock = client.lock("job");
    let answer = lock.try_lock(ms(0));
    assert!(
        !answer.as_ref().is_err_and(distlock::Error::is_wrong_type),
        "that is the other lock's answer: {answer:?}"
    );
    if !matches!(answer, Ok(true)) {
        // Without a certain answer the lock must not stay behind.
        eventually(SOON, || get(&server, "job").is_none());
    }
}

/// 1. a grant is answered, and its reply is kept somewhere on the way; 2. the lock is released, and
///    another client takes it; 3. the reply of step 1 comes again, before the refusal of the next
///    attempt.
#[test]
fn a_reply_that_comes_again_later_grants_no_lock() {
    let (server, proxy, client) = with_one_connection();
    let lock = client.lock("job");
    // The server knows the script.
    lock.with(|_| ()).unwrap();
    lock.lock().unwrap();
    let late = Fault::ReplaceReply(b":1\r\n+OK\r\n".to_vec());
    let rule = proxy.add(Rule::on("EVALSHA", late).next(1));
    // Without a certain answer it is released in the background.
    let _ = lock.unlock();
    rule.wait_fired(SOON);
    eventually(SOON, || get(&server, "job").is_none());
    refuses(&client, &server, &lock);
}

#[test]
fn a_whole_packet_of_replies_that_comes_twice_grants_no_lock() {
    let (server, proxy, client) = with_one_connection();
    // One reply and the tag behind it come as one piece, and again.
    let (first, second) = (client.lock("first"), client.lock("second"));
    first.with(|_| ()).unwrap();
    let rule = proxy.add(Rule::on("SET", Fault::ReplaceReply(b"+OK\r\n+OK\r\n".to_vec())).next(1));
    assert!(!matches!(first.try_lock(ms(0)), Ok(true)), "nobody knows whose reply is whose");
    rule.wait_fired(SOON);
    refuses(&client, &server, &second);
}

#[test]
fn a_nonsense_confirmation_of_a_subscription_is_not_taken_for_a_refusal() {
    let (server, proxy) = through_proxy();
    let holder = helpers::client(&server).lock("job");
    holder.lock().unwrap();
    let client = Client::open(&proxy.url()).unwrap();
    // The ping that follows a subscription: only a subscriber is answered with a list.
    let subscribed =
        proxy.add(Rule::on("SUBSCRIBE", Fault::ReplaceReply(b":1\r\n:1\r\n".to_vec())).next(1));
    let waiter = helpers::Underway::start(move || client.lock("job").lock());
    subscribed.wait_fired(SOON);
    // A client whose subscription is refused does not try again for ten seconds.
    let heard = || {
        redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg("distlock:inbox:*")
            .query::<Vec<String>>(&mut server.connection())
            .unwrap()
    };
    eventually(ms(5_000), || !heard().is_empty() && proxy.open() > 1);
    std::thread::sleep(ms(1500));
    assert!(!heard().is_empty(), "it is still there, and read");
    holder.unlock().unwrap();
    waiter.result().unwrap();
}
