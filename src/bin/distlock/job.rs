//! CMD, as a process: its start, its signals and its end.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpgrp, kill_process, kill_process_group, test_kill_process_group,
    wait,
};
use rustix::termios::tcgetpgrp;

use crate::say::say;
use crate::starter::starter;

pub(crate) struct Job {
    child: Child,
    /// Whether it leads a process group, whose members get the signals, too.
    is_leader: bool,
    /// Set once it has ended, and its process id may be another's.
    ended: Option<ExitStatus>,
    /// Whether it was asked to end: then its group has to end with it.
    was_asked_to_end: bool,
}

impl Job {
    /// Starts it. `dies_with_us`: the kernel kills it if this process ends before it.
    ///
    /// With a terminal it stays in our process group: another one could not read from there, and
    /// Ctrl-C would not reach it.
    pub(crate) fn start(
        cmd: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, Option<String>)>,
        dies_with_us: bool,
    ) -> io::Result<Self> {
        let is_leader = terminal().is_none();
        let mut starter = starter(cmd, dies_with_us)?;
        for (name, value) in environment {
            match value {
                Some(value) => starter.env(name, value),
                // One that this process has inherited is about another lock.
                None => starter.env_remove(name),
            };
        }
        if is_leader {
            starter.process_group(0);
            adopt_orphans();
        }
        Ok(Self { child: starter.spawn()?, is_leader, ended: None, was_asked_to_end: false })
    }

    /// Its exit status, once it has ended. Waits for all children that have ended: the others are
    /// orphans, which would be left as zombies. `Child::try_wait` must not be called beside this.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.pid() && self.ended.is_none() {
                self.ended = Some(ExitStatus::from_raw(status.as_raw()));
            }
        }
        self.ended
    }

    /// Whether it has ended because of a signal, or after one that asked it to, and others of its
    /// group still have to follow.
    pub(crate) fn has_left_others(&self) -> bool {
        let Some(ended) = self.ended else { return false };
        if !self.is_leader || !(self.was_asked_to_end || ended.signal().is_some()) {
            return false;
        }
        // Another error than this is that of a process which this one may not signal.
        test_kill_process_group(self.pid()) != Err(Errno::SRCH)
    }

    /// Passes a signal on. What a terminal sends to all of its foreground group, it has sent to
    /// CMD, too.
    pub(crate) fn forward(&mut self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        let typed = matches!(signal, Signal::INT | Signal::QUIT);
        if !(typed && !self.is_leader && is_in_foreground()) {
            self.send(signal);
        }
    }

    /// Sends a signal to it, and to its group.
    pub(crate) fn send(&mut self, signal: Signal) {
        let asks = [Signal::INT, Signal::QUIT, Signal::TERM, Signal::KILL].contains(&signal);
        self.was_asked_to_end |= asks;
        let sent = if self.is_leader {
            kill_process_group(self.pid(), signal)
        } else if self.ended.is_none() {
            kill_process(self.pid(), signal)
        } else {
            Ok(())
        };
        match sent {
            // Nobody is left to get it.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => say(format_args!("CMD does not get the signal: {error}")),
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

/// Makes this process the parent of those whose parent ends. Process 1 may be slow to wait for
/// them, or not do it at all, and a group of the dead counts as a group until somebody has.
#[cfg(target_os = "linux")]
fn adopt_orphans() {
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Other kernels give them to process 1.
#[cfg(not(target_os = "linux"))]
fn adopt_orphans() {}

/// The terminal that this process belongs to.
fn terminal() -> Option<File> {
    File::open("/dev/tty").ok()
}

/// Whether what is typed at the terminal reaches this process's group.
fn is_in_foreground() -> bool {
    terminal().and_then(|terminal| tcgetpgrp(terminal).ok()).is_some_and(|group| group == getpgrp())
}
