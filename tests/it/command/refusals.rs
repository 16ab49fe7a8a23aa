//! What it cannot do, it says in one line, with a status for scripts.

use super::Scene;
use crate::helpers::{SOON, keys, put};
use crate::support::Server;

#[track_caller]
fn refused(scene: &Scene, args: &str, status: i32, says: &str) {
    let ended = scene.run(args, "touch ran");
    ended.is(status);
    assert!(ended.err.contains(says), "{args}: {}", ended.err);
    assert!(!scene.has("ran"), "{args}");
    assert_eq!(ended.out, "");
}

#[test]
fn arguments_that_cannot_work_end_with_64() {
    let scene = Scene::new();
    for (args, says) in [
        ("run", "required arguments were not provided"),
        ("run --wait 5 job", "time unit needed"),
        ("run --wait 5s --no-wait job", "cannot be used with"),
        ("run --shared --permits 2 job", "cannot be used with"),
        ("run --at-least 5s --permits 2 job", "cannot be used with"),
        ("run --at-least 5s a b", "is for one KEY"),
        ("run --lease 1ms job", "lease"),
        ("run --permits 0 job", "at least one permit"),
        ("run --layout linked job", "layout"),
        ("run --layout redisson --shared job", "plain layout"),
        ("run --url http://127.0.0.1/ job", "URL"),
        ("run --url memory:// job", "inside one process"),
        ("jump job", "unrecognized subcommand"),
    ] {
        refused(&scene, args, 64, says);
    }
    // Without CMD.
    let ended = scene.ask("run job");
    ended.is(64);
    assert!(ended.err.contains("<CMD>"), "{}", ended.err);
    assert_eq!(keys(&scene.server), [""; 0]);
}

#[test]
fn a_key_that_holds_something_else_is_left_alone() {
    let scene = Scene::new();
    redis::cmd("LPUSH").arg("job").arg(1).exec(&mut scene.server.connection()).unwrap();
    refused(&scene, "run job", 64, "job");
    // A client that writes plain values has the lock, as any other holder.
    put(&scene.server, "theirs", "my-host", SOON * 60);
    refused(&scene, "run --no-wait theirs", 75, "");
    refused(&scene, "run --no-wait --verbose theirs", 75, "held by a client without a name");
}

#[test]
fn a_server_that_is_not_there_ends_with_69() {
    let scene = Scene::new();
    scene.server.kill();
    refused(&scene, "run --no-wait job", 69, "job");
    refused(&scene, "run --wait 200ms job", 69, "job");
}

#[test]
fn a_wrong_password_ends_with_77_and_is_not_shown() {
    let scene = Scene::of(Server::builder().password("right").start());
    let url = scene.server.url_with("default", "wrong-secret");
    let ended = scene.run(&format!("run --url {url} job"), "touch ran");
    ended.is(77);
    assert!(!ended.err.contains("wrong-secret"), "{}", ended.err);
    // The URL of the environment is not used then, and is not shown by the help either.
    let help = scene.ask("run --help");
    help.is(0);
    assert!(help.out.contains("DISTLOCK_URL") && !help.out.contains("right"), "{}", help.out);
    scene.run("run job", "true").is(0);
}
