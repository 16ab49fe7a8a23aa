//! Several processes, each with several threads, count the words of text files together. What they
//! share is one plain-text file, the ledger: it says which line comes next, and how often each word
//! has been seen so far. Every update reads the whole file and writes it anew, so that without the
//! lock, two workers that have read the same ledger overwrite each other's update.
//!
//! ```text
//! cargo run --example batch_workers                 # counts the words of this crate's own guide
//! cargo run --example batch_workers -- --unlocked   # does without the lock, and loses updates
//! cargo run --example batch_workers -- --kill       # kills a process in the middle of an update
//! ```
mod ledger;
#[path = "../support/mod.rs"]
mod support;

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{env, thread};

use clap::Parser;
use distlock::{Client, LockGuard, LockOptions};
use indicatif::HumanCount;
use ledger::Ledger;
use support::{Failure, Progress, Sandbox, end, read_lines, signal};

/// Counts the words of text files with several processes that share one ledger, under one lock.
///
/// Uses the server that REDIS_URL names; else a redis-server of its own; else threads of one
/// process on memory://.
#[derive(Parser, Clone)]
struct Args {
    /// The text files [default: the guide of this crate]
    files: Vec<PathBuf>,
    /// How many processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    processes: u16,
    /// How many threads each process has
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    threads: u16,
    /// How many lines one update of the ledger counts
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Does without the lock, to show what it is for
    #[arg(long)]
    unlocked: bool,
    /// Kills a process (kill -9) that has the lock and has written half of an update
    #[arg(long, conflicts_with = "unlocked")]
    kill: bool,
    /// Makes this process a worker on this ledger
    #[arg(long, hide = true)]
    ledger: Option<PathBuf>,
}

fn main() -> ExitCode {
    env_logger::init();
    let args = Args::parse();
    end(match &args.ledger {
        None => lead(&args),
        Some(ledger) => work_as_process(&args, ledger).map(|()| true),
    })
}

// ---- The workers

/// What a worker reports about each update.
struct Note {
    /// The next line to take.
    next: u64,
    /// Zero: there was nothing left to count.
    lines: u64,
    words: u64,
    /// How long the worker has waited for the lock.
    wait: Duration,
    /// With `--kill`, once: the worker has stopped half-way, and waits to be killed.
    half_written: bool,
}

fn work_as_process(args: &Args, ledger: &Path) -> Result<(), Failure> {
    // Our leader holds the other end of this pipe, and never writes. When the pipe ends, the leader
    // is dead, and nobody needs the work any more.
    thread::spawn(|| {
        let _ = io::stdin().read_line(&mut String::new());
        std::process::exit(2);
    });
    work_in_threads(args, &env::var("REDIS_URL")?, ledger, &|note: Note| {
        let Note { next, lines, words, wait, half_written } = note;
        writeln!(
            io::stdout(),
            "{next} {lines} {words} {} {}",
            wait.as_micros(),
            u64::from(half_written)
        )?;
        Ok(())
    })
}

fn work_in_threads(
    args: &Args,
    url: &str,
    ledger: &Path,
    tell: &(impl Fn(Note) -> Result<(), Failure> + Sync),
) -> Result<(), Failure> {
    let options = LockOptions::new()
        // How long the others wait when a process dies while it holds the lock. One that lives has
        // its lease renewed until it unlocks.
        .lease(Duration::from_secs(2))
        // Each holder gets a number that is higher than the last one's, by which the ledger tells
        // an old holder from a new one.
        .fenced();
    let client = Client::builder(url).lock_options(options).build()?;
    let text = read_lines(&args.files)?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads)
            .map(|_| scope.spawn(|| work(args, &client, ledger, &text, tell)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))
        })
    })
}

/// Counts until there is nothing left.
fn work(
    args: &Args,
    client: &Client,
    ledger: &Path,
    text: &[String],
    tell: &dyn Fn(Note) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let lock = client.lock("batch_workers");
    loop {
        let asked = Instant::now();
        let guard = if args.unlocked { None } else { Some(lock.guard()?) };
        let wait = asked.elapsed();
        let Some(note) = update(args, ledger, text, guard.as_ref())? else { continue };
        if note.half_written {
            tell(note)?;
            loop {
                thread::park(); // with the lock, until this process is killed
            }
        }
        drop(guard); // unlocks
        let done = note.lines == 0;
        tell(Note { wait, ..note })?;
        if done {
            return Ok(());
        }
    }
}

