//! The queue and the room that it leads to: a lock for one, for readers and writers, for permits.
//! The scripts are called here with keys and arguments of the test's own.

mod batches;
mod histories;
mod model;

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::scripts;
use redis::{Commands, FromRedisValue, Script, Value};

use crate::support::Server;

/// The lock, its fence counter, its queue, its waiters, its conditions.
const KEYS: [&str; 5] = ["room", "room:fence", "room:queue", "room:waiters", "room:conditions"];
/// A lease that does not end while a test runs (ms).
const LONG: u64 = 1_000_000;
/// The lease that a hand-off grants at first (ms).
const FIRST: u64 = 3_000_000;

/// A lock on a server of its own.
struct Room {
    server: Server,
    scripts: HashMap<&'static str, Script>,
    connection: redis::Connection,
    /// Subscribed to the inboxes that listen.
    inboxes: redis::Connection,
    shared: bool,
}

/// What an attempt was told.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Granted { fence: u64 },
    Refused { left: i64, heard: bool },
    Foreign,
}

/// A token with this prefix: `w:`, `r:`, `p1/10:`, or nothing.
fn token(prefix: &str, number: u64) -> String {
    format!("{prefix}{number:08x}-0000-7000-8000-000000000000@room")
}

impl Room {
    fn new(shared: bool) -> Room {
        Self::on(Server::start(), shared)
    }

    fn on(server: Server, shared: bool) -> Room {
        let scripts = scripts(shared).into_iter().map(|(name, body)| (name, Script::new(body)));
        let (connection, inboxes) = (server.connection(), server.connection());
        let mut room = Room { scripts: scripts.collect(), connection, inboxes, server, shared };
        // A connection without a subscription answers PING in another way.
        room.listen("nobody's", true);
        room
    }

    fn call<T: FromRedisValue>(&mut self, name: &str, arguments: &[&str]) -> redis::RedisResult<T> {
        let alone = ["extend", "inspect", "acquire_alone", "release_alone"].contains(&name);
        let mut call = self.scripts[name].prepare_invoke();
        for key in &KEYS[..if alone { 1 } else { KEYS.len() }] {
            call.key(*key);
        }
        for argument in arguments {
            call.arg(*argument);
        }
        call.invoke(&mut self.connection)
    }

    /// Asks for a lease of this length (ms), and with a place in the queue if there is an inbox.
    fn acquire(&mut self, token: &str, lease: u64, place: Option<(&str, u64)>) -> Told {
        self.acquire_fenced(token, lease, 0, place)
    }

    fn acquire_fenced(
        &mut self,
        token: &str,
        lease: u64,
        fences: u64,
        place: Option<(&str, u64)>,
    ) -> Told {
        let (lease, fences) = (lease.to_string(), fences.to_string());
        let mut arguments = vec![token, &lease, "1", &fences];
        let attempt = place.map_or(String::new(), |(_, attempt)| attempt.to_string());
        let first = FIRST.to_string();
        if let Some((inbox, _)) = place {
            arguments.extend([inbox, &attempt, "600000", &first]);
        }
        told(self.call("acquire", &arguments).unwrap())
    }

    fn alone(&mut self, token: &str, lease: u64) -> Told {
        told(self.call("acquire_alone", &[token, &lease.to_string(), "1"]).unwrap())
    }

    fn yes(&mut self, name: &str, arguments: &[&str]) -> bool {
        self.call::<u64>(name, arguments).unwrap() == 1
    }

    /// Makes an inbox listen, or stops it.
    fn listen(&mut self, inbox: &str, listens: bool) {
        let command = if listens { "SUBSCRIBE" } else { "UNSUBSCRIBE" };
        let sent = redis::cmd(command).arg(inbox).get_packed_command();
        self.inboxes.send_packed_command(&sent).unwrap();
        loop {
            let Value::Array(words) = self.inboxes.recv_response().unwrap() else { panic!() };
            let kind = String::from_redis_value(words[0].clone()).unwrap();
            assert_ne!(kind, "message", "nobody has looked at it");
            if kind.eq_ignore_ascii_case(command) {
                return;
            }
        }
    }

    /// Makes an inbox listen at a channel of its shard, if the server has such channels.
    fn listens_in_shard(&mut self, inbox: &str) -> bool {
        let sent = redis::cmd("SSUBSCRIBE").arg(inbox).get_packed_command();
        self.inboxes.send_packed_command(&sent).unwrap();
        matches!(self.inboxes.recv_response(), Ok(Value::Array(_)))
    }

