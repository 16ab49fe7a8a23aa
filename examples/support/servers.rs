//! Servers that an example starts, kills and starts again, and counters that lose counts without a
//! lock.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, iter, thread};

use distlock::LockGuard;

use super::{Failure, Process, Sandbox};

/// How long to wait for what takes a few seconds on a quiet machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns once it is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), Failure> {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > PATIENCE {
            return Err(format!("waited for a minute in vain until {what}").into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A number in a file. It is read and written, which loses counts without a lock.
pub struct Counter {
    file: PathBuf,
    counted: AtomicU64,
}

impl Counter {
    /// A file with the number 0.
    pub fn create(file: PathBuf) -> Result<Self, Failure> {
        fs::write(&file, "0")?;
        Ok(Self { file, counted: AtomicU64::new(0) })
    }

    /// Adds one, under the lock of this guard; `between` runs between reading and writing.
    pub fn add_one(
        &self,
        guard: &LockGuard,
        between: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let after = (self.in_file()? + 1).to_string();
        between()?;
        // The last moment to notice that the lock was lost.
        guard.ensure_valid()?;
        // Not emptied first: whoever reads it at the same time shall lose a count, not fail.
        fs::File::options().write(true).open(&self.file)?.write_all(after.as_bytes())?;
        self.counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// How often one was added.
    pub fn counted(&self) -> u64 {
        self.counted.load(Ordering::SeqCst)
    }

    /// The number in the file: the same, if no count was lost.
    pub fn in_file(&self) -> Result<u64, Failure> {
        Ok(fs::read_to_string(&self.file)?.trim().parse()?)
    }
}

/// A server or a sentinel, in a directory of its own.
pub struct Redis {
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    dir: PathBuf,
    process: Option<Process>,
}

impl Redis {
    /// Asks it this command, over a connection of its own.
    pub fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port))?;
        let mut connection = client.get_connection_with_timeout(PATIENCE)?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }

    /// Whether its answer, as that of `INFO`, has this text in it.
    pub fn says(&self, words: &[&str], what: &str) -> bool {
        self.ask::<String>(words).is_ok_and(|answer| answer.contains(what))
    }

    /// Whether it has not been killed.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.0.id())
    }

    /// `settings`: lines of its configuration.
    fn spawn(&mut self, settings: &str) -> Result<(), Failure> {
        let conf = self.dir.join("redis.conf");
        let is_sentinel = settings.contains("sentinel monitor");
        let dir = self.dir.display();
        let port = self.port;
        fs::write(&conf, format!("port {port}\nbind 127.0.0.1\ndir {dir}\n{settings}"))?;
        let mut command = Command::new("redis-server");
        command.arg(&conf).args(is_sentinel.then_some("--sentinel"));
        let log = fs::File::create(self.dir.join("redis.log"))?;
        let child = command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null()).spawn();
        self.process = Some(Process(child.map_err(|error| format!("redis-server: {error}"))?));
        Ok(())
    }
}

/// All servers of an example. None of them is left when this is dropped, or the example dies.
pub struct Servers {
    /// In the order in which they were started.
    pub all: Vec<Redis>,
    // Dropped last: it removes the directories of the servers.
    sandbox: Sandbox,
}

impl Servers {
    /// A directory, and no server yet.
    pub fn none() -> Result<Self, Failure> {
        Ok(Self { all: Vec::new(), sandbox: Sandbox::without_server()? })
    }

    /// The directory, which is removed at the end.
    pub fn dir(&self) -> &Path {
        self.sandbox.dir()
    }

    /// Starts one more, and returns once it answers.
    pub fn start(&mut self, name: &str, settings: &str) -> Result<(), Failure> {
        let dir = self.dir().join(name);
        fs::create_dir(&dir)?;
        self.all.push(Redis { port: free_port()?, dir, process: None });
        self.start_again(self.all.len() - 1, settings)
    }

    /// Kills the server at this place in `all` (SIGKILL).
    pub fn kill(&mut self, place: usize) -> Result<(), Failure> {
        self.all[place].process = None;
        self.take_along()
    }

    /// Starts a killed one, with the same port and directory, and returns once it answers.
    pub fn start_again(&mut self, place: usize, settings: &str) -> Result<(), Failure> {
        self.all[place].spawn(settings)?;
        self.take_along()?;
        let server = &self.all[place];
        // Another server may have been faster to take the port.
        let ours = format!("process_id:{}\r\n", server.pid().unwrap_or_default());
        wait_until("a server answers", || server.says(&["INFO", "server"], &ours))
    }

    fn take_along(&self) -> Result<(), Failure> {
        self.sandbox.take_along(&self.all.iter().filter_map(Redis::pid).collect::<Vec<_>>())
    }
}

/// A port of 127.0.0.1 that is free, as is the port 10,000 above it, where a node of a cluster
/// listens to the other nodes.
///
/// Both are below 32,768, where the ports begin that Linux gives to clients: a client that connects
/// to a killed server could get the server's port, and the server could not start again.
fn free_port() -> Result<u16, Failure> {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut ports = iter::repeat_with(|| fastrand::u16(10_000..22_000)).take(1000);
    Ok(ports.find(|&port| is_free(port) && is_free(port + 10_000)).ok_or("no port is free")?)
}
