//! What a row of the matrix acts on: a server, a proxy before it, client processes under load, and
//! the witnesses.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::admin::Admin;
use super::clock::{Random, nanos, now};
use super::load::{Load, key_name};
use super::problems::{Class, Problem};
use super::substance::Substance;
use super::support::fake::FakeServer;
use super::support::process::Guarded;
use super::support::sentinels::Sentinel;
use super::support::{Proxy, Server};
use super::third_party::Back;
use super::tune::{Size, Tune, ms};
use super::witness::Resource;

/// How long the faulted phase lasts: its time, or longer, up to eight times as long, while it has
/// shown too little to prove anything.
struct Patience {
    least: u64,
    most: u64,
    /// When the history is read next: that takes a while.
    look: Cell<u64>,
}

impl Patience {
    /// `since`: when a fault began that has no windows.
    fn is_over(&self, world: &World, since: Option<u64>) -> bool {
        let at = now();
        if at < self.least || at >= self.most {
            return at >= self.most;
        }
        if world.faults < world.least.faults || at < self.look.get() {
            return false;
        }
        let mut times = world.times.clone();
        times.extend(since.map(|from| (from, at)));
        let keys = world.tune.load.all_keys();
        let shown = Substance::so_far(world.faults, world.dir(), keys, &times, &world.outages);
        self.look.set(now() + 500_000_000);
        // Twice as many holds as the verdict asks for: what a broken client does only now and then
        // has to happen in them.
        let least = Substance { holds: world.least.holds * 2, ..world.least };
        least.missing(&shown).is_empty()
    }
}

/// A running row.
pub struct World {
    pub size: Size,
    pub tune: Tune,
    pub random: Random,
    pub server: Server,
    /// Before the server, for all client processes but the first.
    pub proxy: Proxy,
    /// For the first client process, so that a fault can hit one and spare the others. Not used on
    /// a quorum, or if there is no proxy in between.
    pub apart: Proxy,
    /// The other nodes of a quorum or of a cluster, or the server's replicas.
    pub more: Vec<(Server, Proxy)>,
    /// The sentinels that watch these servers, and those that only say so.
    pub sentinels: Vec<Sentinel>,
    pub fakes: Vec<FakeServer>,
    pub resource: Resource,
    pub dir: TempDir,
    pub clients: Vec<Guarded>,
    /// Their process ids, for the thread that takes samples.
    pub pids: Arc<Mutex<Vec<u32>>>,
    /// The total, including those that were killed.
    pub spawned: u64,
    pub faults: u64,
    /// What the row must show.
    pub least: Substance,
    /// Keys that a third party took away, and when.
    pub taken: Vec<(u64, u64)>,
    /// Which of them came back under the old token.
    pub back: Vec<Back>,
    /// Problems that the row itself found.
    pub problems: Vec<Problem>,
    pub remarks: Vec<String>,
    /// Values that must be in no log.
    pub secrets: HashSet<String>,
    /// When the fault was active, from and to.
    pub times: Vec<(u64, u64)>,
    /// When it made every grant impossible.
    pub outages: Vec<(u64, u64)>,
    /// Whether that is so in the present window.
    pub is_outage: bool,
    /// When all or some clients could not reach the server.
    pub cut_offs: Vec<(u64, u64)>,
    /// Whether the server may have connections that their clients have closed: the packet that
    /// reports the end was dropped, or is late.
    pub half_open: bool,
    /// Which processes the present fault hits: the first alone, or all.
    pub only_first: bool,
    apart_url: Option<String>,
    seed: u64,
    admin: Admin,
}

