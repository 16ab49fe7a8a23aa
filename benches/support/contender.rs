//! The contenders that run in Rust: ours, and bare commands over one connection.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use distlock::{Client, LockOptions, Permit, RedisLock, Semaphore};

/// How long every lease lasts.
const LEASE_MS: u64 = 30_000;

/// Compare-and-delete, as in every textbook.
const DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// One thread's access to one lock.
pub trait Contender: Send {
    fn lock(&mut self);
    fn unlock(&mut self);
}

/// One process's access to a server, by the name of a contender.
pub struct Maker {
    name: String,
    url: String,
    client: Option<Client>,
}

impl Maker {
    /// `ours`, `ours-fenced`, `ours-apart` (no local hand-offs), `ours-read`, `ours-write` (the
    /// sides of a read-write lock), `ours-permit` (one of ten), `raw`, `raw-1ms` (pauses of 1 ms
    /// between attempts).
    pub fn new(name: &str, url: &str) -> Self {
        let client = name.starts_with("ours").then(|| Client::open(url).unwrap());
        Self { name: name.to_owned(), url: url.to_owned(), client }
    }

    /// One of our locks with its default options.
    pub fn lock(&self, key: &str) -> RedisLock {
        self.client.as_ref().unwrap().lock(key)
    }

    pub fn make(&self, key: &str) -> Box<dyn Contender> {
        let Some(client) = &self.client else {
            let pause = (self.name == "raw-1ms").then_some(Duration::from_millis(1));
            return Box::new(Raw::new(&self.url, key, pause));
        };
        let with = |options| client.lock_with(key, options).unwrap();
        let lock = match self.name.as_str() {
            "ours" => client.lock(key),
            "ours-fenced" => with(LockOptions::new().fenced()),
            "ours-apart" => with(LockOptions::new().local_hand_offs(0)),
            "ours-read" => client.rw_lock(key).read_lock().clone(),
            "ours-write" => client.rw_lock(key).write_lock().clone(),
            "ours-permit" => {
                return Box::new(OurPermit { semaphore: client.semaphore(key, 10), held: None });
            }
            name => panic!("no contender is called {name}"),
        };
        Box::new(Ours { lock })
    }
}

struct Ours {
    lock: RedisLock,
}

impl Contender for Ours {
    fn lock(&mut self) {
        self.lock.lock().unwrap();
    }

    fn unlock(&mut self) {
        self.lock.unlock().unwrap();
    }
}

struct OurPermit {
    semaphore: Semaphore,
    held: Option<Permit>,
}

impl Contender for OurPermit {
    fn lock(&mut self) {
        self.held = Some(self.semaphore.acquire().unwrap());
    }

    fn unlock(&mut self) {
        self.held.take().unwrap().release().unwrap();
    }
}

/// `SET NX PX` and EVALSHA on a bare connection: the minimum that a lock on Redis can send. No
/// renewal, no queue, no error handling.
pub struct Raw {
    connection: redis::Connection,
    key: String,
    /// The part that is the same in every token of this process.
    process: u32,
    token: String,
    delete: String,
    pause: Option<Duration>,
}

impl Raw {
    pub fn new(url: &str, key: &str, pause: Option<Duration>) -> Self {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        let delete = redis::cmd("SCRIPT").arg("LOAD").arg(DELETE).query(&mut connection).unwrap();
        Self {
            connection,
            key: key.to_owned(),
            process: process::id(),
            token: String::new(),
            delete,
            pause,
        }
    }

    /// Takes a free lock, and waits for one replica in the same packet.
    pub fn lock_confirmed(&mut self) {
        let (set, replicas): (Option<String>, u64) = redis::pipe()
            .add_command(self.take())
            .add_command(redis::cmd("WAIT").arg(1).arg(1000).to_owned())
            .query(&mut self.connection)
            .unwrap();
        assert!(set.is_some() && replicas > 0, "it was held, or not confirmed");
    }

    /// The next attempt, with a token of its own.
    fn take(&mut self) -> redis::Cmd {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // As long as a token with a default name, so that the same number of bytes travels.
        self.token = format!("{:032x}{:032x}", self.process, NEXT.fetch_add(1, Ordering::Relaxed));
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(&self.token).arg("NX").arg("PX").arg(LEASE_MS);
        set
    }
}

impl Contender for Raw {
    fn lock(&mut self) {
        let take = self.take();
        loop {
            let set: Option<String> = take.query(&mut self.connection).unwrap();
            if set.is_some() {
                return;
            }
            if let Some(pause) = self.pause {
                thread::sleep(pause);
            }
        }
    }

    fn unlock(&mut self) {
        let deleted: u64 = redis::cmd("EVALSHA")
            .arg(&self.delete)
            .arg(1)
            .arg(&self.key)
            .arg(&self.token)
            .query(&mut self.connection)
            .unwrap();
        assert_eq!(deleted, 1, "the lease was not ours any more");
    }
}
