//! A named background thread. A channel gives it work and stops it.

use std::borrow::Cow;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::{caught, locked, log};

/// The pause after a panic, which may happen again at once.
const AFTER_A_PANIC: Duration = Duration::from_millis(100);

/// A thread that starts when it is first needed and ends when its channel is closed.
///
/// The thread holds the receiving end and nothing else of the client, so it never keeps a client
/// alive.
pub(crate) struct Worker<T> {
    name: Cow<'static, str>,
    has_started: AtomicBool,
    state: Mutex<Lifecycle<T>>,
}

enum Lifecycle<T> {
    /// Not started: work that is sent waits here, so a failed start loses nothing.
    Idle(Sender<T>, Receiver<T>),
    Running {
        work: Sender<T>,
        ended: Receiver<()>,
        thread: ThreadId,
    },
    Stopped(Stopped),
}

/// For a thread that finds its work elsewhere: there is something new to do.
pub(crate) struct Wake;

/// A thread that was told to stop.
#[derive(Clone)]
pub(crate) struct Stopped(Option<(Receiver<()>, ThreadId)>);

impl Stopped {
    /// Waits until the thread has ended. `false`: it had not ended by `deadline`.
    pub(crate) fn wait(&self, deadline: Instant) -> bool {
        match &self.0 {
            // A callback may drop the last handle of its client: then the thread must not wait for
            // itself.
            Some((ended, id)) if *id != thread::current().id() => !matches!(
                ended.recv_deadline(deadline),
                Err(crossbeam_channel::RecvTimeoutError::Timeout)
            ),
            _ => true,
        }
    }
}

impl<T: Send + 'static> Worker<T> {
    pub(crate) fn new(name: impl Into<Cow<'static, str>>) -> Self {
        let (work, todo) = unbounded();
        Self {
            name: name.into(),
            has_started: AtomicBool::new(false),
            state: Mutex::new(Lifecycle::Idle(work, todo)),
        }
    }

    /// Whether the thread has been started. Cheap, so that a caller may ask at each use.
    pub(crate) fn has_started(&self) -> bool {
        self.has_started.load(Ordering::Relaxed)
    }

    /// Starts the thread unless it has been started. `run` shall return when its receiver is
    /// disconnected. If it panics it runs again: what it has in hand is lost, but not what waits.
    pub(crate) fn start(&self, run: impl Fn(&Receiver<T>) + Send + 'static) -> io::Result<()> {
        let mut state = locked(&self.state);
        if let Lifecycle::Idle(work, todo) = &*state {
            let (ending, ended) = bounded::<()>(0);
            let (work, todo) = (work.clone(), todo.clone());
            let thread =
                thread::Builder::new().name(self.name.clone().into_owned()).spawn(move || {
                    // Dropped when the thread ends, in any way: `Stopped::wait` waits for
                    // that.
                    let _ending = ending;
                    // Dropped before that: what it owns is gone when the thread is known to have
                    // ended.
                    let run = run;
                    while caught(|| run(&todo)).is_none() {
                        log::error!("a background thread panicked, and goes on");
                        thread::sleep(AFTER_A_PANIC);
                    }
                })?;
            *state = Lifecycle::Running { work, ended, thread: thread.thread().id() };
            self.has_started.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Gives the thread work. Does not block. After `stop` it returns the work.
    pub(crate) fn send(&self, work: T) -> Result<(), T> {
        // The lock is held only to put the work into an unbounded channel.
        match &*locked(&self.state) {
            Lifecycle::Idle(sender, _) | Lifecycle::Running { work: sender, .. } => {
                sender.send(work).map_err(|unsent| unsent.0)
            }
            Lifecycle::Stopped(_) => Err(work),
        }
    }

    /// Lets the thread finish its work, and end.
    pub(crate) fn stop(&self) -> Stopped {
        let mut state = locked(&self.state);
        let stopped = match &*state {
            Lifecycle::Idle(..) => Stopped(None),
            Lifecycle::Running { ended, thread, .. } => Stopped(Some((ended.clone(), *thread))),
            Lifecycle::Stopped(stopped) => stopped.clone(),
        };
        *state = Lifecycle::Stopped(stopped.clone());
        stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panicked_goes_on_with_what_waits() {
        let worker = Worker::new("distlock-test");
        let (tell, told) = unbounded();
        let run = move |work: &Receiver<u32>| {
            for number in work {
                assert!(number != 1, "planned");
                let _ = tell.send(number);
            }
        };
        worker.start(run).expect("a thread");
        (0..4).for_each(|number| worker.send(number).expect("not stopped"));
        assert!(worker.stop().wait(Instant::now() + Duration::from_secs(10)));
        assert_eq!(told.iter().collect::<Vec<_>>(), [0, 2, 3]);
    }
}
