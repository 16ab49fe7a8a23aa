//! What a client tells the program's listener, on a thread of its own (R9): a listener that is slow
//! or panics delays no lock, and no lease.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::lost::LostReason;
use crate::base::count::Count;
use crate::base::subject::Subject;
use crate::base::worker::{Stopped, Wake, Worker};
use crate::base::{caught, locked, log};

/// How many events wait while the listener is slow. More are dropped.
const MOST_WAITING: usize = 4096;
/// For how long events are collected before the listener hears them: so a busy client need not wake
/// the listener's thread for each.
const COLLECT: Duration = Duration::from_millis(10);

/// Something that has happened to a lock, a side of a read-write lock or a semaphore, or to a
/// server. A [`Listener`] hears it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A call got the lock.
    #[non_exhaustive]
    Granted {
        /// The lock, the side or the semaphore.
        subject: Subject,
        /// How the call got it.
        how: How,
        /// How long the call took.
        waited: Duration,
    },
    /// A call did not get the lock before its time was over: it returned `Ok(false)` or `None`.
    #[non_exhaustive]
    Refused {
        /// The lock, the side or the semaphore.
        subject: Subject,
        /// How long the call took.
        waited: Duration,
    },
    /// A call failed, or a wait in a condition ended without the lock.
    #[non_exhaustive]
    Failed {
        /// The lock, the side or the semaphore.
        subject: Subject,
        /// How long the call took.
        waited: Duration,
    },
    /// A hold, a claim or a permit has ended: by the last unlock or the drop, by a wait in a
    /// condition, or with its thread. The release comes after that.
    #[non_exhaustive]
    Ended {
        /// The lock, the side or the semaphore.
        subject: Subject,
        /// How long it lasted.
        held: Duration,
    },
    /// A lease was lost while it was held, as [`on_lost`](crate::RedisLock::on_lost) tells, too.
    #[non_exhaustive]
    Lost {
        /// The lock, the side or the semaphore.
        subject: Subject,
        /// Why.
        reason: LostReason,
    },
    /// A lease was given up, and the server did not confirm the release.
    #[non_exhaustive]
    Unknown {
        /// The lock, the side or the semaphore.
        subject: Subject,
    },
    /// A thread has ended before it unlocked.
    #[non_exhaustive]
    Abandoned {
        /// The lock, the side or the semaphore.
        subject: Subject,
    },
    /// Renewal has extended a lease.
    #[non_exhaustive]
    Extended {
        /// The lock, the side or the semaphore.
        subject: Subject,
        /// The time since the extend was due.
        late: Duration,
    },
    /// A server has gone down: for a second, all attempts to open a connection failed, or led to a
    /// replica, and nothing else had an answer.
    #[non_exhaustive]
    Unreachable {
        /// Its host and port, or its path; of one that sentinels name, the service and the
        /// sentinels.
        server: Arc<str>,
    },
    /// A server that was down answers again, or is not used any more.
    #[non_exhaustive]
    Reachable {
        /// As of [`Unreachable`](Self::Unreachable).
        server: Arc<str>,
    },
}

/// How a call got a lock. [`Display`](fmt::Display) writes it as one word in small letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum How {
    /// The server granted it when it was asked.
    Asked,
    /// The server handed it over when it was released: a direct hand-off.
    Direct,
    /// Another thread passed it on within the client: a local hand-off.
    Local,
    /// It is for reading, under a lease that the client had already.
    Joined,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "asked",
            Self::Direct => "direct",
            Self::Local => "local",
            Self::Joined => "joined",
        })
    }
}

/// Hears what happens to the locks of a client. Set by
/// [`ClientBuilder::listener`](crate::ClientBuilder::listener), which says when it is called. A
/// closure that takes an [`Event`] is one.
pub trait Listener: Send + 'static {
    /// Something has happened.
    fn hear(&mut self, event: Event);
}

impl<F: FnMut(Event) + Send + 'static> Listener for F {
    fn hear(&mut self, event: Event) {
        self(event);
    }
}

/// The events of one client on their way to its listener.
pub(crate) struct Events {
    pending: Arc<Mutex<Pending>>,
    worker: Worker<Wake>,
    pub(crate) dropped: Count,
}

#[derive(Default)]
struct Pending {
    events: Vec<Event>,
    /// Whether the thread waits to be woken.
    asleep: bool,
    /// Whether it has ended.
    over: bool,
}

impl Events {
    /// Starts the thread, which has the listener from now on, and drops it in the end.
    pub(crate) fn to(listener: Box<dyn Listener>) -> io::Result<Self> {
        let (pending, worker) = (Arc::<Mutex<Pending>>::default(), Worker::new("distlock-events"));
        let (of_thread, listener) = (Arc::clone(&pending), Mutex::new(listener));
        worker.start(move |wake| {
            let mut hears = Hears { listener: &mut **locked(&listener), said: false };
            while hears.all(&of_thread, wake) {}
        })?;
        Ok(Self { pending, worker, dropped: Count::default() })
    }

    /// Tells the listener soon. Does not block, and does not panic.
    pub(crate) fn tell(&self, event: Event) {
        let mut pending = locked(&self.pending);
        if pending.over {
            return;
        }
        if pending.events.len() >= MOST_WAITING {
            drop(pending);
            return self.dropped.add_one();
        }
        pending.events.push(event);
        // Also a thread that collects, before there are too many.
        let many = pending.events.len() == MOST_WAITING / 2;
        let wake = std::mem::take(&mut pending.asleep) || many;
        drop(pending);
        if wake {
            let _ = self.worker.send(Wake);
        }
    }

    /// Lets the thread tell what waits, and end.
    pub(crate) fn stop(&self) -> Stopped {
        self.worker.stop()
    }
}

/// The thread's side.
struct Hears<'a> {
    listener: &'a mut dyn Listener,
    /// Whether it has been said that the listener panics.
    said: bool,
}

impl Hears<'_> {
    /// Tells all that waits, and waits for more. `false`: there will be no more.
    fn all(&mut self, pending: &Mutex<Pending>, wake: &Receiver<Wake>) -> bool {
        let told = self.tell(pending);
        let closed = if told {
            matches!(wake.recv_timeout(COLLECT), Err(RecvTimeoutError::Disconnected))
        } else {
            wake.recv().is_err()
        };
        if closed {
            // What came in the last moment.
            while self.tell(pending) {}
            locked(pending).over = true;
        }
        !closed
    }

    fn tell(&mut self, pending: &Mutex<Pending>) -> bool {
        let events = {
            let mut pending = locked(pending);
            pending.asleep = pending.events.is_empty();
            std::mem::take(&mut pending.events)
        };
        let told = !events.is_empty();
        for event in events {
            if caught(|| self.listener.hear(event)).is_none()
                && !std::mem::replace(&mut self.said, true)
            {
                log::error!("a listener panicked; it hears the next event all the same");
            }
        }
        told
    }
}
