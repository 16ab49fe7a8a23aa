//! Telling the program that a lease was lost: `on_lost` callbacks, on a thread of their own (R9).

use std::io;
use std::sync::Arc;

use super::lost::{Lost, OnLost};
use crate::base::worker::Worker;
use crate::base::{caught, log};

/// Runs callbacks one after another, and drops them, on its own thread, which starts with the first
/// loss that has a callback, or the first lock with one that is dropped.
pub(crate) struct Notifier {
    worker: Worker<Job>,
}

enum Job {
    Call(Arc<OnLost>, Lost),
    Drop(Vec<Arc<OnLost>>),
}

impl Notifier {
    pub(crate) fn new() -> Self {
        Self { worker: Worker::new("distlock-notify") }
    }

    /// Calls `callback` soon. A slow callback delays other callbacks, and nothing else.
    pub(crate) fn notify(&self, callback: Arc<OnLost>, lost: Lost) {
        if let Err(error) = self.start() {
            log::error!(
                "{}: lost, and no thread could be started to call on_lost: {error}",
                lost.subject()
            );
        }
        // After the client was closed no callback is called.
        let _ = self.worker.send(Job::Call(callback, lost));
    }

    /// Drops callbacks soon. They own values of the program, whose destructors may be slow, and any
    /// thread may drop the last reference to a lock, as renewal when an extend comes back (R9).
    pub(crate) fn drop_soon(&self, callbacks: Vec<Arc<OnLost>>) {
        if !callbacks.is_empty() && self.start().is_ok() {
            let _ = self.worker.send(Job::Drop(callbacks));
        }
    }

    fn start(&self) -> io::Result<()> {
        self.worker.start(|work| {
            for job in work.iter() {
                match job {
                    Job::Call(callback, lost) => {
                        if caught(|| callback(&lost)).is_none() {
                            log::error!("{}: an on_lost callback panicked", lost.subject());
                        }
                    }
                    Job::Drop(callbacks) => drop(callbacks),
                }
            }
        })
    }

    pub(crate) fn stop(&self) -> crate::base::worker::Stopped {
        self.worker.stop()
    }
}
