//! A private, real `redis-server` for one test: started on a free port, gone when dropped, whatever
//! happens.
//!
//! The program is `redis-server` from the path, or what `DISTLOCK_REDIS_SERVER` names (a wrapper
//! script must `exec`).

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use tempfile::TempDir;

use super::process::Guarded;
use super::resp::{self, Frame, FrameReader};
use super::settings::{ServerBuilder, socket_path};

/// How long a server may take to start, and to answer a peek. Far longer than it needs, even on a
/// machine under load.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running `redis-server`. Its methods take `&self`, so threads of a test can share it.
pub struct Server {
    settings: ServerBuilder,
    port: u16,
    tls_port: u16,
    /// `None` between `kill` and `restart`. Declared before `dir`: the process is dropped before
    /// its directory.
    process: Mutex<Option<Guarded>>,
    /// How many commands the peeks of this type have run since the process started, to be left out
    /// of the counts.
    peeks: AtomicU64,
    dir: TempDir,
}

impl Server {
    /// Starts a server with nothing special about it: no password, no persistence.
    pub fn start() -> Server {
        Server::builder().start()
    }

    /// A server with settings of its own.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Starts a server and returns once it answers; [`ServerBuilder::start`] ends here.
    pub(super) fn start_with(settings: ServerBuilder) -> Server {
        require_binary();
        let mut server = Server {
            settings,
            port: 0,
            tls_port: 0,
            process: Mutex::new(None),
            peeks: AtomicU64::new(0),
            dir: tempfile::Builder::new()
                .prefix("distlock-")
                .tempdir()
                .expect("a temporary directory"),
        };
        for _ in 0..20 {
            // The ports are free now. If somebody else is faster, another pair is tried.
            let free = || server.settings.free_port();
            (server.port, server.tls_port) = (free(), free());
            server.launch();
            if server.wait_until_ours() {
                server.wait_ready();
                return server;
            }
            server.kill();
        }
        panic!("redis-server found no free port in 20 tries");
    }

    /// `redis://` with the password, if there is one.
    pub fn url(&self) -> String {
        format!("redis://{}127.0.0.1:{}/", self.userinfo(), self.port)
    }

