//! `distlock who`: holders and waiters of every kind, and what is no lock of ours.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use distlock::{Client, LockOptions};

use super::{Ended, Running, Scene, UNTIL_TOLD, row};
use crate::helpers::{SOON, keys, put};
use crate::support::shards::Shards;
use crate::support::{Server, eventually};

/// A client with a name, so that it can be seen.
fn named(server: &Server, name: &str) -> Client {
    Client::builder(&server.url()).name(name).build().unwrap()
}

fn redis(server: &Server, command: &str) {
    let (name, words) = command.split_once(' ').unwrap();
    let words: Vec<_> = words.split(' ').collect();
    redis::cmd(name).arg(words).exec(&mut server.connection()).unwrap();
}

/// What every foreign client may have left, and a dump of it.
fn strangers(server: &Server) -> Vec<(String, Vec<u8>)> {
    redis(server, "HSET java 8743c9c0-0795-4907-87fd-6c719a6b4586:17 2");
    redis(server, "PEXPIRE java 60000");
    put(server, "jedis", "host-7", SOON * 60);
    redis(server, "SET stuck 1");
    redis(server, "LPUSH list 1");
    redis(server, "HSET hash a 1 b 2");
    redis(server, "HSET counter visits 2");
    redis(server, "SET epoch 9999999999999");
    redis(server, "ZADD scores 1 someone");
    redis(server, "SET redisson_lock_token:{java} 3");
    redis::cmd("SET").arg("page").arg("x".repeat(5_000)).exec(&mut server.connection()).unwrap();
    dump(server)
}

fn dump(server: &Server) -> Vec<(String, Vec<u8>)> {
    let dump = |key: String| {
        let value = redis::cmd("DUMP").arg(&key).query(&mut server.connection()).unwrap();
        (key, value)
    };
    keys(server).into_iter().map(dump).collect()
}

#[test]
fn it_names_the_holder_the_fence_and_all_who_wait() {
    let scene = Scene::new();
    let options = || LockOptions::new().fenced();
    let holder = named(&scene.server, "billing-3");
    let guard = holder.lock_with("orders:42", options()).unwrap().guard().unwrap();
    let waiter = Running::start(scene.distlock("run orders:42", "true"));
    scene.queued("orders:42", 1);
    let ended = scene.ask("who orders:42");
    ended.is(0);
    let fence = guard.fence().unwrap().to_string();
    let words = row(&ended, "orders:42");
    assert_eq!((words[1], words[2]), ("lock", "billing-3"), "{}", ended.out);
    assert_eq!(words[words.len() - 2..], [fence.as_str(), "1"], "{}", ended.out);
    let waits = row(&ended, "waits");
    assert!(waits[1].contains(&format!("-{}-", waiter.pid())), "{}", ended.out);
    guard.release().unwrap();
    waiter.end().is(0);
    let ended = scene.ask("who orders:42");
    assert_eq!(row(&ended, "orders:42")[1..3], ["free", "-"]);
}

#[test]
fn every_kind_of_lock_is_known_without_being_named() {
    let scene = Scene::new();
    let run = |args: &str| scene.start(args, UNTIL_TOLD);
    let all = [
        run("run lock"),
        run("run --exclusive written"),
        run("run --shared read"),
        run("run --permits 3 licence"),
        run("run --permits 3 licence"),
        run("run --layout redisson red"),
        run("run --layout timestamp old"),
    ];
    scene.run("run --at-least 1h kept", "true").is(0);
    let ended = scene.ask("who");
    ended.is(0);
    for (key, kind) in [
        ("lock", "lock"),
        ("written", "write"),
        ("read", "read"),
        ("licence", "1"),
        ("red", "redisson"),
        ("old", "timestamp"),
        ("kept", "lock"),
    ] {
        assert_eq!(row(&ended, key)[1], kind, "{}", ended.out);
    }
    assert_eq!(row(&ended, "kept")[2], "(kept)");
    assert_eq!(ended.out.matches("1 permit ").count(), 2, "{}", ended.out);
    assert_eq!(ended.out.lines().count(), 9, "no companion is shown: {}", ended.out);
    // By name, and by a pattern, it says the same.
    for key in ["lock", "written", "read", "red", "old", "kept"] {
        let alone = scene.ask(&format!("who {key}"));
        assert_eq!(row(&alone, key)[..3], row(&ended, key)[..3]);
        let matched = scene.ask(&format!("who {}*", &key[..key.len() - 1]));
        assert_eq!(row(&matched, key)[..3], row(&ended, key)[..3]);
    }
    scene.tell("end");
    for one in all {
        one.end().is(0);
    }
    let ended = scene.ask("who");
    assert_eq!(ended.out.lines().count(), 2, "the header, and what is kept: {}", ended.out);
}

