//! A catalogue of many pages that many processes read, and one rebuilds from time to time, page by
//! page. Who reads while it is rebuilt sees some pages of the old edition and some of the new one:
//! a torn read. A read-write lock prevents it, and otherwise lets everybody read at once.
//!
//! ```text
//! cargo run --example catalogue
//! cargo run --example catalogue -- --unlocked
//! cargo run --example catalogue -- --rebuilds 50 --readers 8 --threads 4
//! ```
//!
//! After each rebuild the writer goes on as a reader, without a gap, and checks what it wrote while
//! the others read it already.
mod support;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use clap::{Parser, ValueEnum};
use distlock::{Client, RwLock};
use indicatif::HumanCount;
use support::{Failure, Process, Progress, Sandbox, end, end_with_leader, reports_of};

const PAGES: u64 = 20;

/// Many processes read a catalogue while one rebuilds it, page by page: nobody sees pages of two
/// editions.
///
/// Uses the server that REDIS_URL names; else a redis-server of its own.
#[derive(Parser)]
struct Args {
    /// How often the catalogue is rebuilt
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    rebuilds: u64,
    /// How many processes read it
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=50))]
    readers: u16,
    /// How many threads read in each of them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=50))]
    threads: u16,
    /// Work without the lock, and see torn reads
    #[arg(long)]
    unlocked: bool,
    /// What this process does
    #[arg(long, hide = true)]
    role: Option<Role>,
    /// Where the pages are. Its name is that of the lock, too
    #[arg(long, hide = true, default_value = ".")]
    dir: PathBuf,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Role {
    Reader,
    Rebuilder,
}

fn main() -> ExitCode {
    env_logger::init();
    let args = Args::parse();
    end(match args.role {
        None => lead(&args),
        Some(Role::Reader) => read(&args).map(|()| true),
        Some(Role::Rebuilder) => rebuild(&args).map(|()| true),
    })
}

/// The pages, each a file with the number of its edition.
struct Catalogue<'a> {
    dir: &'a Path,
}

impl Catalogue<'_> {
    fn page(&self, number: u64) -> PathBuf {
        self.dir.join(format!("page-{number}"))
    }

    /// Takes 10 ms at least, in which the pages are of two editions.
    fn rebuild(&self, edition: u64) -> Result<(), Failure> {
        for number in 0..PAGES {
            // Never a part of a page: it is the whole catalogue that is torn.
            let draft = self.dir.join("draft");
            fs::write(&draft, edition.to_string())?;
            fs::rename(&draft, self.page(number))?;
            thread::sleep(Duration::from_micros(500));
        }
        Ok(())
    }

    /// The edition of all pages; `None` if there are several.
    fn edition(&self) -> Result<Option<u64>, Failure> {
        let of = |number| Ok(fs::read_to_string(self.page(number))?.parse()?);
        let all = (0..PAGES).map(of).collect::<Result<Vec<u64>, Failure>>()?;
        Ok(all.first().copied().filter(|first| all.iter().all(|edition| edition == first)))
    }
}

/// The lock in this process; `None` with `--unlocked`.
fn lock(args: &Args) -> Result<Option<RwLock>, Failure> {
    if args.unlocked {
        return Ok(None);
    }
    Ok(Some(Client::open(&env::var("REDIS_URL")?)?.rw_lock(&args.dir.to_string_lossy())))
}

/// What a thread that reads has seen.
#[derive(Default)]
struct Seen {
    looks: u64,
    torn: u64,
    longest_wait: Duration,
}

/// Looks again and again until it sees the last edition.
fn look(args: &Args, lock: Option<&RwLock>) -> Result<Seen, Failure> {
    let catalogue = Catalogue { dir: &args.dir };
    let mut seen = Seen::default();
    loop {
        let asked = Instant::now();
        let edition = match lock {
            None => catalogue.edition()?,
            Some(lock) => lock.read_lock().try_with(|_guard| {
                seen.longest_wait = seen.longest_wait.max(asked.elapsed());
                catalogue.edition()
            })?,
        };
        seen.looks += 1;
        seen.torn += u64::from(edition.is_none());
        if seen.looks == 1 {
            println!("looks");
        }
        if edition == Some(args.rebuilds) {
            return Ok(seen);
        }
        thread::sleep(Duration::from_micros(200)); // does something with it
    }
}

