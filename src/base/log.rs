//! What the crate logs. The program's logger is the program's code, which may block, or panic. So a
//! thread of its own calls it, and no thread that keeps a lock waits for it (R9).

use std::fmt;
use std::sync::OnceLock;
use std::thread;

pub(crate) use ::log::Level;
use ::log::Record;
use crossbeam_channel::{Sender, bounded};

use super::caught;

/// How many messages wait while the program's logger is slow. More are dropped.
const MOST_WAITING: usize = 1024;

/// The thread that calls the logger, started with the first message. It lasts as long as the
/// process, whose logger does so, too.
struct Logging {
    /// A forked child has no such thread.
    process: u32,
    messages: Sender<Message>,
}

static THREAD: OnceLock<Logging> = OnceLock::new();

enum Message {
    Line {
        level: Level,
        target: &'static str,
        text: String,
    },
    #[cfg(feature = "testing")]
    Flush(Sender<()>),
}

impl Message {
    fn log(self) {
        match self {
            Self::Line { level, target, text } => call_the_logger(level, target, &text),
            #[cfg(feature = "testing")]
            Self::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

fn call_the_logger(level: Level, target: &'static str, text: &str) {
    let call = || {
        ::log::logger().log(
            &Record::builder()
                .level(level)
                .target(target)
                .module_path_static(Some(target))
                .args(format_args!("{text}"))
                .build(),
        );
    };
    // A logger that cannot write may panic, as `println!` does on a closed pipe.
    caught(call);
}

/// Gives a message to the thread. Neither blocks nor panics.
pub(crate) fn say(level: Level, target: &'static str, text: fmt::Arguments<'_>) {
    if level > ::log::max_level() {
        return;
    }
    let text = text.to_string();
    match messages() {
        Some(messages) => {
            let _ = messages.try_send(Message::Line { level, target, text });
        }
        None => call_the_logger(level, target, &text),
    }
}

/// Where messages go. `None`: no thread could be started, or this is a forked child.
fn messages() -> Option<&'static Sender<Message>> {
    if THREAD.get().is_none() {
        let (messages, said) = bounded::<Message>(MOST_WAITING);
        let run = move || said.iter().for_each(Message::log);
        thread::Builder::new().name("distlock-log".into()).spawn(run).ok()?;
        // If another thread was faster, this channel closes here, and so ends the thread.
        let _ = THREAD.set(Logging { process: std::process::id(), messages });
    }
    THREAD
        .get()
        .filter(|thread| thread.process == std::process::id())
        .map(|thread| &thread.messages)
}

/// Waits until everything that was said before has been given to the logger.
#[cfg(feature = "testing")]
pub fn flush_log() {
    if let Some(messages) = messages() {
        let (done, flushed) = bounded(1);
        if messages.send(Message::Flush(done)).is_ok() {
            let _ = flushed.recv();
        }
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
