//! Nodes in memory that can be made to fail, and that note what they were asked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use distlock::testing::{
    Abilities, Answer, Ask, Bell, Extend, Gone, Key, LeaseStore, Listening, Look, Release, State,
    StoreError, Token, Withdraw, Within,
};
use distlock::{Client, ClientBuilder, Error, ErrorKind, Layout, LockOptions};

/// How a node reacts to a question.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mood {
    #[default]
    Fine,
    /// Refuses connections.
    Down,
    /// Does nothing, and does not answer before its mood changes or the deadline has passed.
    Silent,
    /// Does nothing until its mood changes, and then does what it is asked, in its new mood.
    Paused,
    /// Does what it is asked; its answer is lost.
    Mute,
    /// Of this mood to questions of this kind; fine to all others.
    To(&'static str, &'static Mood),
    /// Does the next thing that it is asked. The answer is lost, as with a connection that turns
    /// out to be closed. After that it is fine.
    Stale,
    /// Does the next thing that it is asked, and answers. After that it is down.
    Last,
    /// Does what it is asked after this delay, and answers.
    Late(Duration),
    /// Has foreign data under every key.
    Foreign,
}

impl Mood {
    fn to(self, kind: &str) -> Self {
        match self {
            Self::To(its, mood) if its == kind => *mood,
            Self::To(..) => Self::Fine,
            mood => mood,
        }
    }
}

/// One node.
pub struct Node {
    inner: Arc<dyn LeaseStore>,
    mood: Mutex<Mood>,
    changed: Condvar,
    /// What it was asked, in order, and with which token.
    asked: Mutex<Vec<(&'static str, String)>>,
}

impl Node {
    pub fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
        self.changed.notify_all();
    }

    /// Whose lease the node stores, whatever its mood.
    pub fn holder(&self, name: &str) -> Option<String> {
        let key = Key::new(name.into());
        let state = self.inner.inspect(&key, Look::Holders, Instant::now()).unwrap();
        state.held.first().map(|held| held.token.text())
    }

    /// Puts somebody else's lease there.
    pub fn hold(&self, name: &str, token: &str, lease: Duration) {
        let (key, token) = (Key::new(name.into()), Token::new(token));
        let answer = self.inner.try_acquire(&ask(&key, &token, lease)).unwrap();
        assert!(matches!(answer, Answer::Granted { .. }));
    }

    /// Forgets the lease, like a node that restarts without its data.
    pub fn forget(&self, name: &str) {
        self.inner.force_release(&Key::new(name.into()), "", Instant::now()).unwrap();
    }

    /// The tokens of the questions of this kind, in order.
    pub fn asked(&self, kind: &str) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(asked, _)| *asked == kind).map(|(_, token)| token.clone()).collect()
    }

    /// The kinds of the questions, in order.
    pub fn kinds(&self) -> Vec<&'static str> {
        self.asked.lock().unwrap().iter().map(|(kind, _)| *kind).collect()
    }

    fn answer<T>(
        &self,
        kind: &'static str,
        token: &str,
        deadline: Instant,
        run: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let failed = |message| StoreError::not_sent(ErrorKind::Unavailable, message);
        let mood = self.mood.lock().unwrap();
        // Noted while the mood is locked: a test that sees the question and then changes the mood
        // changes the next answer.
        self.asked.lock().unwrap().push((kind, token.to_owned()));
        let mood = *self.changed.wait_while(mood, |mood| mood.to(kind) == Mood::Paused).unwrap();
        match mood.to(kind) {
            Mood::Fine => run(),
            Mood::Paused | Mood::To(..) => unreachable!("waited for"),
            Mood::Down => Err(failed("refused")),
            Mood::Silent => {
                let mut now = self.mood.lock().unwrap();
                while now.to(kind) == Mood::Silent && Instant::now() < deadline {
                    now = self.changed.wait_timeout(now, Duration::from_millis(1)).unwrap().0;
                }
                Err(failed("silent").maybe_run())
            }
            Mood::Mute => {
                let _ = run();
                Err(failed("answer lost").maybe_run())
            }
            Mood::Stale => {
                self.set(Mood::Fine);
                let _ = run();
                Err(StoreError { stale: true, dropped: true, ..failed("closed").maybe_run() })
            }
            Mood::Last => {
                self.set(Mood::Down);
                run()
            }
            Mood::Late(late) => {
                thread::sleep(late);
                run()
            }
            Mood::Foreign => {
                Err(StoreError::not_sent(ErrorKind::WrongType, "foreign data").permanent())
            }
        }
    }
}

