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

use distlock::{Client, ErrorKind, Layout, Lock, LockOptions, Queue, RedisLock};

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
    /// Forks; the child tries what it must not be able to do, and ends.
    Fork,
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
    const ALL: [Habit; 10] = [
        Habit::Unlock,
        Habit::Panic,
        Habit::Leak,
        Habit::Fork,
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
    /// Holds last up to this long.
    pub hold: Duration,
    /// Threads, besides the others, whose holds last from one lease up to so many; each process has so many of them, and they have keys of their own.
    pub long_leases: u32,
    pub long_threads: u64,
    pub long_keys: u64,
    /// Keys that nothing is judged by, and whose locks a third party takes away: one thread of each process has long holds of these.
    pub bait_keys: u64,
    /// Between two holds of a thread.
    pub pause: Duration,
    /// Whether threads also lock with timeouts, and without waiting.
    pub timed: bool,
    pub habit: Habit,
    /// Whether the locks have fences, and witness B is worked at: not on a quorum. Its nodes' URLs are separated by commas.
    pub fenced: bool,
}

/// The options of a key's locks. They are mixed over the keys of a single server; a quorum has `Bare` alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Fenced,
    /// With a callback for losses, too.
    Told,
    /// No queue on the server.
    Unqueued,
    /// No fences. Only without them is the first attempt a bare `SET`.
    Bare,
    /// No hand-offs between the threads of a process.
    Alone,
    /// In Redisson's layout: a hash, and no queue on the server.
    Redisson,
}

impl Load {
    pub fn kind(&self, key: u64) -> Kind {
        match key % 8 {
            _ if !self.fenced => Kind::Bare,
            2 => Kind::Unqueued,
            3 | 7 => Kind::Bare,
            4 => Kind::Alone,
            5 => Kind::Told,
            6 => Kind::Redisson,
            _ => Kind::Fenced,
        }
    }

    pub fn fences(&self, key: u64) -> bool {
        self.kind(key) != Kind::Bare
    }

    /// How many keys there are: first those of short holds, then those of long ones.
    pub fn all_keys(&self) -> u64 {
        self.keys + self.long_keys
    }

    /// The keys whose locks are taken away.
    pub fn bait(&self) -> Vec<u64> {
        (self.all_keys()..self.all_keys() + self.bait_keys).collect()
    }

    /// How many threads a process has.
    fn all_threads(&self) -> u64 {
        self.threads + self.long_threads + self.bait_keys.min(1)
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
            self.long_leases.to_string(),
            self.long_threads.to_string(),
            self.long_keys.to_string(),
            self.bait_keys.to_string(),
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
    /// How many losses each key's callback was told of, where it has one.
    told: Vec<Arc<AtomicU64>>,
}

impl Process {
    /// The client's lock of this key, with the options of its kind.
    fn lock(&self, key: u64) -> RedisLock {
        let options = LockOptions::new().lease(self.load.lease);
        let options = match self.load.kind(key) {
            Kind::Fenced | Kind::Told => options.fenced(),
            Kind::Unqueued => options.fenced().queue(Queue::None),
            Kind::Bare => options,
            Kind::Alone => options.fenced().local_hand_offs(0),
            Kind::Redisson => options.fenced().layout(Layout::Redisson),
        };
        self.client.lock_with(&key_name(key), options).expect("the options can work")
    }

