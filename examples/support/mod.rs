//! What the examples share: a server and a directory to use, servers that are killed, a progress
//! line, and how an example ends.
#![allow(dead_code, reason = "no example uses all of it")]

pub mod servers;

use std::error::Error;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, IsTerminal, Write as _, stderr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio, exit};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use distlock::Client;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};

/// Any error that ends an example early. It is shown as one line.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Exit code 0 for `Ok(true)`; 1 for `Ok(false)`, when the example did not come out as it should; 2
/// if an error ended it early.
pub fn end(result: Result<bool, Failure>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            let mut line = format!("error: {failure}");
            let mut source = failure.source();
            while let Some(cause) = source {
                line += &format!(": {cause}");
                source = cause.source();
            }
            eprintln!("{line}");
            ExitCode::from(2)
        }
    }
}

/// Sends a signal, such as `STOP`. The shell has `kill` built in; a program of that name may be
/// missing.
pub fn signal(pid: u32, name: &str) -> Result<(), Failure> {
    let sent = Command::new("/bin/sh")
        .args(["-c", r#"kill -s "$1" "$2""#, "kill", name, &pid.to_string()])
        .status()?;
    if sent.success() { Ok(()) } else { Err(format!("cannot send {name} to process {pid}").into()) }
}

/// All lines of these files, or of the crate's own guide.
pub fn read_lines(files: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let mut files = files.to_vec();
    if files.is_empty() {
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide");
        for page in guide.read_dir().map_err(|error| format!("{}: {error}", guide.display()))? {
            files.push(page?.path());
        }
    }
    files.sort(); // every process must see the same lines in the same order
    let mut lines = Vec::new();
    for path in files {
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        lines.extend(String::from_utf8_lossy(&bytes).lines().map(str::to_owned));
    }
    Ok(lines)
}

/// A child that is killed, paused or not, if we end early.
pub struct Process(pub Child);

/// What workers report: which of them, and a line, or `None` when it has ended.
pub type Reports = mpsc::Receiver<(usize, Option<String>)>;

impl Process {
    /// Starts this very program as a worker. It finds the server's URL in `REDIS_URL`, reports on
    /// its standard output, and calls [`end_with_leader`].
    pub fn worker(
        sandbox: &Sandbox,
        args: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> Result<Self, Failure> {
        let mut command = Command::new(env::current_exe()?);
        command.args(args).env("REDIS_URL", &sandbox.url);
        Ok(Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?))
    }

    /// Sends what it reports, under this number.
    pub fn reports(&mut self, number: usize, to: mpsc::Sender<(usize, Option<String>)>) {
        let lines = self.0.stdout.take().map(BufReader::new);
        thread::spawn(move || {
            for line in lines.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
                let _ = to.send((number, Some(line)));
            }
            let _ = to.send((number, None));
        });
    }

    /// An error if it has failed. Waits for its end.
    pub fn ended_well(&mut self) -> Result<(), Failure> {
        // Waiting would close it, and end the worker.
        let pipe = self.0.stdin.take();
        let status = self.0.wait()?;
        drop(pipe);
        if status.success() { Ok(()) } else { Err("a worker has failed".into()) }
    }
}

/// Ends this process, which is a worker, when the one that started it ends, in whatever way: then
/// the pipe is closed.
pub fn end_with_leader() {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        exit(2);
    });
}

