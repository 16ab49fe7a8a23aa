//! A job that takes longer than its lease. As long as its process runs, renewal keeps the lock.
//!
//! With `--freeze`, the process is paused for longer than its lease, as by a closed laptop lid or a
//! busy host, and another process gets the lock. No lock can prevent that. Two things help: a check
//! before writing (`ensure_valid`), and a fence, for a process that does not check, or is paused
//! right after its check.
//!
//! ```text
//! cargo run --example long_job
//! cargo run --example long_job -- --freeze
//! ```
mod support;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use std::{env, thread};

use clap::{Parser, ValueEnum};
use distlock::{Client, LockOptions, RedisLock};
use support::{Failure, Process, Sandbox, end, signal};

const LEASE: Duration = Duration::from_secs(1);

/// Does a job that takes longer than the lease of its lock.
///
/// Uses the server that REDIS_URL names; else a redis-server of its own; else memory://.
#[derive(Parser)]
struct Args {
    /// How long the job takes, in seconds; the lease is one second
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,
    /// Pauses the process with the job for longer than its lease, and lets it go on
    #[arg(long)]
    freeze: bool,
    /// Makes this process the one that is paused
    #[arg(long, hide = true)]
    role: Option<Role>,
    /// Where its result belongs
    #[arg(long, hide = true, default_value = "record.txt")]
    record: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    /// Looks whether the lock is still its own, before it writes.
    Careful,
    /// Writes.
    Careless,
}

fn main() -> ExitCode {
    env_logger::init();
    let args = Args::parse();
    end(match args.role {
        Some(role) => be_paused(role, &args.record),
        None if args.freeze => freeze(),
        None => run(Duration::from_secs(args.seconds)),
    })
}

fn open_lock(url: &str) -> Result<RedisLock, Failure> {
    Ok(Client::open(url)?.lock_with("long_job", LockOptions::new().lease(LEASE).fenced())?)
}

/// What the lock protects: a file that keeps the fence of the last writer, and refuses an older
/// one. `false`: refused.
///
/// The check and the write must be one step, as in a database with `UPDATE … WHERE fence <= ?`; for
/// a file, the system's own lock makes them one.
fn write_record(path: &Path, fence: u64, text: &str) -> Result<bool, Failure> {
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    file.lock()?;
    let mut old = String::new();
    file.read_to_string(&mut old)?;
    let last: u64 = old.split(' ').next().and_then(|fence| fence.parse().ok()).unwrap_or(0);
    if fence < last {
        return Ok(false);
    }
    file.set_len(0)?;
    file.rewind()?;
    write!(file, "{fence} {text}")?;
    Ok(true)
}

/// The job, on its own.
fn run(length: Duration) -> Result<bool, Failure> {
    let sandbox = Sandbox::open()?;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "The job takes {length:.1?}, its lease lasts {LEASE:.1?}, server: {}",
        sandbox.server
    )?;
    let guard = open_lock(&sandbox.url)?.guard()?;
    let start = Instant::now();
    while start.elapsed() < length {
        thread::sleep(Duration::from_millis(400).min(length.saturating_sub(start.elapsed())));
        writeln!(
            out,
            "  worked for {:.1?}, the lease is valid for another {:.1?}",
            start.elapsed(),
            guard.remaining()
        )?;
    }
    guard.ensure_valid()?;
    let written = write_record(
        &sandbox.dir().join("record.txt"),
        guard.fence().unwrap_or_default(),
        "by the job",
    )?;
    guard.release()?;
    writeln!(out, "Done under one lock, which renewal has kept.")?;
    Ok(written)
}

/// Pauses two processes: one that checks before it writes, and one that does not.
fn freeze() -> Result<bool, Failure> {
    let sandbox = Sandbox::open()?;
    if !sandbox.is_shared {
        return Err("--freeze needs another process, and a Redis server to share with it".into());
    }
    let record = sandbox.dir().join("record.txt");
    let lock = open_lock(&sandbox.url)?;
    let mut out = io::stdout().lock();
    let mut as_expected = true;
    for role in ["careful", "careless"] {
        let mut command = Command::new(env::current_exe()?);
        command.args(["--role", role, "--record"]).arg(&record).env("REDIS_URL", &sandbox.url);
        let mut child = Process(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        sandbox.take_along(&[child.0.id()])?;
        let mut says =
            child.0.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        writeln!(out, "A {role} process:")?;
        writeln!(out, "  it: {}", says.next().ok_or("the other process has ended early")??)?;
        signal(child.0.id(), "STOP")?;
        writeln!(out, "  we: pause it (SIGSTOP), and ask for the lock")?;
        let asked = Instant::now();
        let guard = lock.guard()?;
        let fence = guard.fence().unwrap_or_default();
        writeln!(
            out,
            "  we: have the lock after {:.1?}, and write with fence {fence}",
            asked.elapsed()
        )?;
        as_expected &= write_record(&record, fence, "by us")?;
        signal(child.0.id(), "CONT")?;
        writeln!(out, "  we: let it go on (SIGCONT)")?;
        drop(child.0.stdin.take()); // it waits for that
        for line in says {
            writeln!(out, "  it: {}", line?)?;
        }
        let ended = child.0.wait()?;
        sandbox.take_along(&[])?;
        as_expected &= ended.success() && fs::read_to_string(&record)?.ends_with("by us");
        guard.release()?;
    }
    writeln!(
        out,
        "The record holds what was written under the lock: {}.",
        if as_expected { "yes" } else { "NO" }
    )?;
    Ok(as_expected)
}

/// The process that is paused.
fn be_paused(role: Role, record: &Path) -> Result<bool, Failure> {
    let lock = open_lock(&env::var("REDIS_URL")?)?;
    let (sender, lost) = channel();
    lock.on_lost(move |lost| sender.send(lost.reason()).unwrap_or_default());
    let guard = lock.guard()?;
    let fence = guard.fence().unwrap_or_default();
    writeln!(io::stdout(), "has the lock with fence {fence}, and works")?;
    io::stdin().read_to_end(&mut Vec::new())?; // works until it is paused, and goes on afterwards
    if let Role::Careful = role {
        let Err(error) = guard.ensure_valid() else { return Ok(false) };
        writeln!(io::stdout(), "looks before it writes: {error}")?;
        writeln!(
            io::stdout(),
            "is told as well, by on_lost: {:?}. It does not write",
            lost.recv_timeout(Duration::from_secs(5))?
        )?;
        return Ok(true);
    }
    let written = write_record(record, fence, "by the paused process")?;
    writeln!(
        io::stdout(),
        "writes without a look: {}",
        if written { "WRITTEN" } else { "refused, the record has seen a newer fence" }
    )?;
    Ok(!written)
}
