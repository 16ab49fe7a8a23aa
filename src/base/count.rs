//! Counting what happens, and for how long it lasts, while many threads do it. Each number is exact
//! by itself; numbers that are read together may be those of different moments.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often something has happened.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

const BUCKETS: usize = 12;

/// The longest duration that belongs into each bucket but the last.
const BOUNDS: [Duration; BUCKETS - 1] = [
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(10),
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(100),
];

/// Durations, counted while they are measured.
#[derive(Debug, Default)]
pub(crate) struct Timings {
    buckets: [AtomicU64; BUCKETS],
    /// The sum, in nanoseconds: enough for 584 years together.
    sum: AtomicU64,
}

impl Timings {
    pub(crate) fn add(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.iter().filter(|bound| u128::from(nanos) > bound.as_nanos()).count();
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn histogram(&self) -> Histogram {
        Histogram {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            sum: Duration::from_nanos(self.sum.load(Ordering::Relaxed)),
        }
    }
}

/// Durations: how many there were, and how many of about which length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    sum: Duration,
}

impl Histogram {
    /// How many durations there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// All of them together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Each bucket, from the shortest durations to the longest: its bound, and how many durations
    /// are longer than the bound before and at most as long as this one. The bounds are 1, 3, 10,
    /// 30, 100 and 300 ms, 1, 3, 10, 30 and 100 s; the last bucket has none.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        let bounds = BOUNDS.into_iter().map(Some).chain([None]);
        bounds.zip(self.buckets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_belongs_into_the_first_bucket_that_is_long_enough() {
        let timings = Timings::default();
        let nano = Duration::from_nanos(1);
        for bound in BOUNDS {
            timings.add(bound);
            timings.add(bound + nano);
        }
        timings.add(Duration::ZERO);
        timings.add(Duration::from_secs(3600));
        let histogram = timings.histogram();
        let bounds = BOUNDS.into_iter().map(Some).chain([None]);
        let all = bounds.map(|bound| (bound, 2)).collect::<Vec<_>>();
        assert_eq!(histogram.buckets().collect::<Vec<_>>(), all);
        assert_eq!(histogram.count(), 24);
        let sum = BOUNDS.iter().sum::<Duration>() * 2 + nano * 11 + Duration::from_secs(3600);
        assert_eq!(histogram.sum(), sum);
        assert!(BOUNDS.is_sorted());
    }

    #[test]
    fn what_happens_is_counted() {
        let count = Count::default();
        assert_eq!(count.get(), 0);
        (0..3).for_each(|_| count.add_one());
        assert_eq!(count.get(), 3);
    }
}
