//! The load of the rows for keys that several may hold: read-write locks, and semaphores of three
//! permits and of ten.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use distlock::{LockOptions, Permit, RedisLock, Result, RwLock, Semaphore};

use super::clock::{Random, nanos, now};
use super::history::{Outcome, Record, Writer};
use super::load::{Process, key_name};
use super::witness::{self, LARGEST_SHARE};
use super::worker::{Part, outcome, pass, see_remaining};

/// What a writer takes: all. A reader takes one.
pub const WRITER: u64 = LARGEST_SHARE;

enum Room {
    Sides(RwLock),
    Permits(Semaphore),
}

impl Room {
    /// The room under a key: every other one is a read-write lock. Half of them have fences;
    /// without them, a script takes its shortest way if nobody waits.
    fn of(process: &Process, key: u64) -> Room {
        let (client, name) = (&process.client, key_name(key));
        let options = LockOptions::new().lease(process.load.lease);
        let options = if key % 4 < 2 { options.fenced() } else { options };
        if key.is_multiple_of(2) {
            let sides = client.rw_lock_with(&name, options);
            return Room::Sides(sides.expect("the options can work"));
        }
        let permits = if key % 4 == 1 { 3 } else { 10 };
        let semaphore = client.semaphore_with(&name, permits, options);
        Room::Permits(semaphore.expect("the options can work"))
    }

    /// How much a call asks for, and how much there is.
    fn draw(&self, random: &mut Random) -> (u64, u64) {
        match self {
            Room::Sides(_) if random.below(10) == 0 => (WRITER, WRITER),
            Room::Sides(_) => (1, WRITER),
            Room::Permits(semaphore) => {
                let permits = u64::from(semaphore.permits());
                (1 + random.below(permits.min(4)), permits)
            }
        }
    }

    fn acquire(&self, share: u64, timeout: Option<Duration>) -> Result<Option<Held>> {
        match (self, timeout) {
            (Room::Sides(sides), _) => {
                let side =
                    if share == WRITER { sides.write_lock() } else { sides.read_lock() }.clone();
                let locked = match timeout {
                    None => side.lock().map(|()| true),
                    Some(timeout) => side.try_lock(timeout),
                };
                locked.map(|locked| locked.then_some(Held::Side(side)))
            }
            (Room::Permits(semaphore), None) => {
                semaphore.acquire_many(permits(share)).map(|permit| Some(Held::Permit(permit)))
            }
            (Room::Permits(semaphore), Some(timeout)) => semaphore
                .try_acquire_many(permits(share), timeout)
                .map(|permit| permit.map(Held::Permit)),
        }
    }
}

fn permits(share: u64) -> u32 {
    u32::try_from(share).expect("a few permits")
}

/// What was acquired.
enum Held {
    Side(RedisLock),
    Permit(Permit),
}

impl Held {
    fn is_valid(&self) -> bool {
        match self {
            Held::Side(side) => side.is_valid(),
            Held::Permit(permit) => permit.is_valid(),
        }
    }

    fn fence(&self) -> u64 {
        match self {
            Held::Side(side) => side.fence(),
            Held::Permit(permit) => permit.fence(),
        }
        .unwrap_or(0)
    }

    /// Notes the end of the validity.
    fn see(&self, record: &mut Record) {
        let at = now();
        let remaining = match self {
            Held::Side(side) => side.remaining(),
            Held::Permit(permit) => Some(permit.remaining()),
        };
        see_remaining(remaining, at, record);
    }

    /// Releases it, and says whether it went as it must.
    fn release(self) -> (Outcome, bool) {
        let (answer, held) = match self {
            Held::Side(side) => (side.unlock(), side.is_held()),
            Held::Permit(permit) => (permit.release(), false),
        };
        (answer.map_or_else(|error| outcome(error.kind()), |()| Outcome::Ok), !held)
    }
}

/// One thread.
pub struct Worker<'a> {
    process: &'a Process,
    owner: u64,
    number: u64,
    part: Part,
    /// Each thread stays with one key: otherwise most would wait in one queue, while the other keys
    /// are free.
    key: u64,
    room: Room,
    writer: Writer,
    resource: witness::Client,
    inside: witness::Inside,
}

