//! Many instances of a service start at the same time, and one of them has to do a job: here, to
//! draw the winners of a lottery. Each takes the lock and looks whether the job is done. The first
//! one does it, and the others see that it is done.
//!
//! ```text
//! cargo run --example lottery
//! cargo run --example lottery -- --instances 100 --winners 5
//! ```
mod support;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{fs, thread};

use clap::Parser;
use distlock::{Client, LockOptions};
use support::{Failure, Sandbox, end};

/// Starts many instances at the same time: one draws the winners of a lottery, the others see that
/// it is done.
///
/// Uses the server that REDIS_URL names; else a redis-server of its own; else memory://.
#[derive(Parser)]
struct Args {
    /// How many instances: threads here, each with a client of its own, as if it ran on another
    /// machine
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=200))]
    instances: u16,
    /// How many winners
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    winners: u16,
    /// How many tickets have been sold
    #[arg(long, default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tickets: u32,
}

fn main() -> ExitCode {
    env_logger::init();
    end(run(&Args::parse()))
}

/// What an instance has found under the lock.
struct Seen {
    winners: String,
    drawn_by_me: bool,
}

/// One instance. The file could be a row in a database, or a key in Redis.
fn instance(args: &Args, url: &str, file: &Path) -> Result<Seen, Failure> {
    let client = Client::builder(url)
        .lock_options(LockOptions::new().lease(Duration::from_secs(5)))
        .build()?;
    let guard = client.lock("lottery").guard()?;
    if file.exists() {
        return Ok(Seen { winners: fs::read_to_string(file)?, drawn_by_me: false });
    }
    thread::sleep(Duration::from_millis(300)); // the drum turns
    let tickets = fastrand::choose_multiple(1..=args.tickets, args.winners.into());
    let winners = tickets.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    // The last moment to notice that the lock was lost, and another instance may be drawing.
    guard.ensure_valid()?;
    // Written beside its place and then moved there, so that an instance that dies while it writes
    // leaves no half of a result.
    fs::write(file.with_extension("new"), &winners)?;
    fs::rename(file.with_extension("new"), file)?;
    guard.release()?;
    Ok(Seen { winners, drawn_by_me: true })
}

fn run(args: &Args) -> Result<bool, Failure> {
    if u32::from(args.winners) > args.tickets {
        return Err("there are fewer tickets than winners".into());
    }
    let sandbox = Sandbox::open()?;
    writeln!(io::stdout(), "Instances: {}, server: {}", args.instances, sandbox.server)?;
    let file = sandbox.dir().join("winners.txt");
    let (mut draws, mut all) = (0, Vec::new());
    thread::scope(|scope| {
        let (sender, results) = channel();
        for number in 1..=args.instances {
            let (sender, sandbox, file) = (sender.clone(), &sandbox, &file);
            thread::Builder::new().spawn_scoped(scope, move || {
                sender.send((number, instance(args, &sandbox.url, file)))
            })?;
        }
        drop(sender);
        for (number, seen) in results {
            let seen = seen?;
            if seen.drawn_by_me {
                writeln!(io::stdout(), "  instance {number} draws the winners")?;
                draws += 1;
            }
            all.push(seen.winners);
        }
        Ok::<_, Failure>(())
    })?;
    writeln!(io::stdout(), "  {} instances see that it is done", all.len() - draws)?;
    all.dedup();
    writeln!(
        io::stdout(),
        "Draws: {draws}. All have seen the same winning tickets: {}",
        all.join(" OR ")
    )?;
    Ok(draws == 1 && all.len() == 1)
}
