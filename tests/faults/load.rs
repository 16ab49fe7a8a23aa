//! One client process of load L: its arguments, and its threads.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use distlock::{Client, Layout, LockOptions, Queue, RedisLock};

use super::clock::{Random, nanos, now};
use super::support::{fd_count, thread_count};
use super::worker::Worker;
use super::{buffer, limits, rooms, witness};

/// How long closing may take.
pub const TIME_TO_CLOSE: Duration = Duration::from_secs(5);

/// How long threads that were joined may still be seen (ns): far longer than any kernel takes.
const TIME_TO_END: u64 = 10_000_000_000;

/// What a thread does with one in twenty holds instead of unlocking.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Habit {
    #[default]
    Unlock,
    /// Panics; the guard unlocks.
    Panic,
    /// Ends without an unlock.
    Leak,
    /// Forks; the child tries what must be impossible for it, and ends.
    Fork,
    /// Other loads: producers and consumers of a bounded buffer (the first process produces, the
    /// others consume), the same with a producer that does not wait,
    Buffer,
    PollingBuffer,
    /// and processes that only produce or only consume.
    Produce,
    Poll,
    Consume,
    /// Like `Buffer`, but the second process produces, so a fault that only hits the first process
    /// hits a consumer.
    ConsumedFirst,
    /// Read-write locks and semaphores,
    Rooms,
    /// and rate limits, instead of locks.
    Limit,
}

impl Habit {
    const ALL: [Habit; 12] = [
        Habit::Unlock,
        Habit::Panic,
        Habit::Leak,
        Habit::Fork,
        Habit::Buffer,
        Habit::PollingBuffer,
        Habit::Produce,
        Habit::Poll,
        Habit::Consume,
        Habit::ConsumedFirst,
        Habit::Rooms,
        Habit::Limit,
    ];
}

/// The command line of a client process.
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
    /// Further threads, whose holds last from one lease up to this many; how many of them each
    /// process has; and how many keys of their own they have.
    pub long_leases: u32,
    pub long_threads: u64,
    pub long_keys: u64,
    /// Keys that do not count for the verdict, and whose locks a third party takes away: one thread
    /// of each process has long holds of them.
    pub bait_keys: u64,
    /// The pause between two holds of a thread.
    pub pause: Duration,
    /// Whether threads also lock with timeouts, and without waiting.
    pub timed: bool,
    pub habit: Habit,
    /// How many replicas must have confirmed a lock.
    pub replicas: u32,
    /// Whether the locks have fences, and the threads write to witness B: not on a quorum. Its
    /// nodes' URLs are separated by commas.
    pub fenced: bool,
}

/// The options of a key's locks. They are mixed over the keys of a single server; a quorum has
/// `Bare` alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Fenced,
    /// With a callback for losses, too.
    Told,
    /// No queue on the server.
    Unqueued,
    /// No fences. Only then is the first attempt a bare `SET`.
    Bare,
    /// No hand-offs between the threads of a process.
    Alone,
    /// In Redisson's layout: a hash, and no queue on the server.
    Redisson,
    /// No lock, but a read-write lock or a semaphore.
    Room,
}

