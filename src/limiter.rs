//! `RateLimiter`: at most `count` calls in a window, counted for all processes together.

pub(crate) mod memory;
pub(crate) mod port;
pub(crate) mod scripts;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::backoff;
use crate::base::bell::Bell;
use crate::base::error::{Error, Result};
use crate::base::key::{Key, LONGEST_KEY};
use crate::base::store_error::StoreError;
use crate::base::subject::Subject;
use crate::lease::context::Context;
use port::{Decision, Form, LimitStore, Take};

const SHORTEST_WINDOW: Duration = Duration::from_millis(1);
/// A hundred years. In µs that is below 2^53, up to which Lua counts exactly (R18).
const LONGEST_WINDOW: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// A sum of a few of these is below 2^53, too.
const MOST: u64 = 1_000_000_000_000_000;

/// Lets at most `count` calls through in a `window`. All processes that use the name share the
/// limit.
///
/// Made by [`Client::rate_limiter`](crate::Client::rate_limiter); cheap to make and to clone. Each
/// check is one script and one round trip, and only the server's clock counts. A limiter has one of
/// two forms:
///
/// - **Fixed window**, the default. The first call begins a window; when the window ends, all
///   permits are back at once. The key, prefix and name, holds a plain integer with a TTL, as
///   `INCR` and `EXPIRE` leave it, so code that counts in this way shares the limit. Around the end
///   of a window *twice* the count can pass in a moment: the last permits of one window and the
///   first of the next.
/// - **Smooth**, by [`smooth`](RateLimiter::smooth). Permits come back one by one, at a steady
///   rate, and there are never more than `count`.
///
/// Refused calls cost nothing: they take no permits, and make nobody wait longer. Processes that
/// share a limit should use the same count and window. If they do not, a fixed window is as long as
/// the shortest window that is asked for. In the smooth form each permit counts as the time in
/// which it comes back at the process that took it. So no process gets more than its own count and
/// window allow, and each may have to wait for what the others took: a process with a fast limit
/// gets nothing until the permits that were taken under a slow limit have nearly all come back.
///
/// A lock must not have the name of a fixed window: they would use the same key, and the lock would
/// take the counter for a holder.
///
/// ```
/// # fn main() -> distlock::Result<()> {
/// use std::time::Duration;
///
/// let client = distlock::Client::open("memory://")?;
/// let limiter = client.rate_limiter("ip:127.0.0.1", 3, Duration::from_secs(10));
/// for left in [2, 1, 0] {
///     assert_eq!(limiter.check()?.remaining, left);
/// }
/// let refused = limiter.check()?;
/// assert!(!refused.allowed && refused.retry_after <= Duration::from_secs(10));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RateLimiter {
    subject: Subject,
    key: Key,
    form: Form,
    count: u64,
    window: Duration,
    store: Arc<dyn LimitStore>,
    context: Arc<Context>,
    /// Keeps the client open: dropping the last handle closes it.
    _client: Arc<dyn Send + Sync>,
}

impl RateLimiter {
    pub(crate) fn new(
        (name, prefix): (&str, &str),
        count: u64,
        window: Duration,
        (store, context): (Arc<dyn LimitStore>, Arc<Context>),
        client: Arc<dyn Send + Sync>,
    ) -> Self {
        Self {
            subject: Subject::rate_limiter(name.into()),
            key: Key::new(format!("{prefix}{name}")),
            form: Form::Fixed,
            count,
            window,
            store,
            context,
            _client: client,
        }
    }

    /// Lets permits come back one by one, at the rate of `count` per `window`, instead of all at
    /// once when a window ends.
    ///
    /// If nobody has called for a window, `count` calls may pass at once; then one call each
    /// `window / count`. So in any time span `t` at most `count + count * t / window` calls pass.
    /// (The method is known as GCRA, or leaky bucket.) Its state is kept under a key of its own,
    /// which ends in `smooth`: it shares no limit with a fixed window of the same name, and code
    /// that counts with `INCR` never touches it.
    #[must_use]
    pub fn smooth(mut self) -> Self {
        if self.form == Form::Fixed {
            self.form = Form::Smooth;
            self.key = Key::new(format!("{}smooth", self.key.stem()));
        }
        self
    }

    /// The name with which the limiter was made.
    #[must_use]
    pub fn name(&self) -> &str {
        self.subject.name()
    }

    /// The key in Redis: the client's prefix and the name; for the smooth form, a companion of that
    /// key in the same slot.
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// Takes one permit if there is one. One round trip; never waits for a permit.
    ///
    /// # Errors
    /// As [`check_n`](RateLimiter::check_n).
    pub fn check(&self) -> Result<Decision> {
        self.check_n(1)
    }

    /// Takes `n` permits if all of them are available, otherwise none. One round trip; never waits
    /// for permits. With 0 it only tells how many are left.
    ///
    /// If an idle connection turns out to be closed, it is replaced and the question is sent once
    /// more. If the server had taken the permits before the connection ended, they are taken twice:
    /// so a limit may become stricter, never laxer.
    ///
    /// # Errors
    /// Too few permits are no error but a [`Decision`]. `InvalidInput`, before anything is sent:
    /// `n` is more than the limiter's count, so it could never fit; or the limiter's name (empty,
    /// or with its prefix longer than 1024 bytes), count (1 to 10^15) or window (1 ms to 100 years)
    /// cannot work. `Unavailable`: no answer; the permits may have been taken or not, and the
    /// caller decides whether to go on without a limit. `WrongType`: the key holds other data,
    /// which was not changed. `Denied`, `Server`: the server's error; nothing was taken, unless the
    /// user may run only some of the script's commands. `Closed` once the client is closed;
    /// `Unsupported` on a quorum, and in a forked child.
    pub fn check_n(&self, n: u64) -> Result<Decision> {
        self.check_input(n)
            .and_then(|()| self.context.check_open())
            .map_err(|error| self.named(error))?;
        self.take(n, Duration::ZERO).map_err(|error| self.named(error.into_error()))
    }

