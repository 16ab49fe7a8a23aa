//! Time that all processes of one host agree on.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC: the clock behind `Instant`, as a number that another process
/// understands.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// A length of time in the same unit.
pub fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// Numbers from a seed: the same seed, the same numbers (splitmix64).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// `true` in `parts` of a million calls.
    pub fn happens(&mut self, parts: u64) -> bool {
        self.below(1_000_000) < parts
    }

    /// A length of time between the two.
    pub fn between(&mut self, range: (Duration, Duration)) -> Duration {
        let span = nanos(range.1.saturating_sub(range.0));
        range.0 + Duration::from_nanos(self.below(span + 1))
    }
}
