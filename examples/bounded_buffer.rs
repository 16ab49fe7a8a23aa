//! The classic example of a condition, from the documentation of Java's `Condition`, between
//! processes: producers put items into a bounded buffer, consumers take them out. The buffer is a
//! Redis list; the lock says who may touch it, and two conditions of the lock say that it is not
//! full, or not empty.
//!
//! ```text
//! cargo run --example bounded_buffer
//! cargo run --example bounded_buffer -- --items 2000 --producers 3 --consumers 3
//! ```
//!
//! One consumer is killed in the middle. No item is lost, none is taken twice.
mod support;

use std::io::{self, Write};
use std::iter::repeat_n;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, thread};

use clap::{Parser, ValueEnum};
use distlock::{Client, Condition, LockOptions, RedisLock};
use support::{Failure, Process, Progress, Sandbox, end, end_with_leader, reports_of};

/// Producers and consumers in several processes share a bounded buffer: no item lost, none doubled,
/// also when a consumer is killed.
///
/// Uses the server that REDIS_URL names; else a redis-server of its own.
#[derive(Parser)]
struct Args {
    /// How many items go through the buffer
    #[arg(long, default_value_t = 400)]
    #[arg(value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    items: u64,
    /// How many items it holds at most
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    capacity: u64,
    /// How many processes put items in
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=50))]
    producers: u16,
    /// How many processes take items out; one of them is killed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=50))]
    consumers: u16,
    /// What this process does
    #[arg(long, hide = true)]
    role: Option<Role>,
    /// What the keys of this run begin with
    #[arg(long, hide = true, default_value = "")]
    run: String,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Role {
    Producer,
    Consumer,
}

fn main() -> ExitCode {
    env_logger::init();
    let args = Args::parse();
    end(match args.role {
        None => lead(&args),
        Some(role) => work(&args, role).map(|()| true),
    })
}

/// One process's view of the buffer.
struct Buffer<'a> {
    client: &'a Client,
    args: &'a Args,
    lock: RedisLock,
    not_full: Condition,
    not_empty: Condition,
}

impl Buffer<'_> {
    fn key(&self, what: &str) -> String {
        format!("{{{}}}:{what}", self.args.run)
    }

    /// How many items were made, are in the buffer, and were taken. Read under the lock.
    fn state(&self) -> Result<(u64, u64, u64), Failure> {
        let (made, waiting, taken) = (self.key("made"), self.key("items"), self.key("taken"));
        let look = |conn: &mut dyn redis::ConnectionLike| {
            let mut pipe = redis::pipe();
            pipe.get(&made).llen(&waiting).llen(&taken).query::<(Option<u64>, u64, u64)>(conn)
        };
        let (made, waiting, taken) = self.client.execute(look)?;
        Ok((made.unwrap_or(0), waiting, taken))
    }

    /// Puts the next item in, and waits while there is no room. `false`: all items have been made.
    fn put(&self) -> Result<bool, Failure> {
        let (made, waiting) = (self.key("made"), self.key("items"));
        let _guard = self.lock.guard()?;
        loop {
            let (so_far, in_it, _) = self.state()?;
            if so_far >= self.args.items {
                return Ok(false);
            }
            if in_it < self.args.capacity {
                // Both or neither: a producer that dies between the two would lose the item, or
                // make it twice.
                let item = so_far + 1;
                let put = |conn: &mut dyn redis::ConnectionLike| {
                    redis::pipe()
                        .atomic()
                        .set(&made, item)
                        .ignore()
                        .rpush(&waiting, item)
                        .ignore()
                        .query::<()>(conn)
                };
                self.client.execute(put)?;
                self.not_empty.notify_one()?;
                return Ok(true);
            }
            self.not_full.wait()?;
        }
    }

    /// Takes an item out, and waits while there is none. `None`: all items have been taken.
    fn take(&self) -> Result<Option<u64>, Failure> {
        let (waiting, taken) = (self.key("items"), self.key("taken"));
        let _guard = self.lock.guard()?;
        loop {
            let (_, in_it, out_of_it) = self.state()?;
            if out_of_it >= self.args.items {
                // So that the other consumers see it, too.
                self.not_empty.notify_all()?;
                return Ok(None);
            }
            if in_it > 0 {
                // One command, so that a consumer that dies has either taken the item or not.
                // `execute` may run it again after a dropped connection; even an item that is taken
                // twice would be moved, and counted.
                let take = |conn: &mut dyn redis::ConnectionLike| {
                    redis::cmd("LMOVE")
                        .arg(&waiting)
                        .arg(&taken)
                        .arg("LEFT")
                        .arg("RIGHT")
                        .query::<Option<u64>>(conn)
                };
                let item = self.client.execute(take)?;
                self.not_full.notify_one()?;
                return Ok(item);
            }
            self.not_empty.wait()?;
        }
    }
}

