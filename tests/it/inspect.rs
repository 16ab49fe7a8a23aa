//! What a lock, a read-write lock and a semaphore say of those who hold them and of those who wait.

use std::time::{Duration, SystemTime};

use distlock::{Client, Layout, LockOptions, LockState, Queue, RedisLock, Retry, Side};

use crate::helpers::{Notes, SOON, Underway, client, error, get, is_token, keys, ms};
use crate::support::{Server, eventually};

/// A client of this name, at a server or in memory.
fn named(url: &str, name: &str) -> Client {
    Client::builder(url).name(name).build().unwrap()
}

fn fenced() -> LockOptions {
    LockOptions::new().fenced()
}

/// The names of the holders and of the waiters.
fn names(state: &LockState) -> [Vec<&str>; 2] {
    let holders = state.holders.iter().map(|holder| holder.client.as_deref().unwrap());
    let waiters = state.waiters.iter().map(|waiter| waiter.client.as_deref().unwrap());
    [holders.collect(), waiters.collect()]
}

/// Begins `work` on a thread of its own, and returns once one more waits for the lock.
fn waits<T: Send + 'static>(
    look: impl Fn() -> LockState,
    work: impl FnOnce() -> T + Send + 'static,
) -> Underway<T> {
    let before = look().waiters.len();
    let underway = Underway::start(work);
    eventually(SOON, || look().waiters.len() > before);
    underway
}

fn is_recent(time: Option<SystemTime>) -> bool {
    let since = SystemTime::now().duration_since(time.unwrap());
    since.is_ok_and(|since| since < Duration::from_secs(60))
}

#[test]
fn a_lock_tells_who_holds_it_and_who_waits_the_next_one_first() {
    let server = Server::start();
    for url in ["memory://who-holds-it".to_owned(), server.url()] {
        let lock = |name| named(&url, name).lock_with("a", fenced()).unwrap();
        let [ours, second, third] = ["first-1", "second.2", "third_3"].map(lock);
        let free = ours.inspect().unwrap();
        assert!(free.holders.is_empty() && free.waiters.is_empty(), "{free:?}");
        assert!(free.fence.is_none() || url.starts_with("memory"), "none has been given out");
        let guard = ours.guard().unwrap();
        let look = || ours.inspect().unwrap();
        let [second, third] = [second, third].map(|lock| waits(look, move || lock.claim()));
        let state = look();
        assert_eq!(names(&state), [vec!["first-1"], vec!["second.2", "third_3"]]);
        assert!(state.fence.unwrap() >= guard.fence().unwrap());
        let holder = &state.holders[0];
        assert!(is_token(&holder.token) && holder.token.ends_with("@first-1"));
        assert!(holder.remaining.unwrap() > SOON && is_recent(holder.drawn_at));
        assert_eq!((holder.permits, holder.side), (1, None));
        let waiter = &state.waiters[0];
        assert!(is_recent(waiter.drawn_at) && waiter.drawn_at >= holder.drawn_at);
        assert_eq!((waiter.permits, waiter.side), (1, None));
        guard.release().unwrap();
        let claim = second.result().unwrap();
        assert_eq!(names(&look()), [vec!["second.2"], vec!["third_3"]]);
        claim.release().unwrap();
        third.result().unwrap().release().unwrap();
        assert_eq!(names(&look()), [vec![], Vec::<&str>::new()]);
        let unfenced = named(&url, "any").lock("a");
        assert_eq!(unfenced.inspect().unwrap().fence, None, "it has no fences");
    }
}

#[test]
fn a_read_write_lock_tells_both_sides() {
    let server = Server::start();
    for url in ["memory://both-sides".to_owned(), server.url()] {
        let [reader, writer] = ["reader", "writer"].map(|name| named(&url, name).rw_lock("rw"));
        let reading = reader.read().unwrap();
        let look = || writer.read_lock().inspect().unwrap();
        let behind = writer.write_lock().clone();
        let writing = waits(look, move || behind.claim());
        for side in [reader.read_lock(), writer.write_lock()] {
            let state = side.inspect().unwrap();
            assert_eq!(names(&state), [["reader"], ["writer"]]);
            assert_eq!(state.holders[0].side, Some(Side::Read));
            assert_eq!(state.waiters[0].side, Some(Side::Write));
        }
        assert_eq!(reader.readers().unwrap(), 1);
        assert!(!writer.write_lock().is_locked().unwrap());
        reading.release().unwrap();
        writing.result().unwrap().release().unwrap();
    }
}

