//! Rate limits of the embedded store: what the scripts do, in this process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::port::{Decision, Form, Take, foreign};
use crate::base::key::Key;
use crate::base::store_error::StoreError;

/// With fewer limits than this it is not worth looking for those that have ended.
const FEW: usize = 64;

/// The rate limits of one store.
#[derive(Default)]
pub(crate) struct MemoryLimits {
    by_key: HashMap<Key, Limit>,
    /// At this number of limits those that have ended are removed. There may be one for each
    /// address on the net, and nobody says which are not needed any more.
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
    /// Permits in use at an instant, promised ones included.
    Smooth(Level),
}

#[derive(Clone, Copy)]
struct Level {
    permits: f64,
    since: Instant,
    /// The time in ns in which one permit comes back.
    pace: f64,
}

impl MemoryLimits {
    pub(crate) fn take(&mut self, take: &Take<'_>, now: Instant) -> Result<Decision, StoreError> {
        let used = self.by_key.get_mut(take.key).filter(|limit| limit.until > now);
        let (decision, after) = match (take.form, used) {
            (Form::Fixed, None) => fixed(take, 0, now + take.window, now),
            (Form::Fixed, Some(Limit { used: Used::Fixed(used), until })) => {
                // The window was begun by a caller that gave a longer one.
                *until = (*until).min(now + take.window);
                fixed(take, *used, *until, now)
            }
            (Form::Smooth, None) => smooth(take, None, now),
            (Form::Smooth, Some(Limit { used: Used::Smooth(level), .. })) => {
                smooth(take, Some(*level), now)
            }
            _ => return Err(foreign()),
        };
        if decision.allowed && take.wanted > 0 {
            if self.by_key.len() >= self.sweep_at.max(FEW) {
                self.by_key.retain(|_, limit| limit.until > now);
                // The next time at twice as many: so each new limit costs a look at one or two.
                self.sweep_at = 2 * self.by_key.len();
            }
            self.by_key.insert(take.key.clone(), after);
        }
        Ok(decision)
    }

    /// The counter of a fixed window under this key, and its end.
    pub(crate) fn counter(&self, key: &Key, now: Instant) -> Option<(u64, Instant)> {
        match self.by_key.get(key) {
            Some(Limit { used: Used::Fixed(count), until }) if *until > now => {
                Some((*count, *until))
            }
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        self.by_key.remove(key);
    }
}

fn fixed(take: &Take<'_>, used: u64, until: Instant, now: Instant) -> (Decision, Limit) {
    let left = take.capacity.saturating_sub(used);
    let rest = until.saturating_duration_since(now);
    let (allowed, remaining) = match left.checked_sub(take.wanted) {
        Some(remaining) => (true, remaining),
        None => (false, left),
    };
    let is_begun = used > 0 || take.wanted > 0;
    let decision = Decision {
        allowed,
        remaining,
        retry_after: if allowed { Duration::ZERO } else { rest },
        limit: take.capacity,
        reset: if is_begun { rest } else { Duration::ZERO },
    };
    (decision, Limit { used: Used::Fixed(used.saturating_add(take.wanted)), until })
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "as exact as it needs to be"
)]
fn smooth(take: &Take<'_>, level: Option<Level>, now: Instant) -> (Decision, Limit) {
    let (capacity, wanted) = (take.capacity as f64, take.wanted as f64);
    let pace = take.window.as_nanos() as f64 / capacity;
    let level = level.map_or(0.0, |level| {
        // Permits taken under another count or window come back when their taker said.
        let permits = if level.pace.to_bits() == pace.to_bits() {
            level.permits
        } else {
            level.permits * level.pace / pace
        };
        (permits - now.saturating_duration_since(level.since).as_nanos() as f64 / pace).max(0.0)
    });
    let time = |permits: f64| Duration::from_nanos((permits * pace).ceil() as u64);
    let limit = |permits: f64| Limit {
        used: Used::Smooth(Level { permits, since: now, pace }),
        until: now + time(permits),
    };
    // The cast turns a value below zero into zero.
    let left = |level: f64| (capacity - level) as u64;
    let wait = if take.wanted == 0 { Duration::ZERO } else { time(level + wanted - capacity) };
    let allowed = wait <= take.longest_wait;
    let level = if allowed { level + wanted } else { level };
    let decision = Decision {
        allowed,
        remaining: left(level),
        retry_after: wait,
        limit: take.capacity,
        reset: time(level),
    };
    (decision, limit(level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_have_ended_are_removed() {
        let mut limits = MemoryLimits::default();
        let start = Instant::now();
        for address in 0..10_000 {
            let now = start + Duration::from_millis(address);
            let form = if address % 2 == 0 { Form::Fixed } else { Form::Smooth };
            let key = Key::new(format!("ip:{address}"));
            let take = Take {
                key: &key,
                form,
                capacity: 1,
                window: Duration::from_millis(100),
                wanted: 1,
                longest_wait: Duration::ZERO,
                deadline: now,
            };
            assert!(limits.take(&take, now).unwrap().allowed);
            assert!(
                limits.by_key.len() <= 400,
                "{} limits are kept, and 100 are in use",
                limits.by_key.len()
            );
        }
    }

    #[test]
    fn in_no_stretch_of_time_more_come_due_than_were_there_and_came_back() {
        let (mut limits, key, start) =
            (MemoryLimits::default(), Key::new("ip".into()), Instant::now());
        let (capacity, window) = (7, Duration::from_millis(50));
        let mut due: Vec<(Duration, u64)> = Vec::new();
        let (mut now, mut promised) = (start, 0);
        for call in 0..1500_u64 {
            let (wanted, longest_wait) =
                (1 + call * 7 % 3, Duration::from_millis([0, 1, 20, 300][(call * 5 % 4) as usize]));
            let take = Take {
                key: &key,
                form: Form::Smooth,
                capacity,
                window,
                wanted,
                longest_wait,
                deadline: now,
            };
            let decision = limits.take(&take, now).unwrap();
            assert_eq!(
                decision.allowed,
                decision.retry_after <= longest_wait,
                "{decision:?} within {longest_wait:?}"
            );
            if decision.allowed {
                due.push((now + decision.retry_after - start, wanted));
                promised += u64::from(!decision.retry_after.is_zero());
            }
            now += Duration::from_micros(call * 7919 % 20_000);
        }
        assert!(promised > 100 && due.len() > 500, "{promised} promises, {} permits", due.len());
        for (first, (from, _)) in due.iter().enumerate() {
            let mut sum = 0;
            for (to, permits) in &due[first..] {
                sum += permits;
                let most =
                    capacity as f64 * (1.0 + (*to - *from).as_secs_f64() / window.as_secs_f64());
                assert!(sum as f64 <= most + 1e-3, "{sum} come due in {:?}", *to - *from);
            }
        }
    }
}