    /// Waits for a permit, and takes it. `Ok(true)`: taken, and usable from now on. `Ok(false)`: no
    /// permit will be available within `timeout`; returned as soon as that is known.
    ///
    /// Zero is one check without waiting; [`Duration::MAX`] is no limit, but a smooth permit is
    /// promised for at most a hundred years ahead. Ends by the deadline, plus one command timeout
    /// if an answer is under way.
    ///
    /// **Smooth**: one round trip, however long it waits. The server promises the next permit, and
    /// the thread sleeps until then: permits go out in the order in which the server was asked,
    /// over all processes. A promise is never given back, also if the process ends while the thread
    /// sleeps: a limit may become stricter, never laxer.
    ///
    /// **Fixed window**: one round trip at once, and one for each window that the thread waits for,
    /// in no order among the threads that wait.
    /// [Practice](crate::guide::practice) says more, under *Waiting for a rate limit*.
    ///
    /// # Errors
    /// As [`check_n`](RateLimiter::check_n), but the call waits through an outage: until the
    /// deadline, or, without a deadline, up to the client's `max_outage`. "Redis is down" is never
    /// `Ok(false)`. Each unanswered check may have taken a permit. `Closed` if the client is closed
    /// meanwhile.
    pub fn acquire(&self, timeout: Duration) -> Result<bool> {
        // Checked before any mutex is locked: in a forked child it may stay locked for ever.
        self.check_input(1)
            .and_then(|()| self.context.check_open())
            .map_err(|error| self.named(error))?;
        let Context { clock, timeouts, closing, .. } = &*self.context;
        let deadline = clock.after(timeout);
        let bell = Bell::new();
        let _closing = closing.rings(&bell);
        let mut silent_since = None;
        loop {
            self.context.check_open().map_err(|error| self.named(error))?;
            let asked_at = clock.now();
            let longest_wait = deadline
                .map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(asked_at));
            let until = match self.take(1, longest_wait) {
                Ok(decision) if decision.allowed => {
                    // Counted from the reply: the server promised the permit at some moment before
                    // that.
                    return self.sleep(&bell, clock.after(decision.retry_after)).map(|()| true);
                }
                // A smooth limit would have promised a permit that comes in time.
                Ok(Decision { retry_after, .. })
                    if self.form == Form::Smooth || retry_after > longest_wait =>
                {
                    return Ok(false);
                }
                Ok(Decision { retry_after, .. }) => {
                    silent_since = None;
                    clock.after(backoff::pause_until_told(retry_after))
                }
                Err(error) => {
                    let now = clock.now();
                    let outage =
                        now.saturating_duration_since(*silent_since.get_or_insert(asked_at));
                    let is_over =
                        deadline.map_or(outage >= timeouts.max_outage, |deadline| now >= deadline);
                    if error.permanent || is_over {
                        return Err(self.named(error.into_error()));
                    }
                    self.context.outages.say(outage, now, &error);
                    clock.after(backoff::outage_pause())
                }
            };
            bell.wait(clock, until.into_iter().chain(deadline).min());
        }
    }

    /// Sleeps until a promised permit may be used.
    fn sleep(&self, bell: &Bell, until: Option<Instant>) -> Result<()> {
        let clock = &self.context.clock;
        while until.is_none_or(|until| clock.now() < until) {
            self.context.check_open().map_err(|error| self.named(error))?;
            bell.wait(clock, until);
        }
        Ok(())
    }

    fn take(&self, wanted: u64, longest_wait: Duration) -> Result<Decision, StoreError> {
        self.store.take(&Take {
            key: &self.key,
            form: self.form,
            capacity: self.count,
            window: self.window(),
            wanted,
            longest_wait: longest_wait.min(LONGEST_WINDOW),
            deadline: self.context.command_deadline(),
        })
    }

    /// Redis counts in milliseconds. Rounded up: a limit may become stricter, never laxer.
    fn window(&self) -> Duration {
        let millis = self.window.as_nanos().div_ceil(1_000_000);
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// Refuses input that cannot work (R18).
    fn check_input(&self, n: u64) -> Result<()> {
        let problem = if self.name().is_empty() {
            "the name of a rate limiter must not be empty"
        } else if self.key.as_str().len() > LONGEST_KEY {
            "the name of a rate limiter, with its prefix, must have at most 1024 bytes"
        } else if !(1..=MOST).contains(&self.count) {
            "the count of a rate limiter must be between 1 and 10^15"
        } else if !(SHORTEST_WINDOW..=LONGEST_WINDOW).contains(&self.window) {
            "the window of a rate limiter must be between 1 ms and 100 years"
        } else if n > self.count {
            "a call cannot take more permits than the rate limiter's count"
        } else {
            return Ok(());
        };
        Err(Error::invalid(problem))
    }

    /// A name that is too long is not repeated.
    fn named(&self, error: Error) -> Error {
        if self.name().len() <= LONGEST_KEY { error.about(&self.subject) } else { error }
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("name", &self.name())
            .field("key", &self.key)
            .field("form", &self.form)
            .field("count", &self.count)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}