#[test]
fn a_semaphore_tells_how_many_permits_each_has_or_waits_for() {
    let server = Server::start();
    for url in ["memory://permits-of-each".to_owned(), server.url()] {
        let semaphore = |name| named(&url, name).semaphore("s", 5);
        let [ours, theirs] = ["ours", "theirs"].map(semaphore);
        let permit = ours.acquire_many(4).unwrap();
        let look = || ours.inspect().unwrap();
        let behind = theirs.clone();
        let other = waits(look, move || behind.acquire_many(3));
        let state = theirs.inspect().unwrap();
        assert_eq!(names(&state), [["ours"], ["theirs"]]);
        assert_eq!((state.holders[0].permits, state.waiters[0].permits), (4, 3));
        assert_eq!(ours.holders().unwrap()[0].token, state.holders[0].token);
        permit.release().unwrap();
        other.result().unwrap().release().unwrap();
    }
}

#[test]
fn what_another_program_wrote_has_no_name() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("a");
    for value in ["bob@host", "00000000-0000-4000-8000-000000000000@host", "5"] {
        redis::cmd("SET").arg("a").arg(value).exec(&mut server.connection()).unwrap();
        let state = lock.inspect().unwrap();
        let holder = &state.holders[0];
        assert_eq!((holder.token.as_str(), holder.remaining), (value, None));
        assert_eq!((&holder.client, holder.drawn_at), (&None, None));
        assert!(!format!("{state:?}").contains(value), "{state:?}");
    }
    // As of a user who gives a lock a value of their own.
    assert!(lock.force_unlock().unwrap());
    let own = client.lock_with("a", LockOptions::new().owner("alice")).unwrap();
    own.with(|_| assert_eq!(lock.inspect().unwrap().holders[0].client, None)).unwrap();
}

#[test]
fn in_redissons_layout_an_owner_begins_as_the_default_name_of_its_client_ends() {
    let server = Server::start();
    let client = client(&server);
    let options = fenced().layout(Layout::Redisson);
    let lock = client.lock_with("a", options.clone()).unwrap();
    let guard = lock.guard().unwrap();
    let state = lock.inspect().unwrap();
    let holder = &state.holders[0];
    assert!(client.name().ends_with(&format!("-{}", &holder.token[..8])), "{}", client.name());
    assert_eq!((&holder.client, holder.drawn_at), (&None, None));
    assert_eq!((state.fence, state.waiters.len()), (guard.fence(), 0));
    guard.release().unwrap();
}

#[test]
fn an_entry_of_the_queue_that_does_not_wait_is_not_shown() {
    let server = Server::start();
    let lock = client(&server).lock("a");
    let guard = lock.guard().unwrap();
    let other = named(&server.url(), "alive").lock("a");
    let alive = waits(|| lock.inspect().unwrap(), move || other.claim());
    let ask = |words: &[&str]| -> i64 {
        let (command, arguments) = words.split_first().unwrap();
        redis::cmd(command).arg(arguments).query(&mut server.connection()).unwrap()
    };
    // As a holder may be, if it was let in without a look at the queue.
    let holder = &lock.inspect().unwrap().holders[0].token;
    assert_eq!(ask(&["ZADD", "{a}:queue", "0", holder]), 1);
    assert_eq!(ask(&["HSET", "{a}:waiters", holder, "9999999999999|1|1000|0|inbox|||"]), 1);
    assert_eq!(names(&lock.inspect().unwrap())[1], ["alive"], "who holds it does not wait");
    let dead = "00000000-0000-7000-8000-000000000000@dead";
    assert_eq!(ask(&["ZADD", "{a}:queue", "0", dead]), 1);
    assert_eq!(names(&lock.inspect().unwrap())[1], ["alive"], "without an entry");
    assert_eq!(ask(&["HSET", "{a}:waiters", dead, "1|1|1000|0|inbox|||"]), 1);
    assert_eq!(names(&lock.inspect().unwrap())[1], ["alive"], "whose entry is too old");
    let later = "9999999999999|1|1000|0|inbox|||";
    assert_eq!(ask(&["HSET", "{a}:waiters", dead, later]), 0);
    assert_eq!(names(&lock.inspect().unwrap())[1], ["dead", "alive"]);
    guard.release().unwrap();
    alive.result().unwrap().release().unwrap();
}

