//! What the behaviour tests share: clients, threads that hold, and a store that counts what is
//! asked of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use distlock::testing::{
    Abilities, Answer, Ask, Bell, Extend, Gone, Held, InCondition, Key, LeaseStore, Listening,
    Look, Notify, Release, State, StoreError, Token, Withdraw, Within,
};
use distlock::{Client, ClientBuilder, Error, LockOptions, RedisLock};

pub use crate::elsewhere::Elsewhere;
use crate::support::{Server, eventually};

/// Far longer than anything takes when all is well.
pub const SOON: Duration = Duration::from_secs(10);

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A client of this server.
pub fn client(server: &Server) -> Client {
    Client::open(&server.url()).unwrap()
}

/// A client of a store in memory that nobody else uses.
pub fn memory() -> Client {
    Client::open("memory://").unwrap()
}

/// Leases of this length, acquired by polling: no test depends on wake-ups, which only some stores
/// have.
pub fn lease(length: Duration) -> LockOptions {
    LockOptions::new().lease(length)
}

/// The value under a key of the server.
pub fn get(server: &Server, key: &str) -> Option<String> {
    redis::cmd("GET").arg(key).query(&mut server.connection()).unwrap()
}

/// Puts a value under a key of the server, for that long.
pub fn put(server: &Server, key: &str, value: &str, length: Duration) {
    let mut set = redis::cmd("SET");
    let length = u64::try_from(length.as_millis()).unwrap();
    set.arg(key).arg(value).arg("PX").arg(length).exec(&mut server.connection()).unwrap();
}

pub fn delete(server: &Server, key: &str) {
    redis::cmd("DEL").arg(key).exec(&mut server.connection()).unwrap();
}

/// How long a key of the server lasts, in ms: -2 without the key, -1 without an end.
pub fn pttl(server: &Server, key: &str) -> i64 {
    redis::cmd("PTTL").arg(key).query(&mut server.connection()).unwrap()
}

/// Closes every connection to the server but this one and subscriptions.
pub fn close_connections(but: &mut redis::Connection) {
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec(but).unwrap();
}

/// Every key of the server, sorted.
pub fn keys(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> =
        redis::cmd("KEYS").arg("*").query(&mut server.connection()).unwrap();
    keys.sort();
    keys
}

/// Whether this is a lease's token: a share if it has one, a UUID, and a name.
pub fn is_token(text: &str) -> bool {
    let front = text.split_once('@').map_or("", |(front, _)| front);
    let uuid = front.rsplit(':').next().unwrap();
    uuid.len() == 36 && uuid.matches('-').count() == 4
}

/// Who holds a lock, as the store has it.
#[track_caller]
pub fn held(store: &dyn LeaseStore, key: &Key) -> Vec<Held> {
    store.inspect(key, Look::Holders, Instant::now() + SOON).unwrap().held
}

/// Runs `work` on a thread of its own and returns its value.
pub fn on_another_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// A thread at work, and its result at the end.
pub struct Underway<T> {
    result: Receiver<T>,
    thread: JoinHandle<()>,
}

impl<T: Send + 'static> Underway<T> {
    pub fn start(work: impl FnOnce() -> T + Send + 'static) -> Underway<T> {
        let (done, result) = mpsc::channel();
        let thread = thread::spawn(move || {
            let _ = done.send(work());
        });
        Underway { result, thread }
    }

    /// Starts `work`, and returns once one more thread waits for its local turn at this lock.
    #[track_caller]
    pub fn behind(
        client: &Client,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Underway<T> {
        let before = client.waiting(name);
        let underway = Underway::start(work);
        eventually(SOON, || client.waiting(name) > before);
        underway
    }

    /// Its result, which must come soon.
    #[track_caller]
    pub fn result(self) -> T {
        self.result_within(SOON)
    }

    /// Like [`result`](Self::result), but the work may take that long.
    #[track_caller]
    pub fn result_within(self, limit: Duration) -> T {
        let Ok(result) = self.result.recv_timeout(limit) else {
            assert!(self.thread.is_finished(), "still not done after {limit:?}");
            panic!("the thread has panicked");
        };
        self.thread.join().unwrap();
        result
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Unwraps what must have failed.
#[track_caller]
pub fn error<T>(result: Result<T, Error>) -> Error {
    match result {
        Ok(_) => panic!("this should have failed"),
        Err(error) => error,
    }
}

/// Whether another thread of this client finds the lock free. Unlocks it again if so.
pub fn is_free(lock: &RedisLock) -> bool {
    on_another_thread(|| lock.try_lock(Duration::ZERO).unwrap() && lock.unlock().is_ok())
}

/// What a client has asked its store to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Acquire {
        token: String,
        attempt: u64,
    },
    Extend {
        keys: Vec<String>,
        thread: Option<String>,
    },
    ExtendOne,
    Release,
    /// The store has a connection for a release, and has reported that.
    ReleaseIsSent,
    Withdraw(Vec<String>),
}

