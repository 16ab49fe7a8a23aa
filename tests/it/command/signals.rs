//! Signals: they go on to CMD, and neither process outlives the other with the lock.

use std::process::{Command, Stdio};
use std::time::Instant;

use super::{Ended, Running, Scene, UNTIL_TOLD, has_ended};
use crate::helpers::{SOON, keys, ms};
use crate::support::eventually;

#[test]
fn a_signal_goes_on_to_cmd() {
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3), ("USR1", 10)] {
        let scene = Scene::new();
        let job = scene.start("run job", UNTIL_TOLD);
        job.signal(name);
        job.end().is(128 + number);
        assert!(!scene.lock("job").is_locked().unwrap());
    }
}

#[test]
fn cmd_may_handle_a_signal_and_go_on() {
    let scene = Scene::new();
    let script = format!("trap 'touch heard' USR2 TERM; {UNTIL_TOLD}; exit 5");
    let job = scene.start("run job", &script);
    for name in ["USR2", "TERM"] {
        job.signal(name);
        scene.wait_for("heard");
        assert!(scene.lock("job").is_locked().unwrap());
    }
    scene.tell("end");
    job.end().is(5);
}

#[test]
fn a_signal_ends_the_wait_for_the_lock_and_its_place_in_the_queue() {
    let scene = Scene::new();
    let held = scene.lock("job").guard().unwrap();
    let waits = Running::start(scene.distlock("run job", "touch ran"));
    scene.queued("job", 1);
    waits.signal("USR1");
    waits.signal("TERM");
    waits.end().is(128 + 15);
    assert!(!scene.has("ran"));
    scene.queued("job", 0);
    held.release().unwrap();
}

#[test]
fn the_lock_is_held_until_all_that_was_signalled_has_ended() {
    let scene = Scene::new();
    // The shell dies at once; what it has started takes a while.
    let worker = "trap 'touch asked; until [ -e end ]; do sleep 0.02; done; touch done; exit' TERM;
                  touch runs; while :; do sleep 0.02; done";
    let script = format!("sh -c \"{worker}\" & wait");
    let job = scene.start("run --grace 1h job", &script);
    job.signal("TERM");
    scene.wait_for("asked");
    assert!(scene.run("run --no-wait job", "").status == Some(75));
    scene.tell("end");
    job.end().is(128 + 15);
    assert!(scene.has("done"));
    assert!(!scene.lock("job").is_locked().unwrap());
}

/// A shell that runs `worker` in the background, and `rest`.
fn with_worker(worker: &str, rest: &str) -> String {
    format!("sh -c \"{}\" >/dev/null 2>&1 & {rest}", worker.replace('$', "\\$"))
}

/// Goes on after SIGTERM and SIGHUP, until it is told to end.
const WORKER: &str = "trap '' TERM HUP; echo $$ >pid; touch runs; until [ -e last ]; do \
                      sleep 0.02; done";

#[test]
fn a_signal_that_cmd_has_outlived_does_not_end_what_it_leaves_in_the_background() {
    let scene = Scene::new();
    let rest = "trap 'touch heard' HUP; until [ -e end ]; do sleep 0.02; done; exit 3";
    let job = scene.start("run --grace 0s job", &with_worker(WORKER, rest));
    job.signal("HUP");
    scene.wait_for("heard");
    scene.tell("end");
    job.end().is(3);
    assert!(!has_ended(&scene.read("pid")));
    scene.tell("last");
    eventually(SOON, || has_ended(&scene.read("pid")));
}

#[test]
fn what_a_killed_cmd_has_started_keeps_the_lock_for_the_grace() {
    let scene = Scene::new();
    let rest = "echo $$ >cmd; wait";
    let job = scene.start("run --grace 1h job", &with_worker(WORKER, rest));
    eventually(SOON, || scene.has("cmd") && !scene.read("cmd").is_empty());
    super::signal(scene.read("cmd").trim().parse().unwrap(), "KILL");
    eventually(SOON, || has_ended(&scene.read("cmd")));
    scene.run("run --no-wait job", "").is(75);
    scene.tell("last");
    job.end().is(128 + 9);
    assert!(!scene.lock("job").is_locked().unwrap());
}

#[test]
fn a_loss_ends_those_who_are_left_of_cmd() {
    let scene = Scene::new();
    let rest = "echo $$ >cmd; wait";
    let args = "run --lease 3s --on-lost kill --grace 1h job";
    let job = scene.start(args, &with_worker(WORKER, rest));
    eventually(SOON, || scene.has("cmd") && !scene.read("cmd").is_empty());
    job.signal("TERM");
    eventually(SOON, || has_ended(&scene.read("cmd")));
    crate::helpers::delete(&scene.server, "job");
    job.end().is(76);
    assert!(has_ended(&scene.read("pid")));
}

#[test]
fn what_does_not_end_after_its_shell_is_killed() {
    let scene = Scene::new();
    let worker = "trap '' TERM; echo $$ >pid; touch runs; while :; do sleep 0.02; done";
    let script = format!("sh -c \"{}\" & wait", worker.replace('$', "\\$"));
    let job = scene.start("run --grace 200ms job", &script);
    job.signal("TERM");
    let ended = job.end();
    ended.is(128 + 15);
    assert!(has_ended(&scene.read("pid")));
    assert_eq!(ended.err, "", "nobody is left");
}

