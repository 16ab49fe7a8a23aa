//! Where the primary of a service is: asked of its sentinels, as the [Redis documentation for
//! Sentinel clients](https://redis.io/docs/latest/develop/reference/sentinel-clients/) describes,
//! with two differences. All sentinels are asked at once, so that one which hangs delays nobody,
//! and the highest epoch among their answers decides (R23).

mod answer;
pub(crate) mod service;
mod state;
pub(crate) mod watcher;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};

pub(crate) use self::answer::Primary;
use self::answer::{SentinelAnswer, choose};
use self::state::KnownPrimary;
use super::connection::Connection;
use super::dial::{Address, Asking, Dialer};
use crate::base::error::{ErrorKind, Result};
use crate::base::store_error::StoreError;
use crate::base::{locked, log};

/// How long the other sentinels have to answer once one has.
const PATIENCE: Duration = Duration::from_millis(500);
/// Once a majority has answered, the client waits for the others as long again, and at least this.
const GRACE: Duration = Duration::from_millis(10);

/// The sentinels of one service, and what they have said.
pub(crate) struct Sentinels {
    service: String,
    /// Those that the program named.
    pub(crate) all: Vec<Arc<Sentinel>>,
    /// How the sentinels are reached.
    dialer: Dialer,
    /// How their primary is reached.
    primary: Dialer,
    /// How long the sentinels have to answer.
    within: Duration,
    state: Mutex<KnownPrimary>,
    /// Held by the thread that asks: the others wait for its answer. When the last one asked.
    asking: Mutex<Option<Instant>>,
    /// Called when the primary is another server than before.
    moved: OnceLock<OnMove>,
}

/// What to do when the primary has moved.
pub(crate) type OnMove = Box<dyn Fn() + Send + Sync>;

pub(crate) struct Sentinel {
    address: Address,
    connection: Mutex<Option<Connection>>,
    /// Whether a thread is asking it.
    busy: AtomicBool,
}

/// What came of asking one sentinel. `Ok(None)`: it does not know the service.
type Said = Result<Option<SentinelAnswer>, StoreError>;

impl Sentinels {
    pub(crate) fn new(
        service: &str,
        addresses: Vec<Address>,
        dialer: Dialer,
        primary: Dialer,
        within: Duration,
    ) -> Arc<Self> {
        let sentinel = |address| {
            let (connection, busy) = (Mutex::default(), AtomicBool::new(false));
            Arc::new(Sentinel { address, connection, busy })
        };
        Arc::new(Self {
            service: service.to_owned(),
            all: addresses.into_iter().map(sentinel).collect(),
            dialer,
            primary,
            // The rest is for the primary.
            within: within / 2,
            state: Mutex::new(KnownPrimary::new()),
            asking: Mutex::default(),
            moved: OnceLock::new(),
        })
    }

    /// Sets the callback for a move of the primary. Once.
    pub(crate) fn when_moved(&self, moved: OnMove) {
        let _ = self.moved.set(moved);
    }

    fn tell(&self) {
        if let Some(moved) = self.moved.get() {
            moved();
        }
    }

    /// The primary, as it is known; asked of the sentinels if it is not, or in doubt.
    pub(crate) fn find(self: &Arc<Self>, until: Instant) -> Result<Primary, StoreError> {
        if let Some(primary) = self.undoubted() {
            return Ok(primary);
        }
        let mut asked_at = locked(&self.asking);
        // Another thread may have asked meanwhile.
        match self.undoubted() {
            Some(primary) => Ok(primary),
            None => self
                .ask(&mut asked_at, half_way(until))
                .or_else(|error| self.last_known().ok_or(error)),
        }
    }

    /// Without any sentinel, the primary that is known is the best guess, unless one has told that
    /// it has moved.
    fn last_known(&self) -> Option<Primary> {
        let state = locked(&self.state);
        state.known.clone().filter(|_| !state.moved)
    }

    fn undoubted(&self) -> Option<Primary> {
        let state = locked(&self.state);
        state.known.clone().filter(|_| !state.in_doubt)
    }

    /// How the primary is reached there.
    pub(crate) fn dialer_of(&self, primary: &Primary) -> Dialer {
        self.primary.to(&primary.address.host, primary.address.port)
    }

    /// This primary could not be reached, or is a replica. Does nothing if another one is known
    /// meanwhile.
    pub(crate) fn doubt(&self, primary: &Primary) {
        let mut state = locked(&self.state);
        if state.known.as_ref() == Some(primary) {
            state.in_doubt = true;
        }
    }

    /// Asks all sentinels at once. Returns the primary that counts after that.
    fn ask(
        self: &Arc<Self>,
        last: &mut Option<Instant>,
        until: Instant,
    ) -> Result<Primary, StoreError> {
        let asked_at = Instant::now();
        *last = Some(asked_at);
        let until = until.min(asked_at + self.within);
        let mut refusals = Vec::new();
        let mut said = Vec::new();
        for answer in self.collect(asked_at, until) {
            match answer {
                Ok(Some(answer)) => said.push(answer),
                Ok(None) => refusals.push(unknown_service()),
                Err(error) => {
                    log::debug!("a sentinel did not say where the primary is: {}", error.message);
                    refusals.push(error);
                }
            }
        }
        self.learn(said).ok_or_else(|| worst(refusals, self.all.len()))
    }