/// One worker process: reports each item on its standard output.
fn work(args: &Args, role: Role) -> Result<(), Failure> {
    end_with_leader();
    // A short lease: this long the others wait when a process dies while it holds the lock.
    let options = LockOptions::new().lease(Duration::from_secs(2));
    let client = Client::builder(&env::var("REDIS_URL")?).lock_options(options).build()?;
    let lock = client.lock(&args.run);
    let (not_full, not_empty) = (lock.new_condition("not-full")?, lock.new_condition("not-empty")?);
    let buffer = Buffer { client: &client, args, lock, not_full, not_empty };
    let mut out = io::stdout().lock();
    match role {
        Role::Producer => while buffer.put()? {},
        Role::Consumer => {
            while let Some(item) = buffer.take()? {
                writeln!(out, "{item}")?;
                out.flush()?;
                thread::sleep(Duration::from_millis(1)); // works with it
            }
        }
    }
    Ok(())
}

fn lead(args: &Args) -> Result<bool, Failure> {
    let sandbox = Sandbox::shared()?;
    let run = format!("bounded-buffer-{}", std::process::id());
    let client = Client::open(&sandbox.url)?;
    let mut out = io::stdout();
    writeln!(
        out,
        "Producers: {}, consumers: {}, items: {}, room for {}, server: {}",
        args.producers, args.consumers, args.items, args.capacity, sandbox.server
    )?;
    let started = Instant::now();
    let start = |role: &str| {
        let (items, capacity) = (args.items.to_string(), args.capacity.to_string());
        let words = ["--role", role, "--run", &run, "--items", &items, "--capacity", &capacity];
        Process::worker(&sandbox, words)
    };
    let consumers = usize::from(args.consumers);
    let roles = repeat_n("consumer", consumers);
    let roles = roles.chain(repeat_n("producer", usize::from(args.producers)));
    let mut workers = roles.map(start).collect::<Result<Vec<_>, _>>()?;
    let mut progress = Progress::new(args.items, "items");
    let mut by_consumer = vec![0_u64; consumers];
    let mut heard = 0;
    let (_, reports) = reports_of(&mut workers);
    for (number, item) in reports {
        let is_killed = number == 0 && heard >= args.items / 2;
        if item.is_none() && !is_killed {
            workers[number].ended_well()?;
        }
        if item.is_none() {
            continue;
        }
        heard += 1;
        by_consumer[number] += 1;
        progress.at(heard);
        if heard == args.items / 2 {
            workers[0].0.kill()?;
            progress.say("consumer 1 is killed");
        }
    }
    drop(progress);
    let keys = ["made", "items", "taken"].map(|what| format!("{{{run}}}:{what}"));
    let taken: Vec<u64> =
        client.execute(|conn| redis::cmd("LRANGE").arg(&keys[2]).arg(0).arg(-1).query(conn))?;
    let _: () = client.execute(|conn| redis::cmd("DEL").arg(&keys[..]).query(conn))?;
    let as_made = taken.iter().copied().eq(1..=args.items);
    for (number, items) in by_consumer.iter().enumerate() {
        writeln!(
            out,
            "  consumer {}: {items} items{}",
            number + 1,
            if number == 0 { ", then killed" } else { "" }
        )?;
    }
    writeln!(
        out,
        "Items made: {}, taken: {}, in {:.1?}",
        args.items,
        taken.len(),
        started.elapsed()
    )?;
    writeln!(out, "Each item was taken once, in order: {}.", if as_made { "yes" } else { "NO" })?;
    Ok(as_made)
}