#[test]
fn who_polls_or_waits_in_a_condition_has_no_place() {
    let server = Server::start();
    let (lock, notes) = {
        let (client, notes) = Notes::of(Client::builder(&server.url()));
        let polling = LockOptions::new().queue(Queue::None).retry(Retry::fixed(ms(10)));
        (client.lock_with("a", polling).unwrap(), notes)
    };
    let holder = client(&server).lock("a");
    let in_condition = holder.clone();
    let waiter = Underway::start(move || {
        let _guard = in_condition.guard()?;
        in_condition.new_condition("c")?.wait()
    });
    eventually(SOON, || !keys(&server).is_empty());
    // It releases the lock as it enters the condition.
    let guard = holder.guard().unwrap();
    let polls = Underway::start(move || lock.claim());
    eventually(SOON, || notes.attempts() > 2);
    assert_eq!(holder.inspect().unwrap().waiters, []);
    holder.new_condition("c").unwrap().notify_one().unwrap();
    eventually(SOON, || holder.inspect().unwrap().waiters.len() == 1);
    guard.release().unwrap();
    waiter.result().unwrap();
    polls.result().unwrap().release().unwrap();
}

#[test]
fn a_quorum_and_the_timestamp_layout_name_their_holders_too() {
    let server = Server::start();
    let timestamp = LockOptions::new().layout(Layout::Timestamp);
    let quorum = Client::redlock_builder(["memory://a", "memory://b", "memory://c"]);
    let quorum = quorum.name("voter").build().unwrap();
    let locks = [
        ("old", named(&server.url(), "old").lock_with("a", timestamp).unwrap()),
        ("voter", quorum.lock("a")),
    ];
    for (name, lock) in locks {
        let _guard = lock.guard().unwrap();
        let state = lock.inspect().unwrap();
        assert_eq!(names(&state), [vec![name], vec![]]);
        assert!(is_recent(state.holders[0].drawn_at));
        assert_eq!(state.fence, None);
    }
}

#[test]
fn whether_a_lock_is_held_is_asked_of_its_key_alone() {
    let server = Server::start();
    let lock = client(&server).lock("a");
    lock.with(|_| {
        redis::cmd("SET").arg("{a}:queue").arg("x").exec(&mut server.connection()).unwrap();
        assert!(lock.is_locked().unwrap());
        assert!(error(lock.inspect()).is_wrong_type());
    })
    .unwrap();
}

#[test]
fn a_client_has_a_name_that_its_tokens_show() {
    let server = Server::start();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let [first, second] = [(); 2].map(|()| client(&server));
    assert_ne!(first.name(), second.name());
    for client in [first, second] {
        let parts: Vec<&str> = client.name().rsplitn(3, '-').collect();
        assert_eq!((parts[0].len(), parts[1]), (8, &*std::process::id().to_string()));
        // Of another system, or of a long name, the unit tests speak.
        assert!(host.is_empty() || host.trim().len() > 40 || host.trim() == parts[2]);
        let shows = |lock: &RedisLock| {
            let token = get(&server, lock.key()).unwrap();
            assert_eq!(token.split_once('@').unwrap().1, client.name());
        };
        let lock = client.lock("a");
        lock.with(|_| shows(&lock)).unwrap();
    }
    assert_eq!(named(&server.url(), "billing-3").name(), "billing-3");
    let long = "n".repeat(65);
    for name in ["", "a b", "a@b", "ü", &long] {
        assert!(error(Client::builder("memory://").name(name).build()).is_invalid_input());
    }
}