impl Load {
    pub fn kind(&self, key: u64) -> Kind {
        match key % 8 {
            _ if !self.fenced => Kind::Bare,
            _ if self.habit == Habit::Rooms => Kind::Room,
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

    /// These settings as arguments.
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
            self.replicas.to_string(),
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
    pub cells: witness::Cells,
    pub stop: AtomicBool,
    /// Whether the client is being closed while threads hold locks.
    pub closing: AtomicBool,
    /// How many losses each key's callback was told of, if it has a callback.
    told: Vec<Arc<AtomicU64>>,
}

impl Process {
    /// The client's lock of this key, with the options of its kind.
    pub fn lock(&self, key: u64) -> RedisLock {
        let options = LockOptions::new().lease(self.load.lease).replicas(self.load.replicas);
        let options = match self.load.kind(key) {
            Kind::Fenced | Kind::Told => options.fenced(),
            Kind::Unqueued => options.fenced().queue(Queue::None),
            Kind::Bare | Kind::Room => options,
            Kind::Alone => options.fenced().local_hand_offs(0),
            Kind::Redisson => options.fenced().layout(Layout::Redisson),
        };
        self.client.lock_with(&key_name(key), options).expect("the options can work")
    }

    /// Losses of this key that its callback has been told of; `None`: it has none.
    pub fn told(&self, key: u64) -> Option<u64> {
        (self.load.kind(key) == Kind::Told).then(|| self.told[key as usize].load(Ordering::SeqCst))
    }
}

/// Runs a client process until the file `exit` appears.
pub fn run(arguments: &[String]) {
    env_logger::Builder::from_env(env_logger::Env::new().filter_or("FAULTS_LOG", "distlock=info"))
        .format_timestamp_micros()
        .init();
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
        replicas,
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
        habit: Habit::ALL
            .into_iter()
            .find(|known| format!("{known:?}") == *habit)
            .expect("a habit"),
        fenced: fenced == "true",
        replicas: replicas.parse().expect("a small number"),
    };
    let (dir, process, seed) = (PathBuf::from(dir), number(process), number(seed));
    let status = |line: String| {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.join(format!("{process}.status")));
        writeln!(file.expect("a status file"), "{line}").expect("it can be written");
    };
    let planned = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>().is_none_or(|text| *text != PLANNED) {
            planned(info);
        }
    }));
    let before = (thread_count(), fd_count());
    status(format!("pid {}\nbefore {} {}", std::process::id(), before.0, before.1));
    let urls: Vec<&str> = load.url.split(',').collect();
    // The sentinels of one service, and the nodes of a cluster, are in one URL.
    let builder = if urls.len() > 1 && !load.url.starts_with("redis+") {
        Client::redlock_builder(&urls)
    } else {
        Client::builder(&load.url)
    };
    let built = builder
        .pool_size(load.pool)
        .command_timeout(load.command)
        .connect_timeout(load.command)
        .build();
    let client = built.expect("the client can be made");
    let cells = witness::Cells::open(&dir);
    let told = (0..load.all_keys() + load.bait_keys).map(|_| Arc::default()).collect();
    let shared = Arc::new(Process {
        load,
        dir: dir.clone(),
        client,
        cells,
        stop: AtomicBool::new(false),
        closing: AtomicBool::new(false),
        told,
    });
    // A callback stays registered as long as a handle of its lock exists.
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
    let (stop, close) = (dir.join("stop"), dir.join(format!("{process}.close")));
    wait_for(&[&stop, &close]);
    if close.exists() {
        shared.closing.store(true, Ordering::SeqCst);
        let begun = now();
        let closed = shared.client.close(TIME_TO_CLOSE);
        status(format!("closed {} {}", closed.is_ok(), (now() - begun) / 1_000_000));
    }
    shared.stop.store(true, Ordering::SeqCst);
    let failed = threads.into_iter().map(thread::JoinHandle::join).filter(Result::is_err).count();
    let closed = shared.client.close(TIME_TO_CLOSE).is_ok();
    drop((shared, with_callbacks));
    // The kernel still counts a thread for a moment after it was joined.
    let ended = now();
    while (thread_count() > before.0 || fd_count() > before.1) && now() - ended < TIME_TO_END {
        thread::sleep(Duration::from_millis(10));
    }
    status(format!("after {} {} {failed} {closed}", thread_count(), fd_count()));
    wait_for(&[&dir.join("exit")]);
}

/// Waits until one of these is there.
fn wait_for(paths: &[&Path]) {
    while !paths.iter().any(|path| path.exists()) {
        thread::sleep(Duration::from_millis(10));
    }
}

/// The panic value of a thread whose habit is to panic.
pub const PLANNED: &str = "planned";

/// One thread, or one after another if they end by habit.
fn live(process: &Arc<Process>, owner: u64, seed: u64) {
    match process.load.habit {
        Habit::Unlock | Habit::Panic | Habit::Leak | Habit::Fork => {}
        Habit::Rooms => return rooms::Worker::new(process, owner).run(&mut Random(seed)),
        Habit::Limit => return limits::ask(process, owner, &mut Random(seed)),
        _ => return buffer::Worker::new(process, owner).run(&mut Random(seed)),
    }
    let random = Arc::new(std::sync::Mutex::new(Random(seed)));
    let number = Arc::new(AtomicU64::new(0));
    for life in 0.. {
        let (shared, random, number) =
            (Arc::clone(process), Arc::clone(&random), Arc::clone(&number));
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
