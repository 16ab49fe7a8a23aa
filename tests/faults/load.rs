//! One client process of load L: threads that lock, work at both witnesses, unlock, and write down every call.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use distlock::{Client, ErrorKind, Lock, LockOptions, RedisLock};

use super::clock::{Random, nanos, now};
use super::history::{Outcome, Record, Writer};
use super::support::{fd_count, thread_count};
use super::{buffer, limits, witness};

/// What a thread does with one in twenty holds instead of unlocking.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Habit {
    #[default]
    Unlock,
    /// Panics; the guard unlocks.
    Panic,
    /// Ends without an unlock.
    Leak,
    /// Other loads: producers and consumers of a bounded buffer (the first process produces, the others consume), the same with a producer that does not wait,
    Buffer,
    PollingBuffer,
    /// and processes that are only one of these.
    Produce,
    Poll,
    Consume,
    /// Rate limits instead of locks.
    Limit,
}

impl Habit {
    const ALL: [Habit; 9] = [
        Habit::Unlock,
        Habit::Panic,
        Habit::Leak,
        Habit::Buffer,
        Habit::PollingBuffer,
        Habit::Produce,
        Habit::Poll,
        Habit::Consume,
        Habit::Limit,
    ];
}

/// What a client process is told on its command line.
#[derive(Clone, Debug)]
pub struct Load {
    pub url: String,
    pub threads: u64,
    pub keys: u64,
    pub lease: Duration,
    pub command: Duration,
    pub pool: u32,
    /// Holds last up to this long,
    pub hold: Duration,
    /// and this many in a million last three leases.
    pub long: u64,
    /// Between two holds of a thread.
    pub pause: Duration,
    /// Whether threads also lock with timeouts, and without waiting.
    pub timed: bool,
    pub habit: Habit,
    /// Whether the locks have fences, and witness B is worked at: not on a quorum. Its nodes' URLs are separated by commas.
    pub fenced: bool,
}

impl Load {
    /// One key in four has no fences, also on a single server: only without them is the first attempt a bare `SET`.
    pub fn fences(&self, key: u64) -> bool {
        self.fenced && key % 4 != 3
    }

    /// The arguments that say so.
    pub fn arguments(&self, dir: &Path, process: u64, seed: u64) -> Vec<String> {
        vec![
            "client".into(),
            dir.display().to_string(),
            process.to_string(),
            seed.to_string(),
            self.url.clone(),
            self.threads.to_string(),
            self.keys.to_string(),
            nanos(self.lease).to_string(),
            nanos(self.command).to_string(),
            self.pool.to_string(),
            nanos(self.hold).to_string(),
            self.long.to_string(),
            nanos(self.pause).to_string(),
            self.timed.to_string(),
            format!("{:?}", self.habit),
            self.fenced.to_string(),
        ]
    }
}

/// The name of key number `key`.
pub fn key_name(key: u64) -> String {
    format!("fault:{key}")
}

/// What all threads of a process share.
pub struct Process {
    pub load: Load,
    pub dir: PathBuf,
    pub client: Client,
    cells: witness::Cells,
    pub stop: AtomicBool,
}