    /// The messages that have come: the inbox, the attempt, the fence, and the token.
    fn messages(&mut self) -> Vec<(String, u64, u64, String)> {
        // What was published before has come before.
        let sent = redis::cmd("PING").arg("end").get_packed_command();
        self.inboxes.send_packed_command(&sent).unwrap();
        let mut messages = Vec::new();
        loop {
            let Value::Array(words) = self.inboxes.recv_response().unwrap() else { panic!() };
            let words: Vec<String> =
                words.into_iter().map(|word| String::from_redis_value(word).unwrap()).collect();
            if words[0] == "pong" {
                return messages;
            }
            let parts: Vec<&str> = words[2].split(' ').collect();
            let number = |at: usize| parts[at].parse().unwrap();
            assert_eq!(parts[4], KEYS[0]);
            messages.push((words[1].clone(), number(0), number(1), parts[3].to_owned()));
        }
    }

    /// Calls the scripts as a user who may do all but this: `-` and a command.
    fn be_a_user_who_may_not(&mut self, but: &str) {
        let rules = ["SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", but];
        redis::cmd("ACL").arg(&rules).exec(&mut self.connection).unwrap();
        redis::cmd("AUTH").arg(&["limited", ""]).exec(&mut self.connection).unwrap();
    }

    /// Who was handed the lock, in this order.
    fn served(&mut self) -> Vec<String> {
        self.messages().into_iter().map(|(.., token)| token).collect()
    }

    /// Lets the time of a waiter's entry run out.
    fn die(&mut self, token: &str) {
        let entry: String = self.connection.hget(KEYS[3], token).unwrap();
        let (_, rest) = entry.split_once('|').unwrap();
        let _: u64 = self.connection.hset(KEYS[3], token, format!("1|{rest}")).unwrap();
    }

    /// How long a key lasts (ms), which has an end.
    fn lasts(&mut self, key: &str) -> u64 {
        self.connection.pttl::<_, i64>(key).unwrap().try_into().expect("an end")
    }

    /// The members of a shared room.
    fn members(&mut self) -> Vec<String> {
        self.connection.zrange(KEYS[0], 0, -1).unwrap()
    }

    /// How often the server was asked who listens. Servers before 7.0 count no subcommands.
    fn questions(&self) -> u64 {
        self.server.command_count("pubsub|numsub") + self.server.command_count("pubsub")
    }

    fn queue(&mut self) -> Vec<String> {
        self.connection.zrange(KEYS[2], 0, -1).unwrap()
    }
}

fn told(reply: Vec<i64>) -> Told {
    match reply[..] {
        [1, fence, _] => Told::Granted { fence: fence.try_into().unwrap() },
        [0, left, heard] => Told::Refused { left, heard: heard == 1 },
        [2] => Told::Foreign,
        _ => panic!("{reply:?}"),
    }
}

#[test]
fn each_lease_has_its_own_end_and_the_key_lasts_as_long_as_the_last() {
    let mut room = Room::new(true);
    let (short, long) = (token("r:", 1), token("r:", 2));
    assert_eq!(room.acquire(&long, LONG, None), Told::Granted { fence: 0 });
    assert_eq!(room.acquire(&short, 50, None), Told::Granted { fence: 0 });
    let writer = token("w:", 3);
    let rest = |told| match told {
        Told::Refused { left, .. } => left,
        told => panic!("{told:?}"),
    };
    assert!(rest(room.acquire(&writer, LONG, None)) > 900_000);
    thread::sleep(Duration::from_millis(60));
    // Whoever comes next sweeps out what has expired.
    let next = token("r:", 4);
    assert_eq!(room.acquire(&next, LONG, None), Told::Granted { fence: 0 });
    assert_eq!(room.members(), [&*long, &*next]);
    assert!(room.yes("release", &[&next]));
    // Nothing brings it back.
    assert!(!room.yes("extend", &[&short, "1000000"]));
    assert!(!room.yes("release", &[&short]));
    assert_eq!(room.members(), [&*long]);
    assert!(room.yes("extend", &[&long, "50"]), "never to an earlier end");
    assert!(rest(room.acquire(&writer, LONG, None)) > 900_000);
    assert!(room.yes("extend", &[&long, "2000000"]));
    let lasts = room.lasts(KEYS[0]);
    assert!(lasts > 1_900_000, "{lasts}");
    assert!(room.yes("release", &[&long]));
    let keys: Vec<String> = room.connection.keys("*").unwrap();
    assert!(keys.is_empty(), "{keys:?}");
}

