//! A thread of load L: locks, works at both witnesses, unlocks, and writes down every call.

use std::collections::HashMap;
use std::ops::Range;
use std::panic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use distlock::{ErrorKind, RedisLock};

use super::clock::{Random, nanos, now};
use super::history::{Outcome, Record, Writer};
use super::load::{Habit, Load, PLANNED, Process};
use super::support::process::end_forked;
use super::witness;

/// Where the numbers of forks begin, among the calls of a thread.
const FORKS: u64 = 1 << 60;

/// The state of one thread.
pub struct Worker<'a> {
    process: &'a Process,
    owner: u64,
    writer: Writer,
    resource: witness::Client,
    locks: HashMap<u64, RedisLock>,
    part: Part,
}

/// A thread's part of the load.
pub struct Part {
    /// Whether its holds are the long ones,
    pub long: bool,
    /// and the keys that it locks.
    pub keys: Range<u64>,
    /// Whether all its calls have timeouts: so not everybody ends up waiting for a lock whose
    /// holder cannot be reached.
    pub impatient: bool,
    timed: bool,
}

impl Part {
    pub fn of(load: &Load, owner: u64) -> Part {
        let index = (owner - 1) % 10_000;
        let (long, keys) = match index {
            _ if index < load.threads => (false, 0..load.keys),
            _ if index < load.threads + load.long_threads => (true, load.keys..load.all_keys()),
            _ => (true, load.all_keys()..load.all_keys() + load.bait_keys),
        };
        let timed = load.timed && !long;
        Part { long, keys, impatient: timed && index % 3 == 2, timed }
    }

    /// The timeout of the next call: always one if it is impatient, otherwise now and then.
    pub fn timeout(&self, random: &mut Random) -> Option<Duration> {
        match random.below(10) {
            _ if !self.timed => None,
            0 => Some(Duration::ZERO),
            1 => Some(Duration::from_millis(50)),
            2..5 if self.impatient => Some(Duration::ZERO),
            _ if self.impatient => Some(Duration::from_millis(50)),
            _ => None,
        }
    }

    /// How long the next hold lasts.
    pub fn length(&self, load: &Load, random: &mut Random) -> Duration {
        random.between(if self.long {
            (load.lease, load.lease * load.long_leases)
        } else {
            (Duration::ZERO, load.hold)
        })
    }
}

impl<'a> Worker<'a> {
    pub fn new(process: &'a Process, owner: u64, life: u64) -> Self {
        // Several processes may have the same number one after another.
        let life = u64::from(std::process::id()) * 1_000_000 + life;
        let writer = Writer::create(&process.dir, owner, life);
        Worker {
            process,
            owner,
            writer,
            resource: witness::Client::connect(&process.dir),
            locks: HashMap::new(),
            part: Part::of(&process.load, owner),
        }
    }

