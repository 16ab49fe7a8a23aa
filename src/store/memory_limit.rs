//! Rate limits of the embedded store: what the scripts do, in this process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::limit::{Decision, Form, Take, foreign};
use crate::lease::key::Key;
use crate::lease::store::StoreError;

/// Below so many limits it is not worth looking for those that have ended.
const FEW: usize = 64;

/// The rate limits of one store.
#[derive(Default)]
pub(super) struct Limits {
    by_key: HashMap<Key, Limit>,
    /// How many there may be before those that have ended are removed. There may be one for each address on the net, and nobody says which is done.
    sweep_at: usize,
}

struct Limit {
    used: Used,
    /// When nothing is in use any more.
    until: Instant,
}

enum Used {
    /// Permits taken in the window that ends at `until`.
    Fixed(u64),
    /// Permits in use at an instant.
    Smooth(f64, Instant),
}

impl Limits {
    pub(super) fn take(&mut self, take: &Take<'_>, now: Instant) -> Result<Decision, StoreError> {
        let used = self.by_key.get(take.key).filter(|limit| limit.until > now);
        let (decision, after) = match (take.form, used) {
            (Form::Fixed, None) => fixed(take, 0, now + take.window, now),
            (Form::Fixed, Some(Limit { used: Used::Fixed(used), until })) => fixed(take, *used, *until, now),
            (Form::Smooth, None) => smooth(take, 0.0, now, now),
            (Form::Smooth, Some(Limit { used: Used::Smooth(level, since), .. })) => smooth(take, *level, *since, now),
            _ => return Err(foreign()),
        };
        if decision.allowed && take.wanted > 0 {
            if self.by_key.len() >= self.sweep_at.max(FEW) {
                self.by_key.retain(|_, limit| limit.until > now);
                // Twice as many before the next time: so each limit pays for looking at one or two.
                self.sweep_at = 2 * self.by_key.len();
            }
            self.by_key.insert(take.key.clone(), after);
        }
        Ok(decision)
    }
}

fn fixed(take: &Take<'_>, used: u64, until: Instant, now: Instant) -> (Decision, Limit) {
    let left = take.capacity.saturating_sub(used);
    let decision = match left.checked_sub(take.wanted) {
        Some(remaining) => Decision { allowed: true, remaining, retry_after: Duration::ZERO },
        None => Decision { allowed: false, remaining: left, retry_after: until.saturating_duration_since(now) },
    };
    (decision, Limit { used: Used::Fixed(used.saturating_add(take.wanted)), until })
}

#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as exact as it needs to be")]
fn smooth(take: &Take<'_>, level: f64, since: Instant, now: Instant) -> (Decision, Limit) {
    let (capacity, wanted) = (take.capacity as f64, take.wanted as f64);
    let nanos_per_permit = take.window.as_nanos() as f64 / capacity;
    let back = now.saturating_duration_since(since).as_nanos() as f64 / nanos_per_permit;
    let level = (level.min(capacity) - back).max(0.0);
    let excess = level + wanted - capacity;
    let wait = |permits: f64| Duration::from_nanos((permits * nanos_per_permit).ceil() as u64);
    if excess > 0.0 {
        let decision = Decision { allowed: false, remaining: (capacity - level) as u64, retry_after: wait(excess) };
        return (decision, Limit { used: Used::Smooth(level, now), until: now + wait(level) });
    }
    let level = level + wanted;
    let decision = Decision { allowed: true, remaining: (capacity - level) as u64, retry_after: Duration::ZERO };
    (decision, Limit { used: Used::Smooth(level, now), until: now + wait(level) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_have_ended_are_removed() {
        let mut limits = Limits::default();
        let start = Instant::now();
        for address in 0..10_000 {
            let now = start + Duration::from_millis(address);
            let form = if address % 2 == 0 { Form::Fixed } else { Form::Smooth };
            let key = Key::new(format!("ip:{address}"));
            let take = Take { key: &key, form, capacity: 1, window: Duration::from_millis(100), wanted: 1, deadline: now };
            assert!(limits.take(&take, now).unwrap().allowed);
            assert!(limits.by_key.len() <= 400, "{} limits are kept, and 100 are in use", limits.by_key.len());
        }
    }
}
