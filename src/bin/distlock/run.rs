//! `distlock run`: takes the locks, runs CMD, releases the locks.

use std::time::{Duration, Instant};

use distlock::Client;
use rustix::process::Signal;

use crate::args::{OnLost, Run};
use crate::exit::{Exit, Failure, in_full};
use crate::hold::{Holds, Taken};
use crate::job::Job;
use crate::say::say;
use crate::server;
use crate::signals::{Happened, Signals};

/// How long the end waits for what an unanswered attempt may have left on the server.
const CLOSE: Duration = Duration::from_secs(2);
/// The longest pause between two looks at CMD: whoever started this process may have blocked the
/// signal that tells CMD's end.
const LOOK: Duration = Duration::from_secs(1);
/// The pause between two looks at CMD's group, whose end no signal tells.
const OTHERS: Duration = Duration::from_millis(20);
/// How long the rest of a group may take to end after SIGKILL.
const AFTER_KILL: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &Run) -> Result<Exit, Failure> {
    args.check()?;
    let signals = Signals::watch().map_err(|error| Failure::system("no signals", &error))?;
    let client = server::builder(&args.server)?.listener(signals.listener()).build()?;
    let ended = with_locks(&client, args, &signals);
    if let Err(error) = client.close(CLOSE) {
        say(format_args!("{}", in_full(&error)));
    }
    ended
}

fn with_locks(client: &Client, args: &Run, signals: &Signals) -> Result<Exit, Failure> {
    let holds = match Holds::take(client, args, &signals.interrupt) {
        Ok(Taken::All(holds)) => holds,
        Ok(Taken::Not(lock)) => {
            if args.verbose {
                let holders = lock.holders().unwrap_or_else(|error| in_full(&error));
                say(format_args!("not obtained: {holders}"));
            }
            return Ok(Exit::NOT_OBTAINED);
        }
        Err(error) if error.is_interrupted() => {
            return Ok(signals.ended_by().map_or(Exit::SYSTEM, Exit::of_signal));
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(exit) = ended_before_cmd(&holds, signals) {
        release(holds);
        return Ok(exit);
    }
    let (ended, was_lost) = Supervision::new(args, &holds, signals).run();
    if !release(holds) && !was_lost {
        return ended;
    }
    match ended {
        Ok(exit) => say(format_args!("CMD ended with status {exit}, without the lock")),
        Err(failure) => drop(failure.report()),
    }
    Ok(Exit::LOST)
}

/// Why CMD is not started although the locks were obtained.
fn ended_before_cmd(holds: &Holds, signals: &Signals) -> Option<Exit> {
    if let Some(signal) = signals.ended_by() {
        return Some(Exit::of_signal(signal));
    }
    // The first of several, while the last was waited for; or this process was stopped.
    let was_lost = !holds.are_valid();
    was_lost.then(|| {
        say(format_args!("the lock was lost before CMD was started"));
        Exit::LOST
    })
}

/// Releases the locks. Whether one of them was lost.
fn release(holds: Holds) -> bool {
    let mut was_lost = false;
    for error in holds.release() {
        was_lost |= error.is_lost();
        say(format_args!("{}", in_full(&error)));
    }
    was_lost
}

/// Runs CMD, and sees to it that CMD does not go on without its locks.
struct Supervision<'a> {
    args: &'a Run,
    holds: &'a Holds,
    signals: &'a Signals,
    was_lost: bool,
    /// When CMD and its group get SIGKILL.
    kill_at: Option<Instant>,
    /// When they got it.
    killed_at: Option<Instant>,
}

impl<'a> Supervision<'a> {
    fn new(args: &'a Run, holds: &'a Holds, signals: &'a Signals) -> Self {
        Self { args, holds, signals, was_lost: false, kill_at: None, killed_at: None }
    }

    /// CMD's exit status, and whether a lock was lost before its end.
    fn run(mut self) -> (Result<Exit, Failure>, bool) {
        let dies_with_us = self.args.on_lost != OnLost::Ignore;
        let ended = match Job::start(&self.args.cmd, self.holds.environment(), dies_with_us) {
            Ok(mut job) => Ok(self.until_end(&mut job)),
            Err(error) => Err(Failure::system("CMD was not started", &error)),
        };
        (ended, self.was_lost)
    }

    fn until_end(&mut self, job: &mut Job) -> Exit {
        loop {
            let ended = job.ended();
            if let Some(status) = ended {
                if !job.has_left_others() || self.have_others_survived() {
                    return Exit::of(status);
                }
                if self.killed_at.is_none() {
                    self.kill_at = self.kill_at.or_else(|| self.after_grace());
                }
            }
            if !self.was_lost && !self.holds.are_valid() {
                self.lose(job);
            }
            if self.kill_at.is_some_and(|at| Instant::now() >= at) {
                self.kill(job);
            }
            let pause = if ended.is_some() { OTHERS } else { self.until_next_step() };
            self.await_event(job, pause);
        }
    }

    /// How long nothing has to be done unless something happens.
    fn until_next_step(&self) -> Duration {
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let until_kill = self.kill_at.map(until);
        let until_loss = (!self.was_lost).then(|| self.holds.remaining());
        [until_kill, until_loss].into_iter().flatten().fold(LOOK, Duration::min)
    }

    fn await_event(&self, job: &mut Job, pause: Duration) {
        if let Ok(Happened::Signal(signal)) = self.signals.happened.recv_timeout(pause) {
            job.forward(signal);
        }
    }

    fn lose(&mut self, job: &mut Job) {
        self.was_lost = true;
        match self.args.on_lost {
            OnLost::Term => {
                say(format_args!("the lock is lost: CMD gets SIGTERM"));
                job.send(Signal::TERM);
                self.kill_at = self.kill_at.or_else(|| self.after_grace());
            }
            OnLost::Kill => {
                say(format_args!("the lock is lost: CMD gets SIGKILL"));
                self.kill(job);
            }
            OnLost::Ignore => say(format_args!("the lock is lost, and CMD goes on")),
        }
    }

    fn kill(&mut self, job: &mut Job) {
        job.send(Signal::KILL);
        self.kill_at = None;
        self.killed_at = Some(Instant::now());
    }

    /// `None`: so late that it is never.
    fn after_grace(&self) -> Option<Instant> {
        Instant::now().checked_add(self.args.grace)
    }

    /// Whether a process of CMD's group is there long after SIGKILL, as one that waits for a disk
    /// may be.
    fn have_others_survived(&self) -> bool {
        let survived = self.killed_at.is_some_and(|at| at.elapsed() > AFTER_KILL);
        if survived {
            say(format_args!("a process that CMD has started does not end"));
        }
        survived
    }
}
