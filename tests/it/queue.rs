//! The server's queue: who is handed the lock, what is left behind, and which wake-ups let nobody
//! in.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::{
    Answer, Ask, FakeClock, Gone, Key, LeaseStore, Place, Release, Token, Withdraw,
};
use distlock::{Client, Layout, Lock, LockOptions, Queue, Renewal, Retry};

use crate::helpers::{Notes, Underway, ms, put};
use crate::support::{Proxy, Server, eventually, within};

const SOON: Duration = Duration::from_secs(10);
const A_WHILE: Duration = Duration::from_millis(200);
/// A waiter that hears nothing asks again after at most this.
const ONE_PAUSE: Duration = Duration::from_millis(1_600);

/// A place in the queue as a test wants it.
pub struct At<'a> {
    pub address: &'a str,
    pub alive_for: Duration,
    pub first_lease: Duration,
}

impl<'a> At<'a> {
    pub fn new(address: &'a str) -> Self {
        Self { address, alive_for: SOON, first_lease: SOON }
    }
}

impl Place for At<'_> {
    fn listen(&self) -> Option<&str> {
        Some(self.address)
    }

    fn alive_for(&self) -> Duration {
        self.alive_for
    }

    fn first_lease(&self) -> Duration {
        self.first_lease
    }
}

/// One lock on one server, asked for by hand.
pub struct ByHand<'a> {
    pub server: &'a Server,
    pub store: Arc<dyn LeaseStore>,
    pub key: Key,
    _client: Client,
}

impl<'a> ByHand<'a> {
    pub fn new(server: &'a Server) -> Self {
        let client = Client::open(&server.url()).unwrap();
        Self {
            server,
            store: client.store(Layout::Plain).unwrap(),
            key: Key::new("a".into()),
            _client: client,
        }
    }

    pub fn ask(&self, token: &str, attempt: u64, place: &At<'_>) -> Answer {
        let ask = Ask {
            key: &self.key,
            token: &Token::new(token),
            attempt,
            lease: SOON,
            fences: 1,
            place: Some(place),
            contended: true,
            may_be_mine: true,
            deadline: Instant::now() + SOON,
        };
        self.store.try_acquire(&ask).unwrap()
    }

    pub fn is_refused(&self, token: &str, attempt: u64, place: &At<'_>) {
        assert!(
            matches!(self.ask(token, attempt, place), Answer::Refused { .. }),
            "{token} is refused"
        );
    }

    pub fn release(&self, token: &str) -> Gone {
        self.store
            .release(&Release::of(&self.key, &Token::new(token)), Instant::now() + SOON)
            .unwrap()
    }

    pub fn withdraw(&self, token: &str) {
        self.store
            .withdraw_one(Withdraw::of(&self.key, &Token::new(token)), Instant::now() + SOON)
            .unwrap();
    }

    pub fn holder(&self) -> Option<String> {
        self.store.inspect(&self.key, Instant::now() + SOON).unwrap().map(|holder| holder.token)
    }

    pub fn redis<T: redis::FromRedisValue>(&self, command: &str) -> T {
        let mut words = command.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        for word in words {
            command.arg(word);
        }
        command.query(&mut self.server.connection()).unwrap()
    }
}

/// Somebody who listens on a channel, and passes on what is said there.
pub struct Ear<'a> {
    server: &'a Server,
    channel: String,
    client: u64,
    said: mpsc::Receiver<String>,
}

impl Ear<'_> {
    /// The next message.
    #[track_caller]
    pub fn hears(&self) -> String {
        self.said.recv_timeout(SOON).expect("a message")
    }

    /// Nothing is said for a while.
    #[track_caller]
    pub fn hears_nothing(&self) {
        let said = self.said.recv_timeout(A_WHILE);
        assert!(said.is_err(), "{said:?}");
    }

    /// Ends the connection. Returns when the server knows of nobody who listens here.
    pub fn cut(self) {
        let mut connection = self.server.connection();
        let () = redis::cmd("CLIENT")
            .arg("KILL")
            .arg("ID")
            .arg(self.client)
            .query::<u64>(&mut connection)
            .map(drop)
            .unwrap();
        eventually(SOON, || {
            let heard: (String, u64) = redis::cmd("PUBSUB")
                .arg("NUMSUB")
                .arg(&self.channel)
                .query(&mut connection)
                .unwrap();
            heard.1 == 0
        });
    }
}