/// The life of a client process: ends when the file `exit` appears.
pub fn run(arguments: &[String]) {
    env_logger::Builder::from_env(env_logger::Env::new().filter_or("FAULTS_LOG", "distlock=info")).format_timestamp_micros().init();
    let [dir, process, seed, url, threads, keys, lease, command, pool, hold, long, pause, timed, habit, fenced] = arguments else {
        panic!("a client process is started by the driver");
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let length = |text: &String| Duration::from_nanos(number(text));
    let load = Load {
        url: url.clone(),
        threads: number(threads),
        keys: number(keys),
        lease: length(lease),
        command: length(command),
        pool: u32::try_from(number(pool)).expect("a small number"),
        hold: length(hold),
        long: number(long),
        pause: length(pause),
        timed: timed == "true",
        habit: Habit::ALL.into_iter().find(|known| format!("{known:?}") == *habit).expect("a habit"),
        fenced: fenced == "true",
    };
    let (dir, process, seed) = (PathBuf::from(dir), number(process), number(seed));
    let status = |line: String| {
        let file = OpenOptions::new().create(true).append(true).open(dir.join(format!("{process}.status")));
        writeln!(file.expect("a status file"), "{line}").expect("it can be written");
    };
    let planned = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>().is_none_or(|text| *text != PLANNED) {
            planned(info);
        }
    }));
    status(format!("pid {}\nbefore {} {}", std::process::id(), thread_count(), fd_count()));
    let urls: Vec<&str> = load.url.split(',').collect();
    let builder = if let [url] = urls[..] { Client::builder(url) } else { Client::redlock_builder(&urls) };
    let built = builder.pool_size(load.pool).command_timeout(load.command).connect_timeout(load.command).build();
    let client = built.expect("the client can be made");
    let cells = witness::Cells::open(&dir);
    let shared = Arc::new(Process { load, dir: dir.clone(), client, cells, stop: AtomicBool::new(false) });
    let threads: Vec<_> = (0..shared.load.threads)
        .map(|index| {
            let (shared, owner) = (Arc::clone(&shared), process * 10_000 + index + 1);
            let seed = Random(seed ^ owner.wrapping_mul(0x5851_f42d_4c95_7f2d)).next();
            thread::spawn(move || live(&shared, owner, seed))
        })
        .collect();
    status("started".into());
    wait_for(&dir.join("stop"));
    shared.stop.store(true, Ordering::SeqCst);
    let failed = threads.into_iter().map(thread::JoinHandle::join).filter(Result::is_err).count();
    let closed = shared.client.close(Duration::from_secs(5)).is_ok();
    drop(shared);
    // A thread is counted by the kernel until a moment after it was joined.
    thread::sleep(Duration::from_millis(100));
    status(format!("after {} {} {failed} {closed}", thread_count(), fd_count()));
    wait_for(&dir.join("exit"));
}

fn wait_for(path: &Path) {
    while !path.exists() {
        thread::sleep(Duration::from_millis(10));
    }
}

const PLANNED: &str = "planned";

/// One thread, or one after another where they end by habit.
fn live(process: &Arc<Process>, owner: u64, seed: u64) {
    match process.load.habit {
        Habit::Unlock | Habit::Panic | Habit::Leak => {}
        Habit::Limit => return limits::ask(process, owner, &mut Random(seed)),
        _ => return buffer::Worker::new(process, owner).run(&mut Random(seed)),
    }
    let random = Arc::new(std::sync::Mutex::new(Random(seed)));
    let number = Arc::new(AtomicU64::new(0));
    for life in 0.. {
        let (shared, random, number) = (Arc::clone(process), Arc::clone(&random), Arc::clone(&number));
        let work = move || {
            let mut random = random.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            Worker::new(&shared, owner, life).run(&mut random, &number);
        };
        if process.load.habit == Habit::Unlock {
            return work();
        }
        if let Err(panic) = thread::spawn(work).join()
            && panic.downcast_ref::<&str>() != Some(&PLANNED)
        {
            panic::resume_unwind(panic);
        }
        if process.stop.load(Ordering::SeqCst) {
            return;
        }
    }
}

struct Worker<'a> {
    process: &'a Process,
    owner: u64,
    writer: Writer,
    resource: witness::Client,
    locks: HashMap<u64, RedisLock>,
}

impl<'a> Worker<'a> {
    fn new(process: &'a Process, owner: u64, life: u64) -> Self {
        // Several processes may have the same number one after another.
        let life = u64::from(std::process::id()) * 1_000_000 + life;
        let writer = Writer::create(&process.dir, owner, life);
        Worker { process, owner, writer, resource: witness::Client::connect(&process.dir), locks: HashMap::new() }
    }