#[test]
fn what_stands_beside_a_lock_is_not_shown_as_one() {
    let scene = Scene::new();
    let writer = scene.start("run --exclusive book", UNTIL_TOLD);
    let reader = Running::start(scene.distlock("run --shared book", "true"));
    let book = Client::open(&scene.server.url()).unwrap().rw_lock("book");
    eventually(SOON, || book.read_lock().inspect().unwrap().waiters.len() == 1);
    let job = scene.start("run {orders}:42", UNTIL_TOLD);
    let next = Running::start(scene.distlock("run {orders}:42", "true"));
    scene.queued("{orders}:42", 1);
    let beside = ["{book}:fence", "{book}:queue", "{orders}:42::fence", "{orders}:42::queue"];
    assert!(beside.iter().all(|key| keys(&scene.server).contains(&(*key).to_owned())));
    for args in ["who", "who *"] {
        let ended = scene.ask(args);
        assert_eq!(ended.out.lines().count(), 5, "{}", ended.out);
        assert_eq!((row(&ended, "book")[1], row(&ended, "{orders}:42")[1]), ("write", "lock"));
    }
    scene.tell("end");
    for one in [writer, reader, job, next] {
        one.end().is(0);
    }
}

#[test]
fn locks_of_others_are_shown_as_such_and_never_touched() {
    let scene = Scene::new();
    let before = strangers(&scene.server);
    let ended = scene.ask("who *");
    ended.is(0);
    let java = row(&ended, "java");
    assert_eq!(java[1..3], ["redisson", "8743c9c0-0795-4907-87fd-6c719a6b4586:17"]);
    assert_eq!(row(&ended, "jedis")[1..3], ["foreign", "host-7"]);
    assert_eq!(row(&ended, "stuck")[1..6], ["foreign", "1", "-", "for", "ever"]);
    assert_eq!(row(&ended, "counter")[1..3], ["foreign", "visits"]);
    assert_eq!(row(&ended, "epoch")[1..3], ["timestamp", "9999999999999"], "it has the form");
    assert_eq!(ended.out.lines().count(), 6, "{}", ended.out);
    // Without a pattern only what is surely a lock.
    let ended = scene.ask("who");
    assert_eq!(ended.out.lines().count(), 2, "{}", ended.out);
    row(&ended, "java");
    // By name, each is what it is, or no lock.
    assert_eq!(row(&scene.ask("who jedis"), "jedis")[1], "foreign");
    for other in ["list", "hash", "scores"] {
        let ended = scene.ask(&format!("who {other}"));
        ended.is(64);
        assert!(ended.err.contains("data of another type"), "{}", ended.err);
    }
    for args in ["java", "jedis", "stuck", "list", "scores", "epoch", "counter"] {
        scene.ask(&format!("force {args} --yes")).is(64);
    }
    scene.ask("force --layout redisson --yes counter").is(64);
    for args in ["java", "jedis", "stuck"] {
        scene.run(&format!("run --no-wait {args}"), "touch ran").status.unwrap();
    }
    assert!(!scene.has("ran"));
    assert_eq!(dump(&scene.server), before);
}

