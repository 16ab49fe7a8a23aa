//! `distlock force`: an operator takes a lock away.

use distlock::{Layout, LockOptions};

use super::{Running, Scene, UNTIL_TOLD};
use crate::elsewhere::Elsewhere;
use crate::helpers::{SOON, client, keys};
use crate::support::eventually;

#[test]
fn only_with_yes_the_lock_is_released_and_handed_on() {
    let scene = Scene::new();
    let job = scene.start("run --lease 1m --on-lost ignore job", UNTIL_TOLD);
    let next = Running::start(scene.distlock("run job", "touch next"));
    scene.queued("job", 1);
    let ended = scene.ask("force job");
    ended.is(64);
    assert!(ended.out.contains(&format!("-{}-", job.pid())), "{}", ended.out);
    assert!(ended.err.contains("--yes"), "{}", ended.err);
    assert!(!scene.has("next"));
    let ended = scene.ask("force --yes job");
    ended.is(0);
    assert!(ended.err.contains("released"), "{}", ended.err);
    next.end().is(0);
    assert!(scene.has("next"));
    scene.tell("end");
    job.end().is(76);
    let ended = scene.ask("force --yes job");
    ended.is(0);
    assert!(ended.err.contains("nobody held it"), "{}", ended.err);
}

#[test]
fn both_sides_of_a_read_write_lock_can_be_released_and_a_lock_that_is_kept() {
    let scene = Scene::new();
    for side in ["--shared", "--exclusive"] {
        let job = scene.start(&format!("run {side} --on-lost ignore book"), UNTIL_TOLD);
        scene.ask("force --yes book").is(0);
        assert!(!keys(&scene.server).contains(&"book".to_owned()));
        scene.tell("end");
        job.end().is(76);
        std::fs::remove_file(scene.path("end")).unwrap();
    }
    scene.run("run --at-least 1h job", "true").is(0);
    scene.ask("force --yes job").is(0);
    scene.run("run --no-wait job", "true").is(0);
}

#[test]
fn whoever_gets_a_side_by_it_keeps_it() {
    let scene = Scene::new();
    let book = client(&scene.server).rw_lock("book");
    let reading = book.read().unwrap();
    let next = Elsewhere::locks(client(&scene.server).rw_lock("book").write_lock());
    eventually(SOON, || book.read_lock().inspect().unwrap().waiters.len() == 1);
    scene.ask("force --yes book").is(0);
    next.has_it();
    assert!(reading.release().unwrap_err().is_lost());
    next.unlock().unwrap();
}

#[test]
fn what_another_library_may_hold_has_to_be_named() {
    let scene = Scene::new();
    for (layout, name) in [(Layout::Redisson, "redisson"), (Layout::Timestamp, "timestamp")] {
        let options = LockOptions::new().layout(layout);
        let lock = client(&scene.server).lock_with("job", options).unwrap();
        let guard = lock.guard().unwrap();
        let ended = scene.ask("force --yes job");
        ended.is(64);
        assert!(ended.err.contains("--layout"), "{}", ended.err);
        assert!(lock.is_locked().unwrap());
        scene.ask(&format!("force --yes --layout {name} job")).is(0);
        eventually(SOON, || !lock.is_locked().unwrap());
        assert!(guard.release().unwrap_err().is_lost());
    }
}

#[test]
fn the_permits_of_a_semaphore_end_by_themselves() {
    let scene = Scene::new();
    let permit = client(&scene.server).semaphore("licence", 2).acquire().unwrap();
    let ended = scene.ask("force --yes licence");
    ended.is(64);
    assert!(ended.err.contains("permits"), "{}", ended.err);
    permit.release().unwrap();
}
