//! What becomes of a notification if its waiter dies, is cut off or gives up, at each moment. The
//! tests call a server's scripts by hand.

mod dead_waiters;
mod first_commands;

use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::{Answer, Ask, Extend, InCondition, Notify, Place, Release, Token};

use crate::helpers::{SOON, ms};
use crate::queue::{At, ByHand, Ear, listen};
use crate::support::Server;

const CONDITION: &str = "not|empty";
/// A notified waiter has a second to ask.
const TIME_TO_ASK: Duration = ms(1000);

/// A lock with a condition, and the inboxes of its waiters.
struct Scene<'a> {
    lock: ByHand<'a>,
}

impl<'a> Scene<'a> {
    fn new(server: &'a Server) -> Self {
        Self { lock: ByHand::new(server) }
    }

    fn ear(&self, waiter: &str) -> Ear<'a> {
        listen(self.lock.server, waiter)
    }

    fn wait(
        &self,
        waiter: &str,
        attempt: u64,
        release: Option<&str>,
        place: &At<'_>,
    ) -> InCondition {
        let (token, old) = (Token::new(waiter), release.map(Token::new));
        let release = old.as_ref().map(|old| Release::of(&self.lock.key, old));
        let ask = Ask {
            key: &self.lock.key,
            token: &token,
            attempt,
            lease: SOON,
            fences: 0,
            place: Some(place as &dyn Place),
            contended: true,
            may_be_mine: true,
            deadline: Instant::now() + SOON,
        };
        self.lock.store.wait_in(&ask, CONDITION, release.as_ref(), false).unwrap()
    }

    /// Begins to wait, under a lease of its own, which the wait releases. The waiter's inbox has
    /// the waiter's name.
    fn enters_as(&self, waiter: &str, place: &At<'_>) {
        let before = format!("{waiter}, before");
        self.holds(&before);
        let entered = self.wait(waiter, 1, Some(&before), place);
        assert!(matches!(entered, InCondition::Waiting { .. }), "{waiter}: {entered:?}");
    }

    fn enters(&self, waiter: &str) {
        self.enters_as(waiter, &At::new(waiter));
    }

    /// One more sign of life.
    fn asks(&self, waiter: &str) -> InCondition {
        self.wait(waiter, 2, None, &At::new(waiter))
    }

    #[track_caller]
    fn waits(&self, waiter: &str) {
        let answer = self.asks(waiter);
        assert!(matches!(answer, InCondition::Waiting { .. }), "{waiter}: {answer:?}");
    }

    #[track_caller]
    fn is_notified(&self, waiter: &str) {
        let answer = self.asks(waiter);
        assert!(matches!(answer, InCondition::Notified { .. }), "{waiter}: {answer:?}");
    }

    #[track_caller]
    fn is_granted(&self, waiter: &str) {
        let answer = self.asks(waiter);
        assert!(matches!(answer, InCondition::Granted { .. }), "{waiter}: {answer:?}");
    }

    #[track_caller]
    fn holds(&self, token: &str) {
        let answer = self.lock.ask(token, 1, &At::new("none"));
        assert!(matches!(answer, Answer::Granted { .. }), "{token}: {answer:?}");
    }

    fn notify(&self, by: &str, most: u32, number: u64) -> Option<u64> {
        let token = Token::new(by);
        let what =
            Notify { key: &self.lock.key, token: &token, condition: CONDITION, most, number };
        self.lock.store.notify(&what, Instant::now() + SOON).unwrap()
    }

    /// Somebody locks, notifies, and keeps the lock.
    #[track_caller]
    fn is_notified_by(&self, by: &str, most: u32, count: u64) {
        self.holds(by);
        assert_eq!(self.notify(by, most, 1), Some(count));
    }

    fn in_line(&self) -> Vec<String> {
        self.lock.redis(&format!("ZRANGE {{a}}:condition:{CONDITION}:queue 0 -1"))
    }

    fn queued(&self) -> Vec<String> {
        self.lock.redis("ZRANGE {a}:queue 0 -1")
    }

    fn nothing_is_owed(&self) -> bool {
        self.lock.redis::<u32>("EXISTS {a}:owed") == 0
    }

    /// The first command under the lease that a wait led to.
    fn says_a_word(&self, token: &str) {
        let lease =
            Extend { key: &self.lock.key, token: &Token::new(token), lease: SOON, settles: true };
        assert!(self.lock.store.extend_one(&lease, Instant::now() + SOON).unwrap());
    }

    /// Changes the entries of those who wait: in the lock's queue, or in the condition.
    fn rewrite(&self, entries: &str, pattern: &str, text: &str) {
        const REWRITE: &str = "
            local entries = redis.call('HGETALL', KEYS[1])
            for at = 1, #entries, 2 do
              redis.call('HSET', KEYS[1], entries[at], (entries[at + 1]:gsub(ARGV[1], ARGV[2])))
            end";
        let mut rewrite = redis::cmd("EVAL");
        rewrite.arg(REWRITE).arg(1).arg(entries).arg(pattern).arg(text);
        rewrite.query::<()>(&mut self.lock.server.connection()).unwrap();
    }

    /// Makes the entries of all waiters that are now in the lock's queue expire.
    fn queued_are_dead(&self) {
        self.rewrite("{a}:waiters", "^%d+", "1");
    }

    /// Makes the entry of one waiter in the lock's queue expire.
    fn is_dead(&self, waiter: &str) {
        self.rewrite("{a}:waiters", &format!("^%d+(|%d+|%d+|%d+|{waiter}|)"), "1%1");
    }

    /// Ends the time to ask of all waiters that were notified and have not asked yet.
    fn queued_are_late(&self) {
        self.rewrite("{a}:waiters", "^(.-|.-|.-|.-|.-|)%d+", "%11");
    }

    /// Returns when the next look at the owed notifications is due: soon, as few are owed.
    fn review_is_due(&self) {
        thread::sleep(ms(20));
    }

    /// The present lease is over, since a moment. To the scripts, a key that has expired is not
    /// there.
    #[track_caller]
    fn runs_out(&self) {
        assert_eq!(self.lock.redis::<u32>("DEL a"), 1, "somebody held it");
        self.review_is_due();
    }
}