/// Takes the next lines and adds their words, in one write: a process that dies on the way has
/// changed nothing. `None`: nothing has been changed, because the lock was lost meanwhile.
fn update(
    args: &Args,
    path: &Path,
    text: &[String],
    guard: Option<&LockGuard>,
) -> Result<Option<Note>, Failure> {
    let mut ledger = Ledger::read(path)?;
    let rest = text.get(ledger.next as usize..).unwrap_or_default();
    let batch = &rest[..rest.len().min(args.batch.into())];
    let words = ledger.count(batch);
    let mut note = Note {
        next: ledger.next,
        lines: batch.len() as u64,
        words,
        wait: Duration::ZERO,
        half_written: false,
    };
    if batch.is_empty() {
        return Ok(Some(note));
    }
    if args.kill && ledger.next * 2 > text.len() as u64 && ledger.write_half(path)? {
        note.half_written = true;
        return Ok(Some(note));
    }
    if let Some(guard) = guard {
        // The process may have been paused for longer than its lease, and another process may have
        // the lock. Its own clock tells, without a round trip. A pause after this check is what the
        // fence is for: the ledger refuses a fence that is older than one it has seen.
        ledger.fence = guard.fence().unwrap_or_default();
        if guard.ensure_valid().is_err() || Ledger::read(path)?.fence > ledger.fence {
            return Ok(None);
        }
    }
    ledger.write(path)?;
    Ok(Some(note))
}

// ---- Their leader, which starts them and reports the result

/// A process of workers, and what it has reported.
struct Worker {
    pid: u32,
    listener: Option<JoinHandle<Result<(), Failure>>>,
    notes: Vec<Note>,
}

impl Worker {
    /// Starts this program again. On `memory://`, which no other process can share, it starts the
    /// worker's threads.
    fn start(
        number: usize,
        args: &Args,
        sandbox: &Sandbox,
        ledger: &Path,
        notes: Sender<(usize, Note)>,
    ) -> Result<Self, Failure> {
        let (pid, listener);
        if sandbox.is_shared {
            let mut command = Command::new(env::current_exe()?);
            command
                .arg("--ledger")
                .arg(ledger)
                .args(env::args_os().skip(1))
                .env("REDIS_URL", &sandbox.url);
            let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            pid = process.id();
            listener = thread::spawn(move || {
                for line in
                    process.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines)
                {
                    let numbers =
                        line?.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
                    let [next, lines, words, wait, half] = numbers[..] else {
                        return Err("a worker said something odd".into());
                    };
                    let note = Note {
                        next,
                        lines,
                        words,
                        wait: Duration::from_micros(wait),
                        half_written: half == 1,
                    };
                    notes.send((number, note))?;
                }
                let status = process.wait()?;
                if status.success() {
                    Ok(())
                } else {
                    Err(format!("process {} has ended: {status}", number + 1).into())
                }
            });
        } else {
            let (args, url, ledger) = (args.clone(), sandbox.url.clone(), ledger.to_owned());
            pid = std::process::id();
            listener = thread::spawn(move || {
                work_in_threads(&args, &url, &ledger, &|note| Ok(notes.send((number, note))?))
            });
        }
        Ok(Self { pid, listener: Some(listener), notes: Vec::new() })
    }
}