/// Keeps a pooled connection of a client in use until this is dropped. In a pool of one it is the
/// only connection.
pub struct Busy {
    free: Option<Sender<()>>,
    user: Option<JoinHandle<()>>,
}

impl Busy {
    pub fn connection_of(client: &Client) -> Busy {
        let ((free, freed), (used, is_used)) = (mpsc::channel(), mpsc::channel());
        let client = client.clone();
        let user = thread::spawn(move || {
            let used = client.execute(|_| {
                used.send(()).unwrap();
                let _ = freed.recv_timeout(SOON * 3);
                Ok(())
            });
            used.unwrap();
        });
        is_used.recv_timeout(SOON).unwrap();
        Busy { free: Some(free), user: Some(user) }
    }

    /// Frees it after this time, in the background.
    pub fn for_another(self, time: Duration) {
        thread::spawn(move || {
            thread::sleep(time);
            drop(self);
        });
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        drop(self.free.take());
        let _ = self.user.take().map(JoinHandle::join);
    }
}

/// How many inboxes this server knows.
pub fn inboxes(server: &Server) -> usize {
    let channels: Vec<String> = redis::cmd("PUBSUB")
        .arg("CHANNELS")
        .arg("distlock:inbox:*")
        .query(&mut server.connection())
        .unwrap();
    channels.len()
}

/// A store that notes what it is asked to do, and runs the test's own code within a call.
pub struct Watched {
    inner: Arc<dyn LeaseStore>,
    notes: Arc<Notes>,
}

type Hook = Box<dyn Fn(&Asked) + Send + Sync>;

/// What a [`Watched`] store has seen.
#[derive(Default)]
pub struct Notes {
    asked: Mutex<Vec<(Instant, ThreadId, Asked)>>,
    under_way: AtomicUsize,
    /// Called before a call goes on to the store, and after it came back.
    before: Mutex<Option<Arc<Hook>>>,
    after: Mutex<Option<Arc<Hook>>>,
}

impl Notes {
    /// Puts a watched store behind the clients of this builder.
    pub fn of(builder: ClientBuilder) -> (Client, Arc<Notes>) {
        let notes = Arc::new(Notes::default());
        let for_store = Arc::clone(&notes);
        let client = builder
            .wrap(move |inner| Arc::new(Watched { inner, notes: Arc::clone(&for_store) }))
            .build()
            .unwrap();
        (client, notes)
    }

    /// Has `hook` called before each call goes on to the store.
    pub fn before(&self, hook: impl Fn(&Asked) + Send + Sync + 'static) {
        *self.before.lock().unwrap() = Some(Arc::new(Box::new(hook)));
    }

    /// Has `hook` called after each call came back from the store.
    pub fn after(&self, hook: impl Fn(&Asked) + Send + Sync + 'static) {
        *self.after.lock().unwrap() = Some(Arc::new(Box::new(hook)));
    }

    /// What was asked so far, when, and on which thread.
    pub fn asked(&self) -> Vec<(Instant, ThreadId, Asked)> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The attempts so far.
    pub fn attempts(&self) -> usize {
        self.count(|asked| matches!(asked, Asked::Acquire { .. }))
    }

