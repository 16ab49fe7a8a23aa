//! A connection whose replies may belong to other commands is not used (R6): one that gave a reply
//! of another shape, and one on which the program's own code left replies unread.

use distlock::{Client, RedisLock};
use redis::ConnectionLike;

use crate::faults::{impatient, pool_of, through_proxy};
use crate::helpers::{self, SOON, error, get, ms, put};
use crate::support::{Fault, Proxy, Rule, Server, eventually};

/// A client with one connection through a proxy.
fn with_one_connection() -> (Server, Proxy, Client) {
    let (server, proxy) = through_proxy();
    let client = impatient(&proxy.url()).pool_size(1).build().unwrap();
    (server, proxy, client)
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
fn a_reply_of_another_shape_ends_its_connection() {
    let (server, proxy, client) = with_one_connection();
    let lock = client.lock("job");
    // The server knows the script.
    lock.with(|_| ()).unwrap();
    let rule = proxy.add(Rule::on("SET", Fault::DuplicateReply).next(1));
    lock.lock().unwrap();
    rule.wait_fired(SOON);
    let before = proxy.accepted();
    // The next reply is an OK, where a number belongs: the release is sent again.
    lock.unlock().unwrap();
    assert!(proxy.accepted() > before, "over a new connection");
    assert_eq!(get(&server, "job"), None);
}

/// Two commands in one packet, of which only the first reply is read: the second, an OK, is what a
/// grant looks like.
fn leave_a_reply_unread(connection: &mut dyn ConnectionLike) {
    let mut packet = redis::cmd("SET").arg("other").arg(1).get_packed_command();
    packet.extend(redis::cmd("SET").arg("other").arg(2).get_packed_command());
    connection.req_packed_command(&packet).unwrap();
}

/// Asserts that a lock that somebody else holds is not granted because of an earlier reply.
fn refuses(server: &Server, lock: &RedisLock) {
    put(server, lock.name(), "somebody", SOON * 6);
    assert!(!matches!(lock.try_lock(ms(0)), Ok(true)), "the grant was the program's reply");
    assert_eq!(get(server, lock.name()).as_deref(), Some("somebody"));
    // The connection has been replaced: from here on everything works.
    eventually(SOON, || lock.try_lock(ms(0)).is_ok_and(|locked| !locked));
}

#[test]
fn a_reply_that_execute_left_unread_grants_no_lock() {
    let server = Server::start();
    let client = Client::builder(&server.url()).pool_size(1).build().unwrap();
    client
        .execute(|connection| {
            leave_a_reply_unread(connection);
            Ok(())
        })
        .unwrap();
    refuses(&server, &client.lock("job"));
}

#[test]
fn a_reply_that_was_left_unread_in_the_programs_own_pool_grants_no_lock() {
    let server = Server::start();
    let pool = pool_of(&server.url(), 1, false);
    let client = Client::builder(&server.url()).pool(pool.clone()).build().unwrap();
    // Also on a connection that has been good for locks before.
    for _ in 0..2 {
        client.lock("free").with(|_| ()).unwrap();
        leave_a_reply_unread(&mut *pool.get().unwrap());
        refuses(&server, &client.lock("job"));
    }
}

#[test]
fn an_error_that_was_left_unread_is_not_the_answer_to_a_lock() {
    let server = Server::start();
    let pool = pool_of(&server.url(), 1, false);
    let client = Client::builder(&server.url()).pool(pool.clone()).build().unwrap();
    let mut packet = redis::cmd("SET").arg("other").arg(1).get_packed_command();
    packet.extend(redis::cmd("LPUSH").arg("other").arg(2).get_packed_command());
    pool.get().unwrap().req_packed_command(&packet).unwrap();
    // Not refused for the type of another key: asked again over a new connection.
    assert!(client.lock("job").try_lock(SOON).unwrap());
    client.lock("job").unlock().unwrap();
}

/// A pool of one connection, and a client over it, whose user may not run this command.
fn pool_without(server: &Server, command: &str) -> (r2d2::Pool<redis::Client>, Client) {
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "poor", "on", ">password", "~*", "&*", "+@all"]).arg(command);
    user.exec(&mut server.connection()).unwrap();
    let url = server.url_with("poor", "password");
    let pool = pool_of(&url, 1, false);
    let client = Client::builder(&url).pool(pool.clone()).build().unwrap();
    (pool, client)
}

#[test]
fn a_refusal_that_was_left_unread_is_not_the_answer_to_a_lock() {
    let server = Server::start();
    let (pool, client) = pool_without(&server, "-config");
    let mut packet = redis::cmd("PING").get_packed_command();
    packet.extend(redis::cmd("CONFIG").arg("GET").arg("save").get_packed_command());
    pool.get().unwrap().req_packed_command(&packet).unwrap();
    // Not denied: asked again over a new connection.
    assert!(client.lock("job").try_lock(SOON).unwrap());
    client.lock("job").unlock().unwrap();
}

#[test]
fn a_refusal_of_the_programs_own_echo_grants_no_lock() {
    let server = Server::start();
    let (pool, client) = pool_without(&server, "-echo");
    // The program leaves two replies unread: a refusal, as if of our ECHO, and an OK, as if of a
    // grant.
    let mut packet = redis::cmd("PING").get_packed_command();
    packet.extend(redis::cmd("ECHO").arg(1).get_packed_command());
    packet.extend(redis::cmd("SET").arg("other").arg(1).get_packed_command());
    pool.get().unwrap().req_packed_command(&packet).unwrap();
    put(&server, "job", "somebody", SOON * 6);
    let refused = error(client.lock("job").try_lock(ms(0)));
    assert!(refused.is_denied(), "{refused:?}");
    // The permission that is missing is told by its name.
    let cause = std::error::Error::source(&refused).unwrap().to_string();
    assert!(cause.contains("'echo'"), "{cause}");
    assert_eq!(get(&server, "job").as_deref(), Some("somebody"));
}

#[test]
fn only_a_connection_that_the_program_may_have_used_is_asked_for_an_echo() {
    let server = Server::start();
    let client = Client::builder(&server.url()).pool_size(1).build().unwrap();
    let cycle = || client.lock("job").with(|_| ()).unwrap();
    cycle();
    cycle();
    assert_eq!(server.command_count("echo"), 0);
    client.execute(|connection| redis::cmd("PING").exec(connection)).unwrap();
    cycle();
    cycle();
    assert_eq!(server.command_count("echo"), 1);
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
