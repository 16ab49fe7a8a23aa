//! The server's queue: who is handed the lock, what is left behind, and which wake-ups let nobody
//! in.

mod dead_waiters;
mod replicas;
mod threads;
mod wake_ups;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::{
    Answer, Ask, Gone, Key, LeaseStore, Place, Release, StoreError, Token, Withdraw,
};
use distlock::{Client, Layout, LockOptions, Queue, Retry};

use crate::helpers::{close_connections, held, ms, put};
use crate::support::{Server, eventually, within};

const SOON: Duration = Duration::from_secs(10);
const A_WHILE: Duration = Duration::from_millis(200);

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

    /// `listen` returns the address.
    pub fn place(&self, listen: &'a dyn Fn() -> Option<&'a str>) -> Place<'a> {
        Place { listen, alive_for: self.alive_for, first_lease: self.first_lease }
    }
}

/// One lock on one server; the test sends the commands itself.
pub struct ByHand<'a> {
    pub server: &'a Server,
    pub store: Arc<dyn LeaseStore>,
    pub key: Key,
    _client: Client,
}

impl<'a> ByHand<'a> {
    pub fn new(server: &'a Server) -> Self {
        Self::of(server, Client::open(&server.url()).unwrap())
    }

    /// With the store of this client.
    pub fn of(server: &'a Server, client: Client) -> Self {
        Self {
            server,
            store: client.store(Layout::Plain).unwrap(),
            key: Key::new("a".into()),
            _client: client,
        }
    }

    pub fn ask(&self, token: &str, attempt: u64, place: &At<'_>) -> Answer {
        self.try_ask(token, attempt, place).unwrap()
    }

    pub fn try_ask(&self, token: &str, attempt: u64, at: &At<'_>) -> Result<Answer, StoreError> {
        let listen = || Some(at.address);
        let ask = Ask {
            key: &self.key,
            token: &Token::new(token),
            attempt,
            lease: SOON,
            fences: 1,
            place: Some(at.place(&listen)),
            contended: true,
            may_be_mine: true,
            deadline: Instant::now() + SOON,
        };
        self.store.try_acquire(&ask)
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
        held(&*self.store, &self.key).pop().map(|held| held.token.text())
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

/// A subscriber of a channel, which passes on the messages.
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

    /// No message comes for a while.
    #[track_caller]
    pub fn hears_nothing(&self) {
        let said = self.said.recv_timeout(A_WHILE);
        assert!(said.is_err(), "{said:?}");
    }

    /// Ends the connection. Returns once the server knows of no subscriber here.
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
    // The waiter that does not listen keeps its place: it may only be reconnecting.
    let _deaf = listen(&server, "nobody is here");
    lock.release("b");
    assert_eq!(lock.holder().as_deref(), Some("deaf"));
}

#[test]
fn a_client_that_finds_the_lock_free_serves_the_waiters_before_it() {
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
fn a_server_clock_that_is_set_back_lets_nobody_overtake() {
    let server = Server::start();
    let lock = ByHand::new(&server);
    let _ears = ["b", "c", "d"].map(|name| listen(&server, name));
    lock.ask("holder", 1, &At::new("none"));
    lock.is_refused("b", 1, &At::new("b"));
    // Its entry is an hour ahead, written before the clock was set back.
    let _: String = lock.redis("ZINCRBY {a}:queue 3600000000 b");
    lock.is_refused("c", 1, &At::new("c"));
    lock.is_refused("d", 1, &At::new("d"));
    assert_eq!(lock.redis::<Vec<String>>("ZRANGE {a}:queue 0 -1"), ["b", "c", "d"]);
}

#[test]
fn without_a_queue_nothing_is_left_while_waiting() {
    let server = Server::start();
    let holder = Client::open(&server.url()).unwrap();
    let guard = holder.lock("a").guard().unwrap();
    let waiter = Client::open(&server.url()).unwrap();
    let lock = waiter.lock_with("a", LockOptions::new().queue(Queue::None)).unwrap();
    let waiting = thread::spawn(move || lock.with(|_| ()));
    // Those of the log-ins, and some of its own.
    eventually(SOON, || server.command_count("evalsha") > 6);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.connection()).unwrap();
    assert_eq!(keys, ["a"]);
    guard.release().unwrap();
    waiting.join().unwrap().unwrap();
}

#[test]
fn attempts_stay_a_pause_apart_while_the_inbox_opens() {
    let server = Server::start();
    let guard = Client::open(&server.url()).unwrap().lock("a").guard().unwrap();
    let options = LockOptions::new().retry(Retry::fixed(ms(1_000)).attempts(3));
    // A client's first wait opens its inbox. The waiter asks again once the inbox is open: this is
    // one extra attempt, and not the last of three.
    let lock = Client::open(&server.url()).unwrap().lock_with("a", options).unwrap();
    within(ms(1_950)..SOON, || assert!(lock.lock().unwrap_err().is_exhausted()));
    assert!(server.command_count("subscribe") > 0, "it opened");
    guard.release().unwrap();
}

#[test]
fn a_connection_that_was_closed_while_idle_uses_up_no_attempt() {
    let server = Server::start();
    put(&server, "a", "another", SOON);
    let client = Client::open(&server.url()).unwrap();
    client.ping().unwrap();
    close_connections(&mut server.connection());
    let options = LockOptions::new().queue(Queue::None).retry(Retry::fixed(ms(400)).attempts(2));
    let lock = client.lock_with("a", options).unwrap();
    within(ms(380)..SOON, || assert!(lock.lock().unwrap_err().is_exhausted()));
}
