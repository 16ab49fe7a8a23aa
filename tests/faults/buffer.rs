//! The load of the rows for conditions: bounded buffers between processes, with room for one item,
//! so that each notification counts.
//!
//! A wait releases the lock: it ends one hold in the history and, when it returns, begins another.
//! So the checkers see all holds, and "nobody holds the lock while somebody wants it" is what a
//! lost notification looks like: with room for one item, one producer and one consumer, both stand
//! still until the waiter next looks whether it is still in the condition, which it does after 4 to
//! 6 s.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use distlock::{Condition, ErrorKind, LockOptions, RedisLock};

use super::clock::{Random, now};
use super::history::{Outcome, Record, Writer};
use super::load::{Habit, Process, key_name};
use super::witness;
use super::worker::{outcome, see};

/// How many items a buffer has room for.
const ROOM: u64 = 1;
/// A wait ends by itself after this: far longer than any row lets the load stand still.
const LONG: Duration = Duration::from_secs(20);
/// For the row in which a notification may die with its waiter, as the docs say: its users wait
/// with a timeout.
const SHORT: Duration = Duration::from_secs(3);

/// Numbers in a file, appended one by one, each by one write: a killed process has written its
/// number or has not.
struct Numbers(File);

impl Numbers {
    fn open(path: PathBuf) -> Numbers {
        Numbers(
            OpenOptions::new().read(true).append(true).create(true).open(path).expect("the buffer"),
        )
    }

    fn len(&self) -> u64 {
        self.0.metadata().expect("the buffer has a length").len() / 8
    }

    fn get(&self, index: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, index * 8).expect("the item is there");
        u64::from_le_bytes(bytes)
    }

    fn push(&mut self, number: u64) {
        self.0.write_all(&number.to_le_bytes()).expect("the buffer can be written");
    }
}

fn made(dir: &Path, key: u64) -> PathBuf {
    dir.join(format!("made-{key}"))
}

/// How many items have been taken out of a buffer.
pub fn count_taken(dir: &Path, key: u64) -> u64 {
    fs::metadata(taken(dir, key)).map_or(0, |data| data.len() / 8)
}

fn taken(dir: &Path, key: u64) -> PathBuf {
    dir.join(format!("taken-{key}"))
}

/// One thread: a producer or a consumer of one buffer.
pub struct Worker<'a> {
    process: &'a Process,
    key: u64,
    owner: u64,
    number: u64,
    produces: bool,
    polls: bool,
    /// Whether consumers continue at once, and a woken producer pauses first: then all consumers
    /// wait when one is notified.
    eager: bool,
    longest: Duration,
    lock: RedisLock,
    not_full: Condition,
    not_empty: Condition,
    made: Numbers,
    taken: Numbers,
    writer: Writer,
    resource: witness::Client,
}

