//! One driver process: it is started, asked, and killed however the test ends. Its commands are in
//! `tests/peers/PROTOCOL.md`.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use std::{env, fs, io, thread};

use tempfile::TempDir;

use crate::support::process::Guarded;

/// A JVM may take seconds to start on a machine under load.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many Java virtual machines may run at the same time, in all tests together.
const MOST: usize = 2;

static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// The permission to run this many virtual machines.
struct Permit(usize);

impl Permit {
    /// All are taken at once: two tests that take one each could wait for each other's second one.
    fn wait(wanted: usize) -> Permit {
        assert!(wanted <= MOST, "a test may have {MOST} JVMs");
        let running = RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running = RUNNING
            .1
            .wait_while(running, |running| *running + wanted > MOST)
            .unwrap_or_else(PoisonError::into_inner);
        *running += wanted;
        Permit(wanted)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        RUNNING.1.notify_all();
    }
}

/// A driver that runs.
pub struct Peer {
    name: String,
    commands: File,
    answers: Receiver<String>,
    log: PathBuf,
    // Dropped in this order: the process before its directory, and both before another driver may
    // start.
    _process: Guarded,
    _dir: TempDir,
    _permit: Arc<Permit>,
}

/// Starts these drivers, each by its name and the URL of its server.
///
/// `None` if one is not built. That is printed in one line, and is a failure with
/// `DISTLOCK_PEERS=required`.
pub fn start<const N: usize>(peers: [(&str, String); N]) -> Option<[Peer; N]> {
    if !runner().exists() {
        // The published package has no drivers: they have packages of their own, of several kinds.
        return left_out("peers: skipped, for tests/peers is only in the repository");
    }
    let jvms = peers.iter().filter(|(name, _)| matches!(*name, "jedis" | "redisson")).count();
    let permit = Arc::new(Permit::wait(jvms));
    // All together, as they start slowly.
    let started = peers.map(|(name, url)| Peer::launch(name, &url, &permit));
    for peer in &started {
        if peer.answers.recv_timeout(PATIENCE).as_deref() != Ok("ready") {
            let log = fs::read_to_string(&peer.log).unwrap_or_default();
            assert!(log.contains("is not built"), "{} does not start:\n{log}", peer.name);
            return left_out(&format!(
                "peers: skipped, for {} is not built: run tests/peers/build",
                peer.name
            ));
        }
    }
    Some(started)
}

/// What starts a driver.
fn runner() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/run")
}

/// Prints why a test is left out, or fails if none may be left out.
fn left_out<T>(line: &str) -> Option<T> {
    assert!(env::var("DISTLOCK_PEERS").as_deref() != Ok("required"), "{line}");
    // Not eprintln: the output of a test that passes is not shown.
    io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
    None
}

impl Peer {
    fn launch(name: &str, url: &str, permit: &Arc<Permit>) -> Peer {
        let dir = tempfile::Builder::new().prefix("distlock-").tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let made = Command::new("mkfifo").args([at("in"), at("out")]).status().unwrap();
        assert!(made.success(), "mkfifo");
        let script = r#"DISTLOCK_PEERS_JVM=quick exec "$1" "$2" "$3" <"$4/in" >"$4/out""#;
        let dir_name = dir.path().display().to_string();
        let args = ["-c", script, "peer", &runner().display().to_string(), name, url, &dir_name]
            .map(str::to_owned);
        let process = Guarded::start(dir.path(), "/bin/sh", &args);
        // In the order in which the shell opens the other ends.
        let commands = File::options().write(true).open(at("in")).unwrap();
        let out = BufReader::new(File::open(at("out")).unwrap());
        let (tell, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let log = at("output.log");
        Peer {
            name: name.to_owned(),
            commands,
            answers,
            log,
            _process: process,
            _dir: dir,
            _permit: Arc::clone(permit),
        }
    }

    /// Sends a command whose answer is fetched later.
    pub fn send(&mut self, command: &str) {
        writeln!(self.commands, "{command}")
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// The answer to the oldest command that has none yet.
    #[track_caller]
    pub fn answer(&self) -> String {
        self.answers.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            panic!("{} does not answer:\n{log}", self.name)
        })
    }

    #[track_caller]
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }

    /// Asks, and asserts the answer.
    #[track_caller]
    pub fn says(&mut self, command: &str, expected: &str) {
        let answer = self.ask(command);
        assert_eq!(answer, expected, "{}: {command}", self.name);
    }

    /// The settings of this driver, one after another.
    #[track_caller]
    pub fn with(mut self, settings: &[&str]) -> Peer {
        settings.iter().for_each(|setting| self.says(setting, "ok"));
        self
    }

    /// What comes after `ok`: the last number of an answer.
    #[track_caller]
    pub fn number(&self, answer: &str) -> u64 {
        let last = answer.strip_prefix("ok ").and_then(|rest| rest.split(' ').next_back());
        last.and_then(|last| last.parse().ok()).unwrap_or_else(|| panic!("{}: {answer}", self.name))
    }
}
