//! Every script names the keys that it touches. In a cluster, a slot may be on its way to another
//! node, and a script that touches a key without having named it fails half-way there.

use std::collections::HashSet;
use std::thread;

use distlock::ErrorKind;
use distlock::testing::InCondition;

use super::{Scene, soon};
use crate::queue::At;
use crate::support::Server;

/// The words of one line of MONITOR, without the time and the client.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted => words.push(std::mem::take(&mut word)),
            '\\' if quoted => word.extend(letters.next()),
            _ if quoted => word.push(letter),
            _ => {}
        }
        quoted ^= letter == '"';
    }
    words
}

/// The keys of a command within a script.
fn keys(command: &[String]) -> &[String] {
    match command[0].to_uppercase().as_str() {
        "TIME" | "PUBLISH" | "PUBSUB" => &[],
        "EXISTS" => &command[1..],
        _ => &command[1..2],
    }
}

/// Everything that scripts do, up to a line with this word.
fn watch(server: &Server, end: &'static str) -> thread::JoinHandle<usize> {
    let mut connection = server.connection();
    let answer: String = redis::cmd("MONITOR").query(&mut connection).unwrap();
    assert_eq!(answer, "OK");
    thread::spawn(move || {
        let (mut named, mut seen) = (HashSet::new(), 0);
        loop {
            let line: String =
                redis::from_redis_value(connection.recv_response().unwrap()).unwrap();
            let command = words(&line);
            if command.get(1).is_some_and(|word| word == end) {
                return seen;
            } else if command[0].starts_with("EVAL") {
                let count = command[2].parse::<usize>().unwrap();
                named = command[3..3 + count].iter().cloned().collect();
            } else if line.contains(" lua] ") {
                seen += 1;
                let other = keys(&command).iter().find(|key| !named.contains(*key));
                assert!(other.is_none(), "{other:?} in {line}, among {named:?}");
            }
        }
    })
}

#[test]
fn no_script_touches_a_key_that_it_has_not_named() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = ["1", "3"].map(|waiter| scene.ear(waiter));
    let watching = watch(&server, "the end");
    ["1", "2", "3", "4"].iter().for_each(|waiter| scene.enters(waiter));
    scene.is_notified_by("notifier", 2, 2);
    scene.lock.is_refused("5", 1, &At::new("5"));
    scene.lock.is_refused("1", 3, &At::new("1"));
    scene.queued_are_late();
    // Both pass on: one does not listen, and the other was late.
    scene.lock.release("notifier");
    scene.leaves("4");
    for token in ["1", "2", "3", "4", "5"] {
        scene.lock.withdraw(token);
    }
    scene.enters("1");
    scene.rewrite("^%d+$", "1");
    scene.is_granted("1");
    scene.lock.store.force_release(&scene.lock.key, "", soon()).unwrap();
    redis::cmd("ECHO").arg("the end").exec(&mut server.connection()).unwrap();
    assert!(watching.join().unwrap() > 100);
}

#[test]
fn foreign_data_beside_a_lock_is_left_as_it_is_by_waits_and_notifications() {
    let server = Server::start();
    for companion in ["queue", "waiters", "conditions", "fence"] {
        let scene = Scene::new(&server);
        let _ears = ["1", "2"].map(|waiter| scene.ear(waiter));
        scene.enters("1");
        scene.enters("2");
        scene.holds("notifier");
        let key = format!("{{a}}:{companion}");
        let _: u32 = scene.lock.redis(&format!("DEL {key}"));
        let _: u32 = scene.lock.redis(&format!("LPUSH {key} somebody's"));
        let _ = scene.try_question("1", 2, None, false);
        let _ = scene.try_notify("notifier", 1);
        // With a foreign queue, a new waiter enters all the same, and has the keys last.
        let _ = scene.try_question("3", 1, Some("notifier"), false);
        scene.lock.release("notifier");
        let _ = scene.try_question("2", 2, None, false);
        let life: i64 = scene.lock.redis(&format!("PTTL {key}"));
        let kind: String = scene.lock.redis(&format!("TYPE {key}"));
        assert_eq!((kind.as_str(), life), ("list", -1), "{companion}");
        let () = scene.lock.redis("FLUSHALL");
    }
}

#[test]
fn a_waiter_that_finds_foreign_data_beside_a_held_lock_keeps_nobody_else_out_of_it() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ear = scene.ear("1");
    scene.holds("holder");
    let () = scene.lock.redis("SET {a}:waiters somebody's");
    let refused = scene.lock.try_ask("1", 1, &At::new("1"));
    assert_eq!(refused.unwrap_err().kind, ErrorKind::WrongType);
    assert_eq!(scene.lock.redis::<u32>("EXISTS {a}:queue"), 0, "no place without an entry");
    scene.lock.release("holder");
    scene.holds("another");
}

/// A request without a lease to release has an empty token there, which is equal to that value.
#[test]
fn a_sign_of_life_does_not_release_a_foreign_lock_with_an_empty_value() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let () = redis::cmd("SET").arg("a").arg("").exec(&mut server.connection()).unwrap();
    assert!(matches!(scene.asks("1"), InCondition::Nowhere));
    assert_eq!(scene.lock.holder().as_deref(), Some(""));
}