impl<'a> Worker<'a> {
    pub fn new(process: &'a Process, owner: u64) -> Worker<'a> {
        let load = &process.load;
        let key = (owner % 10_000 - 1) % load.keys;
        let options = LockOptions::new().lease(load.lease).fenced();
        let lock = process.client.lock_with(&key_name(key), options).expect("the options can work");
        let condition = |name| lock.new_condition(name).expect("this layout has conditions");
        let (not_full, not_empty) = (condition("not-full"), condition("not-empty"));
        // A process without a role of its own gets one by its number.
        let produces = match load.habit {
            Habit::Produce | Habit::Poll => true,
            Habit::Consume => false,
            Habit::ConsumedFirst => owner / 10_000 == 1,
            _ => owner / 10_000 == 0,
        };
        Worker {
            process,
            key,
            owner,
            number: u64::from(std::process::id()) * 10_000_000,
            produces,
            polls: matches!(load.habit, Habit::Poll | Habit::PollingBuffer),
            eager: load.habit == Habit::ConsumedFirst,
            longest: if load.timed { SHORT } else { LONG },
            lock,
            not_full,
            not_empty,
            made: Numbers::open(made(&process.dir, key)),
            taken: Numbers::open(taken(&process.dir, key)),
            writer: Writer::create(&process.dir, owner, u64::from(std::process::id())),
            resource: witness::Client::connect(&process.dir),
        }
    }

    /// Produces or consumes until told to stop.
    pub fn run(mut self, random: &mut Random) {
        while !self.is_over() {
            let mut record = self.call(now());
            match self.lock.lock() {
                Ok(()) => self.hold(record, random),
                Err(error) => {
                    (record.ended, record.outcome) = (now(), outcome(error.kind()));
                    self.writer.write(&record);
                    thread::sleep(Duration::from_millis(5));
                }
            }
            if self.produces || !self.eager {
                thread::sleep(random.between((Duration::ZERO, self.process.load.pause)));
            }
        }
        // A waiter that waits for our next item must learn that the run is over.
        let told = self
            .lock
            .lock()
            .and_then(|()| self.not_full.notify_all())
            .and_then(|()| self.not_empty.notify_all());
        let _ = told.and_then(|()| self.lock.unlock());
    }

    /// Checked under the lock, and at a place that all processes see at once: nobody would notify a
    /// thread that begins to wait after the end.
    ///
    /// 1. a producer sees the end, notifies everybody, and is gone;
    /// 2. a consumer, whose process looks for the end only now and then, finds nothing to take and
    ///    waits.
    fn is_over(&self) -> bool {
        self.process.dir.join("stop").exists()
    }

    fn call(&mut self, called: u64) -> Record {
        self.number += 1;
        Record::call(self.number, self.key, self.owner, called, 0)
    }

    /// Works under the lock, waits in it where there is nothing to do, and unlocks.
    fn hold(&mut self, mut record: Record, random: &mut Random) {
        let mut waited = false;
        loop {
            (record.granted, record.fence) = (now(), self.lock.fence().unwrap_or(0));
            see(&self.lock, &mut record);
            self.writer.write(&record);
            // From here on, the resource refuses earlier holders: what we read stays true until we
            // write.
            let newest = self.resource.write(self.key, record.fence, self.owner, record.number);
            let (made, taken) = (self.made.len(), self.taken.len());
            let ready = if self.produces { made < taken + ROOM } else { taken < made };
            let goes = self.polls && !ready || self.eager && waited;
            if self.is_over() || !newest || self.produces && goes {
                break;
            }
            if ready {
                thread::sleep(random.between((Duration::ZERO, self.process.load.hold)));
                self.work(&mut record, made, taken);
                break;
            }
            let condition =
                if self.produces { self.not_full.clone() } else { self.not_empty.clone() };
            see(&self.lock, &mut record);
            let begun = now();
            // The release of the lock is only known when the wait returns. The history has it from
            // the moment at which it was asked for.
            (record.released, record.ended, record.outcome) =
                (self.released(&record), begun, Outcome::Ok);
            self.writer.write(&record);
            match condition.wait_timeout(self.longest) {
                Ok(_) => (record, waited) = (self.call(begun), true),
                Err(error) => {
                    record.outcome = outcome(error.kind());
                    self.writer.write(&record);
                    if self.lock.is_held() {
                        break;
                    }
                    return;
                }
            }
        }
        self.end(record);
    }

    /// Tells the other side, and then puts an item in or takes one out. In this order a process
    /// that is killed in between has woken somebody for nothing, and a thread that finds nothing
    /// waits again. In the other order, the item would be there and nobody would know.
    fn work(&mut self, record: &mut Record, made: u64, taken: u64) {
        let condition = if self.produces { &self.not_empty } else { &self.not_full };
        loop {
            match condition.notify_one() {
                Ok(()) => break,
                // It is unknown whether somebody was woken: twice is better than never.
                Err(error) if error.kind() == ErrorKind::Unknown && self.lock.is_valid() => {}
                Err(error) => {
                    log::info!("not notified: {error}");
                    return;
                }
            }
        }
        if !self.lock.is_valid()
            || !self.resource.write(self.key, record.fence, self.owner, record.number)
        {
            return;
        }
        if self.produces {
            self.made.push(made + 1);
        } else {
            let item = self.made.get(taken);
            self.taken.push(item);
        }
        if !self.lock.is_valid() {
            record.tainted = now();
        }
    }

    fn released(&self, record: &Record) -> u64 {
        record.last_valid.max(if self.lock.is_valid() { 0 } else { now() })
    }

    fn end(&mut self, mut record: Record) {
        see(&self.lock, &mut record);
        (record.released, record.outcome) = (self.released(&record), Outcome::Open);
        self.writer.write(&record);
        let answer = self.lock.unlock();
        (record.ended, record.outcome) =
            (now(), answer.map_or_else(|error| outcome(error.kind()), |()| Outcome::Ok));
        if self.lock.is_held() {
            record.outcome = Outcome::Other;
            log::error!("held more often than it was locked");
        }
        self.writer.write(&record);
    }
}

/// What has gone through the buffers, and what is wrong with it in words.
pub fn inspect(dir: &Path, keys: u64) -> (u64, Vec<String>) {
    let (mut through, mut problems) = (0, Vec::new());
    for key in 0..keys {
        let read = |path: PathBuf| -> Vec<u64> {
            let bytes = fs::read(path).unwrap_or_default();
            bytes
                .chunks_exact(8)
                .map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes")))
                .collect()
        };
        let (made, taken) = (read(made(dir, key)), read(taken(dir, key)));
        through += taken.len() as u64;
        for (numbers, what) in [(&made, "made"), (&taken, "taken")] {
            let wrong = (1..).zip(numbers.iter()).find(|(wanted, number)| wanted != *number);
            if let Some((wanted, number)) = wrong {
                problems.push(format!(
                    "buffer {key}: {number} was {what} where {wanted} should have been: \
                     lost or doubled"
                ));
            }
        }
        if !(taken.len()..=taken.len() + ROOM as usize).contains(&made.len()) {
            problems.push(format!("buffer {key}: {} made, {} taken", made.len(), taken.len()));
        }
    }
    (through, problems)
}