pub fn listen<'a>(server: &'a Server, channel: &str) -> Ear<'a> {
    let (say, said) = mpsc::channel();
    let (mut connection, name) = (server.connection(), channel.to_owned());
    let client = redis::cmd("CLIENT").arg("ID").query(&mut connection).unwrap();
    let (ready, is_ready) = mpsc::channel();
    thread::spawn(move || {
        connection.set_read_timeout(Some(SOON)).unwrap();
        let mut subscription = connection.as_pubsub();
        subscription.subscribe(&name).unwrap();
        ready.send(()).unwrap();
        while let Ok(message) = subscription.get_message() {
            if say.send(message.get_payload().unwrap()).is_err() {
                return;
            }
        }
    });
    is_ready.recv_timeout(SOON).unwrap();
    Ear { server, channel: channel.to_owned(), client, said }
}

#[test]
fn a_release_hands_the_lock_to_the_first_waiter_that_listens_and_tells_nobody_else() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let (second, third) = (listen(&server, "second"), listen(&server, "third"));
    lock.ask("holder", 1, &At::new("none"));
    let ear = listen(&server, "nobody is here");
    lock.is_refused("deaf", 1, &At::new("nobody is here"));
    ear.cut();
    lock.is_refused("b", 1, &At::new("second"));
    lock.is_refused("b", 2, &At::new("second"));
    lock.is_refused("c", 1, &At::new("third"));
    assert_eq!(lock.release("holder"), Gone::Released);
    assert_eq!(lock.holder().as_deref(), Some("b"));
    let said = second.hears();
    let words: Vec<_> = said.split(' ').collect();
    assert_eq!(
        (words[0], words[2], words[3], words[4]),
        ("2", "1", "b", "a"),
        "the last attempt, the token and the key"
    );
    assert!(words[1].parse::<u64>().unwrap() > 0, "the fence");
    third.hears_nothing();
    // The deaf one keeps its place: it may only be connecting again.
    let _deaf = listen(&server, "nobody is here");
    lock.release("b");
    assert_eq!(lock.holder().as_deref(), Some("deaf"));
}

#[test]
fn a_waiter_that_is_dead_by_its_own_word_is_dropped() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let _ears = (listen(&server, "dead"), listen(&server, "alive"));
    lock.ask("holder", 1, &At::new("none"));
    // The queue would end with it, twice as late, if nobody else came: there is time for that.
    lock.is_refused("dead", 1, &At { alive_for: Duration::from_millis(300), ..At::new("dead") });
    lock.is_refused("alive", 1, &At::new("alive"));
    thread::sleep(Duration::from_millis(310));
    lock.release("holder");
    assert_eq!(lock.holder().as_deref(), Some("alive"));
    assert_eq!(lock.redis::<u32>("ZCARD {a}:queue"), 0);
}

#[test]
fn a_cancelled_waiter_that_was_granted_meanwhile_passes_the_lock_on() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let _ears = (listen(&server, "b"), listen(&server, "c"));
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("b", 1, &At::new("b"));
    lock.is_refused("c", 1, &At::new("c"));
    lock.release("holder");
    assert_eq!(lock.holder().as_deref(), Some("b"));
    lock.withdraw("b");
    assert_eq!(lock.holder().as_deref(), Some("c"));
    lock.withdraw("b");
    assert_eq!(lock.holder().as_deref(), Some("c"), "a withdrawal may be repeated");
    lock.release("c");
    assert_eq!(lock.holder(), None);
}

#[test]
fn whoever_finds_the_lock_free_serves_those_who_came_before() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let _ears = (listen(&server, "b"), listen(&server, "c"));
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("b", 1, &At::new("b"));
    let _: u32 = lock.redis("DEL a");
    lock.is_refused("c", 1, &At::new("c"));
    assert_eq!(lock.holder().as_deref(), Some("b"));
    lock.release("b");
    assert_eq!(lock.holder().as_deref(), Some("c"));
}

