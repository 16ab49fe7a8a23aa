//! Time: the monotonic clock (R1), and a fake one that tests move by hand.

#[cfg(feature = "testing")]
use std::sync::Arc;
#[cfg(feature = "testing")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The clock that leases, waits and limits read; a test may advance it. Code that waits for a
/// socket reads `Instant` itself. Both are the monotonic clock: setting the wall clock must not
/// move a lease.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    #[cfg(feature = "testing")]
    fake: Option<FakeClock>,
}

impl Clock {
    #[cfg(feature = "testing")]
    /// The time that `clock` shows.
    #[must_use]
    pub fn fake(clock: FakeClock) -> Self {
        Self { fake: Some(clock) }
    }

    /// The current time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        #[cfg(feature = "testing")]
        if let Some(fake) = &self.fake {
            return fake.now();
        }
        Instant::now()
    }

    /// The instant `wait` from now; `None`, which means no limit, if that is too far away for an
    /// `Instant` (R18).
    pub(crate) fn after(&self, wait: Duration) -> Option<Instant> {
        self.now().checked_add(wait)
    }

    /// The time left until `until`; zero once that has passed.
    pub(crate) fn left(&self, until: Instant) -> Duration {
        until.saturating_duration_since(self.now())
    }

    /// When it is `until` on the clock that sockets go by.
    pub(crate) fn on_real_time(&self, until: Instant) -> Instant {
        #[cfg(feature = "testing")]
        if self.fake.is_some() {
            return Instant::now() + self.left(until);
        }
        until
    }

    /// How long a thread that wants to sleep until `until` may sleep before it looks at the clock
    /// again.
    ///
    /// On the real clock that is the whole time. A fake clock wakes nobody when it moves, so its
    /// sleepers look every millisecond.
    pub(crate) fn sleep_for(&self, until: Instant) -> Duration {
        #[cfg(feature = "testing")]
        if self.fake.is_some() {
            return self.left(until).min(Duration::from_millis(1));
        }
        self.left(until)
    }
}

/// A clock that stands still until it is advanced. Clones show the same time.
#[cfg(feature = "testing")]
#[derive(Clone, Debug)]
pub struct FakeClock {
    origin: Instant,
    advanced: Arc<AtomicU64>,
}

#[cfg(feature = "testing")]
impl FakeClock {
    /// A clock that shows the present moment and stands still.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now(), advanced: Arc::new(AtomicU64::new(0)) }
    }

    /// The time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.origin + Duration::from_nanos(self.advanced.load(Ordering::SeqCst))
    }

    /// Moves the clock ahead.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX / 4);
        self.advanced.fetch_add(by, Ordering::SeqCst);
    }
}

#[cfg(feature = "testing")]
impl Default for FakeClock {
    fn default() -> Self {
        Self::new()
    }
}