    /// Losses of this key that its callback has been told of; `None`: it has none.
    fn told(&self, key: u64) -> Option<u64> {
        (self.load.kind(key) == Kind::Told).then(|| self.told[key as usize].load(Ordering::SeqCst))
    }
}

/// The life of a client process: ends when the file `exit` appears.
pub fn run(arguments: &[String]) {
    env_logger::Builder::from_env(env_logger::Env::new().filter_or("FAULTS_LOG", "distlock=info")).format_timestamp_micros().init();
    let [
        dir,
        process,
        seed,
        url,
        threads,
        keys,
        lease,
        command,
        pool,
        hold,
        long_leases,
        long_threads,
        long_keys,
        bait_keys,
        pause,
        timed,
        habit,
        fenced,
    ] = arguments
    else {
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
        long_leases: u32::try_from(number(long_leases)).expect("a small number"),
        long_threads: number(long_threads),
        long_keys: number(long_keys),
        bait_keys: number(bait_keys),
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
    let told = (0..load.all_keys() + load.bait_keys).map(|_| Arc::default()).collect();
    let shared = Arc::new(Process { load, dir: dir.clone(), client, cells, stop: AtomicBool::new(false), told });
    // A callback stays as long as a handle of its lock.
    let with_callbacks: Vec<_> = (0..shared.load.all_keys())
        .filter(|key| shared.told(*key).is_some())
        .map(|key| {
            let (lock, told) = (shared.lock(key), Arc::clone(&shared.told[key as usize]));
            lock.on_lost(move |_| {
                told.fetch_add(1, Ordering::SeqCst);
            });
            lock
        })
        .collect();
    let threads: Vec<_> = (0..shared.load.all_threads())
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
    drop((shared, with_callbacks));
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

/// Where the numbers of forks begin, among the calls of a thread.
const FORKS: u64 = 1 << 60;

const PLANNED: &str = "planned";

/// One thread, or one after another where they end by habit.
fn live(process: &Arc<Process>, owner: u64, seed: u64) {
    match process.load.habit {
        Habit::Unlock | Habit::Panic | Habit::Leak | Habit::Fork => {}
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
        if matches!(process.load.habit, Habit::Unlock | Habit::Fork) {
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
    /// Whether this thread's holds are the long ones,
    long: bool,
    /// and the keys that it locks.
    keys: std::ops::Range<u64>,
}

impl<'a> Worker<'a> {
    fn new(process: &'a Process, owner: u64, life: u64) -> Self {
        // Several processes may have the same number one after another.
        let life = u64::from(std::process::id()) * 1_000_000 + life;
        let writer = Writer::create(&process.dir, owner, life);
        let (load, index) = (&process.load, (owner - 1) % 10_000);
        let (long, keys) = match index {
            _ if index < load.threads => (false, 0..load.keys),
            _ if index < load.threads + load.long_threads => (true, load.keys..load.all_keys()),
            _ => (true, load.all_keys()..load.all_keys() + load.bait_keys),
        };
        Worker { process, owner, writer, resource: witness::Client::connect(&process.dir), locks: HashMap::new(), long, keys }
    }

    /// Calls until told to stop. Returns early, or panics, where that is the habit.
    fn run(mut self, random: &mut Random, number: &AtomicU64) {
        let load = &self.process.load;
        while !self.process.stop.load(Ordering::SeqCst) {
            // Over all lives of this owner, so that a hold has one name at witness B.
            let number = number.fetch_add(1, Ordering::SeqCst) + u64::from(std::process::id()) * 10_000_000;
            // Whoever does not wait for long may also ask for what is held for long.
            let asks_long = self.is_impatient() && load.long_keys > 0 && random.below(10) == 0;
            let keys = if asks_long { load.keys..load.all_keys() } else { self.keys.clone() };
            let key = keys.start + random.below(keys.end - keys.start);
            if load.fenced && random.happens(50_000) {
                self.echo(number, key);
                continue;
            }
            let lock = self.lock(key);
            let timeout = self.timeout(random);
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

    /// One thread in three always has a timeout, so that not everybody ends up waiting for a lock whose holder cannot be reached; the others now and then.
    fn timeout(&self, random: &mut Random) -> Option<Duration> {
        match random.below(10) {
            _ if !self.process.load.timed || self.long => None,
            0 => Some(Duration::ZERO),
            1 => Some(Duration::from_millis(50)),
            2..5 if self.is_impatient() => Some(Duration::ZERO),
            _ if self.is_impatient() => Some(Duration::from_millis(50)),
            _ => None,
        }
    }

    /// Whether all its calls have timeouts.
    fn is_impatient(&self) -> bool {
        self.process.load.timed && !self.long && (self.owner - 1) % 10_000 % 3 == 2
    }

    fn lock(&mut self, key: u64) -> RedisLock {
        self.locks.entry(key).or_insert_with(|| self.process.lock(key)).clone()
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
        let length = if self.long { (load.lease, load.lease * load.long_leases) } else { (Duration::ZERO, load.hold) };
        let (length, told) = (random.between(length), self.process.told(record.key));
        let read = self.process.cells.read(record.key);
        let (until, mut written) = (now() + nanos(length), now());
        loop {
            see(lock, &mut record);
            let left = until.saturating_sub(now());
            let is_bait = record.key >= load.all_keys();
            if left == 0 || self.long && self.process.stop.load(Ordering::SeqCst) || is_bait && !lock.is_valid() {
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
        if load.habit == Habit::Fork && random.happens(if self.long { 1_000_000 } else { 10_000 }) {
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
        if record.outcome == Outcome::Lost && told.is_some() && !self.is_told(record.key, told) {
            record.outcome = Outcome::Other;
            log::error!("the callback was not told of a loss");
        }
        self.writer.write(&record);
        false
    }

    /// Forks while this thread holds. The child has a copy of everything but the other threads: it must hold nothing, release nothing, ask the server nothing, and
    /// come to an end. Whether that was so.
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
                std::process::exit(i32::from(releases) + 2 * i32::from(asks));
            }
        };
        let mut status = None;
        while status.is_none() && now() - call.called < 5_000_000_000 {
            status = fork::waitpid_nohang(child).expect("it is our child");
            thread::sleep(Duration::from_millis(1));
        }
        if status.is_none() {
            let kill = std::process::Command::new("kill").args(["-KILL", &child.to_string()]).status();
            log::error!("a forked child hung; killed: {}", kill.is_ok_and(|status| status.success()));
        }
        (call.ended, call.outcome) = (now(), Outcome::Forked);
        self.writer.write(&call);
        let well = status == Some(0);
        if !well {
            log::error!("a forked child did what it must not: {status:?}");
        }
        well
    }

    /// Whether the callback of this key is told of one more loss, within a second.
    fn is_told(&self, key: u64, before: Option<u64>) -> bool {
        let patience = now() + 1_000_000_000;
        while self.process.told(key) <= before && now() < patience {
            thread::sleep(Duration::from_millis(1));
        }
        self.process.told(key) > before
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
        let until = at + nanos(remaining);
        // What is measured of one end differs by far less.
        record.renewed += u64::from(record.valid_until != 0 && until > record.valid_until + 20_000_000);
        record.valid_until = until;
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