#[test]
fn a_lease_that_is_found_to_be_ours_never_gets_shorter() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    lock.ask("holder", 1, &At::new("none"));
    let _: u32 = lock.redis("PEXPIRE a 60000");
    // A late copy of the attempt, after the lease was extended.
    lock.ask("holder", 1, &At::new("none"));
    assert!(lock.redis::<u64>("PTTL a") > 50_000);
}

#[test]
fn a_frozen_waiter_costs_no_more_than_its_first_lease() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let _ear = listen(&server, "frozen");
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("frozen", 1, &At { first_lease: A_WHILE, ..At::new("frozen") });
    lock.release("holder");
    assert_eq!(lock.holder().as_deref(), Some("frozen"));
    // And who hands off grants at most three seconds, whatever the lease.
    let client = Client::open(&server.url()).unwrap();
    within(..Duration::from_secs(2), || {
        assert!(client.lock("a").try_lock(Duration::from_secs(2)).unwrap())
    });
}

/// A replica of `server`, in step with it.
fn replica_of(server: &Server) -> Server {
    let replica = Server::start();
    follow(&replica, server);
    replica
}

/// Makes one server the replica of another. Returns when they are in step.
fn follow(replica: &Server, server: &Server) {
    // Without it the first replica waits five seconds for others.
    let () = redis::cmd("CONFIG")
        .arg("SET")
        .arg("repl-diskless-sync-delay")
        .arg(0)
        .query(&mut server.connection())
        .unwrap();
    let () = redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(server.port())
        .query(&mut replica.connection())
        .unwrap();
    eventually(SOON, || replica.info("replication").contains("master_link_status:up"));
}

#[test]
fn what_a_waiter_hears_from_a_replica_is_true() {
    let server = Server::start();
    let replica = replica_of(&server);
    let lock = ByHand::new(&server);
    let (ear, second) = (listen(&server, "first"), listen(&server, "second"));
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("a", 1, &At::new("first"));
    lock.is_refused("b", 1, &At::new("second"));
    // It listens at a server that only hears what this one says, as after a failover.
    ear.cut();
    let elsewhere = listen(&replica, "first");
    lock.release("holder");
    assert_eq!(lock.holder().as_deref(), Some("b"));
    assert!(second.hears().contains(" b "));
    elsewhere.hears_nothing();
    // It has kept its place, and is told that it has to listen here.
    assert!(matches!(lock.ask("a", 2, &At::new("first")), Answer::Refused { heard: false, .. }));
    let _ear = listen(&server, "first");
    lock.release("b");
    assert_eq!(lock.holder().as_deref(), Some("a"));
    // One that hears both hears nothing but the truth.
    assert!(elsewhere.hears().starts_with("2 "));
}

#[test]
fn a_waiter_that_is_not_heard_is_told_so_and_has_no_place() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    lock.ask("holder", 1, &At::new("none"));
    assert!(matches!(lock.ask("b", 1, &At::new("b")), Answer::Refused { heard: false, .. }));
    assert_eq!(lock.redis::<u32>("EXISTS {a}:queue {a}:waiters"), 0);
    let _ear = listen(&server, "b");
    assert!(matches!(lock.ask("b", 2, &At::new("b")), Answer::Refused { heard: true, .. }));
    assert_eq!(lock.redis::<u32>("ZCARD {a}:queue"), 1);
}

#[test]
fn who_listens_to_everything_makes_no_dead_waiter_listen() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let (say, everything) = mpsc::channel();
    let mut connection = server.connection();
    let (dead, _alive) = (listen(&server, "dead"), listen(&server, "alive"));
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("dead", 1, &At::new("dead"));
    lock.is_refused("alive", 1, &At::new("alive"));
    dead.cut();
    thread::spawn(move || {
        let mut subscription = connection.as_pubsub();
        subscription.psubscribe("*").unwrap();
        say.send(()).unwrap();
        while subscription.get_message().is_ok() {}
    });
    everything.recv_timeout(SOON).unwrap();
    lock.release("holder");
    assert_eq!(lock.holder().as_deref(), Some("alive"));
}