#[test]
fn names_that_no_lock_can_have_are_left_out_and_no_others() {
    let scene = Scene::new();
    let server = &scene.server;
    redis::cmd("SET").arg("").arg("hello").exec(&mut server.connection()).unwrap();
    put(server, &"n".repeat(2_000), "hello", SOON * 60);
    let long = "x".repeat(1_000_000);
    redis::cmd("ZADD").arg("long").arg(1).arg(&long).exec(&mut server.connection()).unwrap();
    redis::cmd("HSET").arg("longer").arg(&long).arg(1).exec(&mut server.connection()).unwrap();
    redis::cmd("SET").arg(b"\xff\xfe").arg("hello").exec(&mut server.connection()).unwrap();
    redis::cmd("XADD").arg(&["stream", "*", "a", "b"]).exec(&mut server.connection()).unwrap();
    let guards: Vec<_> = ["module::owner", "a:queue", "line\nbreak", "{tagged}:job"]
        .map(|name| scene.lock(name).guard().unwrap())
        .into();
    for args in ["who", "who *"] {
        let ended = scene.ask(args);
        ended.is(0);
        assert_eq!(ended.out.lines().count(), 5, "{}", ended.out);
        for name in ["module::owner", "a:queue", r"line\nbreak", "{tagged}:job"] {
            assert_eq!(row(&ended, name)[1], "lock");
        }
    }
    drop(guards);
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let scene = Scene::new();
    for args in ["who", "watch", "force job", "completions bash", "--help"] {
        let mut command = scene.distlock_alone(args);
        command.stdout(std::fs::File::create("/dev/full").unwrap());
        Ended::from(command.output().unwrap()).is(71);
    }
}

#[test]
fn a_value_of_another_program_cannot_write_to_the_terminal() {
    let scene = Scene::new();
    let value = format!("\x1b[31m{}", "y".repeat(100));
    put(&scene.server, "jedis\x07", &value, SOON * 60);
    let ended = scene.ask("who j*");
    assert!(ended.out.contains(r"jedis\u{7}  foreign  \u{1b}[31myyy"), "{}", ended.out);
    assert!(ended.out.contains("yyy…  "), "{}", ended.out);
    let json: serde_json::Value = serde_json::from_str(&scene.ask("who --json j*").out).unwrap();
    assert_eq!(json["holders"][0]["value"], value.as_str());
}

#[test]
fn json_has_an_object_in_a_line_for_each_key() {
    let scene = Scene::new();
    let client = named(&scene.server, "billing-3");
    let book = client.rw_lock("book").read().unwrap();
    let permits = client.semaphore("licence", 5).acquire_many(3).unwrap();
    let writer = Running::start(scene.distlock("run --exclusive book", "true"));
    let lock = client.rw_lock("book");
    eventually(SOON, || lock.read_lock().inspect().unwrap().waiters.len() == 1);
    let ended = scene.ask("who --json book licence nobody");
    ended.is(0);
    let lines: Vec<serde_json::Value> =
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [book_is, licence, nobody] = &lines[..] else { panic!("{}", ended.out) };
    let holder = &book_is["holders"][0];
    assert_eq!((&book_is["key"], &book_is["kind"]), (&"book".into(), &"read-write".into()));
    assert_eq!((&holder["client"], &holder["side"]), (&"billing-3".into(), &"read".into()));
    assert_eq!((&holder["kept"], &holder["value"]), (&false.into(), &().into()));
    assert!((1..=30_000).contains(&holder["remaining_ms"].as_u64().unwrap()), "{holder}");
    let asked = holder["asked_unix_ms"].as_u64().unwrap();
    assert!(asked > 1_700_000_000_000, "{holder}");
    assert_eq!(book_is["waiters"][0]["side"], "write");
    assert_eq!(licence["holders"][0]["permits"], 3);
    assert_eq!((&nobody["kind"], &nobody["holders"]), (&"free".into(), &serde_json::json!([])));
    let shown = format!("{}{}", ended.out, scene.ask("who").out);
    let token = lock.read_lock().inspect().unwrap().holders[0].token.clone();
    assert!(!shown.contains(&token), "all that a release needs is not shown");
    book.release().unwrap();
    writer.end().is(0);
    permits.release().unwrap();
}