fn lead(args: &Args) -> Result<bool, Failure> {
    let text = read_lines(&args.files)?;
    let half = text.len() as u64 / 2;
    let sandbox = Sandbox::open()?;
    if args.kill && (args.processes < 2 || !sandbox.is_shared) {
        return Err("--kill needs two processes, and a Redis server for them to share".into());
    }
    let processes = if sandbox.is_shared { args.processes } else { 1 };
    let (threads, lines) = (args.threads, HumanCount(text.len() as u64));
    writeln!(
        io::stdout(),
        "Processes: {processes}, threads of each: {threads}, lines to count: {lines}, server: {}",
        sandbox.server
    )?;

    let path = sandbox.dir().join("ledger.txt");
    Ledger::default().write(&path)?;
    let start = Instant::now();
    let (sender, notes) = channel();
    let workers = (0..processes)
        .map(|number| Worker::start(number.into(), args, &sandbox, &path, sender.clone()));
    let mut workers = workers.collect::<Result<Vec<_>, _>>()?;
    drop(sender); // the notes end when the last worker does
    let mut progress = Progress::new(text.len() as u64, "lines");
    let (mut killed, mut killed_at) = (None, None);
    for (number, note) in notes {
        let (worker, name) = (&mut workers[number], number + 1);
        if note.half_written {
            progress.say(&format!(
                "process {name} has the lock and has written half of an update: kill -9"
            ));
            signal(worker.pid, "KILL")?;
            (killed, killed_at) = (Some(number), Some(Instant::now()));
            continue;
        }
        progress.at(note.next);
        if let Some(since) = killed_at.take_if(|_: &mut Instant| note.next > half) {
            progress.say(&format!(
                "process {name} has the lock {:.1?} later, and goes on",
                since.elapsed()
            ));
        }
        worker.notes.push(note);
    }
    drop(progress);
    let took = start.elapsed();
    for (number, worker) in workers.iter_mut().enumerate() {
        let ended = worker
            .listener
            .take()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())));
        if killed != Some(number) {
            ended.transpose()?;
        }
    }
    let mut alone = Ledger::default();
    alone.count(&text);
    sum_up(&alone, &Ledger::read(&path)?, &workers, took, killed.is_some(), args.unlocked)
}

/// Reports the result; `false` if it is not as it should be.
fn sum_up(
    alone: &Ledger,
    ledger: &Ledger,
    workers: &[Worker],
    took: Duration,
    killed: bool,
    unlocked: bool,
) -> Result<bool, Failure> {
    let notes = || workers.iter().flat_map(|worker| &worker.notes);
    let (locks, updates) =
        (notes().count() as u64, notes().filter(|note| note.lines > 0).count() as u64);
    let (lines, words) =
        (notes().map(|note| note.lines).sum::<u64>(), notes().map(|note| note.words).sum());
    let count = |number: u64| HumanCount(number).to_string();
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "\n  {:<8}{:>12}{:>16}{:>18}",
        "", "one thread", "in the ledger", "told by workers"
    )?;
    for (what, alone, ledger, told) in [
        ("lines", count(alone.next), count(ledger.next), count(lines)),
        ("words", count(alone.total()), count(ledger.total()), count(words)),
        ("updates", String::new(), count(ledger.updates), count(updates)),
    ] {
        writeln!(out, "  {what:<8}{alone:>12}{ledger:>16}{told:>18}")?;
    }
    writeln!(out)?;
    let (mut so_far, mut percent) = (0, 0);
    for (number, worker) in workers.iter().enumerate() {
        so_far += worker.notes.iter().map(|note| note.lines).sum::<u64>();
        // What is rounded away goes to the next process: together they have 100 %.
        let share = so_far * 100 / lines.max(1) - percent;
        percent += share;
        writeln!(out, "  process {}: {share:>3} % of the lines", number + 1)?;
    }
    if unlocked {
        let lost = updates.saturating_sub(ledger.updates);
        writeln!(
            out,
            "\nWithout the lock, {} of {} updates were lost: overwritten by a worker that had",
            count(lost),
            count(updates)
        )?;
        writeln!(
            out,
            "read the ledger before them. Their lines had to be counted again, {took:.1?} in all."
        )?;
        return Ok(true);
    }
    let longest = notes().map(|note| note.wait).max().unwrap_or_default();
    let rate = locks as f64 / took.as_secs_f64();
    writeln!(
        out,
        "  {} locks in {took:.1?}: {rate:.0} per second; the longest wait for one was \
         {longest:.1?}",
        count(locks)
    )?;
    // The killed process may not have reported its last update.
    let agrees = ledger.words == alone.words
        && ledger.next == alone.next
        && (killed || ledger.updates == updates);
    writeln!(
        out,
        "\nThe ledger {} with the count of a single thread.",
        if agrees { "agrees" } else { "DOES NOT AGREE" }
    )?;
    Ok(agrees)
}