#[test]
fn a_server_clock_that_is_set_back_lets_nobody_overtake() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let _ears = ["b", "c", "d"].map(|name| listen(&server, name));
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("b", 1, &At::new("b"));
    // It came an hour later by a clock that was set back since.
    let _: String = lock.redis("ZINCRBY {a}:queue 3600000000 b");
    lock.is_refused("c", 1, &At::new("c"));
    lock.is_refused("d", 1, &At::new("d"));
    assert_eq!(lock.redis::<Vec<String>>("ZRANGE {a}:queue 0 -1"), ["b", "c", "d"]);
}

#[test]
fn an_inbox_at_a_server_that_is_a_replica_now_lets_nobody_in_beside_another_and_comes_over() {
    let old = Server::start();
    let new = replica_of(&old);
    let proxy = Proxy::start(old.port());
    let open = || Client::open(&proxy.url()).unwrap();
    let holder = open();
    let guard = holder.lock("a").guard().unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let waiters = [open(), open(), open()];
    let waits = waiters.clone().map(|client| {
        let inside = Arc::clone(&inside);
        Underway::start(move || {
            let _guard = client.lock("a").guard().unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are in");
            // Longer than a message takes to come by way of the replica.
            thread::sleep(A_WHILE);
            inside.fetch_sub(1, Ordering::SeqCst);
        })
    });
    eventually(SOON, || {
        redis::cmd("ZCARD").arg("{a}:queue").query::<u32>(&mut old.connection()).unwrap() == 3
    });
    // A failover as by hand, behind a name that leads to the new master: whoever sends a command
    // goes there, and no subscription does.
    let () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut new.connection()).unwrap();
    proxy.set_upstream(new.port());
    follow(&old, &new);
    let _: u32 = redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("NORMAL")
        .query(&mut old.connection())
        .unwrap();
    guard.release().unwrap();
    waits.into_iter().for_each(Underway::result);
    // And whoever waits now is handed the lock there, by inboxes that have come over.
    let guard = holder.lock("a").guard().unwrap();
    let again = waiters
        .clone()
        .map(|client| Underway::start(move || client.lock("a").with(|_| ()).unwrap()));
    eventually(SOON, || {
        redis::cmd("ZCARD").arg("{a}:queue").query::<u32>(&mut new.connection()).unwrap() == 3
    });
    guard.release().unwrap();
    again.into_iter().for_each(Underway::result);
}

/// A client that holds the lock and one that waits for it in its own thread.
fn held_and_waited_for(
    server: &Server,
    options: LockOptions,
) -> (distlock::LockGuard, mpsc::Receiver<(Instant, Option<Duration>)>) {
    let holder = Client::open(&server.url()).unwrap();
    let guard = holder.lock("a").guard().unwrap();
    let (say, hear) = mpsc::channel();
    let url = server.url();
    thread::spawn(move || {
        let client = Client::open(&url).unwrap();
        let lock = client.lock_with("a", options).unwrap();
        lock.lock().unwrap();
        say.send((Instant::now(), lock.remaining())).unwrap();
        lock.unlock().unwrap();
    });
    waits_and_listens(server);
    (guard, hear)
}

/// The one waiter at "a" listens, and has asked again since: from here on it asks only when it is
/// told something, or when its pause is over.
fn waits_and_listens(server: &Server) {
    let mut before_it_listened = 1;
    eventually(SOON, || {
        let mut connection = server.connection();
        let entries: Vec<String> =
            redis::cmd("HVALS").arg("{a}:waiters").query(&mut connection).unwrap();
        let channels: Vec<String> = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg("distlock:inbox:*")
            .query(&mut connection)
            .unwrap();
        let attempt = entries.first().map_or(0, |entry| attempt_in(entry));
        if channels.is_empty() {
            before_it_listened = attempt.max(1);
        }
        entries.len() == 1 && channels.len() == 1 && attempt > before_it_listened
    });
}

