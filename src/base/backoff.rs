//! Pauses between attempts: never a hot loop, never in step (R14).

use std::time::Duration;

use super::options::Retry;

/// A waiter that the store wakes asks by itself only as a safety net (R15).
const WOKEN: (Duration, Duration) = (Duration::from_millis(1000), Duration::from_millis(1500));
/// One that nobody wakes has to poll.
const POLLING: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(80));
/// While the server does not answer. Together with the node's gate it bounds how late its return is
/// seen: a little longer than the gate's pause, or a lone waiter would find the gate shut after
/// every second of its own probes.
const OUTAGE: (Duration, Duration) = (Duration::from_millis(80), Duration::from_millis(150));

/// The shortest pause of a thread that was told when to come back.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);

/// Between two signs of life of a waiter in a condition, which is told when there is anything new.
const IN_CONDITION: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(6));

/// The pause of a waiter in a condition.
pub(crate) fn condition_pause() -> Duration {
    between(IN_CONDITION.0, IN_CONDITION.1)
}

/// For how long a waiter in a condition counts as alive without a sign of life: three pauses.
pub(crate) fn condition_life() -> Duration {
    IN_CONDITION.1 * 3
}

/// The pause after a refusal.
///
/// `first_lease`: what a hand-off grants. It counts from the last attempt that was refused, so half
/// of it must be left after the longest pause.
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

/// The pause of a thread that was told to come back after `wait`: never none, and not in step with
/// others that were told the same.
pub(crate) fn room_pause(wait: Duration) -> Duration {
    wait.saturating_add(between(Duration::ZERO, SHORTEST)).max(SHORTEST)
}

fn between(min: Duration, max: Duration) -> Duration {
    let span = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX);
    if span == 0 {
        min
    } else {
        min + Duration::from_nanos(random() % (span + u64::from(span < u64::MAX)))
    }
}

/// A number that other waiters do not draw. Jitter needs no more than that, so the seed of std's
/// hash maps is enough.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn extreme_pauses_do_not_overflow() {
        assert_eq!(between(Duration::MAX, Duration::MAX), Duration::MAX);
        assert!(between(Duration::ZERO, Duration::MAX) <= Duration::MAX);
    }
}