impl World {
    /// Starts the server, the proxy and the resource. No clients yet.
    pub fn new(size: Size, mut tune: Tune, seed: u64) -> World {
        let server = std::mem::take(&mut tune.server).start();
        let (proxy, apart) = (Proxy::start(server.port()), Proxy::start(server.port()));
        let dir = tempfile::Builder::new()
            .prefix("distlock-faults-")
            .tempdir_in("/dev/shm")
            .expect("a directory in memory");
        let resource = Resource::start(dir.path());
        let port = if tune.direct { server.port() } else { proxy.port() };
        let user =
            tune.user.map_or(String::new(), |(name, password)| format!("{name}:{password}@"));
        let admin = Admin::of(&server, ms(5000));
        let url = |port: u16| format!("redis://{user}127.0.0.1:{port}/");
        tune.load.url = url(port);
        let apart_url = (tune.apart && !tune.direct).then(|| url(apart.port()));
        let secrets = tune.user.iter().map(|(_, password)| (*password).to_owned()).collect();
        World {
            size,
            tune,
            random: Random(seed),
            server,
            proxy,
            apart,
            more: Vec::new(),
            sentinels: Vec::new(),
            fakes: Vec::new(),
            resource,
            dir,
            clients: Vec::new(),
            pids: Arc::default(),
            spawned: 0,
            faults: 0,
            least: Substance::default(),
            taken: Vec::new(),
            back: Vec::new(),
            problems: Vec::new(),
            remarks: Vec::new(),
            secrets,
            times: Vec::new(),
            outages: Vec::new(),
            is_outage: false,
            cut_offs: Vec::new(),
            half_open: false,
            only_first: false,
            apart_url,
            seed,
            admin,
        }
    }

    /// Notes that a promise was broken.
    pub fn red(&mut self, what: impl Into<String>) {
        self.problems.push((Class::Red, what.into()));
    }

    /// Notes that something took too long, which may be the machine's doing.
    pub fn late(&mut self, what: impl Into<String>) {
        self.problems.push((Class::Late, what.into()));
    }

    /// Notes that the row has shown too little.
    pub fn little(&mut self, what: impl Into<String>) {
        self.problems.push((Class::Little, what.into()));
    }

    /// Starts all client processes and waits until they work.
    pub fn start_clients(&mut self) {
        for place in 0..self.tune.processes {
            let client = self.spawn_client(place == 0);
            self.clients.push(client);
        }
        self.note_pids();
        let started = now();
        while (0..self.spawned).any(|process| !self.status(process).contains("started")) {
            assert!(now() - started < 30_000_000_000, "the clients do not start: {}", self.logs());
            thread::sleep(ms(5));
        }
        thread::sleep(ms(300));
    }

    fn spawn_client(&mut self, first: bool) -> Guarded {
        let process = self.spawned;
        self.spawned += 1;
        let own = self.dir.path().join(format!("client-{process}"));
        fs::create_dir(&own).expect("a directory for the client");
        let program = std::env::current_exe().expect("the driver's own program");
        let seed = self.seed ^ (process + 1).wrapping_mul(0x2545_f491_4f6c_dd1d);
        let url = self
            .apart_url
            .iter()
            .find(|_| first)
            .cloned()
            .unwrap_or_else(|| self.tune.load.url.clone());
        let load = Load { url, ..self.tune.load.clone() };
        Guarded::start(
            &own,
            &program.display().to_string(),
            &load.arguments(self.dir.path(), process, seed),
        )
    }

    /// Starts one more client process.
    pub fn add_client(&mut self) {
        let client = self.spawn_client(false);
        self.clients.push(client);
        self.note_pids();
    }

    fn note_pids(&self) {
        *self.pids.lock().expect("nobody panics with it") =
            self.clients.iter().map(Guarded::pid).collect();
    }

    /// The next fault hits only the first process.
    pub fn choose_first(&mut self) {
        (self.only_first, self.is_outage) = (true, false);
    }

    /// Makes every client process use these servers, separated by commas.
    pub fn at(&mut self, urls: String) {
        (self.tune.load.url, self.apart_url) = (urls, None);
    }

    /// Makes the first client process use this URL.
    pub fn first_at(&mut self, url: String) {
        self.apart_url = Some(url);
    }

    /// Whether the servers are the nodes of a cluster.
    pub fn is_cluster(&self) -> bool {
        self.tune.load.url.starts_with("redis+cluster:")
    }