/// The attempt that a waiter's entry names.
fn attempt_in(entry: &str) -> u64 {
    entry.split('|').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_waiting_process_has_the_lock_at_once_after_a_release() {
    let server = Server::start();
    let (guard, hear) = held_and_waited_for(&server, LockOptions::new());
    let released = Instant::now();
    guard.release().unwrap();
    let (entered, _) = hear.recv_timeout(SOON).unwrap();
    assert!(entered - released < Duration::from_millis(500), "it took {:?}", entered - released);
    eventually(SOON, || {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("*").query(&mut server.connection()).unwrap();
        keys.is_empty()
    });
}

#[test]
fn a_lease_without_renewal_is_whole_after_a_hand_off() {
    let server = Server::start();
    let options = LockOptions::new().lease(Duration::from_secs(60)).renewal(Renewal::Never);
    let (guard, hear) = held_and_waited_for(&server, options);
    guard.release().unwrap();
    let (_, remaining) = hear.recv_timeout(SOON).unwrap();
    assert!(remaining.unwrap() > Duration::from_secs(50), "{remaining:?}");
}

#[test]
fn a_lost_wake_up_costs_at_most_one_pause() {
    let server = Server::start();
    let (guard, hear) = held_and_waited_for(&server, LockOptions::new());
    // The lock goes without anybody being told.
    let _: u32 = redis::cmd("DEL").arg("a").query(&mut server.connection()).unwrap();
    let gone = Instant::now();
    let (entered, _) = hear.recv_timeout(SOON).unwrap();
    assert!(entered - gone < ONE_PAUSE + Duration::from_secs(1), "it took {:?}", entered - gone);
    assert!(guard.release().unwrap_err().is_lost());
}

#[test]
fn a_lock_that_just_runs_out_is_taken_as_soon_as_it_has() {
    let server = Server::start();
    let mut connection = server.connection();
    let _: () = redis::cmd("SET")
        .arg("a")
        .arg("another client's")
        .arg("PX")
        .arg(700)
        .query(&mut connection)
        .unwrap();
    let client = Client::open(&server.url()).unwrap();
    within(Duration::from_millis(600)..Duration::from_millis(1_500), || {
        client.lock("a").lock().unwrap()
    });
}

#[test]
fn a_lost_inbox_is_opened_again_and_loses_nobody() {
    let server = Server::start();
    let (guard, hear) = held_and_waited_for(&server, LockOptions::new());
    let mut connection = server.connection();
    let killed: u32 =
        redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").query(&mut connection).unwrap();
    assert_eq!(killed, 1);
    let released = Instant::now();
    guard.release().unwrap();
    let (entered, _) = hear.recv_timeout(SOON).unwrap();
    assert!(
        entered - released < ONE_PAUSE + Duration::from_secs(1),
        "it took {:?}",
        entered - released
    );
}

#[test]
fn forged_and_stale_wake_ups_let_nobody_in() {
    let server = Server::start();
    let (guard, hear) = held_and_waited_for(&server, LockOptions::new());
    let mut connection = server.connection();
    let channels: Vec<String> = redis::cmd("PUBSUB")
        .arg("CHANNELS")
        .arg("distlock:inbox:*")
        .query(&mut connection)
        .unwrap();
    let entries: Vec<(String, String)> =
        redis::cmd("HGETALL").arg("{a}:waiters").query(&mut connection).unwrap();
    let (token, entry) = &entries[0];
    let attempt = attempt_in(entry);
    let forged = [
        "",
        "hello",
        "1",
        "1 2",
        "x y z t a",
        &format!("0 0 0 {token} a"),
        &format!("{} 0 0 {token} a", attempt + 1_000),
    ]
    .map(str::to_owned);
    let stale = (attempt > 1).then(|| format!("{} 0 0 {token} a", attempt - 1));
    // The lock is not fenced, so only one of these is kept out by its fence.
    for message in forged
        .into_iter()
        .chain(stale)
        .chain([format!("{attempt} 0 0 somebody a"), format!("{attempt} 7 1 {token} a")])
    {
        let heard: u32 =
            redis::cmd("PUBLISH").arg(&channels[0]).arg(&message).query(&mut connection).unwrap();
        assert_eq!(heard, 1, "{message:?}");
    }
    assert!(hear.recv_timeout(A_WHILE).is_err(), "nobody released the lock");
    assert!(guard.is_valid());
    guard.release().unwrap();
    hear.recv_timeout(SOON).unwrap();
}

#[test]
fn a_grant_that_comes_at_the_end_of_its_validity_is_asked_about_first() {
    let server = Server::start();
    let clock = FakeClock::new();
    let holder = Client::open(&server.url()).unwrap();
    let guard = holder.lock("a").guard().unwrap();
    let (say, hear) = mpsc::channel();
    let (waiter, notes) = Notes::of(Client::builder(&server.url()).clock(clock.clone()));
    thread::spawn(move || {
        // It does not ask by itself before the clock has gone on by more than it does here.
        let patient = LockOptions::new().retry(Retry::fixed(Duration::from_secs(20)));
        let lock = waiter.lock_with("a", patient).unwrap();
        lock.lock().unwrap();
        say.send((lock.remaining(), lock.inspect().unwrap().unwrap().remaining)).unwrap();
        lock.unlock().unwrap();
    });
    waits_and_listens(&server);
    // And its last attempt has been answered: one that is still on its way would count from now.
    eventually(SOON, || notes.under_way() == 0);
    // The waiter was paused since it was refused: what a hand-off grants counts from then, and is
    // over.
    clock.advance(Duration::from_secs(10));
    guard.release().unwrap();
    let (remaining, on_server) = hear.recv_timeout(SOON).unwrap();
    assert!(remaining.unwrap() > Duration::from_secs(25), "{remaining:?}");
    assert!(on_server.unwrap() > Duration::from_secs(25), "{on_server:?}");
}

#[test]
fn force_unlock_serves_the_queue_like_a_release() {
    let server = Server::start();
    let (guard, hear) = held_and_waited_for(&server, LockOptions::new());
    let forced = Instant::now();
    assert!(Client::open(&server.url()).unwrap().lock("a").force_unlock().unwrap());
    let (entered, _) = hear.recv_timeout(SOON).unwrap();
    assert!(entered - forced < Duration::from_millis(500));
    assert!(guard.release().unwrap_err().is_lost());
}

#[test]
fn without_a_queue_nothing_is_left_while_waiting() {
    let server = Server::start();
    let holder = Client::open(&server.url()).unwrap();
    let guard = holder.lock("a").guard().unwrap();
    let waiter = Client::open(&server.url()).unwrap();
    let lock = waiter.lock_with("a", LockOptions::new().queue(Queue::None)).unwrap();
    let waiting = thread::spawn(move || lock.with(|_| ()));
    eventually(SOON, || server.command_count("evalsha") > 3);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.connection()).unwrap();
    assert_eq!(keys, ["a"]);
    guard.release().unwrap();
    waiting.join().unwrap().unwrap();
}

