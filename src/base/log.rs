//! What the crate logs. The program's logger is the program's code, which may block, or panic. So a
//! thread of its own calls it, and no thread that keeps a lock waits for it (R9).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, OnceLock};
use std::thread;

pub(crate) use ::log::Level;
use ::log::Record;

use super::{caught, locked};

/// How many messages wait while the program's logger is slow. More are dropped.
const MOST_WAITING: usize = 1024;

/// The messages of one process, for its thread that calls the logger.
struct Pending {
    process: u32,
    /// `None`: there is no such thread. It starts with a message, and ends when none is left.
    messages: Mutex<Option<VecDeque<LogLine>>>,
    /// Those of a forked child. A child inherits the mutex as it was, perhaps locked by a thread
    /// that it does not have, so it never touches it.
    of_child: OnceLock<Box<Self>>,
}

static FIRST: OnceLock<Pending> = OnceLock::new();

impl Pending {
    fn of(process: u32) -> Self {
        Self { process, messages: Mutex::default(), of_child: OnceLock::new() }
    }

    fn of_this_process() -> &'static Self {
        let own = std::process::id();
        let mut pending = FIRST.get_or_init(|| Self::of(own));
        while pending.process != own {
            pending = pending.of_child.get_or_init(|| Box::new(Self::of(own)));
        }
        pending
    }
}

struct LogLine {
    level: Level,
    target: &'static str,
    text: String,
}

impl LogLine {
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
    let message = LogLine { level, target, text: text.to_string() };
    let mut messages = locked(&Pending::of_this_process().messages);
    match &mut *messages {
        Some(pending) if pending.len() < MOST_WAITING => pending.push_back(message),
        Some(_) => {}
        none => {
            if thread::Builder::new().name("distlock-log".into()).spawn(log_all).is_ok() {
                *none = Some([message].into());
            } else {
                drop(messages);
                message.log();
            }
        }
    }
}

fn log_all() {
    let pending = Pending::of_this_process();
    loop {
        let mut messages = locked(&pending.messages);
        let Some(message) = messages.as_mut().and_then(VecDeque::pop_front) else {
            *messages = None;
            return;
        };
        drop(messages);
        message.log();
    }
}

/// Waits until the logger has every earlier message.
#[cfg(feature = "testing")]
pub fn flush_log() {
    while locked(&Pending::of_this_process().messages).is_some() {
        thread::sleep(std::time::Duration::from_millis(1));
    }
}

macro_rules! line {
    ($level:ident, $($text:tt)+) => {{
        // Looked at here, so that a line that nobody reads costs next to nothing.
        if $crate::base::log::Level::$level <= ::log::max_level() {
            $crate::base::log::say(
                $crate::base::log::Level::$level,
                module_path!(),
                format_args!($($text)+),
            );
        }
    }};
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