#[test]
fn a_notification_that_is_sent_again_notifies_nobody_again() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears: Vec<_> = (1..=4).map(|i| scene.ear(&i.to_string())).collect();
    (1..=4).for_each(|i| scene.enters(&i.to_string()));
    scene.is_notified_by("notifier", 1, 1);
    assert_eq!(scene.notify("notifier", 1, 1), Some(1));
    assert_eq!(scene.in_line().len(), 3);
    // It asks, and so keeps its notification, however long the rest of this test takes.
    scene.is_notified("1");
    assert_eq!(scene.notify("notifier", 2, 2), Some(2));
    // A late copy of the first.
    scene.notify("notifier", 1, 1);
    assert_eq!(scene.in_line(), ["4"]);
    assert_eq!(scene.notify("somebody", 1, 3), None);
}

#[test]
fn a_waiter_that_has_asked_and_is_cut_off_is_never_put_back_into_its_condition() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let (first, _others) = (scene.ear("1"), (scene.ear("2"), scene.ear("3")));
    scene.enters("1");
    scene.enters("2");
    scene.is_notified_by("notifier", 1, 1);
    scene.is_notified("1");
    first.cut();
    scene.lock.release("notifier");
    // It may be dead: its notification passes to another waiter that listens.
    assert_eq!(scene.lock.holder().as_deref(), Some("2"));
    assert_eq!((scene.queued(), scene.in_line()), (vec!["1".to_owned()], Vec::<String>::new()));
    scene.is_granted("2");
    scene.says_a_word("2");
    assert!(scene.nothing_is_owed());
    scene.lock.release("2");
    // It may also be alive, and then it goes on asking for the lock.
    scene.enters("3");
    scene.holds("1");
    assert!(scene.queued().is_empty());
    // The next notification goes to a waiter that still waits in the condition.
    assert_eq!(scene.notify("1", 1, 1), Some(1));
    scene.is_notified("3");
}

#[test]
fn a_waiter_that_came_after_a_notification_is_not_woken_by_it() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let first = scene.ear("1");
    let _later = scene.ear("2");
    scene.enters("1");
    scene.is_notified_by("notifier", 1, 1);
    first.cut();
    scene.lock.release("notifier");
    scene.enters("2");
    scene.queued_are_dead();
    scene.review_is_due();
    scene.waits("2");
    scene.holds("somebody");
    scene.lock.release("somebody");
    scene.waits("2");
    assert!(scene.nothing_is_owed() && scene.queued().is_empty());
}