#[test]
fn a_lease_in_a_room_lasts_as_long_as_it_was_granted_for() {
    let mut room = Room::new(true);
    for number in 0..20 {
        let (reader, writer) = (token("r:", number), token("w:", number));
        let start = Instant::now();
        assert_eq!(room.acquire(&reader, 20, None), Told::Granted { fence: 0 });
        while room.acquire(&writer, LONG, None) != (Told::Granted { fence: 0 }) {}
        assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
        assert!(room.yes("release", &[&writer]));
    }
}

#[test]
fn nobody_overtakes_a_waiter_that_listens_and_nobody_waits_for_one_that_does_not() {
    let refused = |told| matches!(told, Told::Refused { .. });
    for [held, large, small] in [["r:", "w:", "r:"], ["p3/4:", "p4/4:", "p1/4:"]] {
        let mut room = Room::new(true);
        room.listen("inbox", true);
        room.listen("other", true);
        let nobody = token(small, 4);
        let [held, large, small] = [token(held, 1), token(large, 2), token(small, 3)];
        assert_eq!(room.acquire(&held, LONG, None), Told::Granted { fence: 0 });
        assert!(refused(room.acquire(&large, LONG, Some(("inbox", 1)))));
        // There is room for it, and another is before it.
        let told = room.acquire(&small, LONG, Some(("other", 1)));
        assert!(refused(told), "{small} overtakes {large} when it asks");
        assert!(!room.yes("withdraw", &[&nobody]));
        assert_eq!(room.messages(), [], "{small} overtakes {large} when the queue is served");
        // A waiter whose inbox is gone keeps its place, and keeps nobody waiting.
        room.listen("inbox", false);
        assert!(!room.yes("withdraw", &[&nobody]));
        assert_eq!(room.served(), [small.as_str()], "{small} waits for {large}");
        assert_eq!(room.queue(), [large.as_str()]);
    }
}

#[test]
fn foreign_data_is_neither_swept_nor_counted() {
    let mut room = Room::new(true);
    let (reader, permit) = (token("r:", 1), token("p1/3:", 1));
    // A sorted set of somebody else's: its scores are ends that have passed, to a room.
    let _: u64 = room.connection.zadd_multiple(KEYS[0], &[(1, "alice"), (2, "bob")]).unwrap();
    for asks in [&reader, &permit] {
        assert_eq!(room.acquire(asks, LONG, None), Told::Foreign);
        assert_eq!(room.alone(asks, LONG), Told::Foreign);
        for call in ["release", "withdraw", "release_alone"] {
            assert!(!room.yes(call, &[asks]), "{call}");
        }
        assert!(!room.yes("extend", &[asks, "1000"]));
    }
    let error = room.call::<Value>("force", &[]).unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    // A waiter is there from before: it is not let in.
    let _: u64 = room.connection.del(KEYS[0]).unwrap();
    room.listen("inbox", true);
    let writer = token("w:", 2);
    assert_eq!(room.acquire(&writer, LONG, None), Told::Granted { fence: 0 });
    assert!(matches!(room.acquire(&reader, LONG, Some(("inbox", 1))), Told::Refused { .. }));
    let _: u64 = room.connection.del(KEYS[0]).unwrap();
    let _: u64 = room.connection.zadd_multiple(KEYS[0], &[(1, "alice"), (2, "bob")]).unwrap();
    assert!(!room.yes("withdraw", &[&writer]));
    assert_eq!((room.members(), room.messages()), (vec!["alice".into(), "bob".into()], vec![]));
    assert!(!room.yes("withdraw", &[&reader]));
    // A plain lock, and a lock of another kind.
    let _: () = room.connection.set(KEYS[0], "a plain lock's token").unwrap();
    assert_eq!(room.acquire(&reader, LONG, None), Told::Foreign);
    for call in ["release", "withdraw", "release_alone"] {
        assert!(!room.yes(call, &[&reader]), "{call}");
    }
    let waits = [&*reader, "1000", "0", "inbox", "1", "1000", "1000", "condition", &writer, "0"];
    let error = room.call::<Value>("wait", &waits).unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    let _: u64 = room.connection.del(KEYS[0]).unwrap();
    assert_eq!(room.acquire(&reader, LONG, None), Told::Granted { fence: 0 });
    assert_eq!(room.acquire(&permit, LONG, None), Told::Foreign);
    assert!(room.yes("release", &[&reader]));
    assert_eq!(room.acquire(&permit, LONG, None), Told::Granted { fence: 0 });
    assert_eq!(room.acquire(&reader, LONG, None), Told::Foreign);
}