#[test]
fn orphans_of_cmd_are_waited_for_while_it_runs() {
    let scene = Scene::new();
    // A grandchild in a session of its own, whose parent ends first.
    let orphan = "(setsid sh -c 'echo $$ >orphan; until [ -e die ]; do sleep 0.02; done' &)";
    let script = format!("{orphan} >/dev/null 2>&1; {UNTIL_TOLD}; exit 8");
    let job = scene.start("run job", &script);
    eventually(SOON, || scene.has("orphan") && !scene.read("orphan").is_empty());
    let orphan = scene.read("orphan");
    let stat = format!("/proc/{}/stat", orphan.trim());
    // The state and the parent follow the name.
    let parent = || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().ok()
    };
    eventually(SOON, || parent() == Some(job.pid()));
    scene.tell("die");
    eventually(SOON, || !std::fs::exists(&stat).unwrap());
    scene.tell("end");
    job.end().is(8);
}

#[test]
fn a_cmd_that_is_killed_frees_the_lock_at_once() {
    let scene = Scene::new();
    let job = scene.start("run --lease 1h job", &format!("echo $$ >pid; {UNTIL_TOLD}"));
    super::signal(scene.read("pid").trim().parse().unwrap(), "KILL");
    job.end().is(128 + 9);
    assert!(!scene.lock("job").is_locked().unwrap());
}

#[test]
fn when_it_is_killed_cmd_is_killed_too_and_the_lock_is_free_within_a_lease() {
    let scene = Scene::new();
    let job = scene.start("run --lease 2s job", &format!("echo $$ >pid; {UNTIL_TOLD}"));
    let start = Instant::now();
    job.signal("KILL");
    eventually(SOON, || has_ended(&scene.read("pid")));
    let lock = scene.lock("job");
    eventually(SOON, || !lock.is_locked().unwrap());
    let took = start.elapsed();
    assert!(took <= ms(2_000) + SOON / 5, "{took:?}");
}

#[test]
fn with_ignored_losses_cmd_outlives_it() {
    let scene = Scene::new();
    let script = format!("echo $$ >pid; {UNTIL_TOLD}; touch ended");
    let job = scene.start("run --on-lost ignore job", &script);
    job.signal("KILL");
    drop(job);
    scene.tell("end");
    scene.wait_for("ended");
}

#[test]
fn a_signal_that_is_ignored_from_the_start_stays_ignored() {
    let scene = Scene::new();
    let mut nohup = Command::new("sh");
    let inner = format!("trap '' HUP; exec {} run job -- sh -c '{UNTIL_TOLD}'", program());
    nohup.args(["-c", &inner]).current_dir(scene.dir.path());
    nohup.env("DISTLOCK_URL", scene.server.url()).stdin(Stdio::null());
    let job = Running::start(nohup);
    scene.wait_for("runs");
    job.signal("HUP");
    job.signal("USR1");
    // It has heard the second, and so would have passed on the first before it.
    job.end().is(128 + 10);
}

#[test]
fn whoever_has_blocked_the_signal_of_a_childs_end_does_not_hide_it() {
    let scene = Scene::new();
    let mut env = Command::new("env");
    env.args(["--block-signal=CHLD", program(), "run", "--lease", "1h", "job", "--", "true"]);
    let job = Running::start({
        env.env("DISTLOCK_URL", scene.server.url());
        env
    });
    job.end().is(0);
}

/// In a terminal, by `script`, which reads what is typed from our pipe.
#[test]
fn ctrl_c_in_a_terminal_reaches_cmd_once() {
    let scene = Scene::new();
    let script =
        "trap \"echo >>log\" INT; touch runs; until [ -e end ]; do sleep 0.02; done; exit 6";
    // A shell that stays would be ended by Ctrl-C, too.
    let line = format!("exec env --default-signal {} run job -- sh -c '{script}'", program());
    let mut terminal = Command::new("script");
    terminal
        .args(["-qec", &line, "/dev/null"])
        .current_dir(scene.dir.path())
        .env("DISTLOCK_URL", scene.server.url())
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut terminal = terminal.spawn().unwrap();
    scene.wait_for("runs");
    let mut typed = terminal.stdin.take().unwrap();
    std::io::Write::write_all(&mut typed, b"\x03").unwrap();
    eventually(SOON, || scene.has("log"));
    // What comes after it shows that nothing is still on its way.
    let holder = scene.lock("job").inspect().unwrap().holders[0].client.clone().unwrap();
    let pid = holder.rsplit('-').nth(1).unwrap().parse().unwrap();
    super::signal(pid, "CONT");
    scene.tell("end");
    drop(typed);
    let ended = Ended::from(terminal.wait_with_output().unwrap());
    ended.is(6);
    assert_eq!(scene.read("log"), "\n", "once");
    let left = keys(&scene.server);
    assert!(!left.contains(&"job".to_owned()), "{left:?}");
}

fn program() -> &'static str {
    env!("CARGO_BIN_EXE_distlock")
}