    /// The server, and those in `more`.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        std::iter::once(&self.server).chain(self.more.iter().map(|(server, _)| server))
    }

    /// Chooses the processes that the next fault hits: every other time only the first one. If it
    /// hits all of them, no grant is possible.
    pub fn choose(&mut self) {
        self.only_first = self.apart_url.is_some() && self.times.len() % 2 == 1;
        self.is_outage = !self.only_first;
    }

    /// Whether the first process may have been cut off alone.
    pub fn has_apart(&self) -> bool {
        self.apart_url.is_some()
    }

    /// Random numbers for a background thread.
    pub fn seed_for(&self, what: u64) -> Random {
        Random(self.seed ^ what.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The proxies of the processes that the present fault hits.
    pub fn links(&self) -> impl Iterator<Item = &Proxy> {
        [&self.apart, &self.proxy].into_iter().take(if self.only_first { 1 } else { 2 })
    }

    /// Ends the connections of the processes that the present fault hits, and says how many there
    /// were.
    pub fn cut_all(&self) -> usize {
        self.links().map(Proxy::cut_all).sum()
    }

    /// One of the two, chosen in proportion to the number of processes behind it.
    pub fn some_link(&mut self) -> &Proxy {
        let apart = self.apart_url.is_some() && self.random.below(self.tune.processes) == 0;
        if apart { &self.apart } else { &self.proxy }
    }

    /// Kills one client process and starts another in its place.
    pub fn replace_client(&mut self, index: usize) {
        let new = self.spawn_client(index == 0);
        std::mem::replace(&mut self.clients[index], new).kill_and_keep_dir();
        self.note_pids();
    }

    /// The number of the process that has this place now.
    pub fn process_of(&self, index: usize) -> Option<u64> {
        let pid = format!("pid {}", self.clients[index].pid());
        (0..self.spawned).find(|process| self.status(*process).lines().any(|line| line == pid))
    }

    pub fn status(&self, process: u64) -> String {
        fs::read_to_string(self.dir.path().join(format!("{process}.status"))).unwrap_or_default()
    }

    /// Everything that the clients have logged.
    pub fn logs(&self) -> String {
        let log = |process| {
            fs::read_to_string(self.dir.path().join(format!("client-{process}/output.log")))
                .unwrap_or_default()
        };
        (0..self.spawned).map(log).collect()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A length of time, drawn from the row's seed.
    pub fn draw(&mut self, range: (Duration, Duration)) -> Duration {
        self.random.between(range)
    }

    /// Starts and ends the fault again and again until the faulted time is over. Ends without the
    /// fault.
    pub fn windows(&mut self, on: impl FnMut(&mut World), off: impl FnMut(&mut World)) {
        self.windows_for(self.tune.faulted, on, off);
    }

    /// Like `windows`, for some time.
    pub fn windows_for(
        &mut self,
        time: Duration,
        mut on: impl FnMut(&mut World),
        mut off: impl FnMut(&mut World),
    ) {
        let end = self.patience(time);
        loop {
            let from = now();
            (self.is_outage, self.only_first) = (false, false);
            on(self);
            let length = self.draw(self.tune.on);
            thread::sleep(length);
            off(self);
            self.times.push((from, now()));
            if self.is_outage {
                self.outages.push((from, now()));
            }
            if self.is_outage || self.only_first {
                self.cut_offs.push((from, now()));
            }
            let length = self.draw(self.tune.off);
            thread::sleep(length);
            if end.is_over(self, None) {
                return;
            }
            self.learn_secrets();
        }
    }

    /// Does something again and again until the faulted time is over, with pauses of this length.
    pub fn repeat(&mut self, pause: (Duration, Duration), mut act: impl FnMut(&mut World)) {
        let (from, end) = (now(), self.patience(self.tune.faulted));
        let mut rounds = 0_u32;
        while !end.is_over(self, Some(from)) {
            act(self);
            let length = self.draw(pause);
            thread::sleep(length);
            rounds += 1;
            if rounds.is_multiple_of(64) {
                self.learn_secrets();
            }
        }
        self.times.push((from, now()));
    }

    fn patience(&self, time: Duration) -> Patience {
        Patience { least: now() + nanos(time), most: now() + nanos(time) * 8, look: Cell::new(0) }
    }

    /// Runs a command at the server. `None`: it did not answer, or refused.
    pub fn command(&mut self, words: &[&str]) -> Option<redis::Value> {
        self.admin.command(words)
    }

    /// Whether we have a connection of our own to the server.
    pub fn is_looking(&mut self) -> bool {
        self.command(&["PING"]);
        self.admin.is_connected()
    }

    /// Remembers the tokens that the locks hold now.
    pub fn learn_secrets(&mut self) {
        for key in 0..self.tune.load.all_keys() {
            if let Some(redis::Value::BulkString(token)) = self.command(&["GET", &key_name(key)]) {
                let token = String::from_utf8_lossy(&token).into_owned();
                if token.len() > 8 {
                    self.secrets.insert(token);
                }
            }
        }
    }
}