#[test]
fn a_thread_that_gives_up_leaves_its_place_to_the_next_thread_of_its_process() {
    let server = Server::start();
    let holder = Client::open(&server.url()).unwrap();
    let guard = holder.lock("a").guard().unwrap();
    let (say, hear) = mpsc::channel();
    let ours = Client::open(&server.url()).unwrap();
    let other = Client::open(&server.url()).unwrap();
    let waiters = |server: &Server| -> u32 {
        redis::cmd("ZCARD").arg("{a}:queue").query(&mut server.connection()).unwrap()
    };
    // The first thread takes the place in the server's queue,
    let first = ours.clone();
    let gives_up =
        thread::spawn(move || first.lock("a").try_lock(Duration::from_millis(600)).unwrap());
    eventually(SOON, || waiters(&server) == 1);
    // the second waits behind it in this process,
    let (second, said) = (ours.clone(), say.clone());
    thread::spawn(move || second.lock("a").with(|_| said.send("ours").unwrap()));
    eventually(SOON, || ours.waiting("a") == 1);
    // and another process comes last.
    thread::spawn(move || other.lock("a").with(|_| say.send("other").unwrap()));
    eventually(SOON, || waiters(&server) == 2);
    assert!(!gives_up.join().unwrap());
    assert_eq!(waiters(&server), 2, "the place was handed on, not given back");
    guard.release().unwrap();
    assert_eq!(hear.recv_timeout(SOON).unwrap(), "ours");
    assert_eq!(hear.recv_timeout(SOON).unwrap(), "other");
}