#[test]
fn a_notified_waiter_that_does_not_ask_returns_to_its_old_place_and_another_is_notified() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = (scene.ear("1"), scene.ear("2"), scene.ear("3"));
    scene.enters("1");
    scene.enters("2");
    scene.enters("3");
    scene.is_notified_by("notifier", 1, 1);
    assert_eq!(scene.queued(), ["1"]);
    thread::sleep(TIME_TO_ASK + ms(50));
    scene.waits("3");
    assert_eq!(
        (scene.queued(), scene.in_line()),
        (vec!["2".to_owned()], vec!["1".to_owned(), "3".to_owned()])
    );
    scene.is_notified("2");
    // The next notification is for a waiter that asks when it is notified.
    assert_eq!(scene.notify("notifier", 1, 2), Some(1));
    scene.is_notified("3");
    assert_eq!(scene.in_line(), ["1"]);
    // It was only slow: it goes on waiting, and can be notified again.
    scene.waits("1");
    assert_eq!(scene.notify("notifier", 1, 3), Some(1));
    scene.is_notified("1");
}

#[test]
fn a_notified_waiter_that_does_not_listen_at_its_turn_makes_room_for_one_that_does() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let (first, _second) = (scene.ear("1"), scene.ear("2"));
    scene.enters("1");
    scene.enters("2");
    scene.is_notified_by("notifier", 1, 1);
    first.cut();
    scene.lock.release("notifier");
    assert_eq!(scene.lock.holder().as_deref(), Some("2"));
    assert_eq!(scene.in_line(), ["1"]);
}

#[test]
fn an_owed_notification_lasts_as_long_as_somebody_waits() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = (scene.ear("1"), scene.ear("2"));
    scene.enters_as("1", &At { alive_for: ms(3000), ..At::new("1") });
    scene.enters("2");
    scene.is_notified_by("notifier", 1, 1);
    assert_eq!(scene.queued(), ["1"]);
    let life = || scene.lock.redis::<i64>("PTTL {a}:owed");
    assert!(life() > 10_000, "not only as long as the one that was notified: {}", life());
    scene.asks("2");
    assert!(life() > 10_000, "{}", life());
}

#[test]
fn a_waiter_whose_hand_off_ran_out_unheard_still_counts_as_notified() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = (scene.ear("1"), scene.ear("2"));
    scene.enters("1");
    scene.is_notified_by("notifier", 1, 1);
    scene.lock.release("notifier");
    assert_eq!(scene.lock.holder().as_deref(), Some("1"));
    scene.runs_out();
    let _: () = scene.lock.redis("SET a somebody PX 60000");
    // Its timeout may have ended as well: then it returns as notified, and uses up the
    // notification.
    scene.is_notified("1");
}

#[test]
fn a_notification_stays_while_a_waiter_from_before_it_may_come_back() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let (first, second, _third) = (scene.ear("1"), scene.ear("2"), scene.ear("3"));
    scene.enters("1");
    scene.enters("2");
    scene.is_notified_by("a notifier", 1, 1);
    // It has asked, and dies with its notification. The inbox of the second waiter is only
    // reconnecting.
    scene.is_notified("1");
    first.cut();
    second.cut();
    scene.lock.release("a notifier");
    scene.enters("3");
    scene.holds("another notifier");
    let _second = scene.ear("2");
    assert_eq!(scene.notify("another notifier", 1, 1), Some(1), "the second is notified, too");
    // The first is dead, and the only waiter in the condition came later.
    scene.is_dead("1");
    scene.waits("3");
    assert_eq!(scene.queued(), ["2"]);
    // The second does not ask in time, and goes back into the condition.
    scene.queued_are_late();
    scene.review_is_due();
    scene.is_notified("3");
    assert_eq!((scene.queued(), scene.in_line()), (vec!["3".into()], vec!["2".into()]));
    scene.lock.release("another notifier");
    let third = Token::new("3");
    let release = Release { settles: true, ..Release::of(&scene.lock.key, &third) };
    scene.lock.store.release(&release, Instant::now() + SOON).unwrap();
    // It waited when the first notification was given, and waits again now.
    scene.review_is_due();
    scene.asks("3, to look after what is owed");
    let answer = scene.asks("2");
    assert!(!matches!(answer, InCondition::Waiting { .. }), "lost: {answer:?}");
}

#[test]
fn a_server_clock_that_is_set_back_lets_nobody_overtake_in_a_condition() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = ["1", "2", "3"].map(|waiter| scene.ear(waiter));
    scene.enters("1");
    // Its entry is an hour ahead, written before the clock was set back.
    let line = format!("{{a}}:condition:{CONDITION}:queue");
    let _: String = scene.lock.redis(&format!("ZINCRBY {line} 3600000000 1"));
    scene.enters("2");
    scene.enters("3");
    assert_eq!(scene.in_line(), ["1", "2", "3"]);
    // A notification that is given now does not count as one from before they came.
    scene.is_notified_by("notifier", 2, 2);
    assert_eq!((scene.queued(), scene.in_line()), (vec!["1".into(), "2".into()], vec!["3".into()]));
}