impl<'a> Worker<'a> {
    pub fn new(process: &'a Process, owner: u64) -> Worker<'a> {
        let (pid, part) = (u64::from(std::process::id()), Part::of(&process.load, owner));
        let key = part.keys.start + owner % (part.keys.end - part.keys.start);
        Worker {
            process,
            owner,
            number: pid * 10_000_000,
            room: Room::of(process, key),
            key,
            part,
            writer: Writer::create(&process.dir, owner, pid),
            resource: witness::Client::connect(&process.dir),
            inside: witness::Inside::open(&process.dir, key, owner / 10_000, owner % 10_000),
        }
    }

    /// Makes calls until told to stop.
    pub fn run(mut self, random: &mut Random) {
        while !self.is_over() {
            let (share, all) = self.room.draw(random);
            let timeout = self.part.timeout(random);
            self.number += 1;
            let mut record = Record {
                share,
                room: all,
                ..Record::call(
                    self.number,
                    self.key,
                    self.owner,
                    now(),
                    timeout.map_or(0, |timeout| nanos(timeout) + 1),
                )
            };
            let answer = self.room.acquire(share, timeout);
            record.ended = now();
            let pause = match answer {
                Ok(Some(held)) => {
                    record.granted = record.ended;
                    self.hold(held, record, random);
                    random.between((Duration::ZERO, self.process.load.pause))
                }
                Ok(None) => {
                    self.end(record, Outcome::Refused);
                    random.between((Duration::ZERO, self.process.load.pause))
                }
                Err(error) => {
                    self.end(record, outcome(error.kind()));
                    Duration::from_millis(5)
                }
            };
            thread::sleep(pause);
        }
    }

    fn is_over(&self) -> bool {
        self.process.stop.load(Ordering::SeqCst)
    }

    fn end(&mut self, mut record: Record, outcome: Outcome) {
        record.outcome = outcome;
        self.writer.write(&record);
    }

    /// Works inside, and leaves.
    fn hold(&mut self, held: Held, mut record: Record, random: &mut Random) {
        record.fence = held.fence();
        held.see(&mut record);
        self.inside.enter(&mut record);
        self.writer.write(&record);
        let writes = matches!(held, Held::Side(_)) && record.share == WRITER;
        let read = self.process.cells.read(record.key);
        self.stay(&held, &mut record, random);
        if writes && held.is_valid() {
            self.process.cells.write(record.key, read + 1);
            if held.is_valid() {
                record.wrote = read + 1;
            } else {
                record.tainted = now();
            }
        }
        // Without a check of the validity: stopping late writes is the task of the fence.
        if writes && record.fence > 0 {
            self.resource.write(record.key, record.fence, self.owner, record.number);
        }
        match held {
            Held::Side(writing) if writes && random.below(3) == 0 => {
                self.downgrade(&writing, record, random);
            }
            held => self.leave(held, record),
        }
    }

    /// Notes what it sees until its time is over.
    fn stay(&mut self, held: &Held, record: &mut Record, random: &mut Random) {
        let length = self.part.length(&self.process.load, random);
        let stop = &self.process.stop;
        pass(length, |writes| {
            held.see(record);
            self.inside.stay(record);
            if writes {
                self.writer.write(record);
            }
            !(self.part.long && stop.load(Ordering::SeqCst))
        });
    }

    /// The hold ends now, for all that its holder knows.
    fn note_end(&mut self, is_valid: bool, record: &mut Record) {
        record.released = record.last_valid.max(if is_valid { 0 } else { now() });
        // Also written before: a process that is killed in between has released it.
        self.writer.write(record);
    }

    fn leave(&mut self, held: Held, mut record: Record) {
        held.see(&mut record);
        self.note_end(held.is_valid(), &mut record);
        self.inside.leave();
        let (outcome, well) = held.release();
        record.ended = now();
        if !well {
            log::error!("held more often than it was locked");
        }
        self.end(record, if well { outcome } else { Outcome::Other });
    }

    /// The last unlock of a writer that reads: its hold as a reader begins where that as a writer
    /// ends, so a writer that got in between would be seen.
    fn downgrade(&mut self, writing: &RedisLock, mut record: Record, random: &mut Random) {
        let Room::Sides(sides) = &self.room else { return };
        let (reading, called) = (sides.read_lock().clone(), now());
        if !matches!(reading.try_lock(Duration::ZERO), Ok(true)) {
            // Its lease is over.
            return self.leave(Held::Side(writing.clone()), record);
        }
        Held::Side(writing.clone()).see(&mut record);
        self.note_end(writing.is_valid(), &mut record);
        self.inside.stay(&Record { share: 1, ..record.clone() });
        let answer = writing.unlock();
        record.ended = now();
        let outcome = answer.map_or_else(|error| outcome(error.kind()), |()| Outcome::Ok);
        self.number += 1;
        let next = Record {
            share: 1,
            room: WRITER,
            granted: record.released,
            ..Record::call(self.number, record.key, self.owner, called, 0)
        };
        if outcome == Outcome::Ok {
            self.end(record, outcome);
            return self.hold(Held::Side(reading), next, random);
        }
        self.inside.leave();
        let left = reading.unlock().is_ok() && reading.is_held() || writing.is_held();
        self.end(record, if left { Outcome::Other } else { outcome });
    }
}