    /// The calls that extend so far, however many leases each has.
    pub fn extends(&self) -> usize {
        self.count(|asked| matches!(asked, Asked::Extend { .. }))
    }

    /// How many calls have not come back yet.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }

    /// A thread waits in the server's queue for this lock, and knows it: a release hands it over.
    #[track_caller]
    pub fn queued(&self, lock: &RedisLock) {
        // The answer comes after the place.
        eventually(SOON, || lock.inspect().unwrap().waiters.len() == 1 && self.under_way() == 0);
    }

    pub fn count(&self, wanted: impl Fn(&Asked) -> bool) -> usize {
        self.asked().iter().filter(|(_, _, asked)| wanted(asked)).count()
    }

    fn around<R>(&self, asked: Asked, call: impl FnOnce() -> R) -> R {
        // First: whoever sees the call among those that were asked sees that it is under way.
        self.under_way.fetch_add(1, Ordering::SeqCst);
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push((
            Instant::now(),
            thread::current().id(),
            asked.clone(),
        ));
        let before = self.before.lock().unwrap().clone();
        if let Some(hook) = before {
            hook(&asked);
        }
        let result = call();
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        let after = self.after.lock().unwrap().clone();
        if let Some(hook) = after {
            hook(&asked);
        }
        result
    }
}

impl LeaseStore for Watched {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        let asked = Asked::Acquire { token: ask.token.text(), attempt: ask.attempt };
        self.notes.around(asked, || self.inner.try_acquire(ask))
    }

    fn extend(&self, leases: &[Extend<'_>], within: Within) -> Vec<Result<bool, StoreError>> {
        let keys = leases.iter().map(|lease| lease.key.as_str().to_owned()).collect();
        let asked = Asked::Extend { keys, thread: thread::current().name().map(str::to_owned) };
        self.notes.around(asked, || self.inner.extend(leases, within))
    }

    fn extend_one(&self, lease: &Extend<'_>, deadline: Instant) -> Result<bool, StoreError> {
        self.notes.around(Asked::ExtendOne, || self.inner.extend_one(lease, deadline))
    }

    fn release(&self, what: &Release<'_>, deadline: Instant) -> Result<Gone, StoreError> {
        let may_be_sent = || {
            let may = (what.may_be_sent)();
            self.notes.around(Asked::ReleaseIsSent, || may)
        };
        self.notes.around(Asked::Release, || {
            self.inner.release(&Release { may_be_sent: &may_be_sent, ..*what }, deadline)
        })
    }

    fn withdraw(&self, what: &[Withdraw<'_>], deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        let keys = what.iter().map(|what| what.key.as_str().to_owned()).collect();
        self.notes.around(Asked::Withdraw(keys), || self.inner.withdraw(what, deadline))
    }

    fn listen(&self, key: &Key, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        self.inner.listen(key, token, bell)
    }

    fn shard(&self, key: &Key) -> u16 {
        self.inner.shard(key)
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn wait_in(
        &self,
        ask: &Ask<'_>,
        condition: &str,
        release: Option<&Release<'_>>,
        leave: bool,
    ) -> Result<InCondition, StoreError> {
        let Some(what) = release else {
            return self.inner.wait_in(ask, condition, release, leave);
        };
        let may_be_sent = || self.notes.around(Asked::ReleaseIsSent, what.may_be_sent);
        let release = Release { may_be_sent: &may_be_sent, ..*what };
        self.inner.wait_in(ask, condition, Some(&release), leave)
    }

    fn notify(&self, what: &Notify<'_>, deadline: Instant) -> Result<Option<u64>, StoreError> {
        self.inner.notify(what, deadline)
    }

    fn inspect(&self, key: &Key, look: Look, deadline: Instant) -> Result<State, StoreError> {
        self.inner.inspect(key, look, deadline)
    }

    fn force_release(&self, key: &Key, share: &str, deadline: Instant) -> Result<bool, StoreError> {
        self.inner.force_release(key, share, deadline)
    }

    fn supports(&self, options: &LockOptions) -> Result<(), Error> {
        self.inner.supports(options)
    }
}
