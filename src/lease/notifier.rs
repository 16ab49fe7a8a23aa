//! Telling the program that a lease was lost: `on_lost` callbacks, on a thread of their own (R9).

use std::sync::Arc;

use super::lost::{Lost, OnLost};
use crate::base::worker::Worker;
use crate::base::{caught, log};

/// Runs callbacks one after another on its own thread, which starts with the first loss that has a
/// callback.
pub(crate) struct Notifier {
    worker: Worker<(Arc<OnLost>, Lost)>,
}

impl Notifier {
    pub(crate) fn new() -> Self {
        Self { worker: Worker::new("distlock-notify") }
    }

    /// Calls `callback` soon. A slow callback delays other callbacks, and nothing else.
    pub(crate) fn notify(&self, callback: Arc<OnLost>, lost: Lost) {
        let started = self.worker.start(|work| {
            for (callback, lost) in work.iter() {
                if caught(|| callback(&lost)).is_none() {
                    log::error!("lock {:?}: an on_lost callback panicked", lost.name());
                }
            }
        });
        if let Err(error) = started {
            log::error!(
                "lock {:?}: lost, and no thread could be started to call on_lost: {error}",
                lost.name()
            );
        }
        // After the client was closed no callback is called.
        let _ = self.worker.send((callback, lost));
    }

    pub(crate) fn stop(&self) -> crate::base::worker::Stopped {
        self.worker.stop()
    }
}
