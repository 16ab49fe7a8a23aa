//! A proxy in front of a server that understands RESP, so that a fault can be aimed at one command
//! or one reply.
//!
//! It can do what no packet filter can: cut a connection exactly after the server has run a `SET`
//! and before the client hears of it. Faults are [`Rule`]s, added and removed while the proxy runs;
//! each tells the test when it has happened, so that tests are ordered by that and not by sleeps.
//! Data that is not RESP (TLS) passes unchanged.

mod accept;
mod deliver;
mod link;
mod rules;

use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use self::accept::accept;
use self::link::Link;
use self::rules::Rules;
#[allow(unused_imports)]
pub use self::rules::{Fault, Firing, Held, Planned, Rule};
use super::ports;

/// What the proxy does with new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mode {
    /// Connects them to the server.
    #[default]
    Forward,
    /// Accepts them and never sends anything.
    Silent,
    /// Accepts them and ends them at once.
    Close,
    /// Does not listen: the kernel refuses them.
    Refuse,
}

/// A running proxy. Dropping it ends its connections and joins its threads.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

/// What the test and the proxy's threads share. Each connection's threads hold it, so it lives
/// until they have ended.
struct Shared {
    port: u16,
    plan: Mutex<Plan>,
    /// Notified whenever the plan, a held frame or a connection's life changes.
    changed: Condvar,
    accepted: AtomicUsize,
    requests: AtomicU64,
    links: Mutex<Vec<Weak<Link>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the test wants.
struct Plan {
    upstream: u16,
    rules: Rules,
    mode: Mode,
    frozen: bool,
    resets: bool,
    to_server: Duration,
    to_client: Duration,
    jitter: Duration,
    /// State of the generator behind the jitter.
    random: u64,
    /// Set by the accepting thread.
    listening: bool,
    closing: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Proxy {
    /// Listens on a free port and forwards to `upstream` (a port of 127.0.0.1).
    pub fn start(upstream: u16) -> Proxy {
        let listener = ports::listen();
        let port = listener.local_addr().unwrap().port();
        let plan = Plan {
            upstream,
            rules: Rules::default(),
            mode: Mode::Forward,
            frozen: false,
            resets: false,
            to_server: Duration::ZERO,
            to_client: Duration::ZERO,
            jitter: Duration::ZERO,
            random: u64::from(port),
            listening: true,
            closing: false,
        };
        let shared = Arc::new(Shared {
            port,
            plan: Mutex::new(plan),
            changed: Condvar::new(),
            accepted: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            links: Mutex::default(),
            threads: Mutex::default(),
        });
        let for_thread = Arc::clone(&shared);
        shared.spawn("accept", move || accept(&for_thread, listener));
        Proxy { port, shared }
    }

    /// `redis://` through the proxy.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// `redis://` through the proxy, with this user and password.
    pub fn url_with(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}/", self.port)
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Puts a rule in force, for the commands from now on.
    pub fn add(&self, rule: Rule) -> Planned {
        self.shared.plan().rules.add(rule, &self.shared)
    }

    /// Takes all rules out of force; what they hold stays held.
    pub fn clear_rules(&self) {
        self.shared.plan().rules.clear();
    }

    /// Sets a constant delay for each direction, for everything that is read from now on. Order is
    /// kept, and any number of frames can be under way.
    pub fn set_delay(&self, to_server: Duration, to_client: Duration) {
        let mut plan = self.shared.plan();
        (plan.to_server, plan.to_client) = (to_server, to_client);
    }

    /// Adds a random delay of up to `limit` to each frame. Order is kept within a connection, not
    /// across connections.
    pub fn set_jitter(&self, limit: Duration) {
        self.shared.plan().jitter = limit;
    }

    /// Sends new connections to another port of 127.0.0.1.
    pub fn set_upstream(&self, port: u16) {
        self.shared.plan().upstream = port;
    }

    /// Lets nothing through in either direction, like an unplugged cable. Nothing is lost.
    pub fn freeze(&self) {
        self.shared.plan().frozen = true;
    }

    /// Lets everything through again, the held frames first.
    pub fn thaw(&self) {
        self.shared.plan().frozen = false;
        self.shared.wake();
    }

    /// Whether clients see a cut as a reset (RST) instead of an end (FIN).
    pub fn set_resets(&self, resets: bool) {
        self.shared.plan().resets = resets;
    }

    /// Sets what happens to new connections; existing ones stay as they are. Returns once it is in
    /// effect.
    pub fn set_mode(&self, mode: Mode) {
        let mut plan = self.shared.plan();
        plan.mode = mode;
        let listens = mode != Mode::Refuse;
        drop(plan);
        if listens {
            self.shared.wake();
        } else {
            self.shared.wake_acceptor();
        }
        plan = self.shared.plan();
        while plan.listening != listens {
            plan = self.shared.changed.wait(plan).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends all connections that exist; returns how many there were.
    pub fn cut_all(&self) -> usize {
        let reset = self.shared.plan().resets;
        let links = self.shared.live_links();
        links.iter().for_each(|link| link.cut(reset));
        links.len()
    }

    /// How many connections have been accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many requests clients have sent so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// How many connections there are now.
    pub fn open(&self) -> usize {
        self.shared.links().iter().filter(|link| link.strong_count() > 0).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.plan().closing = true;
        self.shared.wake_acceptor();
        let mut failed = false;
        // The accepting thread is joined first: once it has ended, no connection can be added.
        while let Some(thread) = self.shared.first_thread() {
            failed |= thread.join().is_err();
            self.shared.live_links().iter().for_each(|link| link.end());
        }
        assert!(!failed || thread::panicking(), "a thread of the proxy has panicked");
    }
}

impl Shared {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> MutexGuard<'_, Vec<Weak<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes every thread that waits for a change. Takes the plan's mutex first: a thread that has
    /// looked and not yet slept would miss it otherwise.
    fn wake(&self) {
        drop(self.plan());
        self.changed.notify_all();
    }

    fn wake_acceptor(&self) {
        self.wake();
        // The thread sleeps in accept(), and only a connection wakes it. If this one is refused,
        // the thread does not sleep there.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }

    /// When something read now is to be delivered.
    fn due(&self, direction: Direction) -> Instant {
        let mut plan = self.plan();
        let mut delay =
            if direction == Direction::ToServer { plan.to_server } else { plan.to_client };
        if plan.jitter > Duration::ZERO {
            plan.random = plan
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let share = (plan.random >> 33) as f64 / f64::from(1_u32 << 31);
            delay += plan.jitter.mul_f64(share);
        }
        Instant::now() + delay
    }

    fn spawn(&self, role: &str, work: impl FnOnce() + Send + 'static) {
        // The kernel keeps 15 bytes of a name.
        let name = format!("px{}{role}", self.port);
        let thread = thread::Builder::new().name(name).spawn(work).expect("a thread");
        self.threads().push(thread);
    }

    fn live_links(&self) -> Vec<Arc<Link>> {
        self.links().iter().filter_map(Weak::upgrade).collect()
    }

    fn first_thread(&self) -> Option<JoinHandle<()>> {
        let mut threads = self.threads();
        (!threads.is_empty()).then(|| threads.remove(0))
    }

    /// Joins the threads of connections that have ended: a test may make many of them.
    fn forget_ended(&self) {
        self.links().retain(|link| link.strong_count() > 0);
        let mut threads = self.threads();
        let ended: Vec<usize> = (1..threads.len()).filter(|&i| threads[i].is_finished()).collect();
        for i in ended.into_iter().rev() {
            threads.remove(i).join().expect("a thread of the proxy has panicked");
        }
    }
}
