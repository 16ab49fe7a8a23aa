//! A licence that allows ten exports at a time, over all worker processes together; a large export
//! counts as three. A semaphore hands out the permits, first come, first served, so that large
//! exports get their turn, too.
//!
//! ```text
//! cargo run --example exports
//! cargo run --example exports -- --unlimited
//! cargo run --example exports -- --exports 1000 --workers 8 --threads 6
//! ```
//!
//! Half-way, one worker hangs in an export. It is killed and started again. Its permits are free
//! again when their leases have ended.
mod support;

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{env, thread};

use clap::Parser;
use distlock::{Client, LockOptions, Permit, Semaphore};
use support::servers::wait_until;
use support::{Failure, Process, Progress, Sandbox, end, end_with_leader, reports_of};

/// For how long at most the permits of a killed worker stay taken.
const LEASE: Duration = Duration::from_secs(3);
/// How many permits a large export takes.
const LARGE: u32 = 3;

/// Worker processes export under a licence for ten exports at a time: never more, also when a
/// worker is killed.
///
/// Uses the server that REDIS_URL names; else a redis-server of its own.
#[derive(Parser)]
struct Args {
    /// How many exports there are; every fifth is a large one
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(20..=100_000))]
    exports: u64,
    /// How many the licence allows at a time
    #[arg(long, default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(i64::from(LARGE)..=1000))]
    permits: u32,
    /// How many worker processes there are; one of them is killed
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=50))]
    workers: u64,
    /// How many threads export in each
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=50))]
    threads: u64,
    /// Export without permits, and see the licence exceeded
    #[arg(long)]
    unlimited: bool,
    /// This process is the worker of this number
    #[arg(long, hide = true)]
    worker: Option<u64>,
    /// Whether it hangs half-way
    #[arg(long, hide = true)]
    hangs: bool,
    /// Where the licence is, and what was exported. Its name is that of the semaphore, too
    #[arg(long, hide = true, default_value = ".")]
    dir: PathBuf,
}

fn main() -> ExitCode {
    env_logger::init();
    let args = Args::parse();
    end(match args.worker {
        None => lead(&args),
        Some(number) => work(&args, number).map(|()| true),
    })
}

/// The licence itself, which does not know of the semaphore: as many seats as it allows, each a
/// file that a process locks. A dead process frees its seats at once.
struct Licence<'a> {
    dir: &'a Path,
    seats: u32,
}