    /// Asks one sentinel alone, which has just told of a failover, perhaps away from the known
    /// primary: the others may not know of it yet.
    fn ask_alone(&self, sentinel: &Arc<Sentinel>, away: bool) {
        let said = self.ask_one(sentinel, Instant::now() + self.within);
        if let Ok(Some(answer)) = said {
            if away {
                locked(&self.state).unless_news(&answer.primary);
            }
            self.learn(vec![answer]);
        }
    }

    /// What the sentinels say, until all have answered, or a majority and a little more time has
    /// passed, or the deadline.
    fn collect(self: &Arc<Self>, asked_at: Instant, until: Instant) -> Vec<Said> {
        let told = self.ask_each(until);
        let (mut answers, mut until) = (Vec::new(), until);
        let mut good = 0;
        while answers.len() < self.all.len()
            && let Ok(answer) = told.recv_deadline(until)
        {
            if let Ok(Some(_)) = answer {
                good += 1;
                let is_majority = good * 2 > self.all.len();
                let more = if is_majority { asked_at.elapsed().max(GRACE) } else { PATIENCE };
                until = until.min(Instant::now() + more);
            }
            answers.push(answer);
        }
        answers
    }

    /// Each sentinel is asked on a short-lived thread, as connections are opened on one.
    fn ask_each(self: &Arc<Self>, until: Instant) -> Receiver<Said> {
        let (tell, told) = unbounded();
        for sentinel in &self.all {
            // A sentinel that has not answered the last question is not asked again: threads that
            // wait for it would pile up.
            if sentinel.busy.swap(true, Ordering::SeqCst) {
                continue;
            }
            let (its, tell, all) = (Arc::clone(sentinel), tell.clone(), Arc::clone(self));
            let thread = thread::Builder::new().name("distlock-asks".into());
            let started = thread.spawn(move || {
                let said = all.ask_one(&its, until);
                its.busy.store(false, Ordering::SeqCst);
                let _ = tell.send(said);
            });
            if started.is_err() {
                sentinel.busy.store(false, Ordering::SeqCst);
            }
        }
        told
    }

    /// Over the connection that is open, and over a new one if that fails.
    fn ask_one(&self, sentinel: &Sentinel, until: Instant) -> Said {
        let open = locked(&sentinel.connection).take();
        if let Some(connection) = open
            && let Ok(said) = self.talk(sentinel, Asking { connection, until })
        {
            return said;
        }
        self.talk(sentinel, self.open(sentinel, until)?)?
    }

    /// Opens a connection to a sentinel.
    fn open(&self, sentinel: &Sentinel, until: Instant) -> Result<Asking, StoreError> {
        let Address { host, port } = &sentinel.address;
        let dialer = self.dialer.to(host, *port);
        let opened = dialer.open(until).and_then(|mut ask| {
            ask.authenticate(dialer.login())?;
            Ok(ask)
        });
        opened.map_err(|error| error.at(&dialer.address()))
    }

    /// `Err`: the connection is of no use any more.
    fn talk(&self, sentinel: &Sentinel, mut ask: Asking) -> Result<Said, StoreError> {
        ask.send(&answer::questions(&self.service))?;
        let replies = (0..answer::REPLIES).map(|_| ask.reply()).collect::<Result<_, _>>()?;
        let state = locked(&self.state);
        if !state.closed {
            *locked(&sentinel.connection) = Some(ask.connection);
        }
        drop(state);
        Ok(answer::read(replies))
    }

    /// Closes the connections that nobody is using; the others are closed after their use.
    pub(crate) fn close(&self) {
        let mut state = locked(&self.state);
        state.closed = true;
        for sentinel in &self.all {
            *locked(&sentinel.connection) = None;
        }
    }

    /// Remembers these answers. Returns the primary that counts now, if there is any.
    fn learn(&self, mut answers: Vec<SentinelAnswer>) -> Option<Primary> {
        let mut state = locked(&self.state);
        answers.retain(|answer| !state.has_left(&answer.primary));
        let chosen = choose(&answers, self.all.len(), state.known.as_ref())?;
        let chosen = state.unless_lower(chosen);
        if state.has_left(&chosen) {
            return None;
        }
        let before = state.known.replace(chosen.clone());
        (state.in_doubt, state.moved) = (false, false);
        drop(state);
        if before.is_some_and(|before| before.address != chosen.address) {
            log::info!("the primary of {:?} has moved", self.service);
            self.tell();
        }
        Some(chosen)
    }
}

/// Half of the time until then: the rest is for the primary.
fn half_way(until: Instant) -> Instant {
    let now = Instant::now();
    now + until.saturating_duration_since(now) / 2
}

fn unknown_service() -> StoreError {
    StoreError::not_sent(ErrorKind::InvalidInput, "the sentinels do not know this service")
        .permanent()
}

/// What to tell a caller whom no sentinel has told the primary. An answer counts more than none,
/// and is final only if a majority gave it.
fn worst(mut refusals: Vec<StoreError>, sentinels: usize) -> StoreError {
    let answered = refusals.iter().filter(|error| error.permanent).count();
    let at = refusals.iter().position(|error| error.permanent);
    match at.map(|at| refusals.swap_remove(at)) {
        Some(error) if answered * 2 > sentinels => error,
        Some(mut error) => {
            error.permanent = false;
            error.kind = ErrorKind::Unavailable;
            error
        }
        None => {
            let message = "no sentinel has said where the primary is";
            let silent = StoreError::not_sent(ErrorKind::Unavailable, message);
            match refusals.first() {
                Some(refusal) => silent.because(refusal.to_string()),
                None => silent,
            }
        }
    }
}
