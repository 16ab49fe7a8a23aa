//! How long a lease is valid by the clock of its holder, how long the first lease of a hand-off is,
//! and how long a command and an outage may last.

use std::time::{Duration, Instant};

/// What is taken off a lease's length for clocks that run at slightly different rates: 1 % and 2 ms
/// (R1).
pub(crate) fn drift(length: Duration) -> Duration {
    length / 100 + Duration::from_millis(2)
}

/// The end of the validity of a lease of `length` that was asked for at `asked_at` (R1). It counts
/// from before the first byte was sent, because the server begins to count at some moment after
/// that.
pub(crate) fn valid_until(asked_at: Instant, length: Duration) -> Instant {
    asked_at + length.saturating_sub(drift(length))
}

/// What is left of the time until which a lock has to be kept, in whole milliseconds, rounded up.
/// `None`: nothing.
pub(crate) fn rest_of(kept_until: Instant, now: Instant) -> Option<Duration> {
    let left = kept_until.checked_duration_since(now)?;
    let millis = u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    (millis > 0).then(|| Duration::from_millis(millis))
}

/// A hand-off first grants at most this long a lease, so that a frozen waiter never costs a whole
/// lease (R20).
pub(crate) const FIRST_LEASE: Duration = Duration::from_secs(3);

/// How long a command, and an outage, may last, and a wait until that is said in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) command_timeout: Duration,
    pub(crate) max_outage: Duration,
    pub(crate) slow_wait: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_valid_for_a_hundredth_and_two_milliseconds_less_than_its_length() {
        let asked_at = Instant::now();
        for (length, valid) in [(10_000, 9898), (100, 97), (2, 0), (1, 0)] {
            let length = Duration::from_millis(length);
            assert_eq!(valid_until(asked_at, length), asked_at + Duration::from_millis(valid));
        }
        assert_eq!(drift(Duration::from_millis(100)), Duration::from_millis(3));
    }

    #[test]
    fn the_rest_of_the_time_is_rounded_up_to_whole_milliseconds() {
        let now = Instant::now();
        let of = |nanos| rest_of(now + Duration::from_nanos(nanos), now);
        assert_eq!(of(0), None);
        for (nanos, millis) in [(1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)] {
            assert_eq!(of(nanos), Some(Duration::from_millis(millis)), "{nanos} ns");
        }
        assert_eq!(rest_of(now, now + Duration::from_millis(1)), None);
    }
}
