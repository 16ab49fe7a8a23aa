//! What becomes of a notification if its waiter dies, is cut off or gives up, at each moment. The
//! tests call a server's scripts by hand.

mod dead_waiters;
mod keys;
mod net;

use std::time::Instant;

use distlock::testing::{Answer, Ask, InCondition, Notify, Release, StoreError, Token};

use crate::helpers::SOON;
use crate::queue::{At, ByHand, Ear, listen};
use crate::support::Server;

const CONDITION: &str = "not|empty";

fn soon() -> Instant {
    Instant::now() + SOON
}

/// A lock with a condition, and the inboxes of its waiters.
struct Scene<'a> {
    lock: ByHand<'a>,
}

impl<'a> Scene<'a> {
    fn new(server: &'a Server) -> Self {
        Self { lock: ByHand::new(server) }
    }

    /// These wait in the condition, and listen.
    fn waiting<const N: usize>(server: &'a Server, waiters: [&str; N]) -> (Self, [Ear<'a>; N]) {
        let scene = Self::new(server);
        let ears = waiters.map(|waiter| scene.ear(waiter));
        waiters.iter().for_each(|waiter| scene.enters(waiter));
        (scene, ears)
    }

    fn ear(&self, waiter: &str) -> Ear<'a> {
        listen(self.lock.server, waiter)
    }

    fn try_question(
        &self,
        waiter: &str,
        attempt: u64,
        release: Option<&str>,
        leave: bool,
    ) -> Result<InCondition, StoreError> {
        let (token, old) = (Token::new(waiter), release.map(Token::new));
        let release = old.as_ref().map(|old| Release::of(&self.lock.key, old));
        // The waiter's inbox has the waiter's name.
        let (place, listen) = (At::new(waiter), || Some(waiter));
        let ask = Ask {
            key: &self.lock.key,
            token: &token,
            attempt,
            lease: SOON,
            fences: 0,
            place: Some(place.place(&listen)),
            contended: true,
            may_be_mine: true,
            deadline: soon(),
        };
        self.lock.store.wait_in(&ask, CONDITION, release.as_ref(), leave)
    }

    /// Begins to wait, and releases this lease.
    #[track_caller]
    fn enters_from(&self, waiter: &str, lease: &str) {
        let entered = self.try_question(waiter, 1, Some(lease), false).unwrap();
        assert!(matches!(entered, InCondition::Waiting { .. }), "{waiter}: {entered:?}");
    }

    /// The same, with a lease of its own.
    #[track_caller]
    fn enters(&self, waiter: &str) {
        let before = format!("{waiter}, before");
        self.holds(&before);
        self.enters_from(waiter, &before);
    }

    /// One more sign of life.
    fn asks(&self, waiter: &str) -> InCondition {
        self.try_question(waiter, 2, None, false).unwrap()
    }

    /// Its time is over.
    fn leaves(&self, waiter: &str) -> InCondition {
        self.try_question(waiter, 2, None, true).unwrap()
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

    /// It has left the condition.
    #[track_caller]
    fn is_notified_or_granted(&self, waiter: &str) {
        let answer = self.asks(waiter);
        let woken = matches!(answer, InCondition::Notified { .. } | InCondition::Granted { .. });
        assert!(woken, "{waiter}: {answer:?}");
    }

    #[track_caller]
    fn holds(&self, token: &str) {
        let answer = self.lock.ask(token, 1, &At::new("none"));
        assert!(matches!(answer, Answer::Granted { .. }), "{token}: {answer:?}");
    }

    fn try_notify(&self, by: &str, most: u32) -> Result<Option<u64>, StoreError> {
        let token = Token::new(by);
        let what = Notify { key: &self.lock.key, token: &token, condition: CONDITION, most };
        self.lock.store.notify(&what, soon())
    }

    fn notify(&self, by: &str, most: u32) -> Option<u64> {
        self.try_notify(by, most).unwrap()
    }

    /// Somebody locks, notifies, and keeps the lock.
    #[track_caller]
    fn is_notified_by(&self, by: &str, most: u32, count: u64) {
        self.holds(by);
        assert_eq!(self.notify(by, most), Some(count));
    }

    fn in_line(&self) -> Vec<String> {
        let members: Vec<String> = self.lock.redis("ZRANGE {a}:conditions 0 -1");
        // The line, the arrival, and the token.
        members.iter().map(|member| member[29..].to_owned()).collect()
    }

    fn queued(&self) -> Vec<String> {
        self.lock.redis("ZRANGE {a}:queue 0 -1")
    }

    /// Changes the entries of those who wait.
    fn rewrite(&self, pattern: &str, text: &str) {
        const REWRITE: &str = "
            local entries = redis.call('HGETALL', KEYS[1])
            for at = 1, #entries, 2 do
              redis.call('HSET', KEYS[1], entries[at], (entries[at + 1]:gsub(ARGV[1], ARGV[2])))
            end";
        let mut rewrite = redis::cmd("EVAL");
        rewrite.arg(REWRITE).arg(1).arg("{a}:waiters").arg(pattern).arg(text);
        rewrite.query::<()>(&mut self.lock.server.connection()).unwrap();
    }

    /// Makes the entries of all waiters in the lock's queue expire.
    fn queued_are_dead(&self) {
        self.rewrite("^%d+(|%d+|%d+|%d+|[^|]*|%d*|)", "1%1");
    }

    /// Makes the entries of all waiters in the condition expire.
    fn all_in_line_are_dead(&self) {
        self.rewrite("^%d+(|%d+|%d+|%d+|[^|]*|line|)", "1%1");
    }

    /// Ends the time to ask of all waiters that were notified and have not asked yet.
    fn queued_are_late(&self) {
        self.rewrite("^(.-|.-|.-|.-|.-|)%d+", "%11");
    }

    /// The present lease is over. To the scripts, a key that has expired is not there.
    #[track_caller]
    fn runs_out(&self) {
        assert_eq!(self.lock.redis::<u32>("DEL a"), 1, "somebody held it");
    }
}

