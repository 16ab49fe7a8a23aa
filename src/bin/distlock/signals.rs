//! What happens while the command waits: signals that this process gets, and a lock that is lost.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};
use distlock::{Event, Interrupt, Listener};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals as Received;

/// Those that would end this process, and leave CMD without its lock.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
/// Those that end a wait for the lock.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

pub(crate) enum Happened {
    /// A signal for CMD.
    Signal(i32),
    /// CMD may have ended, or the lock may be lost: whoever hears it looks.
    Look,
}

/// The signals of this process, from the call of [`watch`](Self::watch) on.
pub(crate) struct Signals {
    sender: Sender<Happened>,
    pub(crate) happened: Receiver<Happened>,
    /// Ends the wait for the lock.
    pub(crate) interrupt: Interrupt,
    ended_by: Arc<AtomicI32>,
}

impl Signals {
    pub(crate) fn watch() -> io::Result<Self> {
        let ignored = ignored();
        let forwarded = FORWARDED.iter().filter(|signal| !ignored.contains(signal));
        let mut received = Received::new(forwarded.chain([&SIGCHLD]))?;
        let (sender, happened) = unbounded();
        let interrupt = Interrupt::new();
        let ended_by = Arc::new(AtomicI32::new(0));
        let signals =
            Self { sender: sender.clone(), happened, interrupt, ended_by: ended_by.clone() };
        let interrupt = signals.interrupt.clone();
        thread::Builder::new().name("distlock-signal".into()).spawn(move || {
            for signal in received.forever() {
                if ENDING.contains(&signal) {
                    ended_by.store(signal, Ordering::SeqCst);
                    interrupt.interrupt();
                }
                let what =
                    if signal == SIGCHLD { Happened::Look } else { Happened::Signal(signal) };
                let _ = sender.send(what);
            }
        })?;
        Ok(signals)
    }

    /// Forgets what has come so far. If one of it was to end this process: which.
    pub(crate) fn ended_by(&self) -> Option<i32> {
        self.happened.try_iter().for_each(drop);
        Some(self.ended_by.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    /// Tells of a lock that is lost.
    pub(crate) fn listener(&self) -> impl Listener + use<> {
        let sender = self.sender.clone();
        move |event: Event| {
            if let Event::Lost { .. } = event {
                let _ = sender.send(Happened::Look);
            }
        }
    }
}

/// The signals that this process was told to ignore, as by `nohup`. They stay ignored, and CMD
/// inherits that. Where there is no `/proc`, none is known.
fn ignored() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    FORWARDED.into_iter().filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}
