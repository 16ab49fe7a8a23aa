//! Real sentinels: one primary, its replicas, and the sentinels that watch them.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::process::Guarded;
use super::settings::ServerBuilder;
use super::{Server, eventually, ports};

/// The name of the service in all tests.
pub const SERVICE: &str = "mymaster";
/// How long everything together may take to get ready. Far more than it needs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A primary, replicas and sentinels. All of them are gone when this is dropped.
pub struct Sentinels {
    /// The first one began as the primary.
    pub servers: Vec<Server>,
    pub sentinels: Vec<Sentinel>,
}

/// One sentinel process.
pub struct Sentinel {
    port: u16,
    process: Mutex<Option<Guarded>>,
    dir: TempDir,
}

/// Settings of [`Sentinels`] to be.
pub struct SentinelsBuilder {
    replicas: usize,
    sentinels: usize,
    server: fn() -> ServerBuilder,
    /// Lines of every sentinel's configuration.
    lines: Vec<String>,
    /// With Redis's own timers, an old primary is demoted about ten seconds after it is back.
    default_timers: bool,
}

impl Sentinels {
    /// A primary with one replica, and three sentinels.
    pub fn start() -> Sentinels {
        Sentinels::builder().start()
    }

    pub fn builder() -> SentinelsBuilder {
        SentinelsBuilder {
            replicas: 1,
            sentinels: 3,
            server: Server::builder,
            lines: Vec::new(),
            default_timers: false,
        }
    }