/// Reports that each thread looks, and at the end what it has seen.
fn read(args: &Args) -> Result<(), Failure> {
    end_with_leader();
    let lock = lock(args)?;
    thread::scope(|scope| {
        let one = || look(args, lock.as_ref());
        let threads: Vec<_> = (0..args.threads).map(|_| scope.spawn(one)).collect();
        for thread in threads {
            let seen = thread.join().map_err(|_| "a thread panicked")??;
            println!("{} {} {}", seen.looks, seen.torn, seen.longest_wait.as_millis());
        }
        Ok(())
    })
}

/// Reports each rebuild: how many milliseconds it waited for the lock.
fn rebuild(args: &Args) -> Result<(), Failure> {
    end_with_leader();
    let (lock, catalogue) = (lock(args)?, Catalogue { dir: &args.dir });
    for edition in 1..=args.rebuilds {
        thread::sleep(Duration::from_millis(20)); // the others look at it for a while
        let waited = match &lock {
            None => catalogue.rebuild(edition).map(|()| Duration::ZERO)?,
            Some(lock) => rebuild_alone(&catalogue, edition, lock)?,
        };
        println!("{}", waited.as_millis());
    }
    Ok(())
}

/// How long it waited for the lock.
fn rebuild_alone(
    catalogue: &Catalogue<'_>,
    edition: u64,
    lock: &RwLock,
) -> Result<Duration, Failure> {
    let asked = Instant::now();
    let writing = lock.write()?;
    let waited = asked.elapsed();
    catalogue.rebuild(edition)?;
    // An error if the lease was lost meanwhile: then somebody may have seen a half of it.
    let reading = lock.downgrade(writing)?;
    if catalogue.edition()? != Some(edition) {
        return Err(format!("edition {edition} is not what was written").into());
    }
    reading.release()?;
    Ok(waited)
}

fn lead(args: &Args) -> Result<bool, Failure> {
    let sandbox = Sandbox::shared()?;
    let mut out = io::stdout();
    writeln!(
        out,
        "Pages: {PAGES}, processes that read: {}, threads in each: {}, server: {}",
        args.readers, args.threads, sandbox.server
    )?;
    Catalogue { dir: sandbox.dir() }.rebuild(0)?;
    let (dir, rebuilds) = (sandbox.dir().display().to_string(), args.rebuilds.to_string());
    let threads = args.threads.to_string();
    let start = |role| {
        let mut words =
            vec!["--role", role, "--dir", &dir, "--rebuilds", &rebuilds, "--threads", &threads];
        words.extend(args.unlocked.then_some("--unlocked"));
        Process::worker(&sandbox, words)
    };
    let started = Instant::now();
    let mut workers =
        (0..args.readers).map(|_| start("reader")).collect::<Result<Vec<_>, Failure>>()?;
    let (say, heard) = reports_of(&mut workers);
    let mut progress = Progress::new(args.rebuilds, "rebuilds");
    let (mut sum, mut longest, mut rebuilt) = (Seen::default(), Duration::ZERO, 0);
    // It is rebuilt as soon as all threads look at it.
    let mut not_yet = u32::from(args.readers) * u32::from(args.threads);
    let mut for_rebuilder = Some(say);
    for (number, line) in heard {
        let Some(line) = line else {
            workers[number].ended_well()?;
            continue;
        };
        if line == "looks" {
            not_yet -= 1;
            if let Some(say) = for_rebuilder.take_if(|_| not_yet == 0) {
                let mut rebuilder = start("rebuilder")?;
                rebuilder.reports(workers.len(), say);
                workers.push(rebuilder);
            }
            continue;
        }
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        match numbers[..] {
            [waited] => {
                longest = longest.max(Duration::from_millis(waited));
                rebuilt += 1;
                progress.at(rebuilt);
            }
            [looks, torn, waited] => {
                sum.looks += looks;
                sum.torn += torn;
                sum.longest_wait = sum.longest_wait.max(Duration::from_millis(waited));
            }
            _ => return Err("a worker says nonsense".into()),
        }
    }
    drop(progress);
    writeln!(
        out,
        "Looked {} times while it was rebuilt {} times, in {:.1?}",
        HumanCount(sum.looks),
        args.rebuilds,
        started.elapsed()
    )?;
    if args.unlocked {
        writeln!(out, "Without the lock, {} of the looks were torn.", HumanCount(sum.torn))?;
        return Ok(true);
    }
    writeln!(out, "Longest wait: {longest:.1?} to rebuild, {:.1?} to read", sum.longest_wait)?;
    let so = if sum.torn == 0 { "all saw whole editions" } else { "TOO MANY" };
    writeln!(out, "Torn reads: {}; {so}.", sum.torn)?;
    Ok(sum.torn == 0)
}