impl Licence<'_> {
    /// So many seats; `None` if there are not so many free ones.
    fn sit_down(&self, wanted: u32) -> Result<Option<Vec<File>>, Failure> {
        (0..wanted).map(|_| self.free_seat()).collect()
    }

    /// The first that is free. Whoever looks from the first one on, while there are not more who
    /// sit or look than there are seats, finds one.
    fn free_seat(&self) -> Result<Option<File>, Failure> {
        for seat in 0..self.seats {
            let file = File::create(self.dir.join(format!("seat-{seat}")))?;
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

fn semaphore(permits: u32, dir: &Path, url: &str) -> Result<Semaphore, Failure> {
    let client = Client::builder(url).lock_options(LockOptions::new().lease(LEASE)).build()?;
    Ok(client.semaphore(&dir.to_string_lossy(), permits))
}

/// The file that an export writes.
fn exported(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("export-{number}"))
}

/// A worker, whose threads do every export of theirs that has not been done.
fn work(args: &Args, worker: u64) -> Result<(), Failure> {
    end_with_leader();
    let semaphore = semaphore(args.permits, &args.dir, &env::var("REDIS_URL")?)?;
    let lanes = args.workers * args.threads;
    let lane = |lane: u64| {
        let its: Vec<u64> =
            (1..=args.exports).filter(|number| (number - 1) % lanes == lane).collect();
        for (at, &number) in its.iter().enumerate() {
            if !exported(&args.dir, number).exists() {
                let hangs = args.hangs && at >= its.len() / 2;
                export(args, number, &semaphore, hangs)?;
            }
        }
        Ok::<_, Failure>(())
    };
    thread::scope(|scope| {
        let lanes = (0..args.threads).map(|thread| worker * args.threads + thread);
        let threads: Vec<_> = lanes.map(|number| scope.spawn(move || lane(number))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

/// Reports the permits that it took, how many milliseconds it waited for them, whether there were
/// seats, and whether it kept the permits until its end.
fn export(args: &Args, number: u64, semaphore: &Semaphore, hangs: bool) -> Result<(), Failure> {
    let permits = if number.is_multiple_of(5) { LARGE } else { 1 };
    let asked = Instant::now();
    let permit = if args.unlimited { None } else { Some(semaphore.acquire_many(permits)?) };
    let waited = asked.elapsed();
    let seats = Licence { dir: &args.dir, seats: args.permits }.sit_down(permits)?;
    if hangs {
        println!("hangs");
        thread::sleep(Duration::from_secs(3600));
    }
    thread::sleep(Duration::from_millis(20)); // exports
    let seated = seats.is_some();
    drop(seats);
    let ended = permit.map_or(Ok(()), Permit::release);
    let kept = !ended.is_err_and(|error| error.is_lost());
    File::create(exported(&args.dir, number))?;
    println!("{permits} {} {} {}", waited.as_millis(), u8::from(seated), u8::from(kept));
    Ok(())
}

/// What the workers have reported.
#[derive(Default)]
struct Report {
    exports: u64,
    /// Exports for which there were no seats.
    exceeded: u64,
    /// Permits that were lost while they were in use.
    lost: u64,
    /// The longest waits in milliseconds: for one permit, and for several.
    longest: [u64; 2],
}

impl Report {
    fn add(&mut self, line: &str) -> Result<(), Failure> {
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [permits, waited, seated, kept] = numbers[..] else {
            return Err("a worker says nonsense".into());
        };
        self.exports += 1;
        self.exceeded += 1 - seated;
        self.lost += 1 - kept;
        let longest = &mut self.longest[usize::from(permits > 1)];
        *longest = waited.max(*longest);
        Ok(())
    }
}

fn lead(args: &Args) -> Result<bool, Failure> {
    let sandbox = Sandbox::shared()?;
    let mut out = io::stdout();
    writeln!(
        out,
        "Exports: {}, at a time: {}, workers: {} with {} threads, server: {}",
        args.exports, args.permits, args.workers, args.threads, sandbox.server
    )?;
    let started = Instant::now();
    let (report, watch) = follow(args, &sandbox)?;
    let took = started.elapsed();
    let freed = watch.map(|watch| watch.join().map_err(|_| "a thread panicked")?).transpose()?;
    let is_done = |number: &u64| exported(sandbox.dir(), *number).exists();
    let done = (1..=args.exports).filter(is_done).count() as u64;
    let all_done = done == args.exports;
    writeln!(out, "Exports done: {done} of {}, in {took:.1?}", args.exports)?;
    if args.unlimited {
        writeln!(out, "Without permits, the licence was exceeded by {} exports.", report.exceeded)?;
        return Ok(all_done);
    }
    let [small, large] = report.longest;
    writeln!(out, "Longest wait: {small} ms for one permit, {large} ms for {LARGE}")?;
    if let Some(freed) = freed {
        writeln!(out, "The permits of the killed worker were free again after {freed:.1?}.")?;
    }
    let so = match (report.exceeded, report.lost) {
        (0, _) => "never",
        (_, 0) => "YES",
        // Then its export went on beside the next owner's.
        _ => "yes, after a worker stood still for longer than its lease",
    };
    writeln!(out, "More than {} at a time: {so}.", args.permits)?;
    Ok(all_done && report.exceeded == 0)
}

/// How long the permits of the killed worker were not free, when that is known.
type Watch = JoinHandle<Result<Duration, Failure>>;

/// Starts the workers, kills the one that hangs, starts it again, and hears all until they have
/// ended.
fn follow(args: &Args, sandbox: &Sandbox) -> Result<(Report, Option<Watch>), Failure> {
    let mut workers = (0..args.workers)
        .map(|number| start(args, sandbox, number, number == 0 && !args.unlimited))
        .collect::<Result<Vec<_>, Failure>>()?;
    let mut progress = Progress::new(args.exports, "exports");
    let (mut report, mut watching) = (Report::default(), None);
    let (say, heard) = reports_of(&mut workers);
    // For the one that is started again.
    let mut say = Some(say).filter(|_| !args.unlimited);
    for (number, line) in heard {
        let Some(line) = line else {
            if number != 0 || watching.is_none() {
                workers[number].ended_well()?;
            }
            continue;
        };
        if line != "hangs" {
            report.add(&line)?;
            progress.at(report.exports);
        } else if let Some(say) = say.take() {
            workers[0].0.kill()?;
            watching = Some(watch(semaphore(args.permits, sandbox.dir(), &sandbox.url)?)?);
            progress.say("worker 1 hangs, is killed, and starts again");
            let mut again = start(args, sandbox, 0, false)?;
            again.reports(workers.len(), say);
            workers.push(again);
        }
    }
    Ok((report, watching))
}

fn start(args: &Args, sandbox: &Sandbox, number: u64, hangs: bool) -> Result<Process, Failure> {
    let numbers = [
        ("--worker", number),
        ("--exports", args.exports),
        ("--permits", args.permits.into()),
        ("--workers", args.workers),
        ("--threads", args.threads),
    ];
    let mut words = vec!["--dir".to_owned(), sandbox.dir().display().to_string()];
    words.extend(numbers.iter().flat_map(|(name, of)| [(*name).to_owned(), of.to_string()]));
    let flags = [(hangs, "--hangs"), (args.unlimited, "--unlimited")];
    words.extend(flags.iter().filter(|flag| flag.0).map(|flag| flag.1.to_owned()));
    Process::worker(sandbox, words)
}

/// How long it takes from now until those who have permits now have none.
fn watch(semaphore: Semaphore) -> Result<Watch, Failure> {
    let (killed, holders) = (Instant::now(), semaphore.holders()?);
    Ok(thread::spawn(move || {
        let is_one = |token: &String| holders.iter().any(|holder| holder.token == *token);
        let has_none =
            || semaphore.holders().is_ok_and(|now| !now.iter().any(|holder| is_one(&holder.token)));
        wait_until("the permits of a killed worker are free", has_none)?;
        Ok(killed.elapsed())
    }))
}
