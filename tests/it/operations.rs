//! What `src/guide/operations.md` tells people to type, and what they then see.

use std::process::Command;

use distlock::{Client, Layout, LockOptions, RedisLock};

use crate::elsewhere::Elsewhere;
use crate::helpers::{SOON, Underway, client, error, is_token, keys};
use crate::support::{Server, eventually};

const PAGE: &str = include_str!("../../src/guide/operations.md");

/// The cells of each row of the table with this name, without its head.
fn table(name: &str) -> Vec<Vec<&'static str>> {
    let begin = format!("<!-- {name} -->\n");
    let (_, rest) = PAGE.split_once(&begin).expect(name);
    let (table, _) = rest.split_once("<!-- end -->").expect(name);
    let rows = table.lines().skip(2).map(|row| row.trim_matches('|').split(" | "));
    rows.map(|cells| cells.map(str::trim).collect()).collect()
}

/// What stands between backquotes in this cell.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// What `redis-cli` prints, line by line, if this is typed behind its name in a shell.
fn redis_cli(server: &Server, command: &str) -> Vec<String> {
    let arguments = command.trim_start_matches("redis-cli ");
    let line = format!("redis-cli -p {} {arguments}", server.port());
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn layout(layout: Layout) -> LockOptions {
    LockOptions::new().layout(layout)
}

/// Waits for the lock at its place in the queue.
fn waits(lock: &RedisLock) -> Elsewhere {
    let waiting = Elsewhere::locks(lock);
    eventually(SOON, || lock.inspect().unwrap().waiters.len() == 1);
    waiting
}

/// The client of a scene, with this name.
fn named(server: &Server, name: &str) -> Client {
    Client::builder(&server.url()).name(name).build().unwrap()
}

#[test]
fn each_recipe_shows_what_the_page_says() {
    let server = Server::start();
    let (holder, waiter) = (named(&server, "holder-1"), named(&server, "waiter-1"));
    let in_condition = waiter.lock("orders:42");
    let in_condition = Underway::start(move || {
        in_condition.with(|_| in_condition.new_condition("packed").unwrap().wait())
    });
    eventually(SOON, || keys(&server).contains(&"{orders:42}:conditions".to_owned()));
    let held = |name, options| holder.lock_with(name, options).unwrap().claim().unwrap();
    let fenced = held("orders:42", LockOptions::new().fenced());
    let _others = [
        held("{orders}:42", LockOptions::new()),
        held("billing", layout(Layout::Redisson)),
        held("legacy", layout(Layout::Timestamp)),
    ];
    let _permits = holder.semaphore("exports", 3).acquire_many(2).unwrap();
    holder.lock("reminders").run_once(SOON * 10, |_| ()).unwrap().unwrap();
    let _waiting = ["orders:42", "{orders}:42"].map(|name| waits(&waiter.lock(name)));
    for row in table("recipes") {
        let [command] = code(row[1])[..] else { panic!("{row:?}") };
        let shown = redis_cli(&server, command);
        assert!(is_right(command, &shown, fenced.fence().unwrap()), "{command}: {shown:?}");
    }
    waiter.close(SOON).unwrap();
    assert!(in_condition.result().is_err());
}

/// Whether this is what the page says of the command.
fn is_right(command: &str, shown: &[String], fence: u64) -> bool {
    let first = shown.first().map_or("", String::as_str);
    let ours = |text: &str| is_token(text) && text.ends_with("@holder-1");
    match command {
        "GET orders:42" => ours(first),
        "PTTL orders:42" => (1..=30_000).contains(&first.parse::<i64>().unwrap()),
        "GET {orders:42}:fence" => first.parse::<u64>().unwrap() >= fence,
        "ZRANGE {orders:42}:queue 0 -1" | "ZRANGE {orders}:42::queue 0 -1" => {
            shown.len() == 1 && is_token(first) && first.ends_with("@waiter-1")
        }
        "ZRANGE {orders:42}:conditions 0 -1" => {
            shown.len() == 1 && first.starts_with("6:packed") && first.ends_with("@waiter-1")
        }
        "GET reminders" => ours(first.strip_prefix("kept:").unwrap()),
        "ZRANGE exports 0 -1 WITHSCORES" => {
            let second = format!("{first}#2");
            let ends = shown[1].parse::<u64>().is_ok() && shown[1] == shown[3];
            first.ends_with("@holder-1") && shown[2] == second && ends && shown.len() == 4
        }
        "HGETALL billing" => shown.len() == 2 && shown[1] == "1",
        "GET {legacy}:owner" => ours(first.split_once(' ').unwrap().1),
        "redis-cli --scan --pattern 'orders:*'" => shown == ["orders:42"],
        "redis-cli --scan --pattern '*:queue'" => {
            let mut shown = shown.to_vec();
            shown.sort();
            shown == ["{orders:42}:queue", "{orders}:42::queue"]
        }
        _ => panic!("no test of {command}"),
    }
}

#[test]
fn a_release_by_hand_lets_the_next_one_in() {
    for row in table("releases") {
        let (name, commands) = (code(row[0])[0], code(row[1]));
        let server = Server::start();
        let (holder, waiter) = (client(&server), client(&server));
        let release = || {
            let look = if name == "exports" { "ZRANGE exports 0 -1" } else { "GET orders:42" };
            for command in commands {
                if command.contains("TOKEN") {
                    let nobody = redis_cli(&server, &command.replace("TOKEN", "another"));
                    assert!(nobody == [""] || nobody == ["0"], "{command}: {nobody:?}");
                }
                let token = redis_cli(&server, look).concat();
                redis_cli(&server, &command.replace("TOKEN", &token));
            }
        };
        if name == "exports" {
            let permit = holder.semaphore(name, 1).acquire().unwrap();
            let semaphore = waiter.semaphore(name, 1);
            let waiting = semaphore.clone();
            let waiting = Underway::start(move || waiting.acquire().map(drop));
            eventually(SOON, || semaphore.inspect().unwrap().waiters.len() == 1);
            release();
            waiting.result().unwrap();
            assert!(error(permit.release()).is_lost());
            continue;
        }
        let options = match name {
            "orders:42" => LockOptions::new(),
            "billing" => layout(Layout::Redisson),
            "legacy" => layout(Layout::Timestamp),
            _ => panic!("no test of {name}"),
        };
        // Longer than this test waits.
        let options = options.lease(SOON * 100);
        let claim = holder.lock_with(name, options.clone()).unwrap().claim().unwrap();
        let waiting = Elsewhere::locks(&waiter.lock_with(name, options).unwrap());
        eventually(SOON, || waiter.stats().attempts > 0);
        release();
        waiting.has_it();
        assert!(error(claim.release()).is_lost());
        waiting.unlock().unwrap();
    }
}

#[test]
fn the_alarms_name_numbers_that_the_example_writes() {
    let [example, rules] = ["fn prometheus", "\ngroups:"].map(|begin| {
        let block = PAGE.split("```").find(|block| block.contains(begin)).expect(begin);
        block.split(|char: char| !(char.is_alphanumeric() || char == '_')).collect::<Vec<_>>()
    });
    let names = rules.iter().filter_map(|word| word.strip_prefix("distlock_"));
    let names: Vec<&str> = names.collect();
    assert_eq!(names.len(), 11, "{names:?}");
    for name in names {
        let written = match name.strip_suffix("_seconds_bucket") {
            Some(histogram) => example.contains(&histogram),
            None => example.contains(&name),
        };
        assert!(written, "{name}");
    }
}
