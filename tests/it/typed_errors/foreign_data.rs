//! Data that is not ours, under a lock's key or its fence counter: reported, and left alone.

use std::time::Duration;

use distlock::{Client, ErrorKind, LockOptions};

use super::{all_are, all_fail};
use crate::helpers::{SOON, delete, error, get, keys, ms, put};
use crate::support::{Server, eventually, within};

#[test]
fn foreign_data_is_reported_and_left_alone() {
    let server = Server::start();
    let mut admin = server.connection();
    for make in [
        &["HSET", "x", "a", "b"][..],
        &["RPUSH", "x", "a"],
        &["SADD", "x", "a"],
        &["ZADD", "x", "1", "a"],
        &["XADD", "x", "*", "a", "b"],
    ] {
        delete(&server, "x");
        redis::cmd(make[0]).arg(&make[1..]).exec(&mut admin).unwrap();
        let before: Vec<u8> = redis::cmd("DUMP").arg("x").query(&mut admin).unwrap();
        let client = Client::open(&server.url()).unwrap();
        all_are(all_fail(&client, "x"), ErrorKind::WrongType);
        assert!(error(client.lock("x").force_unlock()).is_wrong_type());
        let after: Vec<u8> = redis::cmd("DUMP").arg("x").query(&mut admin).unwrap();
        assert_eq!(before, after, "{make:?}");
        assert_eq!(keys(&server), ["x"], "and nothing beside it");
    }
}

#[test]
fn foreign_data_that_replaces_a_held_lock_is_a_loss_and_left_alone() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let mut admin = server.connection();
    let replace = |admin: &mut redis::Connection| {
        redis::pipe().cmd("DEL").arg("x").cmd("RPUSH").arg("x").arg("theirs").exec(admin).unwrap();
    };
    let lock = client.lock("x");
    lock.lock().unwrap();
    replace(&mut admin);
    assert!(error(lock.extend(ms(5000))).is_lost());
    assert!(error(lock.unlock()).is_lost());
    delete(&server, "x");
    lock.lock().unwrap();
    replace(&mut admin);
    assert!(error(lock.unlock()).is_lost());
    delete(&server, "x");
    // Found by renewal.
    let short = client.lock_with("x", LockOptions::new().lease(ms(900))).unwrap();
    short.lock().unwrap();
    replace(&mut admin);
    eventually(SOON, || !short.is_valid());
    assert!(error(short.unlock()).is_lost());
    std::thread::sleep(ms(100));
    let list: Vec<String> = redis::cmd("LRANGE").arg("x").arg(0).arg(-1).query(&mut admin).unwrap();
    assert_eq!(list, ["theirs"]);
}

#[test]
fn foreign_data_under_the_fence_counter_is_no_fence() {
    let server = Server::start();
    redis::cmd("HSET").arg("{x}:fence").arg("a").arg("b").exec(&mut server.connection()).unwrap();
    let lock =
        Client::open(&server.url()).unwrap().lock_with("x", LockOptions::new().fenced()).unwrap();
    assert!(within(..SOON, || error(lock.try_lock(SOON))).is_wrong_type());
    assert_eq!(keys(&server), ["{x}:fence"]);
    delete(&server, "{x}:fence");
    // A value that is no number is no fence either: it is left alone.
    put(&server, "{x}:fence", "nonsense", SOON * 6);
    assert!(within(..SOON, || error(lock.try_lock(SOON))).is_wrong_type());
    assert_eq!(get(&server, "{x}:fence").as_deref(), Some("nonsense"));
    assert_eq!(keys(&server), ["{x}:fence"]);
}

#[test]
fn strangers_lock_without_an_end_is_a_refusal() {
    let server = Server::start();
    redis::cmd("SET")
        .arg("x")
        .arg(&b"\xff\xfe not text"[..])
        .exec(&mut server.connection())
        .unwrap();
    let lock = Client::open(&server.url()).unwrap().lock("x");
    assert!(!lock.try_lock(Duration::ZERO).unwrap());
    assert!(!lock.try_lock(ms(100)).unwrap());
    let holder = lock.inspect().unwrap().holders.remove(0);
    assert_eq!(holder.remaining, None);
    assert!(lock.is_locked().unwrap());
    assert!(lock.force_unlock().unwrap() && !lock.force_unlock().unwrap());
}
