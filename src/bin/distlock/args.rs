//! The arguments, and what `--help` says about them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Group, Parser, Subcommand, ValueEnum};
use distlock::{Layout, LockOptions, Queue};
use humantime::parse_duration;

use crate::exit::{Exit, Failure};

/// Locks on Redis for shell scripts and crontabs
#[derive(Parser)]
#[command(name = "distlock", version, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Who(Who),
    Watch(Watch),
    Force(Force),
    Man(Man),
    Completions(Completions),
}

const EXAMPLES: &str = "\
Examples:
  distlock run --no-wait nightly-report -- /usr/local/bin/report
  distlock run --wait 5m --lease 10s deploy -- sh -c 'build && upload'

A job that each of several hosts starts once a minute, and one of them runs:
  * * * * *  distlock run --no-wait --at-least 30s minutely -- /usr/local/bin/job

Exit status: that of CMD, or 128 and the signal that ended it, and
  64   the arguments cannot work, or not with this server or key
  69   the server does not answer, or cannot serve now
  71   the operating system refused something, such as a new process
  75   somebody else had the lock for as long as --wait says, and CMD did not run
  76   the lock was lost before CMD had ended; standard error has CMD's own status
  77   the server refuses the user or the password
  126  CMD cannot be executed
  127  CMD was not found";

/// Runs CMD while it holds the lock KEY, and ends with CMD's exit status
///
/// distlock renews the lease until CMD has ended, and releases the lock then. CMD has DISTLOCK_KEY,
/// DISTLOCK_FENCE (a number that grows with every holder) and DISTLOCK_REMAINING_MS (how long the
/// lease lasted at CMD's start) in its environment; of several KEYs, one line for each, and the
/// shortest lease.
///
/// SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 go on to CMD. With a controlling terminal
/// they go to CMD alone, and Ctrl-C reaches CMD directly. Without one, as under cron, CMD leads a
/// process group, and they go to all of it. After SIGINT, SIGQUIT or SIGTERM, or if a signal has
/// ended CMD, distlock then holds the lock until the whole group has ended.
#[derive(Group)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) server: Server,

    /// How long to wait for the lock, such as 500ms, 5s or 1h; without it: for as long as it takes
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "no_wait")]
    wait: Option<Duration>,

    /// Ask once, and do not wait
    #[arg(long)]
    no_wait: bool,

    /// How soon the lock is free after this host has died; 100ms to 24h
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    lease: Duration,

    /// Keep the lock for this long, from its grant on, even if CMD ends earlier. Use it with
    /// --no-wait: otherwise each host runs CMD in turn
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    at_least: Option<Duration>,

    /// KEY is a semaphore of N permits, and CMD needs one of them
    #[arg(long, value_name = "N", conflicts_with_all = ["shared", "exclusive", "at_least"])]
    permits: Option<u32>,

    /// KEY is a read-write lock, and CMD only reads
    #[arg(long, conflicts_with_all = ["exclusive", "at_least"])]
    shared: bool,

    /// KEY is a read-write lock, and CMD writes
    #[arg(long, conflicts_with = "at_least")]
    exclusive: bool,

    /// How many replicas must have confirmed the lock
    #[arg(long, value_name = "N", default_value_t = 0)]
    replicas: u32,

    /// How the lock is written in Redis: plain, redisson or timestamp
    #[arg(long, default_value_t = Layout::Plain)]
    layout: Layout,

    /// The order of those who wait: fifo, or none beside clients that do not queue
    #[arg(long, default_value_t = Queue::Fifo)]
    queue: Queue,

    /// What CMD gets when the lock is lost: SIGTERM, and SIGKILL after --grace; SIGKILL; nothing
    #[arg(long, value_enum, default_value_t = OnLost::Term)]
    pub(crate) on_lost: OnLost,

    /// After a loss: from SIGTERM to SIGKILL. After a CMD that a signal has ended: from its end to
    /// SIGKILL for the rest of its group
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    pub(crate) grace: Duration,

    /// Say on standard error who has the lock if it is not obtained
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// The names of the locks; several are taken in the order of their names, all or none
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,

    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    pub(crate) cmd: Vec<OsString>,
}