#[test]
fn a_search_goes_through_all_keys_in_steps() {
    let scene = Scene::new();
    let mut pipeline = redis::pipe();
    for number in 0..25_000 {
        pipeline.set(format!("cache:{number}"), "value").ignore();
    }
    pipeline.exec(&mut scene.server.connection()).unwrap();
    let guard = scene.lock("job").guard().unwrap();
    let ended = scene.ask("who");
    assert_eq!(row(&ended, "job")[1], "lock", "{}", ended.out);
    assert_eq!(ended.out.lines().count(), 2, "{}", ended.out);
    guard.release().unwrap();
}

/// What the guide says that a user needs, beside the ACL of plain locks there.
#[test]
fn a_search_needs_these_permissions_and_says_which_is_missing() {
    let scene = Scene::new();
    let acl = |command: &str| redis(&scene.server, &format!("ACL SETUSER operator {command}"));
    acl("on >p resetkeys resetchannels ~orders:* ~{orders:* &distlock:inbox:* -@all");
    acl("+set +get +del +exists +type +pttl +pexpire +time +zadd +zrange +zrem +hset +hget +hdel");
    acl("+eval +evalsha +publish +pubsub|numsub +subscribe +ping +role +cluster|info");
    acl("+scan +echo +eval +type +getrange +hlen +hkeys +zrange");
    let guard = scene.lock("orders:42").guard().unwrap();
    let url = scene.server.url_with("operator", "p");
    let ended = scene.ask(&format!("who --url {url} orders:*"));
    ended.is(0);
    assert_eq!(row(&ended, "orders:42")[1], "lock");
    for (command, told) in [("hkeys", "script"), ("eval", "'eval'"), ("scan", "'scan'")] {
        redis(&scene.server, "HSET orders:hash field 1");
        acl(&format!("-{command}"));
        let ended = scene.ask(&format!("who --url {url} orders:*"));
        ended.is(77);
        assert!(
            ended.err.contains("lacks a permission") && ended.err.contains(told),
            "{}",
            ended.err
        );
        acl(&format!("+{command}"));
    }
    guard.release().unwrap();
}

#[test]
fn a_key_that_changes_its_type_meanwhile_ends_no_search() {
    let scene = Scene::new();
    let guard = scene.lock("job").guard().unwrap();
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = scene.server.connection();
            while !has_ended.load(Ordering::SeqCst) {
                let mut change = redis::pipe();
                change.del("x").set("x", 1).del("x").rpush("x", 1).del("x").hset("x", "a", 1);
                change.exec(&mut connection).unwrap();
            }
        });
        for _ in 0..20 {
            let ended = scene.ask("who");
            has_ended.store(ended.status != Some(0), Ordering::SeqCst);
            ended.is(0);
            assert_eq!(row(&ended, "job")[1], "lock", "{}", ended.out);
        }
        has_ended.store(true, Ordering::SeqCst);
    });
    guard.release().unwrap();
}

#[test]
fn in_a_cluster_it_looks_at_names_and_refuses_patterns() {
    let shards = Shards::start(3);
    let scene = Scene::of(Server::start());
    let url = shards.urls()[0].replace("redis://", "redis+cluster://");
    let client = Client::open(&url).unwrap();
    let guard = client.lock("job").guard().unwrap();
    let reader = client.rw_lock("book").read().unwrap();
    let ended = scene.ask(&format!("who --url {url} job book nobody"));
    ended.is(0);
    assert_eq!(row(&ended, "job")[1], "lock");
    assert_eq!(row(&ended, "book")[1], "read");
    assert_eq!(row(&ended, "nobody")[1], "free");
    let ended = scene.ask(&format!("who --url {url} jo*"));
    ended.is(64);
    assert!(ended.err.contains("name the locks"), "{}", ended.err);
    scene.ask(&format!("force --url {url} job --yes")).is(0);
    assert!(guard.release().unwrap_err().is_lost());
    reader.release().unwrap();
    let ended = scene.run(&format!("run --url {url} --wait 10s a b c"), r#"echo "$DISTLOCK_KEY""#);
    assert_eq!(ended.out, "a\nb\nc\n", "{}", ended.err);
}