#[test]
fn a_server_without_memory_begins_no_lock_and_extends_leases() {
    for shared in [false, true] {
        let mut room = Room::new(shared);
        let (one, other) =
            if shared { (token("r:", 1), token("r:", 2)) } else { (token("", 1), token("", 2)) };
        assert_eq!(room.acquire(&one, LONG, None), Told::Granted { fence: 0 });
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).exec(&mut room.connection).unwrap();
        assert!(room.yes("extend", &[&one, "2000000"]), "shared: {shared}");
        let lasts = room.lasts(KEYS[0]);
        assert!(lasts > 1_900_000, "{lasts}");
        assert!(room.yes("release", &[&one]));
        let refused = room.call::<Value>("acquire", &[&other, "1000", "1", "0"]).unwrap_err();
        assert!(refused.to_string().contains("OOM"), "{refused}");
    }
}

#[test]
fn a_holder_that_no_queue_knew_of_is_not_served_again() {
    let mut room = Room::new(true);
    room.listen("inbox", true);
    let (first, moved, last) = (token("p7/10:", 1), token("p6/10:", 2), token("p1/10:", 3));
    assert_eq!(room.acquire(&first, LONG, None), Told::Granted { fence: 0 });
    let _ = room.acquire(&moved, LONG, Some(("inbox", 1)));
    let _ = room.acquire(&last, LONG, Some(("inbox", 1)));
    // While the slot of the lock moves, the queue is not looked at.
    assert!(room.yes("release_alone", &[&first]));
    assert_eq!(room.alone(&moved, LONG), Told::Granted { fence: 0 });
    assert!(!room.yes("withdraw", &[&first]));
    assert_eq!(room.served(), [last], "a holder in the queue must not block those behind it");
    assert!(room.queue().is_empty());
}

#[test]
fn a_waiter_that_could_not_be_told_does_not_have_the_lock() {
    for (shared, prefix) in [(false, ""), (true, "w:"), (true, "p1/1:")] {
        let mut room = Room::new(shared);
        room.listen("inbox", true);
        let (holder, waiter) = (token(prefix, 1), token(prefix, 2));
        assert_eq!(room.acquire(&holder, LONG, None), Told::Granted { fence: 0 });
        let _ = room.acquire(&waiter, LONG, Some(("inbox", 1)));
        room.be_a_user_who_may_not("-publish");
        assert!(room.yes("release", &[&holder]));
        assert!(!room.connection.exists::<_, bool>(KEYS[0]).unwrap(), "shared: {shared}");
        assert_eq!(room.queue(), [waiter], "it keeps its place");
        assert_eq!(room.acquire(&holder, LONG, None), Told::Granted { fence: 0 });
    }
}

#[test]
fn what_may_not_be_looked_at_is_not_said_to_be_somebody_elses() {
    for (shared, prefix, look) in [(false, "", "-get"), (true, "w:", "-zrange")] {
        let mut room = Room::new(shared);
        let holder = token(prefix, 1);
        assert_eq!(room.acquire(&holder, LONG, None), Told::Granted { fence: 0 });
        // Somebody waits, so that a release is not the short one.
        let _: u64 = room.connection.zadd(KEYS[2], token(prefix, 2), 1).unwrap();
        room.be_a_user_who_may_not(look);
        let calls: [(&str, &[&str]); 5] = [
            ("extend", &[&holder, "1000"]),
            ("release", &[&holder]),
            ("withdraw", &[&holder]),
            ("release_alone", &[&holder]),
            ("notify", &[&holder, "condition", "1"]),
        ];
        for (call, arguments) in calls {
            let said = room.call::<i64>(call, arguments);
            assert!(said.is_err(), "{call}: {said:?}");
        }
    }
}

#[test]
fn a_notified_writer_waits_until_the_readers_have_gone() {
    let mut room = Room::new(true);
    let (writer, waiter, reader) = (token("w:", 1), token("w:", 2), token("r:", 3));
    room.listen("inbox", true);
    let wait = |room: &mut Room, release: &str| -> Vec<i64> {
        let (lease, first) = (LONG.to_string(), FIRST.to_string());
        let arguments = [&waiter, &*lease, "0", "inbox", "1", "600000", &first, "c", release, "0"];
        room.call("wait", &arguments).unwrap()
    };
    assert_eq!(room.acquire(&writer, LONG, None), Told::Granted { fence: 0 });
    assert_eq!(wait(&mut room, &writer), [0, 1]);
    assert_eq!(room.acquire(&reader, LONG, None), Told::Granted { fence: 0 });
    assert_eq!(room.call::<i64>("notify", &[&reader, "c", "1"]).unwrap(), 1);
    assert_eq!(wait(&mut room, "")[0], 5, "notified, and in the queue");
    assert_eq!(room.members(), [&*reader]);
    assert!(room.yes("release", &[&reader]));
    assert_eq!(room.members(), [waiter]);
}