/// Shows who holds locks, for how much longer, and who waits for them
///
/// ASKED is when a holder or waiter began to ask for the lock, by its own clock. REST is how long
/// the lease lasts unless it is extended. FENCE is the highest fence so far, or more.
///
/// A KEY with *, ? or [ is a pattern, as of SCAN, which goes through all keys of the server.
/// Without a KEY: all locks of distlock's and Redisson's clients. What other programs have written
/// under a KEY is shown as foreign, with its value. Nothing is changed.
#[derive(Group)]
pub(crate) struct Who {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Write one JSON object in a line for each KEY
    #[arg(long)]
    pub(crate) json: bool,

    /// Names of locks, or patterns
    #[arg(value_name = "KEY")]
    pub(crate) keys: Vec<String>,
}

/// Shows who holds locks again and again, as `top` shows processes
///
/// In a terminal, as a table that fills the screen. Otherwise as one table after another. Waiters
/// are counted, and not named: `distlock who` names them. A KEY is as of `distlock who`; a pattern
/// makes the server go through all of its keys each time.
#[derive(Group)]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) who: Who,

    /// How long to pause before the next look; at least 100ms
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    pub(crate) every: Duration,
}

/// Releases a lock of any holder, and hands it to the next who waits
///
/// The holder goes on working until it notices that it has lost the lock. Beside one that works,
/// only a fence protects.
#[derive(Group)]
pub(crate) struct Force {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Release it; without this, only show who holds it
    #[arg(long)]
    pub(crate) yes: bool,

    /// How the lock is written in Redis: plain, redisson or timestamp
    #[arg(long, default_value_t = Layout::Plain)]
    pub(crate) layout: Layout,

    /// The name of the lock
    pub(crate) key: String,
}

/// Writes the manual pages, one for each subcommand, into a folder
#[derive(Group)]
pub(crate) struct Man {
    /// The folder, such as /usr/local/share/man/man1
    #[arg(value_name = "FOLDER")]
    pub(crate) dir: PathBuf,
}

/// Writes what a shell needs to complete the arguments
#[derive(Group)]
pub(crate) struct Completions {
    pub(crate) shell: clap_complete::Shell,
}

/// The server
#[derive(Group)]
pub(crate) struct Server {
    /// The server: redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://. With
    /// a password, use the variable: `ps` shows arguments to everybody
    #[arg(
        long,
        env = "DISTLOCK_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1/"
    )]
    pub(crate) url: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// SIGTERM, and SIGKILL after --grace
    Term,
    /// SIGKILL
    Kill,
    /// CMD goes on without the lock
    Ignore,
}

/// What a KEY is.
#[derive(Clone, Copy)]
pub(crate) enum LockKind {
    Lock,
    Read,
    Write,
    /// A semaphore of so many.
    Permits(u32),
}

impl Run {
    /// The keys in the order in which every process takes them, so that no two wait for each other.
    pub(crate) fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<_> = self.keys.iter().map(String::as_str).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// What the parser cannot know.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        // If the second is not free, the first would be kept, although CMD has not run.
        if self.at_least.is_some() && self.keys().len() > 1 {
            return Err(Failure::new(Exit::USAGE, "--at-least is for one KEY"));
        }
        Ok(())
    }

    pub(crate) fn kind(&self) -> LockKind {
        match self.permits {
            Some(permits) => LockKind::Permits(permits),
            None if self.shared => LockKind::Read,
            None if self.exclusive => LockKind::Write,
            None => LockKind::Lock,
        }
    }

    /// `None`: for as long as it takes.
    pub(crate) fn wait(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.wait }
    }

    pub(crate) fn options(&self) -> LockOptions {
        let options = LockOptions::new()
            .lease(self.lease)
            .replicas(self.replicas)
            .layout(self.layout)
            .queue(self.queue)
            .at_least(self.at_least.unwrap_or_default());
        // The one layout that has no fence.
        if self.layout == Layout::Timestamp { options } else { options.fenced() }
    }
}
