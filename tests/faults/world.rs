//! What a row of the matrix acts on: a server, a proxy before it, client processes under load, and the witnesses.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::clock::{Random, nanos, now};
use super::load::{Habit, Load, key_name};
use super::support::process::Guarded;
use super::support::settings::ServerBuilder;
use super::support::{Proxy, Server};
use super::witness::Resource;

/// How long a row runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Quick,
    Full,
    Soak,
}

/// What a row may set before anything starts.
pub struct Tune {
    pub processes: u64,
    pub load: Load,
    /// Without the proxy in between.
    pub direct: bool,
    pub server: ServerBuilder,
    /// User and password that the clients come with.
    pub user: Option<(&'static str, &'static str)>,
    pub baseline: Duration,
    pub faulted: Duration,
    pub healing: Duration,
    /// How long the fault lasts each time, and how long it is away.
    pub on: (Duration, Duration),
    pub off: (Duration, Duration),
}

/// A length of time in milliseconds.
pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Tune {
    /// Load L. `FAULTS_SCALE` multiplies the processes.
    pub fn new(size: Size) -> Tune {
        let scale: u64 = std::env::var("FAULTS_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1);
        let quick = size == Size::Quick;
        Tune {
            processes: if quick { 3 } else { 4 } * scale,
            load: Load {
                url: String::new(),
                threads: if quick { 6 } else { 8 },
                keys: if quick { 12 } else { 16 },
                lease: ms(if quick { 1000 } else { 2000 }),
                command: ms(500),
                pool: 8,
                hold: ms(if quick { 2 } else { 5 }),
                // One in a hundred would have most keys held for long most of the time: 70 holds a second in all, and a quick run, of few keys
                // and seconds, would see next to nothing else. Rows that are about long holds have more of them.
                long: if quick { 100 } else { 2_000 },
                pause: ms(1),
                timed: true,
                habit: Habit::Unlock,
                fenced: true,
            },
            direct: false,
            server: Server::builder().arg("maxclients", "4000"),
            user: None,
            baseline: ms(if quick { 1200 } else { 5000 }),
            faulted: match size {
                Size::Quick => ms(3500),
                Size::Full => ms(47_000),
                Size::Soak => ms(900_000),
            },
            // At least: it lasts until the load has come back to its rate, for the time that it has for that.
            healing: ms(if quick { 1000 } else { 8000 }),
            // Twenty times one to three seconds of each would not fit into a minute.
            on: if quick { (ms(200), ms(500)) } else { (ms(500), ms(1800)) },
            off: if quick { (ms(200), ms(400)) } else { (ms(400), ms(1400)) },
        }
    }
}

/// How long the faulted phase lasts: its time, and longer, up to eight times as long, while there are too few faults and holds in it to prove anything.
struct Patience {
    least: u64,
    most: u64,
    holds: u64,
}

impl Patience {
    fn is_over(&self, world: &World) -> bool {
        let now = now();
        let enough = || world.faults >= world.least_faults && super::history::about(world.dir()) >= self.holds;
        now >= self.least && (now >= self.most || enough())
    }
}

/// A running row.
pub struct World {
    pub size: Size,
    pub tune: Tune,
    pub random: Random,
    pub server: Server,
    pub proxy: Proxy,
    /// The other nodes of a quorum, or the server's replica.
    pub more: Vec<(Server, Proxy)>,
    pub resource: Resource,
    pub dir: TempDir,
    pub clients: Vec<Guarded>,
    /// Over all, also those that were killed.
    pub spawned: u64,
    pub faults: u64,
    /// How many are needed.
    pub least_faults: u64,
    /// Keys that a third party took away, and when.
    pub taken: Vec<(u64, u64)>,
    /// What the row itself found to be wrong.
    pub problems: Vec<String>,
    pub remarks: Vec<String>,
    /// Values that must be in no log.
    pub secrets: HashSet<String>,
    /// When the fault was there, from and to.
    pub times: Vec<(u64, u64)>,
    seed: u64,
    admin: Option<redis::Connection>,
}

impl World {
    /// Starts the server, the proxy and the resource. No clients yet.
    pub fn new(size: Size, mut tune: Tune, seed: u64) -> World {
        let server = std::mem::take(&mut tune.server).start();
        let proxy = Proxy::start(server.port());
        let dir = tempfile::Builder::new().prefix("distlock-faults-").tempdir_in("/dev/shm").expect("a directory in memory");
        let resource = Resource::start(dir.path());
        let port = if tune.direct { server.port() } else { proxy.port() };
        let user = tune.user.map_or(String::new(), |(name, password)| format!("{name}:{password}@"));
        tune.load.url = format!("redis://{user}127.0.0.1:{port}/");
        let secrets = tune.user.iter().map(|(_, password)| (*password).to_owned()).collect();
        World {
            size,
            tune,
            random: Random(seed),
            server,
            proxy,
            more: Vec::new(),
            resource,
            dir,
            clients: Vec::new(),
            spawned: 0,
            faults: 0,
            least_faults: 0,
            taken: Vec::new(),
            problems: Vec::new(),
            remarks: Vec::new(),
            secrets,
            times: Vec::new(),
            seed,
            admin: None,
        }
    }

    /// Starts all client processes and waits until they work.
    pub fn start_clients(&mut self) {
        for _ in 0..self.tune.processes {
            self.add_client();
        }
        let started = now();
        while (0..self.spawned).any(|process| !self.status(process).contains("started")) {
            assert!(now() - started < 30_000_000_000, "the clients do not start: {}", self.logs());
            thread::sleep(ms(5));
        }
        thread::sleep(ms(300));
    }

    fn spawn_client(&mut self) -> Guarded {
        let process = self.spawned;
        self.spawned += 1;
        let own = self.dir.path().join(format!("client-{process}"));
        fs::create_dir(&own).expect("a directory for the client");
        let program = std::env::current_exe().expect("the driver's own program");
        let seed = self.seed ^ (process + 1).wrapping_mul(0x2545_f491_4f6c_dd1d);
        Guarded::start(&own, &program.display().to_string(), &self.tune.load.arguments(self.dir.path(), process, seed))
    }

    /// Starts one more client process.
    pub fn add_client(&mut self) {
        let client = self.spawn_client();
        self.clients.push(client);
    }

    /// Kills one client process and starts another in its place.
    pub fn replace_client(&mut self, index: usize) {
        let new = self.spawn_client();
        std::mem::replace(&mut self.clients[index], new).kill_and_keep_dir();
    }

    pub fn status(&self, process: u64) -> String {
        fs::read_to_string(self.dir.path().join(format!("{process}.status"))).unwrap_or_default()
    }

    /// Everything that the clients have logged.
    pub fn logs(&self) -> String {
        let log = |process| fs::read_to_string(self.dir.path().join(format!("client-{process}/output.log"))).unwrap_or_default();
        (0..self.spawned).map(log).collect()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A length of time, drawn from the row's seed.
    pub fn draw(&mut self, range: (Duration, Duration)) -> Duration {
        self.random.between(range)
    }

    /// Has the fault come and go until the faulted time is over. Ends without it.
    pub fn windows(&mut self, on: impl FnMut(&mut World), off: impl FnMut(&mut World)) {
        self.windows_for(self.tune.faulted, on, off);
    }

    /// As `windows`, for some time.
    pub fn windows_for(&mut self, time: Duration, mut on: impl FnMut(&mut World), mut off: impl FnMut(&mut World)) {
        let end = self.patience(time);
        loop {
            let from = now();
            on(self);
            let length = self.draw(self.tune.on);
            thread::sleep(length);
            off(self);
            self.times.push((from, now()));
            let length = self.draw(self.tune.off);
            thread::sleep(length);
            if end.is_over(self) {
                return;
            }
            self.learn_secrets();
        }
    }

    /// Does something again and again until the faulted time is over, with a pause of this length in between.
    pub fn repeat(&mut self, pause: (Duration, Duration), mut act: impl FnMut(&mut World)) {
        let (from, end) = (now(), self.patience(self.tune.faulted));
        let mut rounds = 0_u32;
        while !end.is_over(self) {
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
        Patience { least: now() + nanos(time), most: now() + nanos(time) * 8, holds: super::history::about(self.dir()) + 2200 }
    }

    /// Runs a command at the server, over a connection that is kept. `None`: the server did not answer, or refused.
    pub fn command(&mut self, words: &[&str]) -> Option<redis::Value> {
        if self.admin.is_none() {
            let client = redis::Client::open(self.server.url()).ok()?;
            let connection = client.get_connection_with_timeout(ms(2000)).ok()?;
            connection.set_read_timeout(Some(ms(5000))).ok()?;
            self.admin = Some(connection);
        }
        let (name, arguments) = words.split_first()?;
        let answer = redis::cmd(name).arg(arguments).query(self.admin.as_mut()?);
        if answer.as_ref().is_err_and(|error: &redis::RedisError| error.is_io_error() || error.is_unrecoverable_error()) {
            self.admin = None;
        }
        answer.ok()
    }

    /// Whether we have a connection of our own to the server.
    pub fn is_looking(&mut self) -> bool {
        self.command(&["PING"]);
        self.admin.is_some()
    }

    /// Remembers the tokens that the locks hold now.
    pub fn learn_secrets(&mut self) {
        for key in 0..self.tune.load.keys {
            if let Some(redis::Value::BulkString(token)) = self.command(&["GET", &key_name(key)]) {
                let token = String::from_utf8_lossy(&token).into_owned();
                if token.len() > 8 {
                    self.secrets.insert(token);
                }
            }
        }
    }
}
