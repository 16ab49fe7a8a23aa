//! The command `distlock` beside locks of other libraries: it shows them, and leaves them alone.

use super::start;
use crate::command::{Scene, row};
use crate::support::Server;

#[test]
fn the_command_shows_the_locks_of_redisson_and_jedis_and_never_touches_them() {
    let server = Server::start();
    let peers = start([("redisson", server.url()), ("jedis", server.url())]);
    let Some([mut redisson, jedis]) = peers else { return };
    let mut jedis = jedis.with(&["kind nxpx"]);
    redisson.says("lock java 60000", "ok");
    jedis.says("lock jedis 60000", "ok");
    let scene = Scene::of(server);
    for args in ["who *", "who java jedis"] {
        let ended = scene.ask(args);
        assert_eq!(row(&ended, "java")[1], "redisson", "{}", ended.out);
        assert_eq!(row(&ended, "jedis")[1], "foreign", "{}", ended.out);
    }
    for args in ["force --yes java", "force --yes jedis", "run --no-wait java -- true"] {
        scene.ask(args).is(64);
    }
    for args in ["run --no-wait --layout redisson java -- true", "run --no-wait jedis -- true"] {
        scene.ask(args).is(75);
    }
    redisson.says("unlock java", "ok");
    jedis.says("unlock jedis", "ok");
    scene.ask("run --no-wait --layout redisson java -- true").is(0);
    scene.ask("run --no-wait --queue none jedis -- true").is(0);
}
