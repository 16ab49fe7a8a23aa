//! The delivering half of a link: parcels in order, each when it is due.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::link::Link;
use super::rules::Slot;

/// Something to deliver.
pub(super) struct Parcel {
    pub(super) due: Instant,
    pub(super) load: Load,
}

pub(super) enum Load {
    Bytes(Vec<u8>),
    Slowly(Vec<u8>, Duration),
    Held(Vec<u8>, Arc<Slot>),
    /// The sender has closed its connection.
    End,
}

impl Load {
    fn slot(&self) -> Option<&Slot> {
        if let Load::Held(_, slot) = self { Some(slot) } else { None }
    }
}

impl Link {
    pub(super) fn deliver_to_server(&self, parcels: Receiver<Parcel>) {
        let Some(mut server) = self.server.as_ref() else {
            return;
        };
        for Parcel { due, load } in parcels {
            if !self.wait_until(due, load.slot()) {
                return self.cut_as_planned();
            }
            let sent = match load {
                Load::Bytes(bytes) | Load::Slowly(bytes, _) | Load::Held(bytes, _) => {
                    server.write_all(&bytes)
                }
                // The server may still reply to what it got.
                Load::End => server.shutdown(Shutdown::Write),
            };
            if sent.is_err() {
                return self.cut(false);
            }
        }
    }

    pub(super) fn deliver_to_client(&self, parcels: Receiver<Parcel>) {
        let mut client = &self.client;
        for Parcel { due, load } in parcels {
            if !self.wait_until(due, load.slot()) {
                return self.cut_as_planned();
            }
            // A client that has gone receives nothing. Its requests may still be under way, so the
            // link stays.
            match load {
                Load::Bytes(bytes) | Load::Held(bytes, _) => drop(client.write_all(&bytes)),
                Load::Slowly(bytes, pause) => {
                    for byte in bytes {
                        let _ = client.write_all(&[byte]);
                        if !self.wait_until(Instant::now() + pause, None) {
                            return;
                        }
                    }
                }
                Load::End => self.cut(false),
            }
        }
    }

    /// Waits until a parcel may be delivered; false if it never may.
    fn wait_until(&self, due: Instant, slot: Option<&Slot>) -> bool {
        let mut plan = self.shared.plan();
        loop {
            // Read first: a parcel that is no longer held has been released or lost by now.
            let is_held = slot.is_some_and(Slot::is_held);
            if self.dead.load(Ordering::SeqCst) || slot.is_some_and(Slot::is_lost) {
                return false;
            }
            let left = due.saturating_duration_since(Instant::now());
            if plan.frozen || is_held {
                plan = self.shared.changed.wait(plan).unwrap_or_else(PoisonError::into_inner);
            } else if left > Duration::ZERO {
                plan = self
                    .shared
                    .changed
                    .wait_timeout(plan, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            } else {
                return true;
            }
        }
    }
}