/// What these workers report until all have ended; and the other end, for workers that are started
/// later.
pub fn reports_of(workers: &mut [Process]) -> (mpsc::Sender<(usize, Option<String>)>, Reports) {
    let (say, heard) = mpsc::channel();
    for (number, worker) in workers.iter_mut().enumerate() {
        worker.reports(number, say.clone());
    }
    (say, heard)
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the pipe from us is closed, by `drop` or because we died, and cleans up: whatever
/// signal ends us, nothing is left behind.
const KEEPER: &str = r#"
dir=$1; shift
[ $# = 0 ] || "$@" </dev/null >"$dir/redis.log" 2>&1 &
trap '' HUP INT QUIT TERM
children=
while read -r line; do children=$line; done
kill -s KILL $! $children 2>/dev/null
wait
# A worker may need a moment to end.
rm -rf "$dir" 2>/dev/null || { sleep 1; rm -rf "$dir"; }
"#;

fn keeper(dir: &Path) -> Command {
    let mut keeper = Command::new("/bin/sh");
    // In a process group of its own, which Ctrl-C does not reach.
    keeper.args(["-c", KEEPER, "keeper"]).arg(dir).process_group(0);
    keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    keeper
}

/// A Redis to use, and a directory of our own. The drop removes everything that was started or made
/// for it.
pub struct Sandbox {
    /// The server's URL. It may contain a password: so it goes into the environment of a child, not
    /// into its arguments.
    pub url: String,
    /// The server's name in a sentence.
    pub server: &'static str,
    /// Whether other processes can use it.
    pub is_shared: bool,
    dir: PathBuf,
    /// Has the other end of a pipe from us as its standard input.
    keeper: Child,
}

impl Sandbox {
    /// The server that `REDIS_URL` names; else a `redis-server` of our own; else the embedded
    /// store. Returns once it answers.
    pub fn open() -> Result<Self, Failure> {
        let given = env::var("REDIS_URL").ok().filter(|url| !url.is_empty());
        let own = given.is_none()
            && Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_ok();
        let dir = tempfile::Builder::new().prefix("distlock-example-").tempdir()?.keep();
        let socket = dir.join("redis.sock");
        let mut keeper = keeper(&dir);
        if own {
            // On a unix socket: it needs no free port, and nobody else can connect.
            keeper
                .args(["redis-server", "--port", "0", "--save", "", "--unixsocket"])
                .arg(&socket)
                .arg("--dir")
                .arg(&dir);
        }
        let keeper = keeper.spawn()?;
        let (url, server) = match given {
            Some(url) => (url, "the server of REDIS_URL"),
            None if own => (format!("redis+unix://{}", socket.display()), "a private redis-server"),
            None => (
                "memory://example".to_owned(),
                "none, but memory:// (there is no redis-server, and REDIS_URL is not set)",
            ),
        };
        let sandbox = Self { is_shared: !url.starts_with("memory:"), url, server, dir, keeper };
        let client = Client::open(&sandbox.url)?;
        let start = Instant::now();
        // The socket's file is there a moment before the server listens.
        while let Err(error) = client.ping() {
            if !own {
                return Err(error.into());
            }
            if start.elapsed() > Duration::from_secs(10) {
                let log = fs::read_to_string(sandbox.dir.join("redis.log")).unwrap_or_default();
                return Err(format!(
                    "redis-server did not start: {}",
                    log.lines().last().unwrap_or("no reason given")
                )
                .into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(sandbox)
    }

    /// As [`open`](Self::open), for an example of several processes.
    pub fn shared() -> Result<Self, Failure> {
        let sandbox = Self::open()?;
        if !sandbox.is_shared {
            let text = "this example needs a Redis server: install redis-server, or set REDIS_URL";
            return Err(text.into());
        }
        Ok(sandbox)
    }

    /// Only the directory: the example starts its servers itself.
    pub fn without_server() -> Result<Self, Failure> {
        let dir = tempfile::Builder::new().prefix("distlock-example-").tempdir()?.keep();
        let keeper = keeper(&dir).spawn()?;
        Ok(Self { url: String::new(), server: "none", is_shared: false, dir, keeper })
    }

    /// Makes sure that these children, and no others, are killed if we die: a paused child would
    /// get no other signal.
    pub fn take_along(&self, children: &[u32]) -> Result<(), Failure> {
        let line = children.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        Ok(self.keeper.stdin.as_ref().map_or(Ok(()), |mut pipe| writeln!(pipe, "{line}"))?)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// A progress bar on a terminal; elsewhere a line now and then.
pub struct Progress {
    bar: ProgressBar,
    plain: bool,
    shown: u64,
}

impl Progress {
    /// Progress over this many things of a kind, such as `lines`.
    pub fn new(length: u64, things: &'static str) -> Self {
        let style = ProgressStyle::with_template(&format!(
            "  {{wide_bar}} {{human_pos}} of {{human_len}} {things}, {{elapsed}}"
        ));
        let bar = ProgressBar::new(length)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, plain: !stderr().is_terminal(), shown: 0 }
    }

    /// This many are done.
    pub fn at(&mut self, position: u64) {
        self.bar.set_position(position);
        let length = self.bar.length().unwrap_or_default().max(1);
        let quarter = position * 4 / length;
        if self.plain && quarter > self.shown {
            self.shown = quarter;
            eprintln!("  {} of {}", HumanCount(position), HumanCount(length));
        }
    }

    /// A line beside the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("  {line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
