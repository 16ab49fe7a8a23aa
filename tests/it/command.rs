//! The command `distlock`, as a process beside others.

mod cron;
mod force;
mod habits;
mod loss;
mod pages;
mod refusals;
mod signals;
mod watch;
mod who;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::{env, fs};

use tempfile::TempDir;

use crate::helpers::SOON;
use crate::support::{Server, eventually};

/// A CMD that says that it runs, and ends with status 0 when it is told to.
const UNTIL_TOLD: &str = "touch runs; until [ -e end ]; do sleep 0.02; done";

/// Where the processes of one test run, and the server that they share.
pub(crate) struct Scene {
    server: Server,
    dir: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self::of(Server::start())
    }

    pub(crate) fn of(server: Server) -> Self {
        Self { server, dir: tempfile::tempdir().unwrap() }
    }

    /// `distlock` with these arguments, separated by spaces, and a shell that runs this text as
    /// its CMD.
    fn distlock(&self, args: &str, script: &str) -> Command {
        let mut command = self.distlock_alone(args);
        command.args(["--", "sh", "-c", script]);
        command
    }

    fn distlock_alone(&self, args: &str) -> Command {
        // Whoever runs the tests by `nohup` or in the background has them ignore signals.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", env!("CARGO_BIN_EXE_distlock")])
            .args(args.split_whitespace())
            .current_dir(self.dir.path())
            .env("DISTLOCK_URL", self.server.url())
            .env_remove("RUST_LOG")
            .stdin(Stdio::null());
        command
    }

    /// Runs it until it ends.
    fn run(&self, args: &str, script: &str) -> Ended {
        self.distlock(args, script).output().unwrap().into()
    }

    /// Runs it without a CMD until it ends.
    pub(crate) fn ask(&self, args: &str) -> Ended {
        self.distlock_alone(args).output().unwrap().into()
    }

    /// Starts it, and returns once CMD runs, which then has made a file `runs`.
    #[track_caller]
    fn start(&self, args: &str, script: &str) -> Running {
        let running = Running::start(self.distlock(args, script));
        self.wait_for("runs");
        running
    }

    /// Returns once this file is there, and removes it.
    #[track_caller]
    fn wait_for(&self, file: &str) {
        let file = self.path(file);
        eventually(SOON, || file.exists());
        fs::remove_file(file).unwrap();
    }

    fn has(&self, file: &str) -> bool {
        self.path(file).exists()
    }

    /// Makes a file that CMD looks for.
    fn tell(&self, file: &str) {
        fs::write(self.path(file), "").unwrap();
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn lock(&self, key: &str) -> distlock::RedisLock {
        distlock::Client::open(&self.server.url()).unwrap().lock(key)
    }

    /// Returns once somebody waits at the server.
    #[track_caller]
    fn queued(&self, key: &str, waiters: usize) {
        let lock = self.lock(key);
        eventually(SOON, || lock.inspect().unwrap().waiters.len() == waiters);
    }
}

/// What is left of a process that has ended.
pub(crate) struct Ended {
    /// As a shell has it.
    status: Option<i32>,
    pub(crate) out: String,
    err: String,
}

impl From<Output> for Ended {
    fn from(Output { status, stdout, stderr }: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { status: status.code(), out: text(stdout), err: text(stderr) }
    }
}

impl Ended {
    #[track_caller]
    pub(crate) fn is(&self, status: i32) {
        assert_eq!(self.status, Some(status), "{}{}", self.out, self.err);
    }
}

/// The words of the line that begins with this one.
#[track_caller]
pub(crate) fn row<'a>(ended: &'a Ended, first: &str) -> Vec<&'a str> {
    let mut lines = ended.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.find(|words| words.first() == Some(&first)).unwrap_or_else(|| panic!("{}", ended.out))
}

/// A process that runs; killed when dropped, and its CMD with it.
struct Running(Option<Child>);

impl Running {
    fn start(mut command: Command) -> Self {
        Self(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    #[track_caller]
    fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits until it has ended.
    #[track_caller]
    fn end(mut self) -> Ended {
        eventually(SOON, || self.0.as_mut().unwrap().try_wait().unwrap().is_some());
        self.0.take().unwrap().wait_with_output().unwrap().into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn signal(pid: u32, name: &str) {
    // The shell's own: the program is not everywhere.
    let kill = format!("kill -s {name} {pid}");
    let sent = Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert!(sent.success());
}

/// Whether the process ended that has written its id to this file.
fn has_ended(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat"));
    stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
}
