//! A named background thread that is fed, and stopped, over a channel.

use std::borrow::Cow;
use std::io;
use std::sync::Mutex;
use std::thread::{self, ThreadId};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::locked;

/// A thread that starts when it is first needed and ends when its channel is closed.
///
/// The thread holds the receiving end and nothing else of the client, so it never keeps a client
/// alive.
pub(crate) struct Worker<T> {
    name: Cow<'static, str>,
    state: Mutex<Lifecycle<T>>,
}

enum Lifecycle<T> {
    /// Not started: what is sent waits here, so a start that failed once loses nothing.
    Idle(Sender<T>, Receiver<T>),
    Running {
        work: Sender<T>,
        ended: Receiver<()>,
        thread: ThreadId,
    },
    Stopped(Stopped),
}

/// A thread that was told to stop.
#[derive(Clone)]
pub(crate) struct Stopped(Option<(Receiver<()>, ThreadId)>);

impl Stopped {
    /// Waits until the thread has ended. `false`: not by `deadline`.
    pub(crate) fn wait(&self, deadline: Instant) -> bool {
        match &self.0 {
            // A callback may drop the last handle of its client: a thread does not wait for itself.
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
        Self { name: name.into(), state: Mutex::new(Lifecycle::Idle(work, todo)) }
    }

    /// Starts the thread unless it has been started. It shall return when the receiver it is given
    /// is disconnected.
    pub(crate) fn start(&self, run: impl FnOnce(&Receiver<T>) + Send + 'static) -> io::Result<()> {
        let mut state = locked(&self.state);
        if let Lifecycle::Idle(work, todo) = &*state {
            let (ending, ended) = bounded::<()>(0);
            let (work, todo) = (work.clone(), todo.clone());
            let thread =
                thread::Builder::new().name(self.name.clone().into_owned()).spawn(move || {
                    // Dropped at the end of the thread, however it ends: that is what
                    // `Stopped::wait` waits for.
                    let _ending = ending;
                    run(&todo);
                })?;
            *state = Lifecycle::Running { work, ended, thread: thread.thread().id() };
        }
        Ok(())
    }

    /// Gives the thread something to do. Does not block. After `stop` the work comes back.
    pub(crate) fn send(&self, work: T) -> Result<(), T> {
        // Nothing is done under the lock but putting it into an unbounded channel.
        match &*locked(&self.state) {
            Lifecycle::Idle(sender, _) | Lifecycle::Running { work: sender, .. } => {
                sender.send(work).map_err(|unsent| unsent.0)
            }
            Lifecycle::Stopped(_) => Err(work),
        }
    }

    /// Lets the thread finish what it has been given, and end.
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
