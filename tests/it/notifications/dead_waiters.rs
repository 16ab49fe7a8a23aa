//! A waiter that dies, is cut off or is closed leaves its notification to another, and a lost host
//! costs little.

use super::Scene;
use crate::queue::At;
use crate::support::Server;

/// How a notified waiter fails to come at its turn.
#[derive(Clone, Copy, Debug)]
enum Absence {
    /// It does not listen.
    Deaf,
    /// It has asked, and does not listen any more.
    DeafAfterItAsked,
    /// It did not ask in time, and seems to listen.
    Late,
    /// Its entry has expired.
    Dead,
    /// Its client was closed.
    Withdrawn,
}

#[test]
fn a_notified_waiter_that_does_not_come_leaves_its_notification_to_another_once() {
    use Absence::{Dead, Deaf, DeafAfterItAsked, Late, Withdrawn};
    let server = Server::start();
    for absence in [Deaf, DeafAfterItAsked, Late, Dead, Withdrawn] {
        let (scene, [first, _second, _third]) = Scene::waiting(&server, ["1", "2", "3"]);
        scene.is_notified_by("notifier", 1, 1);
        if matches!(absence, DeafAfterItAsked) {
            scene.is_notified("1");
        }
        match absence {
            Deaf | DeafAfterItAsked => first.cut(),
            Late => scene.queued_are_late(),
            Dead => scene.queued_are_dead(),
            Withdrawn => scene.lock.withdraw("1"),
        }
        scene.lock.release("notifier");
        assert_eq!(scene.lock.holder().as_deref(), Some("2"), "{absence:?}");
        // A waiter that may come back keeps its place.
        let stays = !matches!(absence, Dead | Withdrawn);
        assert_eq!(scene.queued().len(), usize::from(stays), "{absence:?}");
        scene.lock.release("2");
        assert_eq!((scene.lock.holder(), scene.in_line()), (None, vec!["3".into()]), "{absence:?}");
        if stays {
            scene.is_notified_or_granted("1");
        }
        let () = scene.lock.redis("FLUSHALL");
    }
}

#[test]
fn a_notification_passes_on_from_one_to_the_next() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let ears = ["1", "2", "3", "4"].map(|waiter| scene.ear(waiter));
    ["1", "2", "3"].iter().for_each(|waiter| scene.enters(waiter));
    scene.is_notified_by("notifier", 1, 1);
    scene.enters_from("4", "notifier");
    // It was handed the lock by the wait of the fourth, and has left for good.
    scene.lock.withdraw("1");
    scene.holds("notifier");
    assert_eq!(scene.notify("notifier", 1), Some(1));
    let [_first, second, third, _fourth] = ears;
    second.cut();
    third.cut();
    scene.lock.release("notifier");
    assert_eq!(scene.lock.holder().as_deref(), Some("4"), "it waited when this was given");
    assert_eq!(scene.queued(), ["2", "3"]);
}

#[test]
fn a_clock_that_was_set_back_keeps_no_notification_from_being_passed_on() {
    let server = Server::start();
    let (scene, _ears) = Scene::waiting(&server, ["1", "2"]);
    scene.is_notified_by("notifier", 1, 1);
    // The end of the time to ask seems to lie far ahead.
    scene.rewrite("^(.-|.-|.-|.-|.-|)%d+", "%19999999999999");
    scene.lock.release("notifier");
    assert_eq!(scene.lock.holder().as_deref(), Some("2"));
}

#[test]
fn a_waiter_that_is_withdrawn_from_its_condition_takes_no_notification_with_it() {
    let server = Server::start();
    let (scene, _ears) = Scene::waiting(&server, ["1", "2"]);
    scene.lock.withdraw("1");
    scene.is_notified_by("notifier", 1, 1);
    assert_eq!(scene.queued(), ["2"]);
}

#[test]
fn a_dead_waiters_notification_also_passes_to_one_that_is_not_listening() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ear = scene.ear("1");
    scene.enters("1");
    scene.enters("2");
    scene.is_notified_by("notifier", 1, 1);
    scene.queued_are_dead();
    scene.lock.release("notifier");
    assert_eq!(scene.queued(), ["2"]);
    scene.is_granted("2");
}