    /// Makes calls until told to stop. Returns early, or panics, if that is the habit.
    pub fn run(mut self, random: &mut Random, number: &AtomicU64) {
        let load = &self.process.load;
        while !self.process.stop.load(Ordering::SeqCst) {
            // Counted over all successive threads of this owner, so that each hold has its own
            // number at witness B.
            let number =
                number.fetch_add(1, Ordering::SeqCst) + u64::from(std::process::id()) * 10_000_000;
            // A thread that does not wait for long may also ask for locks that are held for long.
            let asks_long = self.part.impatient && load.long_keys > 0 && random.below(10) == 0;
            let keys = if asks_long { load.keys..load.all_keys() } else { self.part.keys.clone() };
            let key = keys.start + random.below(keys.end - keys.start);
            if load.fenced && random.happens(50_000) {
                self.echo(number, key);
                continue;
            }
            let lock = self.lock(key);
            let timeout = self.part.timeout(random);
            let mut record = Record::call(
                number,
                key,
                self.owner,
                now(),
                timeout.map_or(0, |timeout| nanos(timeout) + 1),
            );
            let answer = match timeout {
                None => lock.lock().map(|()| true),
                Some(timeout) => lock.try_lock(timeout),
            };
            record.ended = now();
            match answer {
                Ok(true) => {
                    if self.hold(&lock, record, random) {
                        return;
                    }
                    thread::sleep(random.between((Duration::ZERO, load.pause)));
                }
                Ok(false) => {
                    record.outcome = Outcome::Refused;
                    self.writer.write(&record);
                    thread::sleep(random.between((Duration::ZERO, load.pause)));
                }
                Err(error) => {
                    record.outcome = outcome(error.kind());
                    self.writer.write(&record);
                    thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }

    fn lock(&mut self, key: u64) -> RedisLock {
        self.locks.entry(key).or_insert_with(|| self.process.lock(key)).clone()
    }

    /// Works under the lock, and unlocks. `true`: it ended without an unlock, by habit.
    fn hold(&mut self, lock: &RedisLock, mut record: Record, random: &mut Random) -> bool {
        let load = &self.process.load;
        record.granted = record.ended;
        record.fence = lock.fence().unwrap_or(0);
        see(lock, &mut record);
        self.writer.write(&record);
        let twice = random.happens(300_000);
        let mut wrong = load.fences(record.key) != (record.fence > 0)
            || twice && lock.lock().is_ok() && lock.hold_count() != 2;
        let (length, told) = (self.part.length(load, random), self.process.told(record.key));
        let read = self.process.cells.read(record.key);
        pass(length, |writes| {
            see(lock, &mut record);
            if writes {
                self.writer.write(&record);
            }
            let ends_with_its_lease =
                record.key >= load.all_keys() || self.process.closing.load(Ordering::SeqCst);
            let is_over = self.part.long && self.process.stop.load(Ordering::SeqCst)
                || ends_with_its_lease && !lock.is_valid();
            !is_over
        });
        thread::yield_now();
        if lock.is_valid() {
            self.process.cells.write(record.key, read + 1);
            if lock.is_valid() {
                record.wrote = read + 1;
            } else {
                record.tainted = now();
            }
        }
        // Without a check of the validity: stopping late writes is the task of the fence. The fence
        // is read here, as in a program that is about to write.
        if let Some(fence) = lock.fence() {
            self.resource.write(record.key, fence, self.owner, record.number);
        }
        if lock.hold_count() > 1 {
            let _ = lock.unlock();
            wrong |= lock.hold_count() != 1;
        }
        if load.habit == Habit::Fork
            && random.happens(if self.part.long { 1_000_000 } else { 10_000 })
        {
            wrong |= !self.fork(lock, &record);
        }
        if matches!(load.habit, Habit::Panic | Habit::Leak) && random.happens(50_000) {
            see(lock, &mut record);
            (record.released, record.outcome) = (record.last_valid, Outcome::Abandoned);
            self.writer.write(&record);
            if load.habit == Habit::Leak {
                return true;
            }
            let _unlocks = Unlocks(lock);
            panic::panic_any(PLANNED);
        }
        see(lock, &mut record);
        // A hold that `close` released ended when that was seen, and not when we unlock it.
        let closed = self.process.closing.load(Ordering::SeqCst);
        record.released = record.last_valid.max(if lock.is_valid() || closed { 0 } else { now() });
        // Also written before: a process that is killed in between has released the lock.
        self.writer.write(&record);
        let answer = lock.unlock();
        record.ended = now();
        record.outcome = answer.map_or_else(|error| outcome(error.kind()), |()| Outcome::Ok);
        if wrong || lock.is_held() {
            record.outcome = Outcome::Other;
            log::error!("the hold count is wrong, or there is no fence");
        }
        if record.outcome == Outcome::Lost && told.is_some() && !self.is_told(record.key, told) {
            record.outcome = Outcome::Other;
            log::error!("the callback was not told of a loss");
        }
        self.writer.write(&record);
        false
    }

    /// Forks while this thread holds. The child has a copy of everything but the other threads: it
    /// must hold nothing, release nothing, send nothing to the server, and end. Returns whether it
    /// did.
    fn fork(&mut self, lock: &RedisLock, record: &Record) -> bool {
        let mut call = Record::call(record.number + FORKS, record.key, self.owner, now(), 0);
        let other = self.process.client.lock("fault:of-a-child");
        let Ok(forked) = fork::fork() else { return true };
        let child = match forked {
            fork::Fork::Parent(child) => child,
            fork::Fork::Child => {
                let holds = lock.hold_count();
                let releases = lock.unlock().is_ok() && holds == 1 || lock.force_unlock().is_ok();
                let asks = other.try_lock(Duration::ZERO).is_ok();
                end_forked(i32::from(releases) + 2 * i32::from(asks));
            }
        };
        let mut status = None;
        while status.is_none() && now() - call.called < 5_000_000_000 {
            status = fork::waitpid_nohang(child).expect("it is our child");
            thread::sleep(Duration::from_millis(1));
        }
        if status.is_none() {
            let kill =
                std::process::Command::new("kill").args(["-KILL", &child.to_string()]).status();
            log::error!(
                "a forked child hung; killed: {}",
                kill.is_ok_and(|status| status.success())
            );
        }
        (call.ended, call.outcome) = (now(), Outcome::Forked);
        self.writer.write(&call);
        let well = status == Some(0);
        if !well {
            log::error!("a forked child did what it must not: {status:?}");
        }
        well
    }

    /// Whether the callback of this key is told of one more loss: at once, if the machine lets it.
    fn is_told(&self, key: u64, before: Option<u64>) -> bool {
        let patience = now() + 10_000_000_000;
        while self.process.told(key) <= before && now() < patience {
            thread::sleep(Duration::from_millis(1));
        }
        self.process.told(key) > before
    }

    /// Whether replies and requests still belong together.
    fn echo(&mut self, number: u64, key: u64) {
        let tag = format!("{}-{number}", self.owner);
        let mut record = Record::call(number, key, self.owner, now(), 0);
        let answer = self
            .process
            .client
            .execute(|connection| redis::cmd("ECHO").arg(&tag).query::<redis::Value>(connection));
        record.ended = now();
        record.outcome = match answer {
            Ok(redis::Value::BulkString(bytes)) if bytes == tag.as_bytes() => return,
            Ok(_) => Outcome::Mismatched,
            Err(_) => return,
        };
        self.writer.write(&record);
    }
}

/// Unlocks when dropped, as a guard does.
struct Unlocks<'a>(&'a RedisLock);

impl Drop for Unlocks<'_> {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Lets the time of a hold pass. `look` notes what it sees, says whether the hold goes on, and is
/// told when to write that down: a process that is killed in a long hold had the lock until then,
/// and not until its first lease would have ended.
pub fn pass(length: Duration, mut look: impl FnMut(bool) -> bool) {
    let (until, mut written) = (now() + nanos(length), now());
    loop {
        let writes = now() > written + 100_000_000;
        if writes {
            written = now();
        }
        let goes_on = look(writes);
        let left = until.saturating_sub(now());
        if left == 0 || !goes_on {
            return;
        }
        thread::sleep(Duration::from_nanos(left).min(Duration::from_millis(10)));
    }
}

/// Notes the end of the validity. The clock is read first, so that a pause in between makes the
/// noted end too early, and never too late.
pub fn see(lock: &RedisLock, record: &mut Record) {
    let at = now();
    see_remaining(lock.remaining(), at, record);
}

/// The same of any hold. `at`: before that was asked.
pub fn see_remaining(remaining: Option<Duration>, at: u64, record: &mut Record) {
    if let Some(remaining) = remaining.filter(|remaining| !remaining.is_zero()) {
        let until = at + nanos(remaining);
        // Two measurements of the same end differ by far less.
        record.renewed +=
            u64::from(record.valid_until != 0 && until > record.valid_until + 20_000_000);
        record.valid_until = until;
        record.last_valid = at;
    }
}

pub fn outcome(kind: ErrorKind) -> Outcome {
    match kind {
        ErrorKind::Lost => Outcome::Lost,
        ErrorKind::Unknown => Outcome::Unknown,
        ErrorKind::Unavailable | ErrorKind::Closed => Outcome::Unavailable,
        ErrorKind::Denied => Outcome::Denied,
        ErrorKind::WrongType => Outcome::WrongType,
        ErrorKind::Server | ErrorKind::Unsupported => Outcome::Server,
        ErrorKind::Exhausted => Outcome::Exhausted,
        kind => {
            log::error!("not expected anywhere: {kind:?}");
            Outcome::Other
        }
    }
}
