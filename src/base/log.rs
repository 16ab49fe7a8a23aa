//! What the crate logs. The program's logger is the program's code, which may block, or panic. So a
//! thread of its own calls it, and no thread that keeps a lock waits for it (R9).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

pub(crate) use ::log::Level;
use ::log::Record;

use super::{caught, locked};

/// How many messages wait while the program's logger is slow. More are dropped.
const MOST_WAITING: usize = 1024;

/// The messages for the thread that calls the logger. `None`: there is no such thread. It starts
/// with a message, and ends when none is left.
static WAITING: Mutex<Option<VecDeque<Message>>> = Mutex::new(None);
/// The process that uses `WAITING`; 0: none so far. A forked child inherits the mutex as it was,
/// and not the thread.
static PROCESS: AtomicU32 = AtomicU32::new(0);

struct Message {
    level: Level,
    target: &'static str,
    text: String,
}

impl Message {
    fn log(&self) {
        let Self { level, target, text } = self;
        // A logger that cannot write may panic, as `println!` does on a closed pipe.
        caught(|| {
            let mut record = Record::builder();
            record.level(*level).target(target).module_path_static(Some(target));
            ::log::logger().log(&record.args(format_args!("{text}")).build());
        });
    }
}

/// Gives a message to the thread. Neither waits for the logger nor panics.
pub(crate) fn say(level: Level, target: &'static str, text: fmt::Arguments<'_>) {
    if level > ::log::max_level() {
        return;
    }
    let message = Message { level, target, text: text.to_string() };
    if !is_ours() {
        return message.log();
    }
    let mut waiting = locked(&WAITING);
    match &mut *waiting {
        Some(messages) if messages.len() < MOST_WAITING => messages.push_back(message),
        Some(_) => {}
        none => {
            if thread::Builder::new().name("distlock-log".into()).spawn(log_all).is_ok() {
                *none = Some([message].into());
            } else {
                drop(waiting);
                message.log();
            }
        }
    }
}

/// Whether this process uses `WAITING`. A forked child must not lock it: a thread of its parent may
/// have held it. So the child's own threads call its logger.
fn is_ours() -> bool {
    let own = std::process::id();
    let first = PROCESS.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst);
    first.is_ok() || first == Err(own)
}

fn log_all() {
    loop {
        let mut waiting = locked(&WAITING);
        let Some(message) = waiting.as_mut().and_then(VecDeque::pop_front) else {
            *waiting = None;
            return;
        };
        drop(waiting);
        message.log();
    }
}

/// Waits until everything that was said before has been given to the logger.
#[cfg(feature = "testing")]
pub fn flush_log() {
    while locked(&WAITING).is_some() {
        thread::sleep(std::time::Duration::from_millis(1));
    }
}

macro_rules! line {
    ($level:ident, $($text:tt)+) => {
        $crate::base::log::say(
            $crate::base::log::Level::$level,
            module_path!(),
            format_args!($($text)+),
        )
    };
}
macro_rules! error {
    ($($text:tt)+) => { $crate::base::log::line!(Error, $($text)+) };
}
macro_rules! warning {
    ($($text:tt)+) => { $crate::base::log::line!(Warn, $($text)+) };
}
macro_rules! info {
    ($($text:tt)+) => { $crate::base::log::line!(Info, $($text)+) };
}
macro_rules! debug {
    ($($text:tt)+) => { $crate::base::log::line!(Debug, $($text)+) };
}
// A macro of the name `warn` would be taken for the attribute.
pub(crate) use {debug, error, info, line, warning as warn};
