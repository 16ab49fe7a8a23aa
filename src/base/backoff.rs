//! Pauses between attempts: no busy loop, and no two waiters in step (R14).

use std::time::Duration;

use super::options::Retry;

/// A waiter that the store wakes polls only as a safety net (R15).
const WOKEN: (Duration, Duration) = (Duration::from_millis(1000), Duration::from_millis(1500));
/// A waiter that nobody wakes has to poll.
const POLLING: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(80));
/// The pause while the server does not answer. With the node's gate it bounds how late we notice
/// that the server is back. It is a little longer than the gate's pause: otherwise a lone waiter
/// would find the gate shut after every other probe of its own.
const OUTAGE: (Duration, Duration) = (Duration::from_millis(80), Duration::from_millis(150));

/// The shortest pause of a thread that the server told when to come back.
const SHORTEST: Duration = Duration::from_millis(1);
/// Over how long at most such threads are spread.
const LONGEST_SPREAD: Duration = Duration::from_millis(50);

/// Between two signs of life of a waiter in a condition. The store wakes it when anything changes.
const IN_CONDITION: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(6));

/// The pause of a waiter in a condition.
pub(crate) fn condition_pause() -> Duration {
    between(IN_CONDITION.0, IN_CONDITION.1)
}

/// How long a waiter in a condition counts as alive without a sign of life: three pauses.
pub(crate) fn condition_life() -> Duration {
    IN_CONDITION.1 * 3
}

/// The pause after a refusal.
///
/// `first_lease`: the lease that a hand-off grants. It counts from the last refused attempt, so
/// half of it must be left after the longest pause.
pub(crate) fn pause(retry: Option<Retry>, woken: bool, first_lease: Duration) -> Duration {
    let (min, max) = match retry {
        Some(retry) => (retry.min, retry.max),
        None if woken => (WOKEN.0.min(first_lease / 3), WOKEN.1.min(first_lease / 2)),
        None => POLLING,
    };
    between(min, max)
}

/// The longest pause after a refusal.
pub(crate) fn longest_pause(retry: Option<Retry>, woken: bool) -> Duration {
    retry.map_or(if woken { WOKEN.1 } else { POLLING.1 }, |retry| retry.max)
}

/// The pause after an attempt that was not answered.
pub(crate) fn outage_pause() -> Duration {
    between(OUTAGE.0, OUTAGE.1)
}

/// The pause of a thread that was told to come back after `wait`: never zero, and spread over up to
/// a tenth more, because other threads were told the same.
pub(crate) fn pause_until_told(wait: Duration) -> Duration {
    let spread = (wait / 10).clamp(SHORTEST, LONGEST_SPREAD);
    wait.saturating_add(between(Duration::ZERO, spread)).max(SHORTEST)
}

fn between(min: Duration, max: Duration) -> Duration {
    let span = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX);
    min + Duration::from_nanos(random() % span.max(1))
}

/// A number that other waiters do not draw. Jitter needs no more than that, so the seed of std's
/// hash maps is enough.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn pauses_are_spread_over_the_whole_range() {
        let (min, max) = (Duration::from_millis(10), Duration::from_millis(20));
        let drawn: Vec<_> = (0..200).map(|_| between(min, max)).collect();
        assert!(drawn.iter().all(|pause| (min..=max).contains(pause)));
        assert!(drawn.iter().any(|pause| *pause < Duration::from_millis(13)));
        assert!(drawn.iter().any(|pause| *pause > Duration::from_millis(17)));
    }

    #[test]
    fn the_guide_names_the_pauses() {
        let guide = include_str!("../guide/internals.md");
        for (after, (min, max)) in
            [("refused, and nobody wakes it", POLLING), ("not answered", OUTAGE)]
        {
            let row = format!("| {after} | {} to {} ms |", min.as_millis(), max.as_millis());
            assert!(guide.contains(&row), "{row}");
        }
    }

    #[test]
    fn each_pause_is_within_its_range() {
        let within = |draw: &dyn Fn() -> Duration, (min, max): (Duration, Duration)| {
            let drawn: Vec<_> = (0..200).map(|_| draw()).collect();
            assert!(drawn.iter().all(|pause| (min..=max).contains(pause)), "{drawn:?}");
        };
        let lease = Duration::from_secs(60);
        let own = Retry::jittered(Duration::from_secs(7), Duration::from_secs(8));
        within(&|| pause(Some(own), true, lease), (own.min, own.max));
        within(&|| pause(None, true, lease), WOKEN);
        within(&|| pause(None, false, lease), POLLING);
        within(&outage_pause, OUTAGE);
        within(&condition_pause, IN_CONDITION);
        // Half of a short lease is left after the longest pause.
        let short = Duration::from_millis(600);
        within(&|| pause(None, true, short), (short / 3, short / 2));
        assert_eq!(condition_life(), Duration::from_secs(18));
        let longest = [longest_pause(Some(own), true), longest_pause(None, true)];
        assert_eq!(longest, [own.max, WOKEN.1]);
        assert_eq!(longest_pause(None, false), POLLING.1);
    }

    #[test]
    fn a_thread_that_was_told_when_to_come_back_is_neither_early_nor_in_step() {
        let drawn = |wait| (0..200).map(|_| pause_until_told(wait)).collect::<Vec<_>>();
        for (wait, spread) in [(30, 3), (5_000, 50), (4, 1)].map(|(a, b)| (millis(a), millis(b))) {
            let drawn = drawn(wait);
            assert!(drawn.iter().all(|pause| (wait..=wait + spread).contains(pause)), "{drawn:?}");
            assert!(drawn.iter().any(|pause| *pause > wait + spread * 9 / 10), "{drawn:?}");
        }
        assert!(drawn(Duration::ZERO).iter().all(|pause| *pause == SHORTEST));
    }

    #[test]
    fn extreme_pauses_do_not_overflow() {
        assert_eq!(between(Duration::MAX, Duration::MAX), Duration::MAX);
        assert!(between(Duration::ZERO, Duration::MAX) <= Duration::MAX);
    }
}
