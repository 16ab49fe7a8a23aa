//! What a store of rate limits must do.

use std::time::{Duration, Instant};

use crate::base::error::ErrorKind;
use crate::base::key::Key;
use crate::base::store_error::StoreError;

/// The answer of a rate limiter. A refusal is an answer, not an error: the caller has to hold back
/// by itself.
#[must_use = "a refusal is only an answer: the caller has to hold back by itself"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the permits were taken. All of them or none.
    pub allowed: bool,
    /// How many permits could be taken now, after this decision.
    pub remaining: u64,
    /// How long until the same call would be allowed if nobody else took permits meanwhile. Zero if
    /// it was allowed, never zero if it was refused.
    pub retry_after: Duration,
    /// How many permits there are: the limiter's count.
    pub limit: u64,
    /// How long until all permits are back if nobody takes any meanwhile.
    pub reset: Duration,
}

impl Decision {
    /// `retry_after` in whole seconds, rounded up, as HTTP's header `Retry-After` has it.
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// use std::time::Duration;
    ///
    /// let client = distlock::Client::open("memory://")?;
    /// let limiter = client.rate_limiter("ip:127.0.0.1", 1, Duration::from_millis(1500));
    /// assert_eq!(limiter.check()?.retry_after_secs(), 0);
    /// assert_eq!(limiter.check()?.retry_after_secs(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn retry_after_secs(&self) -> u64 {
        self.retry_after.as_secs().saturating_add(u64::from(self.retry_after.subsec_nanos() > 0))
    }
}

/// How permits come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// All at once, when the window ends.
    Fixed,
    /// One by one, at a steady rate.
    Smooth,
}

/// A call for permits. Counts and windows have been checked (R18).
pub(crate) struct Take<'a> {
    pub(crate) key: &'a Key,
    pub(crate) form: Form,
    /// How many permits there are.
    pub(crate) capacity: u64,
    /// The time in which `capacity` permits come back: whole milliseconds.
    pub(crate) window: Duration,
    /// How many permits are wanted; 0: only ask how many are left.
    pub(crate) wanted: u64,
    /// How long the caller would wait for permits that are promised to it now. A fixed window
    /// promises none: others count in it, too.
    pub(crate) longest_wait: Duration,
    /// The deadline for the answer.
    pub(crate) deadline: Instant,
}

/// A store of rate limits.
pub(crate) trait LimitStore: Send + Sync {
    /// Takes permits if they are available now, or will be within the longest wait. The
    /// `retry_after` of a decision that allows the call is how long to wait, counted from the
    /// reply, until the permits may be used.
    ///
    /// # Errors
    /// When there was no answer, or foreign data under the key. The permits may have been taken if
    /// the error says that the call may have run.
    fn take(&self, take: &Take<'_>) -> Result<Decision, StoreError>;
}

/// The key holds something that no limiter of this form has written.
pub(crate) fn foreign() -> StoreError {
    StoreError::not_sent(ErrorKind::WrongType, "the key holds data that is not this limiter's")
        .permanent()
}