#[test]
fn six_notified_waiters_on_a_lost_host_cost_one_short_lease() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let names: Vec<String> = (0..6).map(|i| format!("lost {i}")).collect();
    let _ears: Vec<_> = names.iter().map(|name| scene.ear(name)).collect();
    names.iter().for_each(|name| scene.enters(name));
    scene.is_notified_by("notifier", u32::MAX, 6);
    scene.lock.release("notifier");
    assert_eq!(scene.lock.holder().as_deref(), Some("lost 0"));
    // A first lease is longer than the time to ask: none of the others is handed the lock without
    // having asked.
    scene.queued_are_late();
    scene.runs_out();
    scene.holds("another");
    assert_eq!(scene.queued().len(), 5, "they keep their places");
}

/// 1. a waiter that is about to be taken for dead is notified; 2. the notifier keeps the lock for
///    longer than the waiter counts as alive.
#[test]
fn a_dead_waiters_notification_lasts_as_long_as_somebody_waits() {
    let server = Server::start();
    let (scene, _ears) = Scene::waiting(&server, ["1", "2"]);
    let now: Vec<u64> = scene.lock.redis("TIME");
    scene.rewrite("^%d+(|%d+|%d+|%d+|1|)", &format!("{}%1", (now[0] + 2) * 1000));
    scene.is_notified_by("notifier", 1, 1);
    assert_eq!(scene.queued(), ["1"]);
    let life = || scene.lock.redis::<i64>("PTTL {a}:queue");
    assert!(life() > 8_000, "not only as long as the one that was notified: {}", life());
    scene.waits("2");
    assert_eq!(life() / 1000, scene.lock.redis::<i64>("PTTL {a}:waiters") / 1000);
    scene.queued_are_dead();
    scene.lock.release("notifier");
    assert_eq!(scene.lock.holder().as_deref(), Some("2"));
}

#[test]
fn dead_waiters_of_a_condition_that_nobody_notifies_make_room_for_new_ones() {
    let server = Server::start();
    let (scene, _ears) = Scene::waiting(&server, ["1", "2"]);
    scene.all_in_line_are_dead();
    scene.enters("3");
    assert_eq!(scene.in_line(), ["3"]);
    assert_eq!(scene.lock.redis::<u32>("HLEN {a}:waiters"), 2, "its entry, and the line's own");
}

/// What has become of the notified waiters of a lost host, as a change of their entries. None of
/// them listens again.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// They may still ask.
    Deaf,
    /// They did not ask in time.
    Late,
    /// Their entries have expired, and those of the waiters that were not notified have not.
    Dead,
    /// The entries of all waiters have expired.
    AllDead,
}

/// Half of the waiters of a lost host were notified. Returns how many commands the scripts run that
/// clean up after them: one release, and one question.
fn commands_for(waiters: u32, fate: Fate) -> u64 {
    let server = Server::start();
    let scene = Scene::new(&server);
    for number in 0..waiters {
        scene.enters(&format!("lost {number}"));
    }
    scene.is_notified_by("notifier", waiters / 2, u64::from(waiters / 2));
    match fate {
        Fate::Deaf => {}
        Fate::Late => scene.queued_are_late(),
        Fate::Dead => scene.queued_are_dead(),
        Fate::AllDead => {
            scene.queued_are_dead();
            scene.all_in_line_are_dead();
        }
    }
    let before = server.commands_processed_by_clients();
    scene.lock.release("notifier");
    scene.lock.ask("another", 1, &At::new("none"));
    server.commands_processed_by_clients() - before
}

#[test]
fn many_waiters_of_a_lost_host_cost_the_scripts_a_few_commands_each() {
    for fate in [Fate::Deaf, Fate::Late, Fate::Dead, Fate::AllDead] {
        let (some, many) = (commands_for(40, fate), commands_for(160, fate));
        assert!(many < some * 6, "{fate:?}: {some} commands for 40 waiters, and {many} for 160");
    }
}