    /// Calls until told to stop. Returns early, or panics, where that is the habit.
    fn run(mut self, random: &mut Random, number: &AtomicU64) {
        let load = &self.process.load;
        while !self.process.stop.load(Ordering::SeqCst) {
            // Over all lives of this owner, so that a hold has one name at witness B.
            let number = number.fetch_add(1, Ordering::SeqCst) + u64::from(std::process::id()) * 10_000_000;
            let key = random.below(load.keys);
            if load.fenced && random.happens(50_000) {
                self.echo(number, key);
                continue;
            }
            let lock = self.lock(key);
            let choice = random.below(10);
            let timeout = match choice {
                _ if !load.timed => None,
                0 | 1 => Some(Duration::from_millis(50)),
                2 => Some(Duration::ZERO),
                _ => None,
            };
            let mut record = Record::call(number, key, self.owner, now(), timeout.map_or(0, |timeout| nanos(timeout) + 1));
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
        let make = || {
            let options = LockOptions::new().lease(self.process.load.lease);
            let options = if self.process.load.fences(key) { options.fenced() } else { options };
            self.process.client.lock_with(&key_name(key), options).expect("the options can work")
        };
        self.locks.entry(key).or_insert_with(make).clone()
    }

    /// Works under the lock, and unlocks. `true`: ended without, by habit.
    fn hold(&mut self, lock: &RedisLock, mut record: Record, random: &mut Random) -> bool {
        let load = &self.process.load;
        record.granted = record.ended;
        record.fence = lock.fence().unwrap_or(0);
        see(lock, &mut record);
        self.writer.write(&record);
        let twice = random.happens(300_000);
        let mut wrong = load.fences(record.key) != (record.fence > 0) || twice && lock.lock().is_ok() && lock.hold_count() != 2;
        let length = if random.happens(load.long) { load.lease * 3 } else { random.between((Duration::ZERO, load.hold)) };
        let read = self.process.cells.read(record.key);
        let (until, mut written) = (now() + nanos(length), now());
        loop {
            see(lock, &mut record);
            let left = until.saturating_sub(now());
            if left == 0 {
                break;
            }
            thread::sleep(Duration::from_nanos(left).min(Duration::from_millis(10)));
            if now() > written + 100_000_000 {
                // A process that is killed in a long hold had the lock until then, and not until its first lease would have ended.
                self.writer.write(&record);
                written = now();
            }
        }
        thread::yield_now();
        if lock.is_valid() {
            self.process.cells.write(record.key, read + 1);
            if lock.is_valid() {
                record.wrote = read + 1;
            } else {
                record.tainted = now();
            }
        }
        // Without a look at the validity: what is late is for the fence to stop. It is asked for here, as a program does that is about to write.
        if let Some(fence) = lock.fence() {
            self.resource.write(record.key, fence, self.owner, record.number);
        }
        if lock.hold_count() > 1 {
            let _ = lock.unlock();
            wrong |= lock.hold_count() != 1;
        }
        if load.habit != Habit::Unlock && random.happens(50_000) {
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
        record.released = record.last_valid.max(if lock.is_valid() { 0 } else { now() });
        // Written before, too: a process that is killed in between has given it back.
        self.writer.write(&record);
        let answer = lock.unlock();
        record.ended = now();
        record.outcome = answer.map_or_else(|error| outcome(error.kind()), |()| Outcome::Ok);
        if wrong || lock.is_held() {
            record.outcome = Outcome::Other;
            log::error!("the hold count is wrong, or there is no fence");
        }
        self.writer.write(&record);
        false
    }

    /// Whether replies and requests still belong together.
    fn echo(&mut self, number: u64, key: u64) {
        let tag = format!("{}-{number}", self.owner);
        let mut record = Record::call(number, key, self.owner, now(), 0);
        let answer = self.process.client.execute(|connection| redis::cmd("ECHO").arg(&tag).query::<redis::Value>(connection));
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

/// Notes the end of the validity. The clock is read first, so that a pause in between makes the noted end too early, and never too late.
pub fn see(lock: &RedisLock, record: &mut Record) {
    let at = now();
    if let Some(remaining) = lock.remaining().filter(|remaining| !remaining.is_zero()) {
        record.valid_until = at + nanos(remaining);
        record.last_valid = at;
    }
}

pub fn outcome(kind: ErrorKind) -> Outcome {
    match kind {
        ErrorKind::Lost => Outcome::Lost,
        ErrorKind::Unknown => Outcome::Unknown,
        ErrorKind::Unavailable => Outcome::Unavailable,
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