#[test]
fn fences_grow_over_local_and_remote_hand_overs() {
    let server = Server::start();
    let (say, hear) = mpsc::channel();
    let holds_of_each = 100_000 / 8;
    for _ in 0..2 {
        let client = Client::open(&server.url()).unwrap();
        for _ in 0..4 {
            let (client, say) = (client.clone(), say.clone());
            thread::spawn(move || {
                let lock = client.lock_with("a", LockOptions::new().fenced()).unwrap();
                for _ in 0..holds_of_each {
                    let guard = lock.guard().unwrap();
                    // Sent under the lock, so in the order of the holds.
                    say.send(guard.fence().unwrap()).unwrap();
                }
            });
        }
    }
    drop(say);
    let fences: Vec<u64> = hear.iter().collect();
    assert_eq!(fences.len(), holds_of_each * 8);
    assert!(fences.is_sorted_by(|a, b| a < b));
}

#[test]
fn without_local_hand_offs_every_hold_has_a_lease_of_its_own() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    for (hand_offs, leases) in [(0, 20), (16, 2)] {
        let options = LockOptions::new().local_hand_offs(hand_offs);
        let lock = client.lock_with("a", options).unwrap();
        let guard = lock.guard().unwrap();
        let (say, hear) = mpsc::channel();
        let threads: Vec<_> = (0..19)
            .map(|_| {
                let (lock, say) = (lock.clone(), say.clone());
                thread::spawn(move || {
                    lock.with(|_| say.send(lock.inspect().unwrap().unwrap().token).unwrap())
                        .unwrap()
                })
            })
            .collect();
        eventually(SOON, || client.waiting("a") == 19);
        say.send(lock.inspect().unwrap().unwrap().token).unwrap();
        guard.release().unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(say);
        let tokens: std::collections::HashSet<_> = hear.iter().collect();
        assert_eq!(tokens.len(), leases, "with {hand_offs} hand-offs");
    }
}

#[test]
fn a_thread_that_panics_after_a_hand_off_leaves_the_lock_free() {
    let client = Client::open("memory://").unwrap();
    let lock = client.lock("a");
    let guard = lock.guard().unwrap();
    let doomed = lock.clone();
    let panics = thread::spawn(move || {
        let _guard = doomed.guard().unwrap();
        panic!("on purpose, under a lock that was handed over");
    });
    eventually(SOON, || client.waiting("a") == 1);
    guard.release().unwrap();
    assert!(panics.join().is_err());
    assert!(lock.try_lock(Duration::ZERO).unwrap());
    lock.unlock().unwrap();
}

#[test]
fn attempts_stay_a_pause_apart_while_the_inbox_opens() {
    let server = Server::start();
    let guard = Client::open(&server.url()).unwrap().lock("a").guard().unwrap();
    let options = LockOptions::new().retry(Retry::fixed(ms(400)).attempts(3));
    // A client's first wait opens its inbox. Who waits asks again once that stands: one attempt
    // more, and not the last of three.
    let lock = Client::open(&server.url()).unwrap().lock_with("a", options).unwrap();
    within(ms(780)..SOON, || assert!(lock.lock().unwrap_err().is_exhausted()));
    assert_eq!(server.command_count("subscribe"), 1, "it opened");
    guard.release().unwrap();
}

#[test]
fn a_connection_that_was_closed_while_idle_uses_up_no_attempt() {
    let server = Server::start();
    put(&server, "a", "another", SOON);
    let client = Client::open(&server.url()).unwrap();
    client.ping().unwrap();
    let () = redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .query(&mut server.connection())
        .unwrap();
    let options = LockOptions::new().queue(Queue::None).retry(Retry::fixed(ms(400)).attempts(2));
    let lock = client.lock_with("a", options).unwrap();
    within(ms(380)..SOON, || assert!(lock.lock().unwrap_err().is_exhausted()));
}