#[test]
fn a_notification_moves_the_waiters_that_have_waited_longest() {
    let server = Server::start();
    let (scene, ears) = Scene::waiting(&server, ["1", "2", "3"]);
    scene.is_notified_by("notifier", 2, 2);
    assert_eq!((scene.queued(), scene.in_line()), (vec!["1".into(), "2".into()], vec!["3".into()]));
    // Each of the two is told to ask: that names no attempt, and so is no hand-off.
    assert!(ears[0].hears().starts_with("0 ") && ears[1].hears().starts_with("0 "));
    ears[2].hears_nothing();
    assert_eq!(scene.notify("somebody", 1), None, "only the owner may notify");
    assert_eq!((scene.notify("notifier", 9), scene.notify("notifier", 9)), (Some(1), Some(0)));
}

#[test]
fn a_waiter_that_asks_keeps_its_notification_and_dies_with_it_for_another() {
    let server = Server::start();
    let (scene, _ears) = Scene::waiting(&server, ["1", "2"]);
    scene.is_notified_by("notifier", 1, 1);
    scene.is_notified("1");
    // Its wait is over, and it asks for the lock like any other.
    scene.lock.is_refused("1", 3, &At::new("1"));
    scene.queued_are_dead();
    scene.lock.release("notifier");
    assert_eq!(scene.lock.holder().as_deref(), Some("2"));
    assert!(scene.queued().is_empty() && scene.in_line().is_empty());
}

#[test]
fn a_waiter_that_came_after_a_notification_is_not_woken_by_it() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let (first, _later) = (scene.ear("1"), scene.ear("2"));
    scene.enters("1");
    scene.is_notified_by("notifier", 1, 1);
    first.cut();
    // In this very script the first is passed over: it does not listen any more.
    scene.enters_from("2", "notifier");
    assert_eq!(scene.lock.holder(), None);
    scene.waits("2");
    scene.holds("somebody");
    scene.lock.release("somebody");
    scene.waits("2");
    assert_eq!((scene.queued(), scene.in_line()), (vec!["1".to_owned()], vec!["2".to_owned()]));
}

#[test]
fn a_notification_that_came_before_the_end_of_the_time_wins() {
    let server = Server::start();
    let (scene, _ears) = Scene::waiting(&server, ["1", "2"]);
    scene.is_notified_by("notifier", 1, 1);
    assert!(matches!(scene.leaves("1"), InCondition::Notified { .. }));
    assert!(matches!(scene.leaves("2"), InCondition::Left));
    assert!(scene.in_line().is_empty());
}

#[test]
fn a_waiter_whose_hand_off_ran_out_unheard_wakes_all_the_same() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = (scene.ear("1"), scene.ear("2"));
    for waiter in ["1", "2"] {
        scene.enters(waiter);
        scene.is_notified_by("notifier", 1, 1);
        scene.lock.release("notifier");
        assert_eq!(scene.lock.holder().as_deref(), Some(waiter));
        scene.runs_out();
    }
    // Also if it would leave: it was notified, and another that was not would wait in vain.
    assert!(matches!(scene.asks("1"), InCondition::Nowhere));
    assert!(matches!(scene.leaves("2"), InCondition::Nowhere));
}

#[test]
fn a_server_clock_that_is_set_back_lets_nobody_overtake_in_a_condition() {
    let server = Server::start();
    let scene = Scene::new(&server);
    let _ears = ["1", "2", "3"].map(|waiter| scene.ear(waiter));
    scene.enters("1");
    // It came an hour ahead, before the clock was set back.
    let member: Vec<String> = scene.lock.redis("ZRANGE {a}:conditions 0 -1");
    let arrival = &member[0][12..28];
    let later = (arrival.parse::<u64>().unwrap() + 3_600_000_000).to_string();
    scene.rewrite(arrival, &later);
    let line = "{a}:conditions";
    assert_eq!(1, scene.lock.redis::<u32>(&format!("ZREM {line} {}", member[0])));
    let _: u32 = scene.lock.redis(&format!("ZADD {line} 0 {}", member[0].replace(arrival, &later)));
    scene.enters("2");
    scene.enters("3");
    assert_eq!(scene.in_line(), ["1", "2", "3"]);
    // A notification that is given now does not count as one from before they came.
    scene.is_notified_by("notifier", 2, 2);
    assert_eq!((scene.queued(), scene.in_line()), (vec!["1".into(), "2".into()], vec!["3".into()]));
}
