//! A lock that is lost while CMD runs.

use std::fs::File;
use std::io::{self, Write};

use super::{Running, Scene, UNTIL_TOLD, has_ended};
use crate::helpers::{SOON, delete, get};
use crate::support::eventually;

/// Renewal notices a loss within a third of it.
const LEASE: &str = "run --lease 3s";

#[test]
fn cmd_gets_sigterm_and_the_status_says_that_the_lock_was_lost() {
    let scene = Scene::new();
    let script = format!("trap 'touch asked; exit 0' TERM; {UNTIL_TOLD}");
    let job = scene.start(&format!("{LEASE} job"), &script);
    assert!(scene.lock("job").force_unlock().unwrap());
    let ended = job.end();
    ended.is(76);
    assert!(scene.has("asked"));
    for says in ["CMD gets SIGTERM", "CMD ended with status 0, without the lock"] {
        assert!(ended.err.contains(says), "{}", ended.err);
    }
}

#[test]
fn a_cmd_that_goes_on_is_killed_after_the_grace() {
    let scene = Scene::new();
    let script = format!("trap 'touch asked' TERM; echo $$ >pid; {UNTIL_TOLD}");
    let job = scene.start(&format!("{LEASE} --grace 300ms job"), &script);
    delete(&scene.server, "job");
    job.end().is(76);
    assert!(scene.has("asked"));
    assert!(has_ended(&scene.read("pid")));
}

#[test]
fn cmd_is_killed_at_once_if_it_shall_be() {
    let scene = Scene::new();
    let script = format!("trap 'touch asked' TERM; echo $$ >pid; {UNTIL_TOLD}");
    let job = scene.start(&format!("{LEASE} --on-lost kill --grace 1h job"), &script);
    delete(&scene.server, "job");
    let ended = job.end();
    ended.is(76);
    assert!(ended.err.contains("CMD ended with status 137"), "{}", ended.err);
    assert!(!scene.has("asked"));
    assert!(has_ended(&scene.read("pid")));
}

#[test]
fn cmd_goes_on_if_it_shall_and_the_status_tells() {
    let scene = Scene::new();
    let job = scene.start(&format!("{LEASE} --on-lost ignore job"), UNTIL_TOLD);
    delete(&scene.server, "job");
    // Another has it meanwhile.
    let second = scene.start(&format!("{LEASE} job"), UNTIL_TOLD);
    scene.tell("end");
    let ended = job.end();
    ended.is(76);
    assert!(ended.err.contains("CMD ended with status 0, without the lock"), "{}", ended.err);
    second.end().is(0);
}

#[test]
fn the_loss_of_one_of_several_locks_is_a_loss() {
    for options in ["", "--permits 2", "--shared"] {
        let scene = Scene::new();
        let job = scene.start(&format!("{LEASE} {options} a b c"), UNTIL_TOLD);
        delete(&scene.server, "b");
        job.end().is(76);
        for key in ["a", "c"] {
            assert_eq!(redis_type(&scene, key), "none", "{key} is free");
        }
    }
}

fn redis_type(scene: &Scene, key: &str) -> String {
    redis::cmd("TYPE").arg(key).query(&mut scene.server.connection()).unwrap()
}

/// Its standard error is a pipe that nobody reads, and that is full.
#[test]
fn whoever_does_not_read_what_it_says_does_not_keep_cmd_alive() {
    for by_signal in [false, true] {
        let scene = Scene::new();
        let (_reader, mut full) = io::pipe().unwrap();
        // As much as fits.
        full.write_all(&[b'.'; 65_536]).unwrap();
        let script = format!("echo $$ >pid; {UNTIL_TOLD}");
        let mut command = scene.distlock(&format!("{LEASE} job"), &script);
        let job = Running(Some(command.stderr(full).spawn().unwrap()));
        scene.wait_for("runs");
        delete(&scene.server, "job");
        if by_signal {
            job.signal("TERM");
        }
        eventually(SOON, || has_ended(&scene.read("pid")));
        job.end().is(76);
    }
}

#[test]
fn without_its_locks_cmd_is_not_started() {
    let scene = Scene::new();
    let held = scene.lock("b").guard().unwrap();
    let mut command = scene.distlock(&format!("{LEASE} a b"), "touch ran");
    command.stderr(File::create(scene.path("err")).unwrap());
    let job = Running(Some(command.spawn().unwrap()));
    scene.queued("b", 1);
    delete(&scene.server, "a");
    // Renewal finds that out, and the log says so.
    eventually(SOON, || scene.read("err").contains("lost"));
    held.release().unwrap();
    job.end().is(76);
    assert!(scene.read("err").contains("lost before CMD was started"), "{}", scene.read("err"));
    assert!(!scene.has("ran"));
}

#[test]
fn a_server_that_is_gone_ends_cmd_when_the_lease_ends() {
    let scene = Scene::new();
    let job = scene.start(&format!("{LEASE} job"), UNTIL_TOLD);
    scene.server.kill();
    let ended = job.end();
    ended.is(76);
    assert!(ended.err.contains("CMD gets SIGTERM"), "{}", ended.err);
}

#[test]
fn a_process_that_was_stopped_for_too_long_learns_that_the_lock_is_lost() {
    let scene = Scene::new();
    let job = scene.start(&format!("{LEASE} job"), UNTIL_TOLD);
    job.signal("STOP");
    eventually(SOON, || get(&scene.server, "job").is_none());
    let second = scene.start("run job", UNTIL_TOLD);
    job.signal("CONT");
    job.end().is(76);
    assert!(scene.lock("job").is_locked().unwrap(), "the other keeps it");
    scene.tell("end");
    second.end().is(0);
}

#[test]
fn a_loss_that_only_the_release_finds_is_one_too() {
    let scene = Scene::new();
    let job = scene.start("run --lease 1h job", UNTIL_TOLD);
    delete(&scene.server, "job");
    scene.tell("end");
    let ended = job.end();
    ended.is(76);
    assert!(ended.err.contains("CMD ended with status 0"), "{}", ended.err);
}

#[test]
fn a_release_without_an_answer_leaves_the_status_of_cmd() {
    let scene = Scene::new();
    let job = scene.start("run --lease 1h job", UNTIL_TOLD);
    scene.server.kill();
    scene.tell("end");
    let ended = job.end();
    ended.is(0);
    assert!(ended.err.contains("distlock: "), "it says so: {}", ended.err);
}
