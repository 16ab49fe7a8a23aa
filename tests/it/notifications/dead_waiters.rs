//! A waiter that dies or is closed leaves its notification to another, and a lost host costs
//! little.

use super::{CONDITION, Scene};
use crate::queue::At;
use crate::support::Server;

#[test]
fn a_holder_that_dies_before_its_first_command_leaves_its_notification_to_another() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = (scene.ear("1"), scene.ear("2"));
    scene.enters("1");
    scene.enters("2");
    scene.is_notified_by("notifier", 1, 1);
    scene.lock.release("notifier");
    assert_eq!(scene.lock.holder().as_deref(), Some("1"), "handed over without a question");
    scene.waits("2");
    // Its host is gone: the first lease runs out before the first command.
    scene.runs_out();
    scene.is_granted("2");
    scene.says_a_word("2");
    assert!(scene.nothing_is_owed());
}

#[test]
fn a_clock_that_was_set_back_keeps_no_notification_from_being_passed_on() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = (scene.ear("1"), scene.ear("2"));
    scene.enters("1");
    scene.enters("2");
    scene.is_notified_by("notifier", 1, 1);
    // All of these times seem to lie far ahead: the next review, and the end of the time to ask.
    scene.rewrite("{a}:owed", "^%d+(|%d+|%d+|)", "9999999999999%1");
    scene.rewrite("{a}:waiters", "^(.-|.-|.-|.-|.-|)%d+", "%19999999999999");
    scene.is_notified("2");
    assert_eq!(scene.queued(), ["2"], "the other is back in the condition");
}

#[test]
fn a_notified_waiter_whose_keys_ran_out_leaves_its_notification_to_another() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = (scene.ear("1"), scene.ear("2"));
    scene.enters("1");
    scene.enters("2");
    scene.is_notified_by("notifier", 1, 1);
    scene.is_notified("1");
    // It has been gone for so long that its entries have expired, and the lock is held all the
    // time.
    let _: u32 = scene.lock.redis("DEL {a}:queue {a}:waiters");
    scene.review_is_due();
    scene.is_notified("2");
    scene.lock.release("notifier");
    assert_eq!(scene.lock.holder().as_deref(), Some("2"));
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
    assert_eq!(scene.queued().len(), 5, "and they keep what nobody else can take");
    scene.is_notified("lost 3");
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
        Fate::Dead | Fate::AllDead => scene.queued_are_dead(),
    }
    if matches!(fate, Fate::AllDead) {
        scene.rewrite(&format!("{{a}}:condition:{CONDITION}:waiters"), "^%d+", "1");
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
