//! Contenders as processes: ours (this very program, as a driver), and the real libraries in
//! `tests/peers`.

use std::env;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running driver. It ends when it is dropped, or when this process ends: at the end of its
/// input.
pub struct Driver {
    process: Child,
    say: Option<ChildStdin>,
    hear: Lines<BufReader<ChildStdout>>,
    name: String,
}

/// What to start, and its settings.
#[derive(Clone, Copy)]
pub struct Peer {
    /// Its name in tables.
    pub label: &'static str,
    /// The driver's name; a name of ours begins with `ours` or `raw`.
    pub driver: &'static str,
    /// Commands that it gets after the start.
    pub settings: &'static [&'static str],
    pub is_jvm: bool,
}

pub const OURS: Peer = ours("distlock", "ours");
/// A'.
pub const OURS_AGAIN: Peer = ours("A': distlock again", "ours");
pub const OURS_APART: Peer = ours("distlock, local_hand_offs(0)", "ours-apart");
pub const OURS_READ: Peer = ours("distlock `read_lock`", "ours-read");
pub const OURS_WRITE: Peer = ours("distlock `write_lock`", "ours-write");
pub const OURS_PERMIT: Peer = ours("distlock", "ours-permit");
pub const RAW: Peer = ours("raw, asks again at once", "raw");
pub const RAW_1MS: Peer = ours("raw, pauses of 1 ms", "raw-1ms");
pub const REDISSON: Peer = redisson("Redisson", &[]);
pub const REDISSON_READ: Peer = redisson("Redisson `readLock`", &["kind read"]);
pub const REDISSON_WRITE: Peer = redisson("Redisson `writeLock`", &["kind write"]);
/// An `RPermitExpirableSemaphore`.
pub const REDISSON_PERMIT: Peer = redisson("Redisson", &["kind permit", "permits 10"]);
pub const REDIS_SEMAPHORE: Peer = Peer {
    label: "redis-semaphore",
    driver: "redis-semaphore",
    settings: &["permits 10"],
    is_jvm: false,
};
pub const JEDIS: Peer = Peer {
    label: "Jedis, pauses of 100 ms",
    driver: "jedis",
    settings: &["sleep 100"],
    is_jvm: true,
};
pub const JEDIS_1MS: Peer =
    Peer { label: "Jedis, pauses of 1 ms", driver: "jedis", settings: &["sleep 1"], is_jvm: true };
pub const REDIS_PY: Peer =
    Peer { label: "redis-py", driver: "redis-py", settings: &[], is_jvm: false };
pub const REDSYNC: Peer =
    Peer { label: "redsync", driver: "redsync", settings: &[], is_jvm: false };
pub const RSLOCK: Peer = Peer { label: "rslock", driver: "rslock", settings: &[], is_jvm: false };
pub const REDLOCK: Peer =
    Peer { label: "redlock", driver: "redlock", settings: &[], is_jvm: false };

const fn ours(label: &'static str, driver: &'static str) -> Peer {
    Peer { label, driver, settings: &[], is_jvm: false }
}

const fn redisson(label: &'static str, settings: &'static [&'static str]) -> Peer {
    Peer { label, driver: "redisson", settings, is_jvm: true }
}

impl Peer {
    /// Whether this program itself is its driver, and not another library.
    pub fn is_ours(&self) -> bool {
        self.driver.starts_with("ours") || self.driver.starts_with("raw")
    }

    /// Whether its lock is one that many hold at once.
    pub fn reads(&self) -> bool {
        self.driver == OURS_READ.driver || self.settings == REDISSON_READ.settings
    }

    /// Starts the driver. `None` if it ends at once, like a driver that has not been built.
    pub fn start(&self, url: &str) -> Option<Driver> {
        let mut command = if self.is_ours() {
            let mut command = Command::new(env::current_exe().unwrap());
            command.arg("--driver");
            command
        } else {
            Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/run"))
        };
        let spawned = command
            .arg(self.driver)
            .arg(url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn();
        let mut process = spawned.unwrap_or_else(|error| panic!("{}: {error}", self.driver));
        let say = process.stdin.take();
        let hear = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut driver = Driver { process, say, hear, name: self.driver.to_owned() };
        match driver.hear.next() {
            Some(Ok(line)) if line == "ready" => {}
            Some(Ok(line)) => {
                eprintln!("{}: {line}", self.driver);
                return None;
            }
            _ => return None,
        }
        for setting in self.settings {
            driver.ask(setting);
        }
        Some(driver)
    }
}

/// The `peers` that can be started. The others are named in one line of the report.
pub fn built(peers: &[Peer], url: &str) -> Vec<Peer> {
    let (built, missing): (Vec<Peer>, Vec<Peer>) =
        peers.iter().partition(|peer| peer.start(url).is_some());
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|peer| peer.label).collect();
        println!(
            "Left out, because they do not start (`tests/peers/build jvm redis-py redsync rust \
             node` builds them): {}.\n",
            names.join("; ")
        );
    }
    built
}

impl Driver {
    /// Sends a command whose answer is read later.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.say.as_mut().unwrap(), "{command}")
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// The numbers of the next answer.
    pub fn answer(&mut self) -> Vec<u64> {
        let line = self.hear.next().unwrap_or_else(|| panic!("{} has ended", self.name)).unwrap();
        let numbers = line.strip_prefix("ok").unwrap_or_else(|| panic!("{}: {line}", self.name));
        numbers.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect()
    }

    /// Sends a command and waits for the numbers of its answer.
    pub fn ask(&mut self, command: &str) -> Vec<u64> {
        self.tell(command);
        self.answer()
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Ends it in the middle of whatever it does.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It ends at the end of its input; a JVM that does not is killed.
        drop(self.say.take());
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while let Ok(None) = self.process.try_wait() {
            if std::time::Instant::now() > give_up {
                let _ = self.process.kill();
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}