    /// `redis://` of each sentinel.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Sentinel::url).collect()
    }

    /// The `redis+sentinel://` URL of all of them.
    pub fn url(&self) -> String {
        url_of(self.sentinels.iter().map(Sentinel::port))
    }

    /// Which of the servers most sentinels take for the primary, by its place in `servers`.
    pub fn primary(&self) -> Option<usize> {
        let port = primary_port(&self.sentinels)?;
        self.servers.iter().position(|server| server.port() == port)
    }

    /// Returns once every sentinel that answers names this server.
    pub fn wait_for_primary(&self, place: usize) {
        let port = self.servers[place].port();
        eventually(PATIENCE, || {
            self.sentinels.iter().filter_map(Sentinel::primary).all(|named| named == port)
        });
    }

    /// Has the sentinels fail over although nothing is wrong, and waits for the new primary.
    pub fn fail_over(&self) -> usize {
        let before = self.primary().expect("a primary");
        self.sentinels[0].ask::<()>(&["SENTINEL", "FAILOVER", SERVICE]);
        let start = Instant::now();
        loop {
            match self.primary() {
                Some(now) if now != before => return now,
                _ => {
                    assert!(start.elapsed() < PATIENCE, "no failover:\n{}", self.sentinels[0].log())
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The `redis+sentinel://` URL of the sentinels at these ports.
pub fn url_of(ports: impl Iterator<Item = u16>) -> String {
    let hosts: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
}

/// The port that most of these sentinels take for the primary's.
pub fn primary_port(sentinels: &[Sentinel]) -> Option<u16> {
    let named: Vec<u16> = sentinels.iter().filter_map(Sentinel::primary).collect();
    let votes = |port: u16| named.iter().filter(|its| **its == port).count();
    named.iter().copied().max_by_key(|port| votes(*port))
}

impl SentinelsBuilder {
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    pub fn sentinels(mut self, count: usize) -> Self {
        self.sentinels = count;
        self
    }

    /// What each server is made of.
    pub fn server(mut self, server: fn() -> ServerBuilder) -> Self {
        self.server = server;
        self
    }

    /// A line of each sentinel's configuration.
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    pub fn default_timers(mut self) -> Self {
        self.default_timers = true;
        self
    }

    pub fn start(self) -> Sentinels {
        let builder = || (self.server)().arg("repl-diskless-sync-delay", "0");
        let mut servers = vec![builder().start()];
        let primary = servers[0].port();
        for _ in 0..self.replicas {
            let master = format!("127.0.0.1 {primary}");
            servers.push(builder().arg("replicaof", &master).start());
        }
        servers[0].wait_for_replicas(self.replicas);
        Sentinels { servers, sentinels: self.watch(primary) }
    }

    /// Only the sentinels, for a primary at this port that has all its replicas.
    pub fn watch(self, primary: u16) -> Vec<Sentinel> {
        let sentinels: Vec<Sentinel> =
            (0..self.sentinels).map(|place| Sentinel::start(place, primary, &self)).collect();
        for sentinel in &sentinels {
            let (others, replicas) = (self.sentinels - 1, self.replicas);
            eventually(PATIENCE, || {
                sentinel.knows("num-other-sentinels", others)
                    && sentinel.knows("num-slaves", replicas)
            });
        }
        if !self.default_timers {
            // A sentinel that sees a replica call itself a master for four such periods makes it a
            // replica again: the one that leads a failover must be sooner.
            for sentinel in &sentinels {
                sentinel.hurry(&["publish-period", "500"]);
            }
        }
        sentinels
    }
}

impl Sentinel {
    fn start(place: usize, primary: u16, settings: &SentinelsBuilder) -> Sentinel {
        for _ in 0..20 {
            let sentinel = Sentinel::at_a_free_port(place, primary, settings);
            if !sentinel.launch() {
                continue;
            }
            if !settings.default_timers {
                // What takes ten seconds by default, and a second this way. Shorter ping periods
                // let sentinels take a new primary for dead.
                let periods = ["info-period", "200", "publish-period", "100", "ping-period", "250"];
                sentinel.hurry(&periods);
            }
            return sentinel;
        }
        panic!("a sentinel found no free port in 20 tries");
    }

    /// Sets periods in milliseconds. Before Redis 7 they cannot be set: everything takes longer.
    fn hurry(&self, periods: &[&str]) {
        let set = self.try_ask::<()>(&[&["SENTINEL", "DEBUG"], periods].concat());
        let is_old = set.as_ref().is_err_and(|error| error.to_string().contains("subcommand"));
        assert!(set.is_ok() || is_old, "{set:?}");
    }

    fn at_a_free_port(place: usize, primary: u16, settings: &SentinelsBuilder) -> Sentinel {
        let dir = tempfile::Builder::new().prefix("distlock-sentinel-").tempdir().unwrap();
        let port = ports::free();
        // Staggered, so that the sentinels do not all stand for election at the same moment.
        let down_after = 500 + 150 * place;
        let quorum = settings.sentinels / 2 + 1;
        let mut conf = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {SERVICE} 127.0.0.1 {primary} \
             {quorum}\nsentinel down-after-milliseconds {SERVICE} {down_after}\nsentinel \
             failover-timeout {SERVICE} 3000\n",
            dir.path().display()
        );
        settings.lines.iter().for_each(|line| conf += &format!("{line}\n"));
        fs::write(dir.path().join("sentinel.conf"), conf).unwrap();
        Sentinel { port, process: Mutex::default(), dir }
    }

    /// Starts the process, and returns once it answers; false if somebody else has taken the port.
    fn launch(&self) -> bool {
        let conf = self.dir.path().join("sentinel.conf");
        let arguments = [conf.display().to_string(), "--sentinel".to_owned()];
        let process = Guarded::start(self.dir.path(), "redis-server", &arguments);
        let is_ours = format!("process_id:{}\r\n", process.pid());
        *self.process() = Some(process);
        let start = Instant::now();
        while !self.try_ask::<String>(&["INFO", "server"]).is_ok_and(|info| info.contains(&is_ours))
        {
            if !self.process().as_ref().is_some_and(Guarded::is_running) {
                let log = self.log();
                assert!(log.contains("Address already in use"), "a sentinel did not start:\n{log}");
                return false;
            }
            assert!(start.elapsed() < PATIENCE, "a sentinel does not answer:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    fn process(&self) -> MutexGuard<'_, Option<Guarded>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the sentinel has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("output.log")).unwrap_or_default()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Freezes the process: its port accepts and nothing answers.
    pub fn stop_process(&self) {
        self.process().as_mut().expect("it runs").stop();
    }

    pub fn cont(&self) {
        self.process().as_mut().expect("it runs").cont();
    }

    pub fn kill(&self) {
        if let Some(process) = self.process().take() {
            process.kill_and_keep_dir();
        }
    }

    /// The port of the primary, as it says. `None`: it does not answer.
    pub fn primary(&self) -> Option<u16> {
        let named = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
        let (_, port): (String, String) = self.try_ask(&named).ok()?;
        port.parse().ok()
    }

    fn knows(&self, field: &str, count: usize) -> bool {
        let words: Vec<String> = self.try_ask(&["SENTINEL", "MASTER", SERVICE]).unwrap_or_default();
        words.chunks(2).any(|pair| pair[0] == field && pair[1] == count.to_string())
    }

    pub fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        self.ask_within(PATIENCE, words).unwrap()
    }

    /// The reply of a sentinel that may not answer.
    pub fn try_ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        self.ask_within(Duration::from_millis(500), words)
    }

    fn ask_within<T: redis::FromRedisValue>(
        &self,
        limit: Duration,
        words: &[&str],
    ) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_connection_with_timeout(limit)?;
        connection.set_read_timeout(Some(limit))?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }
}
