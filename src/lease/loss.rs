//! Telling the program that a lease was lost: `on_lost` callbacks, on a thread of their own (R9).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::lost::{Lost, OnLost};
use crate::base::worker::Worker;

/// Runs callbacks one after another on its own thread, started with the first loss that has one.
pub(crate) struct Notifier {
    worker: Worker<(Arc<OnLost>, Lost)>,
}

impl Notifier {
    pub(crate) fn new() -> Self {
        Self { worker: Worker::new("distlock-notify") }
    }

    /// Has `callback` called soon. A slow one delays other callbacks, and nothing else.
    pub(crate) fn notify(&self, callback: Arc<OnLost>, lost: Lost) {
        let started = self.worker.start(|work| {
            for (callback, lost) in work.iter() {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| callback(&lost))) {
                    // Not dropped: that could panic, too.
                    std::mem::forget(payload);
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
        // After the client was closed there is nobody to tell.
        let _ = self.worker.send((callback, lost));
    }

    pub(crate) fn stop(&self) -> crate::base::worker::Stopped {
        self.worker.stop()
    }
}
