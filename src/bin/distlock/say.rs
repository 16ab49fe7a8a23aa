//! What the command says on standard error, by a thread of its own.
//!
//! Whoever reads standard error may not read it for a while: a full pipe, or a terminal after
//! Ctrl-S, stops the writer. The thread that passes signals on, and ends a CMD without a lock, must
//! not stop with it.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

/// How long the end of the process waits for a reader.
const PATIENCE: Duration = Duration::from_secs(1);

enum Task {
    Write(String),
    /// Everything before it has been written.
    Done(Sender<()>),
}

/// `None`: there is no such thread.
static TASKS: OnceLock<Option<Sender<Task>>> = OnceLock::new();

/// Writes a line, now or later, and never blocks.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let line = format!("distlock: {line}\n");
    match tasks() {
        Some(tasks) => drop(tasks.send(Task::Write(line))),
        None => write(&line),
    }
}

/// Waits until everything has been written, if somebody reads it.
pub(crate) fn flush() {
    if let Some(Some(tasks)) = TASKS.get() {
        let (done, is_done) = bounded(1);
        let _ = tasks.send(Task::Done(done));
        let _ = is_done.recv_timeout(PATIENCE);
    }
}

fn tasks() -> Option<&'static Sender<Task>> {
    let start = || {
        let (sender, tasks) = unbounded();
        let thread = thread::Builder::new().name("distlock-say".into());
        thread.spawn(move || work(&tasks)).ok().map(|_| sender)
    };
    TASKS.get_or_init(start).as_ref()
}

fn work(tasks: &Receiver<Task>) {
    for task in tasks {
        match task {
            Task::Write(line) => write(&line),
            Task::Done(done) => drop(done.send(())),
        }
    }
}

/// If nobody reads it any more, the line is lost: `eprintln` would panic.
fn write(line: &str) {
    let _ = io::stderr().write_all(line.as_bytes());
}
