//! The first command of a waiter that got the lock uses up its notification, and nothing before
//! that does.

use std::time::Instant;

use distlock::testing::{Extend, Gone, InCondition, Release, Token};

use super::Scene;
use crate::helpers::SOON;
use crate::queue::At;
use crate::support::Server;

#[test]
fn the_first_command_of_a_waiter_that_was_handed_the_lock_uses_up_its_notification() {
    type Word = fn(&Scene<'_>, &Extend<'_>);
    let words: [Word; 5] = [
        |scene, lease| assert!(scene.lock.store.extend_one(lease, Instant::now() + SOON).unwrap()),
        |scene, lease| {
            let within = distlock::testing::Within::until(Instant::now() + SOON);
            assert!(scene.lock.store.extend(&[*lease], within).remove(0).unwrap());
        },
        |scene, lease| {
            let release = Release { settles: true, ..Release::of(lease.key, lease.token) };
            let released = scene.lock.store.release(&release, Instant::now() + SOON);
            assert_eq!(released.unwrap(), Gone::Released);
        },
        |scene, _| {
            assert!(matches!(
                scene.wait("1, again", 1, Some("1"), &At::new("1")),
                InCondition::Waiting { .. }
            ))
        },
        |scene, _| assert!(scene.notify("1", 0, 1).is_some()),
    ];
    let server = Server::start();
    for (i, word) in words.iter().enumerate() {
        let scene = Scene::new(&server);
        let _ears = (scene.ear("1"), scene.ear("2"));
        scene.enters_as("1", &At::new("1"));
        scene.enters("2");
        scene.is_notified_by("notifier", 1, 1);
        scene.lock.release("notifier");
        assert!(!scene.nothing_is_owed());
        word(
            &scene,
            &Extend { key: &scene.lock.key, token: &Token::new("1"), lease: SOON, settles: true },
        );
        assert!(scene.nothing_is_owed(), "word {i}");
        let _: u32 = scene.lock.redis("DEL a");
        scene.waits("2");
        let () = scene.lock.redis("FLUSHALL");
    }
}

#[test]
fn a_command_for_a_lost_lease_uses_up_no_notification() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = (scene.ear("1"), scene.ear("2"));
    scene.enters("1");
    scene.enters("2");
    scene.is_notified_by("notifier", 1, 1);
    scene.lock.release("notifier");
    scene.runs_out();
    let (key, token, until) = (&scene.lock.key, Token::new("1"), Instant::now() + SOON);
    assert!(
        !scene
            .lock
            .store
            .extend_one(&Extend { key, token: &token, lease: SOON, settles: true }, until)
            .unwrap()
    );
    scene
        .lock
        .store
        .release(&Release { settles: true, ..Release::of(key, &token) }, until)
        .unwrap();
    scene.is_granted("2");
}

#[test]
fn a_grant_whose_answer_is_lost_uses_up_no_notification() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = (scene.ear("1"), scene.ear("2"));
    scene.enters("1");
    scene.enters("2");
    scene.is_notified_by("notifier", 1, 1);
    // The lock becomes free without a message.
    scene.runs_out();
    // The answer came too late to count, and the client gives up.
    scene.is_granted("1");
    scene.lock.withdraw("1");
    assert_eq!(scene.lock.holder().as_deref(), Some("2"), "somebody else is notified");
}
