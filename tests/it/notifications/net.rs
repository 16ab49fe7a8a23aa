//! A waiter that dies after the lock was handed to it takes its notification with it. So one waiter
//! of the condition wakes for no reason, every 10 s.

use distlock::Client;
use distlock::testing::{Bell, FakeClock, InCondition, Token};

use super::{CONDITION, Scene};
use crate::helpers::ms;
use crate::queue::ByHand;
use crate::support::Server;

impl Scene<'_> {
    /// When the next waiter wakes for no reason, if anybody waits.
    fn net(&self) -> Option<String> {
        self.lock.redis(&format!("HGET {{a}}:waiters {}:{CONDITION}:", CONDITION.len()))
    }

    /// That time becomes this.
    fn net_is(&self, time: &str) {
        assert!(self.net().is_some());
        self.rewrite("^%d+$", time);
    }
}

#[test]
fn a_waiter_wakes_for_no_reason_when_that_is_due_and_no_other_does_after_it() {
    let server = Server::start();
    let (scene, _ears) = Scene::waiting(&server, ["1", "2", "3"]);
    scene.is_notified_by("notifier", 1, 1);
    scene.lock.release("notifier");
    assert_eq!(scene.lock.holder().as_deref(), Some("1"));
    // It dies with the lock.
    scene.runs_out();
    scene.waits("2");
    scene.waits("3");
    scene.net_is("1");
    // Not only the first of the line: that one may be dead, too.
    scene.is_granted("3");
    scene.waits("2");
    let next: u64 = scene.net().unwrap().parse().unwrap();
    let now: Vec<u64> = scene.lock.redis("TIME");
    assert!((5_000..=11_000).contains(&next.saturating_sub(now[0] * 1000)), "in 10 s");
    // Its notification was none: it passes on to nobody.
    scene.lock.withdraw("3");
    assert_eq!((scene.queued(), scene.in_line()), (vec![], vec!["2".to_owned()]));
}

#[test]
fn a_waiter_that_wakes_for_no_reason_queues_while_the_lock_is_held() {
    let server = Server::start();
    let (scene, _ears) = Scene::waiting(&server, ["1", "2"]);
    scene.holds("somebody");
    scene.net_is("1");
    scene.is_notified("1");
    assert_eq!((scene.queued(), scene.in_line()), (vec!["1".into()], vec!["2".into()]));
    // And if it dies there, nobody is notified in its place.
    scene.queued_are_dead();
    scene.lock.release("somebody");
    assert_eq!(scene.in_line(), ["2"]);
}

#[test]
fn notifications_and_new_waiters_do_not_put_the_time_off_and_a_clock_that_was_set_back_does_not() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = ["1", "2", "3"].map(|waiter| scene.ear(waiter));
    scene.enters("1");
    let due = scene.net();
    scene.enters("2");
    scene.waits("2");
    scene.is_notified_by("notifier", 1, 1);
    assert_eq!(scene.net(), due);
    scene.lock.release("notifier");
    scene.lock.release("1");
    scene.net_is("9999999999999");
    scene.is_granted("2");
}

#[test]
fn nothing_is_left_when_nobody_waits_any_more() {
    let server = Server::start();
    let (scene, _ears) = Scene::waiting(&server, ["1", "2", "3"]);
    scene.lock.withdraw("1");
    scene.leaves("2");
    assert!(scene.net().is_some());
    scene.is_notified_by("notifier", 1, 1);
    assert_eq!(scene.net(), None);
    scene.lock.release("notifier");
    scene.lock.release("3");
    let keys: Vec<String> = scene.lock.redis("KEYS *");
    assert_eq!(keys, ["{a}:fence"]);
}

#[test]
fn in_memory_a_waiter_wakes_for_no_reason_when_that_is_due() {
    let (server, clock) = (Server::start(), FakeClock::new());
    let client = Client::builder("memory://").clock(clock.clone()).build().unwrap();
    let scene = Scene { lock: ByHand::of(&server, client) };
    let bells = ["1", "2"].map(|_| Bell::new());
    let listen = |at: usize, waiter| {
        scene.lock.store.listen(&scene.lock.key, &Token::new(waiter), &bells[at]).unwrap()
    };
    let _listening = (listen(0, "1"), listen(1, "2"));
    scene.enters("1");
    scene.enters("2");
    clock.advance(ms(9_000));
    scene.waits("2");
    clock.advance(ms(1_000));
    scene.is_granted("2");
    scene.waits("1");
    assert!(matches!(scene.leaves("1"), InCondition::Left));
}
