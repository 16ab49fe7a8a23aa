//! One of our contenders as a process of its own, with the protocol of the drivers in `tests/peers`
//! (PROTOCOL.md there). In the file of `benchcs` each line has a fourth number: how many
//! nanoseconds unlock took.

use std::fmt::Write as _;
use std::io::{self, BufRead, Write as _};
use std::process::exit;
use std::{fs, hint, thread};

use super::clock::{now, sleep_until};
use super::contender::{Contender, Maker};

const MS: u64 = 1_000_000;

/// Answers `warmup`, `bench`, `benchcs`, `benchsleep`, `threads`, `wait`, `release` and `quit`
/// until the end of input; then ends the process. After `condition` it waits until it is killed.
pub fn run(name: &str, url: &str) -> ! {
    let maker = Maker::new(name, url);
    let (mut warmup, mut held) = (200 * MS, None);
    println!("ready");
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let answer = match words[0] {
            "warmup" => {
                warmup = number(1) * MS;
                "ok".to_owned()
            }
            "bench" => bench(&mut *maker.make(words[1]), number(2), warmup),
            "benchcs" => {
                let start = if words.len() > 5 { number(5) } else { now() + warmup };
                let end = start + number(2) * 1000 * MS;
                let busy = Hold { span: number(3) * 1000, sleeps: false };
                written(words[4], &[spans(&mut *maker.make(words[1]), start, end, busy)])
            }
            "benchsleep" => {
                let (start, end) = (number(5), number(5) + number(2) * 1000 * MS);
                let idle = Hold { span: number(3) * 1000, sleeps: true };
                let one = || spans(&mut *maker.make(words[1]), start, end, idle);
                written(words[4], &at_once(number(6), one))
            }
            "wait" => {
                let mut contender = maker.make(words[1]);
                contender.lock();
                let acquired = now();
                held = Some(contender);
                format!("ok {acquired}")
            }
            "release" => {
                let mut contender = held.take().unwrap();
                let called = now();
                contender.unlock();
                format!("ok {called}")
            }
            "threads" => threads(&maker, words[1], number(2), number(3), warmup),
            "condition" => waits(&maker, words[1], words[2]),
            "quit" => break,
            _ => format!("error unknown command {}", words[0]),
        };
        println!("{answer}");
        io::stdout().flush().unwrap();
    }
    exit(0)
}

fn bench(contender: &mut dyn Contender, n: u64, warmup: u64) -> String {
    let end = now() + warmup;
    while now() < end {
        contender.lock();
        contender.unlock();
    }
    let mut took = cycles(contender, n);
    let total: u64 = took.iter().sum();
    took.sort_unstable();
    format!("ok {} {} {total}", took[took.len() / 2], took[took.len() * 99 / 100])
}

/// How long each of `n` cycles took, in nanoseconds.
pub fn cycles(contender: &mut dyn Contender, n: u64) -> Vec<u64> {
    let mut before = now();
    let cycle = |_| {
        contender.lock();
        contender.unlock();
        let after = now();
        after - std::mem::replace(&mut before, after)
    };
    (0..n).map(cycle).collect()
}

/// What a holder does.
#[derive(Clone, Copy)]
struct Hold {
    /// In nanoseconds.
    span: u64,
    sleeps: bool,
}

impl Hold {
    /// Spends it. The time after it.
    fn spend(self, acquired: u64) -> u64 {
        let until = acquired + self.span;
        if self.sleeps {
            sleep_until(until);
        }
        loop {
            match now() {
                time if time >= until => return time,
                _ => hint::spin_loop(),
            }
        }
    }
}

/// When each hold was acquired, released and called for, and how long its release took.
type Spans = Vec<[u64; 4]>;

/// Acquires and releases until the end; the holds that began after the start.
fn spans(contender: &mut dyn Contender, start: u64, end: u64, hold: Hold) -> Spans {
    let mut spans = Vec::new();
    loop {
        let called = now();
        if called >= end {
            return spans;
        }
        contender.lock();
        let acquired = now();
        let released = hold.spend(acquired);
        contender.unlock();
        if acquired >= start {
            spans.push([acquired, released, called, now() - released]);
        }
    }
}

fn written(file: &str, all: &[Spans]) -> String {
    let (mut text, mut n, mut longest) = (String::new(), 0, 0);
    for [acquired, released, called, unlocking] in all.iter().flatten() {
        n += 1;
        longest = longest.max(acquired - called);
        writeln!(text, "{acquired} {released} {called} {unlocking}").unwrap();
    }
    fs::write(file, text).unwrap();
    format!("ok {n} {}", longest / 1000)
}

/// Does the same in so many threads, and waits for them all.
fn at_once<T: Send>(threads: u64, one: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(&one)).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Waits in a condition of a lock again and again, and writes down when each wait returned; until
/// it is killed.
fn waits(maker: &Maker, key: &str, file: &str) -> ! {
    let lock = maker.lock(key);
    let condition = lock.new_condition("bench").unwrap();
    let mut file = fs::File::create(file).unwrap();
    loop {
        lock.lock().unwrap();
        condition.wait().unwrap();
        let returned = now();
        lock.unlock().unwrap();
        // In one write, so that no partial line is left.
        file.write_all(format!("{returned}\n").as_bytes()).unwrap();
    }
}

fn threads(maker: &Maker, key: &str, threads: u64, seconds: u64, warmup: u64) -> String {
    let start = now() + warmup;
    let end = start + seconds * 1000 * MS;
    let one = || {
        let mut contender = maker.make(key);
        let (mut n, mut longest) = (0_u64, 0);
        loop {
            let called = now();
            if called >= end {
                return (n, longest);
            }
            contender.lock();
            let acquired = now();
            contender.unlock();
            if acquired >= start {
                n += 1;
                longest = longest.max(acquired - called);
            }
        }
    };
    let shares: Vec<(u64, u64)> = at_once(threads, one);
    let counts = || shares.iter().map(|share| share.0);
    let longest = shares.iter().map(|share| share.1).max().unwrap_or(0);
    let list: String = counts().map(|n| format!(" {n}")).collect();
    format!(
        "ok {} {} {} {}{list}",
        counts().sum::<u64>(),
        counts().min().unwrap_or(0),
        counts().max().unwrap_or(0),
        longest / 1000
    )
}
