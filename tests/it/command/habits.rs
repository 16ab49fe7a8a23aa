//! What people know from `flock`: CMD runs alone, its status and streams are the command's own.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Instant;

use distlock::Client;

use super::{Running, Scene, UNTIL_TOLD};
use crate::helpers::{SOON, ms, pttl};
use crate::support::{Proxy, eventually, on_time};

#[test]
fn it_ends_with_the_status_of_cmd_and_the_lock_is_free() {
    let scene = Scene::new();
    for status in [0, 1, 3, 75, 255] {
        scene.run("run job", &format!("exit {status}")).is(status);
        assert!(!scene.lock("job").is_locked().unwrap());
    }
    scene.run("run job", "kill -KILL $$").is(128 + 9);
    assert!(!scene.lock("job").is_locked().unwrap());
}

#[test]
fn two_of_them_run_one_after_the_other() {
    let scene = Scene::new();
    let first = scene.start("run job", &format!("echo first >>log; {UNTIL_TOLD}; echo end >>log"));
    let second = Running::start(scene.distlock("run job", "echo second >>log"));
    scene.queued("job", 1);
    assert_eq!(scene.read("log"), "first\n");
    scene.tell("end");
    first.end().is(0);
    second.end().is(0);
    assert_eq!(scene.read("log"), "first\nend\nsecond\n");
}

#[test]
fn without_waiting_it_says_nothing_and_ends_with_75() {
    let scene = Scene::new();
    let held = scene.lock("job").guard().unwrap();
    let ended = scene.run("run --no-wait job", "touch ran");
    ended.is(75);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", ""), "cron sends what it writes");
    assert!(!scene.has("ran"));
    let ended = scene.run("run --no-wait --verbose job", "touch ran");
    ended.is(75);
    let holder = held.lock().inspect().unwrap().holders[0].client.clone().unwrap();
    assert!(ended.err.contains(&format!("held by {holder} for another ")), "{}", ended.err);
    held.release().unwrap();
    scene.run("run --no-wait job", "touch ran").is(0);
    assert!(scene.has("ran"));
}

#[test]
fn it_waits_for_as_long_as_it_is_told() {
    let scene = Scene::new();
    let held = scene.lock("job").guard().unwrap();
    let start = Instant::now();
    scene.run("run --wait 300ms job", "touch ran").is(75);
    assert!(start.elapsed() >= ms(300) && !scene.has("ran"));
    let waits = Running::start(scene.distlock("run --wait 1h job", "touch ran"));
    scene.queued("job", 1);
    held.release().unwrap();
    waits.end().is(0);
    assert!(scene.has("ran"));
}

#[test]
fn a_cmd_that_is_not_there_or_no_program_gives_the_status_of_a_shell() {
    let scene = Scene::new();
    let not_there = scene.ask("run job -- no-such-program");
    not_there.is(127);
    assert!(not_there.err.contains("no-such-program: No such file"), "{}", not_there.err);
    scene.tell("text");
    let no_program = scene.ask("run job -- ./text");
    no_program.is(126);
    assert!(no_program.err.contains("./text: Permission denied"), "{}", no_program.err);
    assert!(!scene.lock("job").is_locked().unwrap());
}