pub fn ask<'a>(key: &'a Key, token: &'a Token, lease: Duration) -> Ask<'a> {
    let deadline = Instant::now() + Duration::from_secs(2);
    Ask {
        key,
        token,
        attempt: 1,
        lease,
        fences: 0,
        place: None,
        contended: false,
        may_be_mine: true,
        deadline,
    }
}

/// The store that the client sees.
struct Asked(Arc<Node>);

impl LeaseStore for Asked {
    fn try_acquire(&self, ask: &Ask<'_>) -> Result<Answer, StoreError> {
        self.0.answer("acquire", &ask.token.text(), ask.deadline, || self.0.inner.try_acquire(ask))
    }

    fn extend(&self, leases: &[Extend<'_>], within: Within) -> Vec<Result<bool, StoreError>> {
        let deadline = within.end(Instant::now());
        let one = |lease: &Extend<'_>| {
            let run = || self.0.inner.extend(&[*lease], within).remove(0);
            self.0.answer("extend", &lease.token.text(), deadline, run)
        };
        leases.iter().map(one).collect()
    }

    fn extend_one(&self, lease: &Extend<'_>, deadline: Instant) -> Result<bool, StoreError> {
        self.0.answer("extend_one", &lease.token.text(), deadline, || {
            self.0.inner.extend_one(lease, deadline)
        })
    }

    fn release(&self, what: &Release<'_>, deadline: Instant) -> Result<Gone, StoreError> {
        self.0.answer("release", &what.token.text(), deadline, || {
            self.0.inner.release(what, deadline)
        })
    }

    fn withdraw(&self, what: &[Withdraw<'_>], deadline: Instant) -> Vec<Result<Gone, StoreError>> {
        let one = |what: &Withdraw<'_>| {
            self.0.answer("release", &what.token.text(), deadline, || {
                self.0.inner.withdraw_one(*what, deadline)
            })
        };
        what.iter().map(one).collect()
    }

    fn listen(&self, key: &Key, token: &Token, bell: &Arc<Bell>) -> Option<Listening> {
        self.0.inner.listen(key, token, bell)
    }

    fn abilities(&self) -> Abilities {
        self.0.inner.abilities()
    }

    fn inspect(&self, key: &Key, look: Look, deadline: Instant) -> Result<State, StoreError> {
        self.0.answer("inspect", "", deadline, || self.0.inner.inspect(key, look, deadline))
    }

    fn force_release(&self, key: &Key, share: &str, deadline: Instant) -> Result<bool, StoreError> {
        self.0.answer("force", "", deadline, || self.0.inner.force_release(key, share, deadline))
    }

    fn supports(&self, options: &LockOptions) -> Result<(), Error> {
        self.0.inner.supports(options)
    }
}

/// Five nodes.
pub struct Nodes {
    urls: Vec<String>,
    pub nodes: Vec<Arc<Node>>,
    /// Keep the shared stores in memory alive while no tested client does.
    _anchors: Vec<Client>,
}

impl Nodes {
    pub fn start() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::SeqCst);
        let urls: Vec<String> = (0..5).map(|i| format!("memory://redlock-{id}-{i}")).collect();
        let anchors: Vec<Client> = urls.iter().map(|url| Client::open(url).unwrap()).collect();
        let node = |anchor: &Client| {
            let inner = anchor.store(Layout::Plain).unwrap();
            Arc::new(Node {
                inner,
                mood: Mutex::default(),
                changed: Condvar::new(),
                asked: Mutex::default(),
            })
        };
        Self { nodes: anchors.iter().map(node).collect(), urls, _anchors: anchors }
    }

    /// A client's builder; the clients of these nodes meet the same moods.
    pub fn builder(&self) -> ClientBuilder {
        let nodes = self.nodes.clone();
        let wrap = move |index: usize, _| {
            Arc::new(Asked(Arc::clone(&nodes[index]))) as Arc<dyn LeaseStore>
        };
        Client::redlock_builder(&self.urls).wrap_nodes(wrap)
    }

    pub fn client(&self) -> Client {
        self.builder().build().unwrap()
    }

    pub fn set(&self, which: impl IntoIterator<Item = usize>, mood: Mood) {
        which.into_iter().for_each(|node| self.nodes[node].set(mood));
    }

    /// The nodes that hold the lock for somebody.
    pub fn holding(&self, name: &str) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].holder(name).is_some()).collect()
    }
}