    /// `redis://` with this user and password, right or wrong.
    pub fn url_with(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}/", self.port)
    }

    /// `redis+unix://`; needs [`ServerBuilder::unix_socket`].
    pub fn unix_url(&self) -> String {
        assert!(self.settings.unix_socket, "the server was started without .unix_socket()");
        let password = self
            .settings
            .password
            .as_ref()
            .map_or(String::new(), |password| format!("?pass={password}"));
        format!("redis+unix://{}{password}", socket_path(self.dir()).display())
    }

    /// `rediss://` by this host name (`localhost`, `127.0.0.1`); needs [`ServerBuilder::tls`].
    pub fn tls_url(&self, host: &str) -> String {
        assert!(self.settings.tls.is_some(), "the server was started without .tls(..)");
        format!("rediss://{}{host}:{}/", self.userinfo(), self.tls_port)
    }

    /// The port for plain TCP.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port by which other nodes of a cluster meet it.
    pub fn cluster_port(&self) -> u16 {
        if self.settings.tls.is_some() { self.tls_port } else { self.port }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process().as_ref().expect("the server runs").pid()
    }

    /// The server's own directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir().join("output.log")).unwrap_or_default()
    }

    /// Freezes the process (SIGSTOP): its port accepts and nothing answers. Returns once it has
    /// stopped.
    pub fn stop_process(&self) {
        self.process().as_mut().expect("the server runs").stop();
    }

    /// Continues a frozen process (SIGCONT).
    pub fn cont(&self) {
        self.process().as_mut().expect("the server runs").cont();
    }

    /// Kills the process with SIGKILL, frozen or not; returns once it is gone. Does nothing if
    /// there is none.
    pub fn kill(&self) {
        if let Some(process) = self.process().take() {
            process.kill_and_keep_dir();
        }
    }

    /// Kills the process if it runs and starts it again: same port, directory and settings. The
    /// data is gone unless the server is `append_only`. Returns once it answers PING.
    pub fn restart(&self) {
        self.restart_without_waiting();
        self.wait_ready();
    }

    /// Like [`restart`](Server::restart), but returns as soon as the server answers anything,
    /// perhaps that it is loading.
    pub fn restart_without_waiting(&self) {
        let start = Instant::now();
        loop {
            self.kill();
            self.launch();
            if self.wait_until_ours() {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "port {} has been taken by somebody else",
                self.port
            );
        }
    }

    /// Returns once the server answers PING with PONG.
    pub fn wait_ready(&self) {
        let start = Instant::now();
        while self.try_peek(&["PING"]).ok().as_deref() != Some("PONG") {
            assert!(start.elapsed() < PATIENCE, "redis-server is not ready:\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// A connection for looking at the server from the side; its calls give up after a time that no
    /// call needs.
    pub fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).unwrap();
        // redis-rs takes a signal (a machine that was paused) for a failure: "interrupted system
        // call".
        let again = |_| client.get_connection_with_timeout(PATIENCE);
        let connection = client.get_connection_with_timeout(PATIENCE).or_else(again).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection.set_write_timeout(Some(PATIENCE)).unwrap();
        connection
    }

    /// Returns once this many replicas confirm what is written. One that has just got its data says
    /// that it is connected up to a second before.
    pub fn wait_for_replicas(&self, count: usize) {
        let start = Instant::now();
        let mut connection = self.connection();
        loop {
            // The question is about what this connection has written.
            let asked = redis::pipe()
                .add_command(redis::cmd("SET").arg("of-no-use").arg(1).to_owned())
                .add_command(redis::cmd("DEL").arg("of-no-use").to_owned())
                .add_command(redis::cmd("WAIT").arg(count).arg(100).to_owned())
                .query(&mut connection);
            let (_, _, confirmed): (String, u32, usize) = asked.expect("answers");
            if confirmed >= count {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{confirmed} of {count} replicas");
        }
    }

    /// A section of INFO, as text.
    pub fn info(&self, section: &str) -> String {
        self.try_info(section).expect("the server answers INFO")
    }

    /// The same of a server that may be closing its connections: sentinels do that to one whose
    /// role they change.
    pub fn try_info(&self, section: &str) -> std::io::Result<String> {
        self.try_peek(&["INFO", section])
    }

    /// How often a command has been called since the start, by clients or inside scripts.
    /// `"client|list"` names a subcommand.
    pub fn command_count(&self, name: &str) -> u64 {
        let stats = self.info("commandstats");
        let calls = field(&stats, &format!("cmdstat_{}", name.to_lowercase()));
        calls
            .and_then(|line| line.split(',').next()?.strip_prefix("calls=")?.parse().ok())
            .unwrap_or(0)
    }

    /// How many commands have been processed since the start, without the peeks of this type.
    /// Commands inside scripts count too (the server does not tell them apart); a proxy's
    /// `requests()` counts what clients sent.
    pub fn commands_processed_by_clients(&self) -> u64 {
        let before =
            self.peeks.load(Ordering::SeqCst) + u64::from(self.settings.password.is_some());
        let stats = self.info("stats");
        field(&stats, "total_commands_processed")
            .and_then(|count| count.parse::<u64>().ok())
            .unwrap()
            - before
    }

    /// How many clients are connected, without this peek.
    pub fn client_count(&self) -> u64 {
        let clients = self.info("clients");
        field(&clients, "connected_clients").and_then(|count| count.parse::<u64>().ok()).unwrap()
            - 1
    }

    fn process(&self) -> MutexGuard<'_, Option<Guarded>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn userinfo(&self) -> String {
        self.settings.password.as_ref().map_or(String::new(), |password| format!(":{password}@"))
    }

    fn launch(&self) {
        let _ = fs::remove_file(self.dir().join("output.log"));
        self.peeks.store(0, Ordering::SeqCst);
        let args = self.settings.command_line(self.port, self.tls_port, self.dir());
        *self.process() = Some(Guarded::start(self.dir(), &binary(), &args));
    }

    /// Waits until the process that we started answers on our port; false if the port belongs to
    /// somebody else. That *something* answers proves nothing: it may be another test's server,
    /// which took the port first.
    fn wait_until_ours(&self) -> bool {
        let start = Instant::now();
        let pid = self.pid().to_string();
        loop {
            // INFO is answered even while loading.
            let answered = self.try_peek(&["INFO", "server"]);
            if answered.is_ok_and(|info| field(&info, "process_id") == Some(&pid)) {
                return true;
            }
            if !self.process().as_ref().is_some_and(Guarded::is_running) {
                let log = self.log();
                assert!(
                    log.contains("Address already in use"),
                    "redis-server did not start:\n{log}"
                );
                return false;
            }
            assert!(start.elapsed() < PATIENCE, "redis-server does not answer:\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// One command on a connection of its own: it sees the server as it is now, whatever happened
    /// to older ones.
    fn try_peek(&self, command: &[&str]) -> io::Result<String> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut replies = FrameReader::replies(stream.try_clone()?);
        let mut answer = String::new();
        let login = self.settings.password.as_ref().map(|password| vec!["AUTH", password]);
        for command in login.iter().map(Vec::as_slice).chain([command]) {
            answer = ask(&mut stream, &mut replies, command)?;
            self.peeks.fetch_add(1, Ordering::SeqCst);
        }
        Ok(answer)
    }
}

fn ask(
    stream: &mut impl Write,
    replies: &mut FrameReader<impl Read>,
    command: &[&str],
) -> io::Result<String> {
    let parts: Vec<&[u8]> = command.iter().map(|part| part.as_bytes()).collect();
    stream.write_all(&resp::command(&parts))?;
    match replies.next()? {
        Some(Frame::Whole(frame)) if frame[0] != b'-' => {
            Ok(String::from_utf8_lossy(&resp::elements(&frame)[0]).into_owned())
        }
        _ => Err(io::Error::other("refused")),
    }
}

/// A value in the `key:value` lines of INFO.
fn field<'a>(info: &'a str, key: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
}

fn binary() -> String {
    env::var("DISTLOCK_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// Asked once: each question is a process more.
fn require_binary() {
    static FOUND: OnceLock<()> = OnceLock::new();
    FOUND.get_or_init(|| {
        let found = Command::new(binary())
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(found.is_ok(), "redis-server not found: apt-get install -y redis-server");
    });
}