#[test]
fn streams_and_arguments_reach_cmd_as_they_are() {
    let scene = Scene::new();
    let mut command = scene.distlock_alone("run job --");
    command.args(["sh", "-c", r#"printf '<%s>' "$@"; cat; echo to-err >&2"#, "sh"]);
    command.args(["a b", "", "--lease", "--", "*", "-x"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"from stdin").unwrap();
    let ended = super::Ended::from(child.wait_with_output().unwrap());
    ended.is(0);
    assert_eq!(ended.out, "<a b><><--lease><--><*><-x>from stdin");
    assert_eq!(ended.err, "to-err\n");
}

#[test]
fn cmd_has_the_key_the_fence_and_the_rest_of_the_lease() {
    let scene = Scene::new();
    let script = "echo $DISTLOCK_KEY/$DISTLOCK_FENCE/$DISTLOCK_REMAINING_MS";
    let fence = |ended: super::Ended| {
        let mut parts = ended.out.trim().split('/');
        assert_eq!(parts.next(), Some("job"));
        let fence: u64 = parts.next().unwrap().parse().unwrap();
        let remaining: u64 = parts.next().unwrap().parse().unwrap();
        assert!((30_000..60_000).contains(&remaining), "{remaining}");
        fence
    };
    let first = fence(scene.run("run --lease 60s job", script));
    let second = fence(scene.run("run --lease 60s job", script));
    assert!(first < second);
    // A layout without fences, and a fence of another lock.
    let mut command = scene.distlock("run --layout timestamp old", "echo ${DISTLOCK_FENCE-none}");
    let ended = super::Ended::from(command.env("DISTLOCK_FENCE", "7").output().unwrap());
    assert_eq!(ended.out, "none\n", "{}", ended.err);
}

#[test]
fn several_keys_are_taken_all_or_none() {
    let scene = Scene::new();
    let script = r#"echo "$DISTLOCK_KEY"; echo "$DISTLOCK_FENCE" | wc -l"#;
    assert_eq!(scene.run("run b a c a", script).out, "a\nb\nc\n3\n");
    let held = scene.lock("b").guard().unwrap();
    scene.run("run --no-wait c b a", "touch ran").is(75);
    assert!(!scene.has("ran"));
    for free in ["a", "c"] {
        assert!(!scene.lock(free).is_locked().unwrap(), "{free}");
    }
    // The time is for all of them together: who waits for `b` has `a`.
    let waits = Running::start(scene.distlock("run b a", "touch ran"));
    scene.queued("b", 1);
    assert!(scene.lock("a").is_locked().unwrap());
    held.release().unwrap();
    waits.end().is(0);
}

#[test]
fn processes_that_name_the_keys_in_another_order_do_not_wait_for_each_other() {
    let scene = Scene::new();
    let script = "echo >>log; sleep 0.01";
    let each = ["run a b", "run b a"].repeat(10);
    let all: Vec<_> =
        each.into_iter().map(|args| Running::start(scene.distlock(args, script))).collect();
    for one in all {
        one.end().is(0);
    }
    assert_eq!(scene.read("log").len(), 20);
}

#[test]
fn readers_run_together_and_a_writer_alone() {
    let scene = Scene::new();
    let reader = scene.start("run --shared book", UNTIL_TOLD);
    let second = scene.start("run --shared book", UNTIL_TOLD);
    scene.run("run --exclusive --no-wait book", "touch ran").is(75);
    scene.tell("end");
    reader.end().is(0);
    second.end().is(0);
    fs::remove_file(scene.path("end")).unwrap();
    let writer = scene.start("run --exclusive book", UNTIL_TOLD);
    scene.run("run --shared --no-wait book", "touch ran").is(75);
    assert!(!scene.has("ran"));
    scene.tell("end");
    writer.end().is(0);
}

#[test]
fn as_many_run_together_as_there_are_permits() {
    let scene = Scene::new();
    let first = scene.start("run --permits 2 licence", UNTIL_TOLD);
    let second = scene.start("run --permits 2 licence", UNTIL_TOLD);
    scene.run("run --permits 2 --no-wait licence", "touch ran").is(75);
    assert!(!scene.has("ran"));
    scene.tell("end");
    first.end().is(0);
    second.end().is(0);
    scene.run("run --permits 2 --no-wait licence", "echo $DISTLOCK_KEY").is(0);
}

#[test]
fn what_cmd_has_left_in_the_background_does_not_keep_the_lock() {
    let scene = Scene::new();
    // Its streams are not ours: a pipe would be read to its end.
    let script = format!("({UNTIL_TOLD}; touch ended) >/dev/null 2>&1 </dev/null & exit 4");
    scene.run("run job", &script).is(4);
    assert!(!scene.lock("job").is_locked().unwrap());
    scene.tell("end");
    scene.wait_for("ended");
}

#[test]
fn a_lock_with_at_least_is_kept_after_cmd() {
    let scene = Scene::new();
    scene.run("run --at-least 1h job", "true").is(0);
    assert!((3_500_000..=3_600_000).contains(&pttl(&scene.server, "job")));
    let ended = scene.run("run --no-wait --verbose job", "touch ran");
    ended.is(75);
    assert!(ended.err.contains("not obtained: kept after its unlock by "), "{}", ended.err);
    assert!(!scene.has("ran"));
}

#[test]
fn it_renews_the_lease_and_shows_what_a_library_client_shows() {
    let scene = Scene::new();
    let job = scene.start("run --lease 2s job", UNTIL_TOLD);
    let lock = scene.lock("job");
    let pid = job.pid();
    let start = Instant::now();
    eventually(SOON, || {
        let state = lock.inspect().unwrap();
        let client = state.holders[0].client.clone().unwrap();
        assert!(client.contains(&format!("-{pid}-")), "{client}");
        start.elapsed() > ms(3_000)
    });
    scene.tell("end");
    job.end().is(0);
}

#[test]
fn it_shares_a_lock_with_programs_that_use_the_library() {
    let scene = Scene::new();
    let client = Client::open(&scene.server.url()).unwrap();
    let job = scene.start("run --layout redisson job", UNTIL_TOLD);
    let options = distlock::LockOptions::new().layout(distlock::Layout::Redisson);
    let ours = client.lock_with("job", options).unwrap();
    assert!(ours.try_guard(ms(0)).unwrap().is_none());
    scene.tell("end");
    job.end().is(0);
    assert!(ours.try_guard(SOON).unwrap().is_some());
}

#[test]
fn cmd_begins_after_two_answers_of_the_server() {
    let scene = Scene::new();
    let proxy = Proxy::start(scene.server.port());
    scene.run("run job", "true").is(0);
    let answer = ms(300);
    proxy.set_delay(answer / 2, answer / 2);
    // And the connection itself, which the proxy does not delay: three round trips.
    on_time(answer / 3, || {
        let start = Instant::now();
        let job = scene.start(&format!("run --url {} job", proxy.url()), UNTIL_TOLD);
        let took = start.elapsed();
        scene.tell("end");
        job.end().is(0);
        fs::remove_file(scene.path("end")).unwrap();
        assert!((answer * 2..answer * 3).contains(&took), "{took:?}");
    });
}

#[test]
fn a_program_that_is_replaced_while_it_waits_still_starts_cmd() {
    let scene = Scene::new();
    let own = scene.path("distlock");
    fs::copy(env!("CARGO_BIN_EXE_distlock"), &own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
    let held = scene.lock("job").guard().unwrap();
    let mut command = std::process::Command::new(&own);
    command.args(["run", "job", "--url", &scene.server.url(), "--", "true"]);
    let waits = Running::start(command);
    scene.queued("job", 1);
    fs::remove_file(&own).unwrap();
    held.release().unwrap();
    waits.end().is(0);
}
